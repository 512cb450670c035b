"""The paper's numbers as printed (paper.yaml), under the names that the code reads them by."""

from pathlib import Path
from typing import Any

import yaml

_PRINTED: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))

OURS = "dograph-paper"  # the paper's own method
AVERAGE = "average"  # of the tasks
NAMES: dict[str, str] = _PRINTED["names"]  # of the methods, by label
MODELS: dict[str, str] = _PRINTED["models"]  # of the tables of downstream tasks
REASONING, READING, LANGUAGE = (tuple(_PRINTED[g]) for g in ("reasoning", "reading", "language"))
TASKS: tuple[str, ...] = (*REASONING, *READING, *LANGUAGE)
DOWNSTREAM: dict[str, dict[str, list[float]]] = _PRINTED["downstream"]  # nine tasks, their average
VALIDATION_LOSS: dict[str, float] = _PRINTED["validation_loss"]
OBJECTIVES: dict[str, tuple[str, float]] = _PRINTED["objectives"]  # complexity, loss
NUM_DOMAINS: list[int] = _PRINTED["num_domains"]
BEST_NUM_DOMAINS: int = _PRINTED["best_num_domains"]
HOURS: float = _PRINTED["hours"]
OVER_REGMIX: float = _PRINTED["over_regmix"]
BUDGET_TOKENS: float = _PRINTED["budget_tokens"]
ERRATA: list[dict[str, Any]] = _PRINTED["errata"]


def score(table: str, method: str, task: str) -> float | None:
    """Of a task or of the average; None if the paper does not have the method."""
    row = DOWNSTREAM[table].get(method)
    return None if row is None else row[(*TASKS, AVERAGE).index(task)]


def errata(name: str) -> list[str]:
    """One line per inconsistency that concerns an artefact."""
    return [f"{one['where']}: {one['problem']}" for one in ERRATA if name in one["artefacts"]]

"""From finished cells to what the tables say: JSON values throughout.

Shapes: N seeds, S sources, n blocks of a source, R resamples.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dograph.compare.arms import Ask
from dograph.compare.cells import Cell
from dograph.compare.contrasts import Runs, contrasts
from dograph.compare.notes import notes_of
from dograph.compare.planning import Planned, Plans
from dograph.data.corpus import Corpus
from dograph.plan.jobs import Result
from dograph.stats import METRICS, summaries
from dograph.train.environment import describe_environment
from dograph.train.metrics import read_metrics
from dograph.train.run_dir import RunDirectory

Findings = dict[str, Any]
FORMAT, VERSION = "dograph-compare", 1


@dataclass(frozen=True, slots=True)
class Outcome:
    """What cells came to, by label."""

    results: dict[str, Result]
    failures: dict[str, str]


def find(
    ask: Ask, corpus: Corpus, plans: Plans, cells: Sequence[Cell], outcome: Outcome
) -> Findings:
    """Everything: per cell, per method, per source; differences, intervals, costs, versions."""
    tokens = corpus.tokens_by_source()
    rows = [_cell_row(cell, outcome, plans, tokens) for cell in cells]
    methods = []
    for method in ask.methods:
        own = [row for row in rows if row["method"] == method.label]
        planned = [plan for key, plan in plans.made.items() if key[0] == method.label]
        methods.append(_method_row(method.label, dict(method.mixer), own, planned))
    _add_contrasts(ask, methods, rows, tokens)
    findings = {
        "format": FORMAT,
        "version": VERSION,
        "command": ask.command,
        "budget": ask.budget,
        "baseline": ask.methods[0].label,
        "seeds": list(ask.seeds),
        "replan": ask.replan,
        "config": ask.config.model_dump(mode="json"),
        "proxy": None if ask.proxy is None else ask.proxy.model_dump(mode="json"),
        "corpus": {
            "folder": str(corpus.directory),
            "digest": corpus.digest,
            "tokens": tokens,
        },
        "environment": describe_environment(),
        "methods": methods,
        "cells": rows,
        "failures": outcome.failures,
    }
    return findings | {"notes": notes_of(findings)}


def _cell_row(
    cell: Cell, outcome: Outcome, plans: Plans, tokens: Mapping[str, int]
) -> dict[str, Any]:
    plan, result = (
        plans.made.get(plans.key(cell.method, cell.seed)),
        outcome.results.get(cell.label),
    )
    row: dict[str, Any] = {
        "label": cell.label,
        "method": cell.method,
        "seed": cell.seed,
        "run": cell.config.run,
        "command": cell.command,
        "steps": cell.config.train.steps,
        "tokens": cell.config.tokens,
        "flops": {
            "train": cell.flops,
            "plan": cell.price.plan,
            "total": cell.flops + cell.price.plan,
        },
        "error": outcome.failures.get(cell.label),
    }
    if result is None:
        return row
    loss_S = np.array([result.losses[source] for source in result.losses])
    share_S = np.array([float(tokens[source]) for source in result.losses])
    planning = plan.seconds if plan is not None else 0.0
    total = result.seconds + planning
    return row | {
        "seconds": {"train": result.seconds, "plan": planning, "total": total},
        "peak_bytes": result.peak_bytes,
        "losses": dict(result.losses),
        "summaries": {name: float(value) for name, value in summaries(loss_S, share_S).items()},
        "epochs": dict(result.epochs),
        "curve": [[step, dict(losses)] for step, losses in result.curve],
    }


def _method_row(
    label: str, mixer: Mapping[str, Any], cells: Sequence[dict[str, Any]], plans: Sequence[Planned]
) -> dict[str, Any]:
    done = [cell for cell in cells if cell["error"] is None]
    row: dict[str, Any] = {
        "label": label,
        "mixer": dict(mixer),
        "cells": [cell["label"] for cell in cells],
        "failed": [cell["label"] for cell in cells if cell["error"] is not None],
        "plans": [plan.record() for plan in plans],
        "one_plan_for_all_seeds": len(plans) == 1 and plans[0].seed is None,
        "steps": sorted({cell["steps"] for cell in cells}),
        "tokens": sorted({cell["tokens"] for cell in cells}),
        "flops": {
            part: _mean([cell["flops"][part] for cell in cells])
            for part in ("train", "plan", "total")
        },
    }
    if not done:
        return row
    sources = list(done[0]["losses"])
    epochs = {name: max(cell["epochs"][name] for cell in done) for name in done[0]["epochs"]}
    most = max(epochs, key=lambda name: epochs[name])
    return row | {
        "seconds": {
            part: _mean([cell["seconds"][part] for cell in done])
            for part in ("train", "plan", "total")
        },
        "peak_bytes": max(cell["peak_bytes"] for cell in done),
        "losses": {name: _spread([c["summaries"][name] for c in done]) for name in METRICS},
        "sources": {name: _spread([c["losses"][name] for c in done]) for name in sources},
        "epochs": epochs,
        "most_epochs": {"source": most, "epochs": epochs[most]},
    }


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _spread(values: Sequence[float]) -> dict[str, Any]:
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {"mean": _mean(values), "deviation": deviation, "seeds": len(values)}


def _add_contrasts(
    ask: Ask,
    methods: Sequence[dict[str, Any]],
    cells: Sequence[dict[str, Any]],
    tokens: Mapping[str, int],
) -> None:
    """Give every method but the baseline its differences to it."""
    runs = {
        method["label"]: {
            cell["seed"]: _runs_of(cell)
            for cell in cells
            if cell["method"] == method["label"] and cell["error"] is None
        }
        for method in methods
    }
    others = [method for method in methods if method["label"] != ask.methods[0].label]
    found = contrasts(runs, ask.methods[0].label, [m["label"] for m in others], tokens)
    for method in others:
        method["differences"] = found[method["label"]]


def _runs_of(cell: Mapping[str, Any]) -> Runs:
    """A cell's losses by source, and by block where the run has kept them."""
    rows: list[Any] = read_metrics(RunDirectory(Path(cell["run"])).validation_file)
    blocks = {
        row["source"]: (np.array(row["predictions"], float), np.array(row["loss_nats"]))
        for row in rows
    }
    return Runs(cell["losses"], cell["summaries"], blocks)


def as_json(findings: Findings) -> str:
    """JSON that every reader takes: what is not finite is null."""
    return json.dumps(_finite(findings), indent=2, ensure_ascii=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value

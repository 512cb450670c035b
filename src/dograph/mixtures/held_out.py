"""Predictions judged on another table: runs, often of larger models, that no fit has seen.

Shapes: N runs, S sources, V targets.
"""

from typing import Any

import numpy as np

from dograph.errors import ConfigError
from dograph.mixtures.checks import listed
from dograph.mixtures.objective import Objective
from dograph.mixtures.scores import score
from dograph.mixtures.tables import MixtureTable


def score_table(
    objective: Objective, shares: dict[str, float], table: MixtureTable, test: MixtureTable
) -> dict[str, Any]:
    """Spearman, Pearson, mean error and bias on `test`, for the objective and for each target.

    Columns are matched by name. A source that the test lacks was not drawn from there; one that
    only the test has cannot be predicted for. Targets that the test lacks are named.
    """
    notes = list(test.notes)
    guess_NV = objective.each(_aligned(table, test, notes))
    if same := _shared_runs(table, test):
        notes.append(
            f"{same} of the {len(test.runs)} runs of the test table are in the fitted table too: "
            "on these the fit is judged by what it has seen"
        )
    there = [name for name in shares if name in test.targets]
    if not there:
        raise ConfigError(
            f"the test table has no loss of {listed(list(shares))}; it has {listed(test.targets)}"
        )
    absent = [name for name in shares if name not in there]
    if absent:
        notes.append(f"the test table has no loss of {listed(absent)}: judged without the whole")
    loss_NV = np.full((len(test.runs), len(shares)), np.nan)
    for column, name in enumerate(shares):
        if name in there:
            loss_NV[:, column] = test.loss_NV[:, test.targets.index(name)]
    each = {
        name: score(guess_N, loss_N).as_json()
        for name, guess_N, loss_N in zip(shares, guess_NV.T, loss_NV.T, strict=True)
        if name in there
    }
    whole = (
        None
        if absent
        else score(guess_NV @ objective.share_V, loss_NV @ objective.share_V).as_json()
    )
    for name, scores in ({"the objective": whole} if whole else each).items():
        if scores["note"]:
            missing = "no correlation, " if scores["spearman"] is None else ""
            notes.append(f"test table, {name}: {missing}{scores['note']}")
    return {"runs": len(test.runs), "objective": whole, "targets": each, "notes": notes}


def _aligned(table: MixtureTable, test: MixtureTable, notes: list[str]) -> np.ndarray:
    """The test's weights in the order of the table's sources."""
    foreign = [
        source
        for column, source in enumerate(test.sources)
        if source not in table.sources and test.weight_NS[:, column].any()
    ]
    if foreign:
        raise ConfigError(
            f"the test table draws from {listed(foreign)}, which the table fitted on does not "
            f"have; it has {listed(table.sources)}"
        )
    absent = [source for source in table.sources if source not in test.sources]
    if absent:
        notes.append(f"the test table does not name {listed(absent)}: taken as 0 there")
    weight_NS = np.zeros((len(test.runs), len(table.sources)))
    for column, source in enumerate(table.sources):
        if source in test.sources:
            weight_NS[:, column] = test.weight_NS[:, test.sources.index(source)]
    return weight_NS


def _shared_runs(table: MixtureTable, test: MixtureTable) -> int:
    """How many runs of `test` have both mixture and losses of a run of `table`."""

    def rows(of: MixtureTable) -> list[tuple[frozenset[tuple[str, float]], ...]]:
        both = ((of.sources, of.weight_NS.tolist()), (of.targets, of.loss_NV.tolist()))
        parts = [
            [frozenset(zip(names, (round(v, 9) for v in row), strict=True)) for row in values]
            for names, values in both
        ]
        return list(zip(*parts, strict=True))

    known = set(rows(table))
    return sum(row in known for row in rows(test))

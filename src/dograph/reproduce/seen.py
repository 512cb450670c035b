"""Artefacts made of probes: the paper's Figure 1, and the sources of its domains.

Runs of one method are repetitions, so metrics are means over seeds with 95 % t intervals.

Shapes: N rows, K sketch, M domains, S sources, C components.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from dograph.compare.tables import TextTable
from dograph.errors import DographError
from dograph.eval.gradients import principal, read_probe
from dograph.eval.inspect import perceived
from dograph.eval.merging import Merging, merging
from dograph.reproduce.verdicts import Claim, Reproduction, RunMetric, Study
from dograph.stats import ANY, SHARE_CHANGE

NUM_DOMAINS = 11
_HEADS = {
    "separation": "separation [95 %]",
    "separation_directions": "of directions [95 %]",
    "nmi": "NMI [95 %]",
    "purity": "purity [95 %]",
}
_SHARES = ("nmi", "purity")  # between 0 and 1


def gradient_pca(study: Study) -> Reproduction:
    """fig:domain_evolution: numbers for what the picture shows to the eye."""
    by_method, notes = _merged(study)
    apart = "sources are apart in gradient space at first and merge in training"
    follow = "domains follow sources less as training goes on"
    tables, verdicts, data = [], [], {}
    for label, many in by_method.items():
        tables.append(_over_training(label, many, tuple(_HEADS)))
        data[label] = {**many.record(), "pca": _explained(Path(many.runs[0]), many.steps)}
        verdicts += _changes(label, many, apart, ("separation", "separation_directions"))
        verdicts += _changes(label, many, follow, ("nmi",))
    notes += [
        "separation: unbiased MMD^2 between two sources over their spread, mean over pairs",
        "pictures of the probes of a run: dograph report RUN --figures DIR",
    ]
    return Reproduction(tables, data, verdicts, notes)


def clusters(study: Study) -> Reproduction:
    """fig:model_centric_domains: the sources in each of 11 domains, early and late."""
    by_method, notes = _merged(study)
    says = f"the {NUM_DOMAINS} domains are made of more sources late than early"
    tables, verdicts, data = [], [], {}
    for label, many in by_method.items():
        tables.append(_over_training(label, many, _SHARES))
        compositions = {}
        for step in dict.fromkeys((many.steps[0], many.steps[-1])):
            counts = compositions[str(step)] = composition(Path(many.runs[0]), step)
            rows = []
            for domain, own in enumerate(counts["rows"], start=1):
                shares = [f"{100 * count / sum(own):.0f}" if count else "" for count in own]
                rows.append([str(domain), str(sum(own)), *shares])
            title = f"{label}, step {step}: sources of each domain in per cent"
            tables.append(TextTable(title, ("domain", "rows", *counts["sources"]), rows))
        data[label] = {**many.record(), "composition": compositions}
        verdicts += _changes(label, many, says, _SHARES)
    notes += [
        "domains: K-means of the directions of all probe rows; compositions are of the first seed",
        "by chance: the same domains against shuffled sources",
    ]
    return Reproduction(tables, data, verdicts, notes)


def composition(run: Path, step: int, num_domains: int = NUM_DOMAINS) -> dict[str, Any]:
    """How many rows of every source are in each domain, largest domain first."""
    probe = read_probe(run, step)
    label_N, _ = perceived(probe.sketch_NK, num_domains, 0)
    count_MS = F.one_hot(label_N, num_domains).T @ F.one_hot(probe.source_N, len(probe.sources))
    order_M = torch.argsort(count_MS.sum(dim=1), descending=True, stable=True)
    return {"sources": probe.sources, "rows": count_MS[order_M].tolist()}


def _merged(study: Study) -> tuple[dict[str, Merging], list[str]]:
    """By method, and a note on everything that was left out."""
    by_method: dict[str, Merging] = {}
    notes = []
    for label in study.findings.labels:
        runs = [Path(cell.run) for cell in study.findings.finished if cell.method == label]
        if not runs:
            continue
        try:
            many = by_method[label] = merging(runs, NUM_DOMAINS)
            notes += [f"{source} has too few probe rows to be compared" for source in many.left_out]
        except DographError as error:
            notes.append(f"{label} is left out: {error}")
    return by_method, list(dict.fromkeys(notes))


def _over_training(label: str, many: Merging, names: Sequence[str]) -> TextTable:
    rows = []
    for at in many.figures:
        cells = [getattr(at, name).text(".3f") for name in names]
        rows.append([str(at.step), *cells, f"{at.nmi_by_chance:.3f}, {at.purity_by_chance:.3f}"])
    columns = ("step", *(_HEADS[name] for name in names), "by chance (NMI, purity)")
    seeds = "1 seed" if len(many.runs) == 1 else f"{len(many.runs)} seeds"
    over = ", intervals over seeds" if len(many.runs) > 1 else ""
    title = f"{label}: {seeds}, {many.figures[0].rows} held-out rows{over}"
    return TextTable(title, columns, rows)


def _changes(label: str, many: Merging, says: str, names: Iterable[str]) -> list[Claim]:
    """From the first probe to the last, paired by run."""
    if len(many.steps) < 2:
        return [Claim(says, -1, label).untested(f"{label} was probed once")]
    claims = []
    for name in names:
        ends = {
            when: {run: getattr(own[at], name).value for run, own in enumerate(many.by_run)}
            for when, at in (("first", 0), ("last", -1))
        }
        metric = RunMetric(ends, difference_range=SHARE_CHANGE if name in _SHARES else ANY)
        text = f"{says} ({label}, {name.replace('_', ' of ')}, last minus first)"
        claims.append(Claim(text, -1, label).judge(metric.difference("last", "first")))
    return claims


def _explained(run: Path, steps: Sequence[int]) -> dict[str, list[float]]:
    """The shares of the variance on the first two principal axes of each probe."""
    probes = {str(step): principal(read_probe(run, step).sketch_NK) for step in steps}
    return {step: components.explained_C.tolist() for step, components in probes.items()}

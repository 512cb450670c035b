"""Artefacts made of probes: the paper's Figure 1, and what its domains are made of.

Runs of one method are repetitions, so figures are means over seeds with 95 % t intervals.

Shapes: N rows, K sketch, M domains, S sources, C components.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dograph.compare.findings import Findings
from dograph.errors import DographError
from dograph.eval.gradients import probe_pca, read_probe
from dograph.eval.inspect import perceived
from dograph.eval.merging import Merging, merging
from dograph.files import write_json
from dograph.reproduce.verdicts import Claim, Figure, Reproduction, Study, TextTable
from dograph.stats import ANY, SHARE_CHANGE

NUM_DOMAINS = 11
COORDINATES = "pca.json"
_FIGURES = {
    "separation": "separation [95 %]",
    "separation_directions": "of directions [95 %]",
    "nmi": "NMI [95 %]",
    "purity": "purity [95 %]",
}
_SHARES = ("nmi", "purity")  # between 0 and 1


def gradient_pca(study: Study) -> Reproduction:
    """fig:domain_evolution: coordinates in a file, and what the eye is asked to see in numbers."""
    (ask,) = study.asks.values()
    found, left_out = _merged(study.only)
    coordinates = {label: _coordinates(Path(many.runs[0])) for label, many in found.items()}
    file = ask.out / COORDINATES
    try:
        written = json.loads(file.read_text(encoding="utf-8"))  # of methods looked at before
    except (OSError, ValueError):
        written = {}
    write_json(file, written | coordinates)
    sheets, verdicts, data = [], [], {}
    for label, many in found.items():
        sheets.append(_over_training(label, many, tuple(_FIGURES)))
        data[label] = {**many.record(), "pca": coordinates[label]["explained"]}
        says = "sources are apart in gradient space at first and merge in training"
        verdicts += _changes(label, many, says, ("separation", "separation_directions"))
        says = "domains follow sources less as training goes on"
        verdicts += _changes(label, many, says, ("nmi",))
    notes = [
        *left_out,
        "separation: unbiased MMD^2 between two sources over their spread, mean over pairs",
        f"coordinates of every probe row of the first seed: {file}",
    ]
    return Reproduction(sheets, data, verdicts, notes)


def clusters(study: Study) -> Reproduction:
    """fig:model_centric_domains: 11 domains, of which sources they are made, early and late."""
    found, left_out = _merged(study.only)
    sheets, verdicts, data = [], [], {}
    for label, many in found.items():
        sheets.append(_over_training(label, many, _SHARES))
        tables = {}
        for step in dict.fromkeys((many.steps[0], many.steps[-1])):
            table = tables[str(step)] = composition(Path(many.runs[0]), step)
            rows = []
            for domain, counts in enumerate(table["rows"], start=1):
                size = sum(counts)
                shares = [f"{100 * count / size:.0f}" if count else "" for count in counts]
                rows.append([str(domain), str(size), *shares])
            title = f"{label}, step {step}: sources of each domain in per cent"
            sheets.append(TextTable(title, ("domain", "rows", *table["sources"]), rows))
        data[label] = {**many.record(), "composition": tables}
        says = f"the {NUM_DOMAINS} domains are made of more sources late than early"
        verdicts += _changes(label, many, says, _SHARES)
    notes = [
        *left_out,
        "domains: K-means of the directions of all probe rows; compositions are of the first seed",
        "by chance: the same domains against shuffled sources",
    ]
    return Reproduction(sheets, data, verdicts, notes)


def composition(run: Path, step: int, num_domains: int = NUM_DOMAINS) -> dict[str, Any]:
    """How many rows of every source are in each domain, largest domain first."""
    probe = read_probe(run, step)
    label_N, _ = perceived(probe.sketch_NK, num_domains, 0)
    count_MS = torch.zeros(num_domains, len(probe.sources), dtype=torch.long)
    one_N = torch.ones_like(label_N)
    count_MS.index_put_((label_N.cpu(), probe.source_N), one_N.cpu(), accumulate=True)
    order_M = torch.argsort(count_MS.sum(dim=1), descending=True, stable=True)
    return {"sources": probe.sources, "rows": count_MS[order_M].tolist()}


def _merged(findings: Findings) -> tuple[dict[str, Merging], list[str]]:
    """By method, and what had to be left out."""
    found: dict[str, Merging] = {}
    told = []
    for label in findings.labels:
        runs = [Path(cell.run) for cell in findings.finished if cell.method == label]
        if not runs:
            continue
        try:
            many = found[label] = merging(runs, NUM_DOMAINS)
            told += [f"{source} has too few probe rows to be compared" for source in many.left_out]
        except DographError as error:
            told.append(f"{label} is left out: {error}")
    return found, list(dict.fromkeys(told))


def _over_training(label: str, many: Merging, names: Sequence[str]) -> TextTable:
    rows = []
    for figures in many.figures:
        cells = [getattr(figures, name).text(".3f") for name in names]
        chance = f"{figures.nmi_by_chance:.3f}, {figures.purity_by_chance:.3f}"
        rows.append([str(figures.step), *cells, chance])
    columns = ("step", *(_FIGURES[name] for name in names), "by chance (NMI, purity)")
    runs = "1 seed" if len(many.runs) == 1 else f"{len(many.runs)} seeds"
    over = "rows" if many.over == "rows" else "seeds"
    title = f"{label}: {runs}, {many.figures[0].rows} held-out rows, intervals over {over}"
    return TextTable(title, columns, rows)


def _changes(label: str, many: Merging, says: str, names: Sequence[str]) -> list[Claim]:
    """Last less first, run by run; runs go by their number."""
    if len(many.steps) < 2:
        return [Claim(says, -1, label).untested(f"{label} was probed once")]
    found = []
    for name in names:
        both = {
            when: {run: getattr(own[at], name).value for run, own in enumerate(many.by_run)}
            for when, at in (("first", 0), ("last", -1))
        }
        figure = Figure(both, ends_of_change=SHARE_CHANGE if name in _SHARES else ANY)
        told = f"{says} ({label}, {name.replace('_', ' of ')}, last less first)"
        found.append(Claim(told, -1, label).judge(figure.less("last", "first")))
    return found


def _coordinates(run: Path) -> dict[str, Any]:
    """Each probe on axes of its own, as in the paper: on the last one's, early ones are a dot."""
    found = probe_pca(run, basis="own")
    return {
        "run": str(run),
        "sources": found.sources,
        "source": found.source_N.tolist(),
        "explained": {str(step): p.explained_C.tolist() for step, p in found.at.items()},
        "coordinates": {
            str(step): [[round(float(x), 6) for x in row] for row in p.coordinate_NC]
            for step, p in found.at.items()
        },
    }

"""Artefacts made of probes: the paper's Figure 1, and the sources of its domains.

Do sources that are apart in gradient space at first merge during training, and domains with them?

Runs of one method are repetitions, so metrics are means over seeds with 95 % t intervals.

Shapes: N rows, K sketch, M domains, S sources, C components.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dograph.compare.tables import TextTable
from dograph.domains.partition import agreement, agreement_of_counts
from dograph.errors import ConfigError, DographError, RunError
from dograph.eval.gradients import LEAST_ROWS, Probe, principal, probed_steps, read_probe
from dograph.eval.inspect import pairwise_mmd, perceived
from dograph.files import plain
from dograph.reproduce.verdicts import Claim, Reproduction, RunMetric, Study
from dograph.rng import stream
from dograph.stats import ANY, SHARE, SHARE_CHANGE, Estimate, mean_estimate

NUM_DOMAINS = 11
SEED = 0  # of K-means and of shuffles
RELABELLINGS = 200  # for agreement by chance
# Estimates and the range of their intervals; a separation is unbiased, so it may be below 0.
ENDS = {"separation": ANY, "separation_directions": ANY, "nmi": SHARE, "purity": SHARE}
_HEADS = {"separation_directions": "of directions", "nmi": "NMI"}  # if not the name itself
_SHARES = ("nmi", "purity")  # between 0 and 1


@dataclass(frozen=True, slots=True)
class ProbeFigures:
    """The figures of one probe, or their means over runs."""

    step: int
    separation: Estimate  # of sketches
    separation_directions: Estimate  # of sketches divided by their norms
    nmi: Estimate
    nmi_by_chance: float  # of the same domains with shuffled sources: the baseline of nmi
    purity: Estimate
    purity_by_chance: float
    rows: int


@dataclass(frozen=True, slots=True)
class Merging:
    """The probes of one run or of several, step by step."""

    runs: list[Path]
    steps: list[int]
    sources: list[str]
    left_out: list[str]  # sources with too few rows
    figures: list[ProbeFigures]  # step by step; means if there are several runs
    by_run: list[list[ProbeFigures]]  # run by run, without intervals


def gradient_pca(study: Study) -> Reproduction:
    """fig:domain_evolution: numbers for what the picture shows to the eye."""
    by_method, notes = _merged(study)
    apart = "sources are apart in gradient space at first and merge in training"
    follow = "domains follow sources less as training goes on"
    tables, verdicts, data = [], [], {}
    for label, many in by_method.items():
        tables.append(_over_training(label, many, tuple(ENDS)))
        # The shares of the variance on the first two principal axes of each probe.
        explained = {
            str(step): principal(read_probe(many.runs[0], step).sketch_NK)[1].tolist()
            for step in many.steps
        }
        data[label] = {**plain(many), "pca": explained}
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
            counts = compositions[str(step)] = composition(many.runs[0], step)
            rows = []
            for domain, own in enumerate(counts["rows"], start=1):
                shares = [f"{100 * count / sum(own):.0f}" if count else "" for count in own]
                rows.append([str(domain), str(sum(own)), *shares])
            title = f"{label}, step {step}: sources of each domain in per cent"
            tables.append(TextTable(title, ("domain", "rows", *counts["sources"]), rows))
        data[label] = {**plain(many), "composition": compositions}
        verdicts += _changes(label, many, says, _SHARES)
    notes += [
        "domains: K-means of the directions of all probe rows; compositions are of the first seed",
        "by chance: the same domains against shuffled sources",
    ]
    return Reproduction(tables, data, verdicts, notes)


def composition(run: Path, step: int, num_domains: int = NUM_DOMAINS) -> dict[str, Any]:
    """How many rows of every source are in each domain, largest domain first."""
    probe = read_probe(run, step)
    label_N, _ = perceived(probe.sketch_NK, num_domains, SEED)
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
            many = by_method[label] = merging(runs)
            notes += [f"{source} has too few probe rows to be compared" for source in many.left_out]
        except DographError as error:
            notes.append(f"{label} is left out: {error}")
    return by_method, list(dict.fromkeys(notes))


def _over_training(label: str, many: Merging, names: Sequence[str]) -> TextTable:
    rows = []
    for at in many.figures:
        cells = [getattr(at, name).text(".3f") for name in names]
        rows.append([str(at.step), *cells, f"{at.nmi_by_chance:.3f}, {at.purity_by_chance:.3f}"])
    heads = [f"{_HEADS.get(name, name)} [95 %]" for name in names]
    columns = ("step", *heads, "by chance (NMI, purity)")
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
        claims.append(Claim(text, -1, label).judge({"": metric.difference("last", "first")}))
    return claims


def separation(sketch_NK: Tensor, source_N: Tensor) -> float:
    """Mean over pairs of sources of MMD^2 over their spread; infinite if a pair has no spread."""
    num_sources = int(source_N.max()) + 1
    pairs = pairwise_mmd(sketch_NK, source_N, num_sources, num_permutations=0, seed=0)
    return fmean(pair.separation for pair in pairs.values())


def perception(probe: Probe, num_domains: int) -> ProbeFigures:
    """The figures of a probe whose sources all have LEAST_ROWS rows or more.

    Domains are those of `dograph inspect`: spherical K-means of centred directions.
    """
    sketch_NK, source_N = probe.sketch_NK.double(), probe.source_N
    label_N, _ = perceived(sketch_NK, num_domains, SEED)
    nmi, purity = agreement(label_N, source_N, num_domains, len(probe.sources))
    nmi_by_chance, purity_by_chance = agreement_by_chance(label_N, source_N, SEED).tolist()
    return ProbeFigures(
        step=probe.step,
        separation=Estimate(separation(sketch_NK, source_N)),
        separation_directions=Estimate(separation(F.normalize(sketch_NK), source_N)),
        nmi=Estimate(float(nmi)),
        nmi_by_chance=nmi_by_chance,
        purity=Estimate(float(purity)),
        purity_by_chance=purity_by_chance,
        rows=len(sketch_NK),
    )


def agreement_by_chance(label_N: Tensor, source_N: Tensor, seed: int) -> Tensor:
    """NMI and purity of domains against shuffled sources, mean over shuffles, (2,).

    Neither is 0 by chance: with many domains and few rows both are well above it.
    """
    order_RN = np.tile(np.arange(len(source_N)), (RELABELLINGS, 1))
    stream(seed, "analyses", "chance").permuted(order_RN, axis=1, out=order_RN)
    origin_RNS = F.one_hot(source_N).double()[torch.from_numpy(order_RN)]
    count_RMS = F.one_hot(label_N).double().T @ origin_RNS
    return torch.stack(agreement_of_counts(count_RMS)).mean(dim=1)


def merging(runs: Sequence[Path], num_domains: int = NUM_DOMAINS) -> Merging:
    """Figures of every probe of these runs, which differ by their seeds; means with t intervals."""
    steps_of = {str(run): probed_steps(run) for run in runs}
    steps, *others = steps_of.values()
    if any(other != steps for other in others):
        raise ConfigError(
            f"runs must be probed after the same steps, got {steps_of}; compare complete runs with "
            "the same train.steps and probe.at"
        )
    # The rows of a run are the same at every probe, so the first one has its sources.
    kept_of = {str(run): _comparable(run, steps[0]) for run in runs}
    sources_of = {run: probe.sources for run, (probe, _) in kept_of.items()}
    (first, left_out), *_ = kept_of.values()
    if any(own != first.sources for own in sources_of.values()):
        raise ConfigError(f"runs must have the same sources, got {sources_of}")
    by_run = [
        [perception(_comparable(run, step)[0], num_domains) for step in steps] for run in runs
    ]
    figures = []
    for same_step in zip(*by_run, strict=True):  # of a single run its own figures
        means: dict[str, Any] = {
            name: mean_estimate([getattr(own, name).value for own in same_step]).within(ends)
            for name, ends in ENDS.items()
        }
        for name in ("nmi_by_chance", "purity_by_chance"):
            means[name] = fmean(getattr(own, name) for own in same_step)
        rows = min(own.rows for own in same_step)
        figures.append(ProbeFigures(step=same_step[0].step, rows=rows, **means))
    return Merging(list(runs), steps, first.sources, left_out, figures, by_run)


def _comparable(run: Path, step: int) -> tuple[Probe, list[str]]:
    """A probe without the sources that have too few rows, and their names."""
    whole = read_probe(run, step)
    count_S = torch.bincount(whole.source_N, minlength=len(whole.sources))
    kept_S = count_S >= LEAST_ROWS
    if kept_S.sum() < 2:
        rows = dict(zip(whole.sources, count_S.tolist(), strict=True))
        raise RunError(
            f"the probes of {run} cannot compare sources: rows of each are {rows}, and two sources "
            f"need {LEAST_ROWS} each. Train with a higher probe.rows, or more validation text"
        )
    row_N = kept_S[whole.source_N]
    kept = replace(
        whole,
        sources=list(compress(whole.sources, kept_S)),
        rows=list(compress(whole.rows, row_N)),
        sketch_NK=whole.sketch_NK[row_N],
        source_N=(kept_S.cumsum(dim=0) - 1)[whole.source_N[row_N]],
        label_N=whole.label_N[row_N],
        nearest={},  # by the numbers of all rows
    )
    return kept, list(compress(whole.sources, ~kept_S))

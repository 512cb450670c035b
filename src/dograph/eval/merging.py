"""Do sources that are separate in gradient space at first merge during training?

Computed from the probes of one run or of several, step by step. Intervals are over runs with
different seeds; one run has none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dograph.domains.partition import agreement, agreement_of_counts
from dograph.errors import ConfigError, RunError
from dograph.eval import gradients
from dograph.eval.gradients import LEAST_ROWS, Probe
from dograph.eval.inspect import pairwise_mmd, perceived
from dograph.files import plain
from dograph.rng import stream
from dograph.stats import ANY, SHARE, Estimate, mean_estimate

RELABELLINGS = 200  # for agreement by chance
# Estimates and the range of their intervals; a separation is unbiased, so it may be below 0.
ENDS = {"separation": ANY, "separation_directions": ANY, "nmi": SHARE, "purity": SHARE}


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

    def record(self) -> dict[str, Any]:
        """JSON-ready: of an estimate, the value and the interval."""
        estimates: dict[str, Estimate] = {name: getattr(self, name) for name in ENDS}
        shown = {name: {"value": x.value, "interval": x.interval} for name, x in estimates.items()}
        record: dict[str, Any] = plain(self) | plain(shown)
        return record


@dataclass(frozen=True, slots=True)
class Merging:
    """The probes of one run or of several, step by step."""

    runs: list[Path]
    steps: list[int]
    sources: list[str]
    left_out: list[str]  # sources with too few rows
    num_domains: int
    seed: int
    figures: list[ProbeFigures]  # step by step; means if there are several runs
    by_run: list[list[ProbeFigures]]  # run by run, without intervals

    def record(self) -> dict[str, Any]:
        """JSON-ready; values that are not finite are null."""
        values: dict[str, Any] = plain(self)
        values["figures"] = [figures.record() for figures in self.figures]
        values["by_run"] = [[figures.record() for figures in own] for own in self.by_run]
        return values


def separation(sketch_NK: Tensor, source_N: Tensor) -> float:
    """Mean over pairs of sources of MMD^2 over their spread; infinite if a pair has no spread."""
    num_sources = int(source_N.max()) + 1
    pairs = pairwise_mmd(sketch_NK, source_N, num_sources, num_permutations=0, seed=0)
    return fmean(pair.separation for pair in pairs.values())


def perception(probe: Probe, num_domains: int, seed: int) -> ProbeFigures:
    """The figures of a probe whose sources all have LEAST_ROWS rows or more.

    Domains are those of `dograph inspect`: spherical K-means of centred directions.
    """
    sketch_NK, source_N = probe.sketch_NK.double(), probe.source_N
    label_N, _ = perceived(sketch_NK, num_domains, seed)
    nmi, purity = agreement(label_N, source_N, num_domains, len(probe.sources))
    nmi_by_chance, purity_by_chance = agreement_by_chance(label_N, source_N, seed).tolist()
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


def merging(runs: Sequence[Path], num_domains: int = 11, seed: int = 0) -> Merging:
    """Figures of every probe of these runs.

    Several runs are repetitions of one recipe with different seeds: their mean is that of the
    recipe, and its interval is over other seeds.
    """
    if num_domains < 1:
        raise ConfigError(f"num_domains must be at least 1, got {num_domains}")
    if not runs:
        raise ConfigError("no run was given; give one, or several that differ by their seeds")
    if len({run.resolve() for run in runs}) < len(runs):
        raise ConfigError(f"a run is given twice in {[str(run) for run in runs]}; give each once")
    steps_of = {str(run): gradients.probed_steps(run) for run in runs}
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
        [perception(_comparable(run, step)[0], num_domains, seed) for step in steps] for run in runs
    ]
    for (run, own), (other, its) in combinations(zip(runs, by_run, strict=True), 2):
        # A copy of a run would count as a second seed and narrow the interval.
        if len(own) > 1 and own[-1] == its[-1]:
            raise ConfigError(
                f"{run} and {other} have the same probe of step {steps[-1]}; give runs with "
                "different seeds"
            )
    return Merging(
        runs=list(runs),
        steps=steps,
        sources=first.sources,
        left_out=left_out,
        num_domains=num_domains,
        seed=seed,
        figures=[_mean_figures(same_step) for same_step in zip(*by_run, strict=True)],
        by_run=by_run,
    )


def _comparable(run: Path, step: int) -> tuple[Probe, list[str]]:
    """A probe without the sources that have too few rows, and their names."""
    whole = gradients.read_probe(run, step)
    kept, left_out = whole.keeping(LEAST_ROWS)
    if len(kept.sources) < 2:
        rows = {s: whole.source_N.tolist().count(n) for n, s in enumerate(whole.sources)}
        raise RunError(
            f"the probes of {run} cannot compare sources: rows of each are {rows}, and two sources "
            f"need {LEAST_ROWS} each. Train with a higher probe.rows, or more validation text"
        )
    return kept, left_out


def _mean_figures(same_step: Sequence[ProbeFigures]) -> ProbeFigures:
    """Means over runs with t intervals; of a single run its own figures."""
    first = same_step[0]
    if len(same_step) == 1:
        return first
    means: dict[str, Any] = {
        name: mean_estimate([getattr(figures, name).value for figures in same_step]).within(ends)
        for name, ends in ENDS.items()
    }
    for name in ("nmi_by_chance", "purity_by_chance"):
        means[name] = fmean(getattr(figures, name) for figures in same_step)
    rows = min(figures.rows for figures in same_step)
    return ProbeFigures(step=first.step, rows=rows, **means)

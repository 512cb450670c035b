"""Each method against the baseline: over seeds and over validation text, figure by figure.

Holm's correction is over the rows of a table: for the summaries, each column of the main table is
a family of one test for each method; the table by source is one family of all its cells.

Shapes: N seeds, M methods (the baseline and another), S sources, n blocks, R resamples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dograph.stats import (
    METRICS,
    Blocks,
    Difference,
    Interval,
    Resampled,
    claim,
    holm,
    paired_difference,
    resample,
    summaries,
)


@dataclass(frozen=True, slots=True)
class Runs:
    """One run's losses: by source, summed up, and block by block (predictions, losses)."""

    losses: Mapping[str, float]
    summaries: Mapping[str, float]
    blocks: Mapping[str, tuple[np.ndarray, np.ndarray]]


BySeed = Mapping[int, Runs]


def contrasts(
    runs: Mapping[str, BySeed], baseline: str, others: Sequence[str], tokens: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """For each of `others`: differences of the summaries and of every source."""
    seeds = {label: [seed for seed in runs[label] if seed in runs[baseline]] for label in others}
    sources = next((list(run.losses) for own in runs.values() for run in own.values()), [])
    over_text = {
        label: _resampled(runs[baseline], runs[label], seeds[label], sources) for label in others
    }
    share_S = np.array([float(tokens[source]) for source in sources])
    found: dict[str, dict[str, Any]] = {label: {"sources": {}} for label in others}

    tests = {
        (label, metric): _over_seeds(runs, baseline, label, seeds[label], metric, len(others))
        for metric in METRICS
        for label in others
    }
    for metric in METRICS:
        adjusted = holm([tests[label, metric].p_value for label in others])
        for label, p_holm in zip(others, adjusted, strict=True):
            text = over_text[label]
            figure = None if text is None else summaries(text.loss_RMNS, share_S)[metric]
            interval = _over_text(text, figure)
            found[label][metric] = _told(tests[label, metric], p_holm, interval)

    family = len(others) * len(sources)
    by_source = {
        (label, source): _over_seeds(runs, baseline, label, seeds[label], source, family)
        for label in others
        for source in sources
    }
    adjusted = holm([test.p_value for test in by_source.values()])
    for ((label, source), test), p_holm in zip(by_source.items(), adjusted, strict=True):
        text = over_text[label]
        figure = None if text is None else text.loss_RMNS[..., sources.index(source)]
        interval = _over_text(text, figure)
        found[label]["sources"][source] = _told(test, p_holm, interval)
    return found


def _over_seeds(
    runs: Mapping[str, BySeed],
    baseline: str,
    label: str,
    seeds: Sequence[int],
    name: str,
    family: int,
) -> Difference:
    """`name` is a summary's or a source's; no source has the name of a summary."""

    def value(run: Runs) -> float:
        return run.summaries[name] if name in METRICS else run.losses[name]

    pairs = [value(runs[label][seed]) - value(runs[baseline][seed]) for seed in seeds]
    return paired_difference(pairs, family)


def _resampled(
    baseline: BySeed, method: BySeed, seeds: Sequence[int], sources: Sequence[str]
) -> Resampled | None:
    """Both methods on the same resampled blocks; None where a run has none on disk."""
    pair = [[own[seed] for seed in seeds] for own in (baseline, method)]
    if not seeds or any(set(run.blocks) != set(sources) for own in pair for run in own):
        return None
    blocks_of = {}
    for source in sources:
        predictions = pair[0][0].blocks[source][0]
        assert all(
            np.array_equal(run.blocks[source][0], predictions) for own in pair for run in own
        ), "runs of one comparison read the same blocks"
        loss_MNn = np.array([[run.blocks[source][1] for run in own] for own in pair])
        blocks_of[source] = Blocks(predictions, np.moveaxis(loss_MNn, -1, 0))
    return resample(blocks_of)


def _over_text(resampled: Resampled | None, figure_RMN: np.ndarray | None) -> Interval | None:
    if resampled is None or figure_RMN is None:
        return None
    return resampled.interval(figure_RMN, 1, 0)


def _told(test: Difference, p_holm: float | None, over_text: Interval | None) -> dict[str, Any]:
    return {
        "mean": test.mean,
        "seeds": test.num_seeds,
        "interval": _pair(test.interval),
        "simultaneous": _pair(test.simultaneous),
        "p": test.p_value,
        "p_holm": p_holm,
        "over_items": _pair(over_text),
        "claim": claim(test, p_holm),
    }


def _pair(interval: Interval | None) -> dict[str, float] | None:
    return None if interval is None else asdict(interval)

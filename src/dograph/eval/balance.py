"""Is every source learned alike? The spread of losses over sources, and who gained.

Losses are in nats, by source, of one run's last validation. Sources differ in how well any model
can predict them, so that a spread alone says little; what says something is a spread, or a gain,
against a baseline trained on the same corpus with the same seed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import pstdev
from typing import Literal

from dograph.errors import ConfigError
from dograph.stats import Estimate, mean_estimate

Losses = Mapping[str, float]
Verdict = Literal["more balanced", "less balanced", "no clear difference"]


@dataclass(frozen=True, slots=True)
class Balance:
    """How unlike the losses of the sources are."""

    spread: float  # standard deviation over sources
    gap: float  # worst less best
    best: float
    worst: float
    best_source: str
    worst_source: str


@dataclass(frozen=True, slots=True)
class BalanceDifference:
    """A method less a baseline, seed by seed; losses in nats."""

    seeds: list[int]  # those that both have
    spread: Estimate
    gap: Estimate
    gains: dict[str, Estimate]  # baseline less method: above 0 the source gained
    verdict: Verdict  # of the spread


def balance(losses: Losses) -> Balance:
    """Standard deviation and best-worst gap of losses over sources.

    The deviation is that of these sources, divided by their number S: they are all there are.
    A loss that is not a number is the worst, and then there is no spread and no gap.
    """
    if len(losses) < 2:
        raise ConfigError(f"balance is over at least 2 sources, got {sorted(losses)}")
    ranked = {source: math.inf if math.isnan(loss) else loss for source, loss in losses.items()}
    best, worst = (choose(ranked, key=ranked.__getitem__) for choose in (min, max))
    values = list(losses.values())
    spread = pstdev(values) if all(map(math.isfinite, values)) else math.nan
    return Balance(spread, losses[worst] - losses[best], losses[best], losses[worst], best, worst)


def gains(losses: Losses, baseline: Losses) -> dict[str, float]:
    """What each source gained over the baseline, in nats: baseline less method."""
    _check_sources(losses, baseline)
    return {source: baseline[source] - losses[source] for source in losses}


def balance_difference(
    by_seed_method: Mapping[int, Losses], by_seed_baseline: Mapping[int, Losses]
) -> BalanceDifference:
    """Spread and gap of a method less those of a baseline, and gains, with 95 % t intervals.

    Runs with the same seed are a pair. A gain's `simultaneous` interval holds for all sources at
    once; the verdict goes by the interval of the spread, and claims nothing if that includes zero.
    """
    seeds = sorted(set(by_seed_method) & set(by_seed_baseline))
    if not seeds:
        raise ConfigError(
            f"no seed has both runs: the method has {sorted(by_seed_method)}, the baseline "
            f"{sorted(by_seed_baseline)}; train both with the same seeds"
        )
    pairs = [(by_seed_method[seed], by_seed_baseline[seed]) for seed in seeds]
    for own in (*by_seed_method.values(), *by_seed_baseline.values()):
        _check_sources(own, pairs[0][0])
    balances = [(balance(own), balance(base)) for own, base in pairs]
    gained = [gains(own, base) for own, base in pairs]
    spread = mean_estimate([own.spread - base.spread for own, base in balances])
    verdict: Verdict = "no clear difference"
    if spread.interval is not None and spread.interval.side:
        verdict = "more balanced" if spread.value < 0 else "less balanced"
    return BalanceDifference(
        seeds=seeds,
        spread=spread,
        gap=mean_estimate([own.gap - base.gap for own, base in balances]),
        gains={
            source: mean_estimate([each[source] for each in gained], family=len(gained[0]))
            for source in gained[0]
        },
        verdict=verdict,
    )


def _check_sources(losses: Losses, others: Losses) -> None:
    if set(losses) != set(others):
        raise ConfigError(
            f"both runs must have the same sources, got {sorted(losses)} and {sorted(others)}"
        )

"""The settings of DoGraph, checked, and its recipes."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from dograph.domains.scope import BatchScope, EpochScope, KMeans, Scope
from dograph.domains.stream import StreamScope
from dograph.errors import ConfigError, did_you_mean
from dograph.mixers.sampling import check_sampling
from dograph.objectives import Objective, build_objective

ScopeName = Literal["batch", "epoch", "stream"]
Within = Literal["mean", "unit"]
Realise = Literal["loss", "sampling", "both"]
NormFrom = Literal["blocks", "all"]


def _choice(name: str, value: Any, kind: Any) -> None:
    if value not in get_args(kind):
        raise ConfigError(f"mixer.{name}={value!r}: give one of {', '.join(get_args(kind))}")


def _number(
    name: str, value: Any, *, low: float, high: float = float("inf"), whole: bool = False
) -> None:
    kinds = (int,) if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        what = "a whole number" if whole else "a number"
        upper = "" if high == float("inf") else f" and at most {high:g}"
        raise ConfigError(f"mixer.{name}={value!r}: give {what} of at least {low:g}{upper}")


@dataclass(frozen=True, kw_only=True, slots=True)
class DoGraphOptions:
    """Every choice of the method. Defaults are the recipe `safe`."""

    num_domains: int = 11
    scope: ScopeName = "stream"
    every: int = 100  # steps of a period, scope epoch
    half_life: float = 70.0  # steps after which a sample counts half, scope stream
    objective: Any = "precision"  # a name, {name: ..., option: ...}, or an object
    normalise: bool = True  # spherical K-means; stream always is
    restarts: int = 16
    min_size: int = 1
    weight_floor: float = 0.0  # least weight of a domain
    cap: float | None = None  # most that a sample may count, in equal weights
    effective_floor: float | None = 0.9  # least effective share 1 / (n sum c^2)
    within: Within = "mean"
    norm_from: NormFrom = "blocks"
    sampling: Any = "natural"  # drawn at first: natural, uniform, a mixture file, or weights
    realise: Realise = "loss"
    remix_every: int = 50
    remix_floor: float = 0.25  # of a stratum's share at first
    max_epochs: float = 4.0  # how often remixing may have a stratum read through
    warmup: float = 0.05  # share of the run with equal weights
    seed: int = 0

    def __post_init__(self) -> None:
        _choice("scope", self.scope, ScopeName)
        _choice("within", self.within, Within)
        _choice("realise", self.realise, Realise)
        _choice("norm_from", self.norm_from, NormFrom)
        check_sampling(self.sampling)
        for name in ("num_domains", "every", "restarts", "min_size", "remix_every"):
            _number(name, getattr(self, name), low=1, whole=True)
        _number("half_life", self.half_life, low=1)
        _number("weight_floor", self.weight_floor, low=0, high=1 / self.num_domains)
        _number("remix_floor", self.remix_floor, low=0, high=1)
        _number("warmup", self.warmup, low=0, high=1)
        _number("max_epochs", self.max_epochs, low=0)
        if self.cap is not None:
            _number("cap", self.cap, low=1)
        if self.effective_floor is not None:
            _number("effective_floor", self.effective_floor, low=1e-6, high=1)
        if self.realise != "loss" and self.scope == "batch":
            raise ConfigError(
                "mixer.realise=sampling needs domains with an identity over time: "
                "mixer.scope=stream or epoch, not batch"
            )
        self.build_objective()

    def build_objective(self) -> Objective:
        return build_objective(self.objective)

    def build_scope(self) -> Scope:
        cluster = KMeans(
            self.num_domains,
            normalise=self.normalise or self.scope == "stream",
            restarts=self.restarts,
            min_size=self.min_size,
            seed=self.seed,
        )
        if self.scope == "stream":
            return StreamScope(cluster, half_life=self.half_life)
        return EpochScope(cluster, self.every) if self.scope == "epoch" else BatchScope(cluster)


DEFAULT_RECIPE = "recommended"
RECIPES: dict[str, DoGraphOptions] = {
    "safe": DoGraphOptions(),
    # Appendix: each mini-batch, plain K-means, 11 domains, and the objective that its table ranks
    # first. The paper also draws a new projection every step: sketch.refresh=step.
    "paper": DoGraphOptions(
        scope="batch",
        objective="uncertainty",
        normalise=False,
        effective_floor=None,
        warmup=0.0,
    ),
    # The paper's domains under our objective: what did best on tuning seeds (docs/results.md).
    "recommended": DoGraphOptions(
        scope="batch",
        objective="precision",
        normalise=False,
        effective_floor=None,
        warmup=0.0,
    ),
}


def resolve_options(recipe: str, options: Mapping[str, Any]) -> DoGraphOptions:
    """A recipe with some of its choices changed."""
    if recipe not in RECIPES:
        raise ConfigError(f'mixer.recipe="{recipe}" is not known; {did_you_mean(recipe, RECIPES)}')
    known = [field.name for field in fields(DoGraphOptions)]
    for name in options:
        if name not in known:
            raise ConfigError(
                f"mixer.{name} is not an option of dograph; "
                f"{did_you_mean(name, [*known, 'recipe'])}"
            )
    return replace(RECIPES[recipe], **options)

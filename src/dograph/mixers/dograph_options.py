"""The settings of DoGraph, checked, and its recipes."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from dograph.domains.objectives import Objective, build_objective
from dograph.domains.sample_weights import Budget
from dograph.domains.scopes import BatchScope, EpochScope, KMeans, Scope, StreamScope
from dograph.errors import ConfigError, did_you_mean
from dograph.mixers.fixed import check_sampling
from dograph.option_checks import (
    require_flag,
    require_known,
    require_number,
    require_one_of,
    require_whole,
)

ScopeName = Literal["batch", "epoch", "stream"]
Within = Literal["mean", "unit"]
Realise = Literal["loss", "sampling", "both"]
NormFrom = Literal["blocks", "all"]
CHOICES = {"scope": ScopeName, "within": Within, "realise": Realise, "norm_from": NormFrom}


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
    keep_shares: bool = False  # weigh inside sources: each keeps the share that was drawn
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
        for name, kind in CHOICES.items():
            require_one_of(f"mixer.{name}", getattr(self, name), get_args(kind))
        for name in ("num_domains", "every", "restarts", "min_size", "remix_every"):
            require_whole(f"mixer.{name}", getattr(self, name), least=1)
        check_sampling(self.sampling)
        require_number("mixer.half_life", self.half_life, least=1)
        require_number("mixer.weight_floor", self.weight_floor, least=0, most=1 / self.num_domains)
        require_number("mixer.remix_floor", self.remix_floor, least=0, most=1)
        require_number("mixer.warmup", self.warmup, least=0, most=1)
        require_number("mixer.max_epochs", self.max_epochs, least=0)
        if self.cap is not None:
            require_number("mixer.cap", self.cap, least=1)
        if self.effective_floor is not None:
            require_number("mixer.effective_floor", self.effective_floor, least=1e-6, most=1)
        for name in ("normalise", "keep_shares"):
            require_flag(f"mixer.{name}", getattr(self, name))
        if self.keep_shares and self.cap is not None:
            raise ConfigError(
                f"mixer.cap={self.cap} with mixer.keep_shares=true: what a cap cuts off goes to "
                "all sources alike; bound weights with mixer.effective_floor instead"
            )
        if self.realise != "loss" and self.scope == "batch":
            raise ConfigError(
                "mixer.realise=sampling needs domains with an identity over time: "
                "mixer.scope=stream or epoch, not batch"
            )
        self.build_objective()

    @property
    def only_means(self) -> bool:
        """Whether samples of a domain count alike, with no bound but the floor."""
        plain = (self.realise, self.within, self.cap, self.keep_shares)
        return plain == ("loss", "mean", None, False)

    @property
    def budget(self) -> Budget:
        return Budget(self.cap, self.effective_floor)

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
# Appendix: each mini-batch, plain K-means, 11 domains, and the objective that its table ranks
# first. The paper also draws a new projection every step: sketch.refresh=step.
_PAPER = DoGraphOptions(
    scope="batch",
    objective="uncertainty",
    normalise=False,
    effective_floor=None,
    warmup=0.0,
)
RECIPES: dict[str, DoGraphOptions] = {
    "safe": DoGraphOptions(),
    "paper": _PAPER,
    # The paper's domains under our objective: what did best on tuning seeds (docs/results.md).
    "recommended": replace(_PAPER, objective="precision"),
    # No domains needed: each sample's gradient counts by its direction, w_j = |D_j| / n.
    "inverse-norm": replace(_PAPER, objective={"name": "precision", "q": 0.0}, within="unit"),
}


def resolve_options(recipe: str, options: Mapping[str, Any]) -> DoGraphOptions:
    """A recipe with some of its choices changed."""
    if recipe not in RECIPES:
        raise ConfigError(f'mixer.recipe="{recipe}" is not known; {did_you_mean(recipe, RECIPES)}')
    known = [field.name for field in fields(DoGraphOptions)]
    require_known("mixer.", options, "dograph", [*known, "recipe", "warmup_steps"])
    return replace(RECIPES[recipe], **options)

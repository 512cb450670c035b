"""DoGraph: the model's own gradients decide what a domain is, and what it counts.

Algorithm 1 of the paper is `DoGraph.weigh`. Sketches come with the signals (the step or a
Sketcher makes them); weights are applied to full gradients, not to projected ones (docs/decisions/
010): theta moves along sum_i c_i g_i with c_i = w_j / |D_j| for sample i in domain j.

Shapes: B samples of the world batch, b those of a micro-batch, K sketch, M domains.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from dograph.choices import CHOICES
from dograph.config import Fraction, Options, Refresh, RunConfig
from dograph.domains.graph import DomainGraph, build_graph
from dograph.domains.kmeans import KMeans
from dograph.domains.objectives import build_objective
from dograph.domains.partition import (
    agreement,
    all_finite,
    apply_limits,
    apply_limits_lagged,
    sample_weights,
    share_out,
)
from dograph.domains.scopes import FIT_BATCHES, PeriodScope, Scope, StreamScope
from dograph.errors import ConfigError, did_you_mean
from dograph.mixers.base import Lab, LateReport, Metrics, Mixer, with_options
from dograph.mixers.fixed import Sampling, sampling_mixture
from dograph.mixers.remixing import Remixing
from dograph.types import Domains, Mixture, Signals

DEFAULT_RECIPE = "recommended"
RECENT = 10  # batches over which domains and sources are compared; one alone may agree by chance
# The paper's appendix: each mini-batch, plain K-means, 11 domains, and the objective that its table
# ranks first. The paper also draws a new projection every step: sketch.refresh=step.
_PAPER: dict[str, Any] = {
    "scope": "batch",
    "objective": "uncertainty",
    "spherical_kmeans": False,
    "min_effective_fraction": None,
    "warmup_ratio": 0.0,
}
LEAST_SAMPLES = 4  # of a domain: in a default number of domains, and without a warning
_EQUAL_DOMAINS = {"name": "precision", "q": 0.0}  # w_j = |D_j| / n
# The defaults of `DoGraphOptions` that a recipe changes. What they are for: `dograph.choices`.
RECIPES: dict[str, dict[str, Any]] = {
    "safe": {},
    "paper": _PAPER | {"num_domains": 11},  # of small batches too
    "recommended": _PAPER | {"objective": "precision"},
    "inverse-norm": _PAPER | {"objective": _EQUAL_DOMAINS, "normalize_gradients": True},
}


class DoGraphOptions(Options, owner="dograph"):
    """Every choice of the method. Defaults are those of the recipe `safe`."""

    recipe: str = Field(DEFAULT_RECIPE, description="a named set of the options below")
    num_domains: int = Field(
        11, ge=1, description="m; if not set, scope batch has at most a domain for 4 samples"
    )
    scope: Literal["batch", "period", "stream"] = Field(
        "stream", description="how long domains last"
    )
    period_steps: int = Field(100, ge=1, description="scope period: steps of a period")
    half_life: float = Field(70.0, ge=1, description="scope stream: steps until samples count half")
    objective: Any = Field("precision", description="how domains are weighed: a name, or options")
    spherical_kmeans: bool = Field(True, description="K-means on directions; stream: always")
    kmeans_restarts: int = Field(16, ge=1, description="the best of so many K-means runs")
    normalize_gradients: bool = Field(False, description="divide sample gradients by their norms")
    gradient_norm_from: Literal["blocks", "all"] = Field(
        "blocks", description="which norm: of the blocks' weight matrices, or of the whole sketch"
    )
    keep_source_shares: bool = Field(False, description="a source keeps the share that was drawn")
    min_effective_fraction: float | None = Field(
        0.9, ge=1e-6, le=1, description="lowest fraction of effective samples, 1 / (n sum c^2)"
    )
    sampling: Sampling = Field("natural", description="initial mixture: a name, file or weights")
    apply_weights_to: Literal["loss", "sampling"] = Field(
        "loss", description="weigh samples in the loss, or change what is drawn"
    )
    remix_every: int = Field(50, ge=1, description="sampling: steps between two mixtures")
    remix_min_fraction: float = Field(
        0.25, ge=0, le=1, description="sampling: lowest share of a stratum, over its initial share"
    )
    max_epochs: float = Field(4.0, ge=0, description="sampling: most repeats of a stratum")
    warmup_ratio: Fraction = Field(0.05, description="part of the run with equal weights")
    warmup_steps: int | None = Field(None, ge=0, description="the same in steps, if given")
    seed: int = Field(0, description="of K-means")

    @model_validator(mode="before")
    @classmethod
    def _by_recipe(cls, given: dict[str, Any]) -> dict[str, Any]:
        recipe = given.get("recipe", DEFAULT_RECIPE)
        if recipe not in RECIPES:
            raise ConfigError(
                f'mixer.recipe="{recipe}" is not known; {did_you_mean(recipe, RECIPES)}'
            )
        return RECIPES[recipe] | given

    @model_validator(mode="after")
    def _compatible(self) -> Self:
        if self.apply_weights_to != "loss" and self.scope == "batch":
            raise ConfigError(
                "mixer.apply_weights_to=sampling needs domains with an identity over time: "
                "mixer.scope=stream or period, not batch"
            )
        return self

    @property
    def samples_per_domain(self) -> int:
        """The number of domains follows the batch unless it was set."""
        follows = self.scope == "batch" and "num_domains" not in self.model_fields_set
        return LEAST_SAMPLES if follows else 1

    def open_scope(self) -> Scope:
        spherical, each = self.spherical_kmeans or self.scope == "stream", self.samples_per_domain
        cluster = KMeans(self.num_domains, spherical, self.kmeans_restarts, self.seed, each)
        if self.scope == "stream":
            return StreamScope(cluster, half_life=self.half_life)
        return Scope(cluster) if self.scope == "batch" else PeriodScope(cluster, self.period_steps)


class DoGraph(Mixer):
    """Weighs model-perceived domains. Options: `DoGraphOptions`."""

    needs: ClassVar[frozenset[str]] = frozenset({"sketch", "source"})
    has_domains: ClassVar[bool] = True
    reads_mixtures: ClassVar[bool] = True

    def __init__(self, recipe: str = DEFAULT_RECIPE, **options: Any) -> None:
        self.options = DoGraphOptions(recipe=recipe, **options)
        self.objective = build_objective(self.options.objective)
        self.scope, self.remixing = self.options.open_scope(), Remixing(self.options)
        self.warmup_steps = self.options.warmup_steps or 0
        self.num_sources = 64  # until a plan knows the run's
        self.recent: list[tuple[Tensor, Tensor]] = []  # label_B and source_B of the last batches
        self.domains: Domains | None = None
        self.weight_M: Tensor | None = None

    def plan(self, lab: Lab) -> Mixture:
        """The initial mixture; `apply_weights_to: sampling` changes it later."""
        self.warm_up(lab.steps)
        self.num_sources = len(lab.tokens)
        mixture = sampling_mixture(self.options.sampling, lab.tokens)
        self.remixing.open(lab, mixture)
        return mixture

    def warm_up(self, steps: int) -> None:
        """Equal weights in the first part of a run of `steps`, or for `warmup_steps`."""
        if self.options.warmup_steps is None:
            self.warmup_steps = round(self.options.warmup_ratio * steps)

    def weigh(self, signals: Signals) -> Tensor:
        """Algorithm 1: cluster the sketches, solve for the domains' weights, share them out."""
        sketch_BK, finite, domains = self._clustered(signals)  # R' g_i, and D_1 .. D_m of them
        weight_B = super().weigh(signals)  # equal: before domains are known, and in the warm-up
        if domains is not None:
            # w = argmin L_opt on the simplex
            self.weight_M = self.objective(self.remixing.at_first(domains))
            shared_B, finite = self._shared(domains, self.weight_M, signals, finite)  # c_i
            weight_B = weight_B if signals.step < self.warmup_steps else shared_B
        self._take_in(signals, sketch_BK, domains, weight_B, finite)
        return weight_B

    def _clustered(self, signals: Signals) -> tuple[Tensor, Tensor, Domains | None]:
        """Sketches (rows that are not finite set to 0), whether all were finite, the domains."""
        if signals.sketch_BK is None:
            raise ConfigError("DoGraph weighs by sketches; make the signals with Sketcher.signals")
        sketch_BK = signals.sketch_BK.detach()
        broken_B = (sketch_BK * 0).sum(dim=1) != 0
        sketch_BK, finite = sketch_BK.masked_fill(broken_B[:, None], 0), ~broken_B.any()
        return sketch_BK, finite, self.scope.assign(sketch_BK, signals.step, signals.projection)

    def _shared(
        self, domains: Domains, weight_M: Tensor, signals: Signals, finite: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Domain weights to sample weights c_i = w_j / |D_j|, within limits; if all was finite."""
        options, kept_B, norm_B = self.options, None, self._norms(signals)
        if options.keep_source_shares and (kept_B := signals.source_B) is None:
            raise ConfigError(
                "mixer.keep_source_shares=true needs the source of every sample: pass source_B to "
                "Sketcher.backward or Sketcher.signals"
            )
        sampled, floor = self.changes_sampling, options.min_effective_fraction
        if not sampled and norm_B is None and kept_B is None:
            return share_out(domains, weight_M, finite, floor)
        weight_B = super().weigh(signals) if sampled else sample_weights(domains, weight_M)
        weight_B = apply_limits(weight_B, floor, norm_B, kept_B)
        finite = finite & all_finite(weight_M, weight_B)
        return torch.where(finite, weight_B, 1 / signals.num_samples), finite

    def _norms(self, signals: Signals) -> Tensor | None:
        """Gradient norms that sample weights are divided by, with `normalize_gradients`."""
        if not self.options.normalize_gradients:
            return None
        assert signals.sketch_BK is not None
        own = signals.block_norm_B if self.options.gradient_norm_from == "blocks" else None
        return signals.sketch_BK.norm(dim=1) if own is None else own

    def weigh_lagged(self, signals: Signals, num_samples: int) -> Tensor:
        """c_b of a micro-batch before the others are known: w_j / (N p_j), with the present shares.

        `min_effective_fraction` holds on average over batches (`apply_limits_lagged`). `observe`
        is called with the whole batch afterwards.
        """
        if (why := self.refuses_lagged()) is not None:
            raise ConfigError(f"DoGraph {why}; or use accumulation=two_sweeps")
        sketch_BK, finite, domains = self._clustered(signals)
        equal_b = torch.full_like(sketch_BK[:, 0], 1 / num_samples)
        if domains is None or signals.step < self.warmup_steps:
            return equal_b
        weight_M, share_M = self.objective(self.remixing.at_first(domains)), domains.share_M
        times_M = torch.where(domains.present_M, weight_M / share_M.clamp_min(1e-12), 0.0)
        if self.changes_sampling:
            times_M = torch.ones_like(times_M)
        each_M, floor = times_M / num_samples, self.options.min_effective_fraction
        label_b, norm_b = domains.label_B, self._norms(signals)
        weight_b = apply_limits_lagged(each_M, share_M, label_b, floor, norm_b, size=num_samples)
        return torch.where(finite & all_finite(weight_b), weight_b, equal_b)

    def observe(self, signals: Signals, weight_B: Tensor) -> None:
        sketch_BK, finite, domains = self._clustered(signals)
        if domains is not None:
            self.weight_M = self.objective(self.remixing.at_first(domains))
        self._take_in(signals, sketch_BK, domains, weight_B, finite)

    def _take_in(
        self,
        signals: Signals,
        sketch_BK: Tensor,
        domains: Domains | None,
        weight_B: Tensor,
        finite: Tensor,
    ) -> None:
        """Update the scope and the counts with the batch, and keep the tensors of the report."""
        self.domains = domains
        self.scope.observe(sketch_BK, signals.step)
        wide_BK = sketch_BK.float()
        held = {
            "weight_B": weight_B,
            "finite": finite,
            "mean_norm": wide_BK.mean(dim=0).norm(),
            "update_norm": (weight_B.to(wide_BK.dtype) @ wide_BK).norm(),
        }
        if domains is None:  # none yet, or forgotten with an old projection
            self.weight_M = self.remixing.count_MS = None
        else:
            assert self.weight_M is not None
            if signals.source_B is not None:
                last = (domains.label_B, signals.source_B)
                self.recent = [*self.recent[-(RECENT - 1) :], last]
            self.remixing.add(domains.label_B, signals.stratum_B)
            held |= {name: getattr(domains, name) for name in Domains.__slots__}
            held |= {"weight_M": self.weight_M, **self._recent_batches()}
        self._report = LateReport(held, self._metrics)

    def _recent_batches(self) -> dict[str, Tensor]:
        """Labels and sources of the last batches, by name."""
        named: dict[str, Tensor] = {}
        for i, (label_B, source_B) in enumerate(self.recent):
            named |= {f"label/{i}": label_B, f"source/{i}": source_B}
        return named

    def _metrics(self, held: dict[str, Tensor]) -> Metrics:
        """The report of a step; without metrics of domains while none are known."""
        report: Metrics = {
            "weights/max_relative_weight": len(held["weight_B"]) * held["weight_B"].max(),
            "weights/gradient_norm_ratio": held["update_norm"] / held["mean_norm"].clamp_min(1e-30),
            "weights/fallback": 1.0 - held["finite"].float(),
        }
        if "weight_M" not in held:
            return report
        weight_M = held["weight_M"]
        domains = Domains(**{name: held[name] for name in Domains.__slots__})
        order_M, index_M = self.listing(weight_M), torch.arange(len(weight_M))
        count_M = (domains.label_B[:, None] == index_M).sum(dim=0)
        report |= {
            "samples/domain": order_M.argsort()[domains.label_B],
            "domains/samples": count_M[order_M],
            "domains/share": domains.share_M[order_M],
            "domains/weight": weight_M[order_M],
            "domains/gradient_norm": domains.square_M.clamp_min(0).sqrt()[order_M],
            "domains/mean_norm": domains.gram_MM.diagonal().clamp_min(0).sqrt()[order_M],
            "weights/entropy_nats": -(weight_M * weight_M.clamp_min(1e-30).log()).sum(),
            "weights/solver_residual": self.objective.residual(domains, weight_M),
        }
        if batches := _batches(held):
            label_N, source_N = (torch.cat(parts) for parts in zip(*batches, strict=True))
            sizes = len(weight_M), max(self.num_sources, int(source_N.max()) + 1)
            report["domains/nmi"], purity = agreement(label_N, source_N, *sizes)
            report["domains/batch_nmi"], _ = agreement(*batches[-1], *sizes)
            report["domains/purity"] = purity
        return report

    def remix(self, signals: Signals) -> Mixture | None:
        if signals.step < self.warmup_steps:
            return None
        return self.remixing.mixture(signals.step, self.weight_M)

    def state_dict(self) -> dict[str, Any]:
        parts = {
            "scope": self.scope.state_dict(),
            "recent": {"num_sources": self.num_sources, **self._recent_batches()},
            "remixing": self.remixing.state_dict(),
        }
        state = {f"{part}:{n}": value for part, own in parts.items() for n, value in own.items()}
        each = self.scope.cluster.samples_per_domain
        return {**state, "warmup_steps": self.warmup_steps, "samples_per_domain": each}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        def part(name: str) -> dict[str, Any]:
            return {n[len(name) :]: value for n, value in state.items() if n.startswith(name)}

        recent, self.warmup_steps = part("recent:"), state["warmup_steps"]
        self.num_sources, self.recent = recent["num_sources"], _batches(recent)
        # Runs from before the number of domains followed the batch go on as they began.
        self.scope.cluster.samples_per_domain = state.get("samples_per_domain", 1)
        self.scope.load_state_dict(part("scope:"))
        self.remixing.load_state_dict(part("remixing:"))

    # What it says of itself, and what its domains look like.

    @property
    def changes_sampling(self) -> bool:
        return self.options.apply_weights_to != "loss"

    @property
    def requires_sources(self) -> bool:
        return self.options.keep_source_shares

    @property
    def domains_last(self) -> bool:
        return self.options.scope != "batch"

    def refuses_edits(self) -> str | None:
        if not self.changes_sampling:
            return None
        return (
            "with mixer.apply_weights_to=sampling sets it from the model's domains, every "
            f"mixer.remix_every={self.options.remix_every} steps"
        )

    def refuses_lagged(self) -> str | None:
        if not self.domains_last:
            return (
                f"with mixer.scope={self.options.scope} knows no domains before it has seen a "
                "whole batch: set mixer.scope=stream or period"
            )
        if not self.options.keep_source_shares:
            return None
        return (
            "with mixer.keep_source_shares=true needs whole batches to know the weight of a "
            "source: set mixer.keep_source_shares=false"
        )

    @property
    def fit_steps(self) -> int:
        """Steps whose samples are clustered together."""
        lengths = {"batch": 1, "period": self.options.period_steps, "stream": FIT_BATCHES}
        return lengths[self.options.scope]

    def cautions(self, config: RunConfig) -> list[str]:
        size, domains = min(config.batches.scheduled), self.options.num_domains
        each = size * self.fit_steps / domains
        other = "raise train.batch_size, or set mixer.scope=stream"
        if self.options.samples_per_domain > 1:
            alone = f"train.batch_size={size} holds one domain of at least {LEAST_SAMPLES} samples"
            return [f"{alone}: all count alike; {other}"] if size < 2 * LEAST_SAMPLES else []
        few = f"mixer.num_domains={domains} with train.batch_size={size} leaves {each:.1f} samples "
        few += f"for each domain: fewer than {LEAST_SAMPLES} are mostly noise. Lower "
        return [f"{few}mixer.num_domains, {other}"] if each < LEAST_SAMPLES else []

    def refresh(self, asked: Refresh | None) -> Refresh:
        """A new projection each step for domains of a batch; those that last need one."""
        if not self.domains_last:
            return "step" if asked is None else asked
        steps, why = self.fit_steps, None
        if asked == "step":
            why = "domains that last need sketches under one projection"
        elif isinstance(asked, int) and 0 < asked <= steps:
            why = f"domains are formed from {steps} steps, and would be lost before they are used"
        if why is not None:
            raise ConfigError(
                f"sketch.refresh={asked} with mixer.scope={self.options.scope}: {why}; set "
                "sketch.refresh to never or to some hundreds of steps, or mixer.scope to batch"
            )
        return "never" if asked is None else asked

    def listing(self, weight_M: Tensor) -> Tensor:
        """Which domain is number 0, 1 and so on: by decreasing weight if domains do not last."""
        if self.domains_last:
            return torch.arange(len(weight_M), device=weight_M.device)
        return weight_M.argsort(descending=True, stable=True)

    def graph(self, sources: Sequence[str], step: int) -> DomainGraph | None:
        """Sources are counted over the last batches, or the last one if domains do not last."""
        if self.domains is None or self.weight_M is None or not self.recent:
            return None
        batches = self.recent if self.domains_last else self.recent[-1:]
        known, weight_M, device = self.domains, self.weight_M, self.weight_M.device
        label_N = torch.cat([label_B.to(device) for label_B, _ in batches])
        source_N = torch.cat([source_B.to(device) for _, source_B in batches])
        order_M = self.listing(weight_M)
        return build_graph(known, weight_M, label_N, source_N, sources, step=step, order_M=order_M)

    def locate(self, sketch_BK: Tensor, step: int) -> tuple[Tensor, Tensor] | None:
        return self.scope.locate(sketch_BK, step)

    def explain(self, row: Mapping[str, float], step: int, config: RunConfig) -> list[str]:
        options, size = self.options, config.batches.size(step - 1)
        equal = f"all {size} samples counted alike"
        if "domains/0/mean_norm" not in row:
            return [f"no domains were known yet (scope {options.scope}): {equal}"]
        objective = type(self.objective).__name__.lower()
        rule = CHOICES["mixer.objective"].get(objective, "an objective of your own")
        lasting = "domains last, shares and norms are averages over time"
        passing = "the domains are those of this batch alone, listed by falling weight"
        lines = [
            f"objective {objective}: {rule}; residual {row['weights/solver_residual']:.2g}",
            f"scope {options.scope}: {lasting if self.domains_last else passing}",
        ]
        self.warm_up(config.batches_at(0).steps)
        if step <= self.warmup_steps:
            return [*lines, f"warm-up until step {self.warmup_steps}: {equal}"]
        if row["weights/fallback"]:
            return [*lines, f"some gradient was not finite: {equal}"]
        # From domain weights to sample weights, in the order in which it is done.
        steps = ["a sample counts its domain's weight over its domain's share"]
        if self.changes_sampling:
            steps = ["domain weights change what is drawn (apply_weights_to), not the loss"]
        if options.normalize_gradients:
            steps += ["divided by its own gradient norm (normalize_gradients)"]
        if options.keep_source_shares:
            steps += ["scaled so that each source keeps its share (keep_source_shares)"]
        if (fraction := options.min_effective_fraction) is not None:
            # Limits of a micro-batch alone are by the shares of domains, not by those in the batch.
            parts = (config.train.micro_batch_size or size) < size
            lagged = parts and config.sketch.accumulation == "lagged"
            often = ", in the mean over batches" if lagged else ""
            steps += [f"moved towards 1 until {fraction:.0%} of the samples are effective{often}"]
        effective = row["weights/effective_samples"]
        return [*lines, ", ".join(steps), f"effective samples: {effective:.1f} of {size}"]

    @classmethod
    def settled(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """With its recipe: a later default recipe must not change this run."""
        return {"recipe": DEFAULT_RECIPE, **options}

    @classmethod
    def describe(cls, name: str, options: Mapping[str, Any]) -> str:
        """Its recipe and options, and the domains, objective and scope that follow."""
        chosen, given = DoGraphOptions(**options), dict(options)
        given.pop("recipe", None)
        objective = chosen.objective
        if isinstance(objective, Mapping):
            rest = dict(objective)
            objective = with_options(str(rest.pop("name")), rest)
        most = "at most " if chosen.samples_per_domain > 1 else ""
        return (
            f"{name}, recipe {with_options(chosen.recipe, given)}: {most}{chosen.num_domains} "
            f"domains, objective {objective}, scope {chosen.scope}"
        )


def _batches(held: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """What `DoGraph._recent_batches` gave, among other tensors."""
    known = [i for i in range(RECENT) if f"label/{i}" in held]
    return [(held[f"label/{i}"], held[f"source/{i}"]) for i in known]

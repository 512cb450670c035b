"""DoGraph: the model's own gradients decide what a domain is, and what it counts.

Algorithm 1 of the paper is `DoGraph.weigh`. Sketches come with the signals (the step or a
Sketcher makes them); weights are applied to full gradients, not to projected ones (docs/decisions/
010): theta moves along sum_i c_i g_i with c_i = w_j / |D_j| for sample i in domain j.

Shapes: B samples of the world batch, K sketch, M domains, S sources or strata.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from dograph.config import Refresh, RunConfig
from dograph.domains import sample_weights as budget
from dograph.domains.agreement import Recent
from dograph.domains.graph import DomainGraph
from dograph.domains.partition import sample_weights
from dograph.domains.sample_weights import all_finite, share_out
from dograph.domains.scopes import FIT_BATCHES, Scope
from dograph.errors import ConfigError
from dograph.mixers.base import Lab, Mixer, Report, with_options
from dograph.mixers.dograph_options import DEFAULT_RECIPE, resolve_options
from dograph.mixers.dograph_report import describe, domain_graph, reasons
from dograph.mixers.fixed import sampling_mixture
from dograph.mixers.remixing import Remixing
from dograph.option_checks import require_whole
from dograph.types import Domains, Mixture, Signals


class DoGraph(Mixer):
    """Weighs model-perceived domains. Options: `dograph.mixers.dograph_options`."""

    needs: ClassVar[frozenset[str]] = frozenset({"sketch", "source"})
    has_domains: ClassVar[bool] = True
    reads_mixtures: ClassVar[bool] = True

    def __init__(
        self, recipe: str = DEFAULT_RECIPE, *, warmup_steps: int | None = None, **options: Any
    ) -> None:
        """`warmup_steps`: in place of the share `warmup` of a run, whose length `plan` knows."""
        if warmup_steps is not None:
            require_whole("mixer.warmup_steps", warmup_steps, least=0)
        self.options = resolve_options(recipe, options)
        self.objective, self.scope = self.options.build_objective(), self.options.build_scope()
        self.recent = Recent()
        self.remixing = Remixing(self.options)
        self.asked_warmup, self.warmup_steps = warmup_steps, warmup_steps or 0
        self.domains: Domains | None = None
        self.weight_M: Tensor | None = None
        self._report: Report = {}

    def plan(self, lab: Lab) -> Mixture:
        """As `sampling` says at first; `realise: sampling` moves it later."""
        self.warm_up(lab.steps)
        self.recent.num_sources = len(lab.tokens)
        mixture = sampling_mixture(self.options.sampling, lab.tokens)
        self.remixing.open(lab, mixture)
        return mixture

    def warm_up(self, steps: int) -> None:
        """Count samples alike in the first part of a run of `steps`, or as long as was asked."""
        if self.asked_warmup is None:
            self.warmup_steps = round(self.options.warmup * steps)

    def weigh(self, signals: Signals) -> Tensor:
        """c_B: cluster the sketches, solve for the domains' weights, share them out."""
        sketch_BK, finite = _finite(signals)
        domains = self.scope.assign(sketch_BK, signals.step, signals.projection)
        if domains is not None:
            self.weight_M = self._solved(domains)
            weight_B, finite = self._shared(domains, self.weight_M, signals, finite)
        if domains is None or signals.step < self.warmup_steps:
            weight_B = super().weigh(signals)
        self._take_in(signals, sketch_BK, domains, weight_B, finite)
        return weight_B

    def _solved(self, domains: Domains) -> Tensor:
        """w_M: what the objective asks for, with the floor on it."""
        self.remixing.require_open()
        weight_M = self.objective(self.remixing.at_first(domains))
        if self.options.weight_floor == 0:
            return weight_M
        return budget.floor_weights(weight_M, self.options.weight_floor, domains.present_M)

    def _shared(
        self, domains: Domains, weight_M: Tensor, signals: Signals, finite: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Domain weights to sample weights, inside the variance budget; and if all was finite."""
        options, known = self.options, self.remixing.expected(domains)
        if options.only_means:
            return share_out(known, weight_M, finite, options.effective_floor)
        if options.realise == "sampling":
            weight_B = Mixer.weigh(self, signals)
        else:
            weight_B = sample_weights(known, weight_M)
        weight_B = options.budget.hold(weight_B, self._norms(signals), self._sources(signals))
        finite = finite & all_finite(weight_M, weight_B)
        return torch.where(finite, weight_B, 1 / signals.num_samples), finite

    def _norms(self, signals: Signals) -> Tensor | None:
        """What samples are divided by where they count by their direction (`within: unit`)."""
        if self.options.within == "mean":
            return None
        assert signals.sketch_BK is not None
        own = signals.block_norm_B if self.options.norm_from == "blocks" else None
        return signals.sketch_BK.norm(dim=1) if own is None else own

    def _sources(self, signals: Signals) -> Tensor | None:
        """Whose shares are kept (`keep_shares`)."""
        if not self.options.keep_shares:
            return None
        if signals.source_B is None:
            raise ConfigError(
                "mixer.keep_shares=true needs the source of every sample: pass source_B to "
                "Sketcher.backward or Sketcher.signals"
            )
        return signals.source_B

    def weigh_lagged(self, signals: Signals, num_samples: int) -> Tensor:
        """c_b of a micro-batch before the others are known: w_j / (N p_j), shares as of now.

        No sample passes the cap; the floor on effective samples holds in the mean over batches
        (`Budget.hold_lagged`). Afterwards `observe` takes the whole batch in.
        """
        if (why := self.refuses_lagged()) is not None:
            raise ConfigError(f"DoGraph {why}; or use accumulation=two_sweeps")
        sketch_BK, finite = _finite(signals)
        domains = self.scope.assign(sketch_BK, signals.step, signals.projection)
        equal_b = torch.full_like(sketch_BK[:, 0], 1 / num_samples)
        if domains is None or signals.step < self.warmup_steps:
            return equal_b
        weight_M = self._solved(domains)
        weight_b = self._lagged(domains, weight_M, signals, num_samples)
        return torch.where(finite & all_finite(weight_b), weight_b, equal_b)

    def _lagged(
        self, domains: Domains, weight_M: Tensor, signals: Signals, num_samples: int
    ) -> Tensor:
        """The same for a micro-batch, by the shares that domains are known to have."""
        known = self.remixing.expected(domains)
        times_M = torch.where(known.present_M, weight_M / known.share_M.clamp_min(1e-12), 0.0)
        if self.options.realise == "sampling":
            times_M = torch.ones_like(times_M)
        return self.options.budget.hold_lagged(
            times_M / num_samples,
            known.share_M,
            domains.label_B,
            self._norms(signals),
            size=num_samples,
        )

    def observe(self, signals: Signals, weight_B: Tensor) -> None:
        """Take in a world batch whose weights were lagged."""
        sketch_BK, finite = _finite(signals)
        domains = self.scope.assign(sketch_BK, signals.step, signals.projection)
        if domains is not None:
            self.weight_M = self._solved(domains)
        self._take_in(signals, sketch_BK, domains, weight_B, finite)

    def remix(self, signals: Signals) -> Mixture | None:
        if signals.step < self.warmup_steps:
            return None
        return self.remixing.mixture(signals.step, self.weight_M)

    @property
    def changes_sampling(self) -> bool:
        return self.options.realise != "loss"

    @property
    def requires_sources(self) -> bool:
        return self.options.keep_shares

    @property
    def domains_last(self) -> bool:
        return self.scope.keeps_identity

    def refuses_edits(self) -> str | None:
        if not self.changes_sampling:
            return None
        return (
            f"with mixer.realise={self.options.realise} sets it from the model's domains, every "
            f"mixer.remix_every={self.options.remix_every} steps"
        )

    def refuses_lagged(self) -> str | None:
        if not self.domains_last:
            return (
                f"with mixer.scope={self.options.scope} knows no domains before it has seen a "
                "whole batch: set mixer.scope=stream or epoch"
            )
        if self.options.keep_shares:
            return (
                "with mixer.keep_shares=true needs whole batches to know what a source weighs: "
                "set mixer.keep_shares=false"
            )
        return None

    def refresh(self, asked: Refresh | None) -> Refresh:
        """Domains of each batch see a new projection each step; those that last need one."""
        options = self.options
        if options.scope == "batch":
            return "step" if asked is None else asked
        remedy = "set sketch.refresh to never or to some hundreds of steps, or mixer.scope to batch"
        if asked == "step":
            raise ConfigError(
                f"sketch.refresh=step with mixer.scope={options.scope}: domains that last need "
                f"sketches under one projection; {remedy}"
            )
        first = options.every if options.scope == "epoch" else FIT_BATCHES
        if isinstance(asked, int) and 0 < asked <= first:
            raise ConfigError(
                f"sketch.refresh={asked} with mixer.scope={options.scope}: domains are found from "
                f"{first} steps, and would be forgotten before any could use them; {remedy}"
            )
        return "never" if asked is None else asked

    def graph(self, sources: Sequence[str], step: int) -> DomainGraph | None:
        return domain_graph(self, sources, step)

    def locate(self, sketch_BK: Tensor, step: int) -> tuple[Tensor, Tensor] | None:
        return self.scope.locate(sketch_BK, step)

    def explain(self, row: Mapping[str, float], step: int, config: RunConfig) -> list[str]:
        return reasons(self, row, step, config)

    def option(self, name: str) -> Any:
        return getattr(self.options, name, None)

    @classmethod
    def settled(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Another default recipe must not change a run that is there."""
        return {"recipe": DEFAULT_RECIPE, **options}

    @classmethod
    def describe(cls, name: str, options: Mapping[str, Any]) -> str:
        """What its recipe and options come to: domains, objective, scope."""
        given = dict(options)
        recipe = given.pop("recipe", DEFAULT_RECIPE)
        found = resolve_options(recipe, {k: v for k, v in given.items() if k != "warmup_steps"})
        objective = found.objective
        if isinstance(objective, Mapping):
            rest = {name: value for name, value in objective.items() if name != "name"}
            objective = with_options(str(objective["name"]), rest)
        return (
            f"{name}, recipe {with_options(recipe, given)}: {found.num_domains} domains, "
            f"objective {objective}, scope {found.scope}"
        )

    def _take_in(
        self,
        signals: Signals,
        sketch_BK: Tensor,
        domains: Domains | None,
        weight_B: Tensor,
        finite: Tensor,
    ) -> None:
        """Let the scope learn from the batch, count it, and note what to report."""
        self.domains = domains
        self.scope.observe(sketch_BK, signals.step)
        if domains is None:  # none yet, or forgotten with an old projection
            self.weight_M = self.remixing.count_MS = None
        else:
            if signals.source_B is not None:
                self.recent.add(domains.label_B, signals.source_B)
            if self.remixing.active and signals.stratum_B is not None:
                self.remixing.add(domains.label_B, signals.stratum_B)
        self._report = describe(self, sketch_BK, weight_B, finite)

    def _parts(self) -> dict[str, Scope | Recent | Remixing]:
        return {"scope": self.scope, "recent": self.recent, "remixing": self.remixing}

    def report(self) -> Report:
        return self._report

    def state_dict(self) -> dict[str, Any]:
        state = {
            f"{part}:{name}": value
            for part, owner in self._parts().items()
            for name, value in owner.state_dict().items()
        }
        return {**state, "warmup_steps": self.warmup_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.warmup_steps = state["warmup_steps"]
        for part, owner in self._parts().items():
            own = {n.partition(":")[2]: v for n, v in state.items() if n.startswith(f"{part}:")}
            owner.load_state_dict(own)


def _finite(signals: Signals) -> tuple[Tensor, Tensor]:
    """Sketches with rows that are not finite set to 0, and whether there were none of those."""
    if signals.sketch_BK is None:
        raise ConfigError("DoGraph weighs by sketches; make the signals with Sketcher.signals")
    sketch_BK = signals.sketch_BK.detach()
    broken_B = (sketch_BK * 0).sum(dim=1) != 0
    return sketch_BK.masked_fill(broken_B[:, None], 0), ~broken_B.any()

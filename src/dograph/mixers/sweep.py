"""RegMix and the data mixing law: train proxies on many mixtures, plan the best by their table.

RegMix (Liu et al., ICLR 2025) trains many tiny proxies, fits a regression from mixture to loss and
averages the best of many simulated mixtures. The authors train 512 proxies of a million parameters
and use LightGBM; here cross-validation selects the regression. In rounds (CLIMB's search, Diao et
al., NeurIPS 2025), later proxies are trained where the fit so far predicts the lowest losses.

The data mixing law (Ye et al., ICLR 2025) is L_i(r) = c_i + k_i exp(t_i . r) for a mixture r, and
its optimum is exact. Nested, the losses that the laws are fitted on are themselves predicted: by a
step law from the proxies' curves to the run's tokens, and by a size law from several sizes of
proxies to the run's model.

Shapes: N mixtures, S sources, V sources that have a validation loss, X points of a curve.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from dograph.config import Options
from dograph.errors import ConfigError
from dograph.mixers.base import Lab, Planner, Proxy, ProxyResult, require_sources
from dograph.mixtures.from_table import MEAN, Method, Proposal, Target, propose_from_table
from dograph.mixtures.power_laws import LossCurve, Place, nest
from dograph.mixtures.proposals import DRAWS, TOP, generate_mixtures, promising_mixtures
from dograph.mixtures.surrogates import require_surrogate
from dograph.mixtures.tables import MixtureTable
from dograph.rng import stream
from dograph.types import Mixture

NATURAL = "natural"  # as a target: every source by its training tokens
CURVE_POINTS = 12  # of a proxy's learning curve, where a step law is fitted to it
FEWEST_SIZES = 3  # a size law has three parameters


class SweepOptions(Options):
    """The number of mixtures, the loss to minimize, and the limits of the plan."""

    num_proxies: int = Field(ge=4)
    target: Any = "mean"  # a source, `mean`, `natural` (by tokens), a list, or shares by name
    max_usage: float = Field(15.0, ge=1)
    max_epochs: float | None = Field(4.0, gt=0)
    seed: int = Field(0, ge=0)

    def caps(self, lab: Lab) -> dict[str, float]:
        """The largest weight of each source in the plan.

        `max_usage` times its natural share, so that the plan stays within the range of the proxies,
        and at most `max_epochs` times its tokens over the run.
        """
        total, epochs = sum(lab.tokens.values()), epoch_caps(lab, self.max_epochs)
        return {s: min(self.max_usage * n / total, epochs[s]) for s, n in lab.tokens.items()}


def epoch_caps(lab: Lab, max_epochs: float | None) -> dict[str, float]:
    """The largest weight of each source if the run reads it at most `max_epochs` times."""
    if max_epochs is None:
        return {name: float(n > 0) for name, n in lab.tokens.items()}
    total = sum(lab.tokens.values())
    if max_epochs * total < lab.budget:
        raise ConfigError(
            f"mixer.max_epochs={max_epochs:g}: the run draws {lab.budget:,} tokens, "
            f"{lab.budget / total:.2f} times the corpus' {total:,}; allow more epochs, or set "
            "it to null for no bound"
        )
    return {name: min(1.0, max_epochs * n / lab.budget) for name, n in lab.tokens.items()}


class SweepPlanner(Planner):
    """Trains proxies on many mixtures and plans the best mixture by their table."""

    needs_losses: ClassVar[bool] = True
    options: SweepOptions

    def mixtures(self, lab: Lab) -> list[Mixture]:
        """The first proxies' mixtures: random as in RegMix, around the shares of the tokens.

        Limits that allow no mixture and unknown targets are refused here, before any proxy.
        """
        options, named = self.options, self.options.target
        options.caps(lab)
        if isinstance(named, str):
            named = [] if named in (MEAN, NATURAL) else [named]
        elif not isinstance(named, Mapping | Sequence) or not named:
            raise ConfigError(
                f'mixer.target={named!r} must be a source, "{MEAN}", "{NATURAL}", a list of '
                "sources, or shares by source"
            )
        require_sources("target", named, lab.tokens)
        number = (self.option("rounds") or [options.num_proxies])[0]
        return generate_mixtures(lab.tokens, number, seed=options.seed, max_usage=options.max_usage)

    def _proxies(
        self, mixtures: Sequence[Mixture], name: str, settings: Mapping[str, Any]
    ) -> list[Proxy]:
        """One per mixture, of the sources that it draws; all with the same initial weights."""
        proxies = []
        for n, mixture in enumerate(mixtures, start=1):
            drawn = {source: weight for source, weight in mixture.weights.items() if weight > 0}
            static = {"name": "static", "weights": drawn}
            proxies.append(Proxy(f"{name} {n}", static, self.options.seed, settings))
        return proxies

    def _best(
        self,
        method: Method,
        lab: Lab,
        mixtures: Sequence[Mixture],
        losses: Sequence[Mapping[str, float]],
        nested: Mapping[str, Any] | None = None,
        **how: Any,
    ) -> Proposal:
        """What the method proposes from the proxies' losses, within the limits."""
        targets = list(dict.fromkeys(name for own in losses for name in own))
        self.table = MixtureTable(
            sources=list(lab.tokens),
            targets=targets,
            runs=[f"mixture {n + 1}" for n in range(len(mixtures))],
            weight_NS=np.array([[m.weights.get(s, 0.0) for s in lab.tokens] for m in mixtures]),
            loss_NV=np.array([[own.get(name, np.nan) for name in targets] for own in losses]),
            nested=nested or {},
        )
        target: Target = self.options.target
        if target == NATURAL and NATURAL not in targets:
            target = {name: float(lab.tokens[name]) for name in targets}
        proposal = propose_from_table(
            method,
            self.table,
            target=target,
            prior=lab.tokens,
            caps=self.options.caps(lab),
            seed=self.options.seed,
            **how,
        )
        self.findings = proposal.findings
        return proposal


class RegMixOptions(SweepOptions, owner="regmix"):
    """Options of the simulation: its size, and how many of its best mixtures are averaged."""

    num_proxies: int = Field(64, ge=4)
    rounds: Sequence[Annotated[int, Field(ge=1)]] = ()  # proxies of each; empty: one round
    surrogate: str | None = None  # None: by cross-validation
    top: int = Field(TOP, ge=1)
    draws: int = Field(DRAWS, ge=1)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.draws < self.top:
            raise ConfigError(
                f"mixer.draws={self.draws}: give a whole number of at least mixer.top={self.top}"
            )
        require_surrogate(self.surrogate)
        total = sum(self.rounds)
        given = self.num_proxies if "num_proxies" in self.model_fields_set else total
        if self.rounds and (self.rounds[0] < 4 or given != total):
            raise ConfigError(
                f"mixer.rounds={list(self.rounds)} with {given} proxies: the first round needs at "
                f"least 4, as in [64, 32, 16]; leave mixer.num_proxies out, or give {total}"
            )
        return self


class RegMix(SweepPlanner):
    """Draw from the mean of the simulated mixtures whose predicted loss is lowest."""

    def __init__(self, **options: Any) -> None:
        self.options: RegMixOptions = RegMixOptions(**options)

    def plan(self, lab: Lab) -> Mixture:
        how = self.options.model_dump(include={"surrogate", "draws", "top"})
        mixtures, losses = self.mixtures(lab), list[Mapping[str, float]]()
        rounds: list[dict[str, Any]] = []  # what was known after each
        proposal: Proposal | None = None
        for number in self.options.rounds or [self.options.num_proxies]:
            if proposal is not None:
                mixtures += self._next_round(lab, proposal, number, len(rounds))
            proxies = self._proxies(mixtures, "mixture", {})
            losses += [result.losses for result in lab.train(proxies[len(losses) :])]
            proposal = self._best("regmix", lab, mixtures, losses, **how)
            fitted, best = self.findings["surrogate"]["name"], self.findings["predicted"]
            rounds.append({"proxies": number, "surrogate": fitted, **best})
        assert proposal is not None
        if self.options.rounds:
            self.findings = {**self.findings, "rounds": rounds}
        return proposal.mixture

    def _next_round(self, lab: Lab, fitted: Proposal, number: int, done: int) -> list[Mixture]:
        """New mixtures where the fit on all proxies so far predicts the lowest losses."""
        assert self.table is not None
        tokens_S = np.array(list(lab.tokens.values()), dtype=np.float64)
        weight_NS = promising_mixtures(
            fitted.objective.predict,
            tokens_S / tokens_S.sum(),
            np.array(list(self.options.caps(lab).values())),
            self.table.weight_NS,
            number,
            draws=stream(self.options.seed, "plans", "round", done),
            num_draws=self.options.draws,
        )
        rows = weight_NS.tolist()
        return [Mixture.normalised(dict(zip(lab.tokens, w, strict=True))) for w in rows]


class MixingLawOptions(SweepOptions, owner="mixing-law"):
    """Options of the laws."""

    num_proxies: int = Field(32, ge=4)
    nest: Literal["no", "steps", "sizes"] = "no"
    sizes: Sequence[str] = ()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.nest == "sizes") != bool(self.sizes) or 0 < len(set(self.sizes)) < FEWEST_SIZES:
            raise ConfigError(
                f"mixer.nest={self.nest} with mixer.sizes={list(self.sizes)}: a size law needs "
                f"nest=sizes and at least {FEWEST_SIZES} model presets in sizes; without one, "
                "leave sizes out"
            )
        return self


class MixingLaw(SweepPlanner):
    """Draw from the mixture at which the fitted laws are lowest.

    `nest: steps` first predicts the losses at the run's number of tokens; `nest: sizes` also at its
    model's size, from every mixture at each of the presets in `sizes`.
    """

    def __init__(self, **options: Any) -> None:
        self.options: MixingLawOptions = MixingLawOptions(**options)

    def plan(self, lab: Lab) -> Mixture:
        mixtures, nested = self.mixtures(lab), self.options.nest != "no"
        often = {"eval": {"every": max(lab.proxy_steps // CURVE_POINTS, 1)}} if nested else {}
        proxies = [] if self.options.sizes else self._proxies(mixtures, "mixture", often)
        for size in self.options.sizes:
            settings = often | {"model": {"preset": size}}
            proxies += self._proxies(mixtures, f"{size}, mixture", settings)
        results, number = lab.train(proxies), len(mixtures)  # in one request
        losses: list[Mapping[str, float]] = [result.losses for result in results[:number]]
        if not nested:
            return self._best("mixing-law", lab, mixtures, losses).mixture
        # Losses are predicted at the run's tokens, and at its size if there are `sizes`.
        curves: dict[Place, LossCurve] = {}
        for n, result in enumerate(results):
            run = f"mixture {n % number + 1}"
            for source in result.losses:
                curves[float(result.parameters), run, source] = late_curve(result, source)
        goal = float(lab.parameters if self.options.sizes else results[0].parameters)
        losses, findings = nest(curves, size=goal, tokens=lab.budget)
        return self._best("mixing-law", lab, mixtures, losses, findings).mixture


def late_curve(result: ProxyResult, source: str) -> LossCurve:
    """Loss over tokens of one source, without the first third of the steps.

    The authors fit steps 10k to 30k of 30k: there is no power law during the warm-up.
    """
    steps = result.curve[-1][0]
    points = [(n / steps, losses[source]) for n, losses in result.curve if 3 * n >= steps]
    part_X, loss_X = np.array(points).T
    return LossCurve(part_X * result.tokens, loss_X)

"""Data Mixing Law: proxies, an exponential law of the loss for each source, its exact optimum.

Ye et al., ICLR 2025: L_i(r) = c_i + k_i exp(t_i . r) for a mixture r; a transfer law, which is
c_i + (a_i . r)^-alpha_i, can take its place. Nested, the losses that the laws are fitted on are
themselves predicted: by a step law from the proxies' curves to the run's tokens, and by a size law
from several sizes of proxies to the run's model.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from dograph.errors import ConfigError
from dograph.mixers.base import Lab, Planner, ProxyResult
from dograph.mixers.sweep import Sweep, table_of
from dograph.mixtures.from_table import propose_from_table
from dograph.mixtures.laws import Curve, Nested, Place, nest
from dograph.mixtures.proposals import Target
from dograph.mixtures.surrogates import LAWS
from dograph.option_checks import require_one_of
from dograph.types import Mixture

Nest = Literal["no", "steps", "sizes"]
CURVE_POINTS = 12  # of a proxy's learning curve, where a step law is fitted to it
FEWEST_SIZES = 3  # a size law has three parameters


class MixingLaw(Planner):
    """Draw from the mixture at which the fitted laws are lowest.

    `target`: a source, `mean` over sources, `natural` (by tokens), a list, or shares by name.
    `law`: `exponential`, the authors', or `transfer`, a power of the tokens that count.
    `nest: steps` predicts the losses at the run's number of tokens first; `nest: sizes` at its
    model's size too, from the presets in `sizes`, every mixture at each.
    """

    needs_losses: ClassVar[bool] = True

    def __init__(
        self,
        *,
        num_proxies: int = 32,
        target: Target = "mean",
        law: str = LAWS[0],
        nest: Nest = "no",
        sizes: Sequence[str] = (),
        max_usage: float = 15.0,
        max_epochs: float | None = 4.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        require_one_of("mixer.law", law, LAWS)
        require_one_of("mixer.nest", nest, get_args(Nest))
        if (nest == "sizes") != bool(sizes) or 0 < len(set(sizes)) < FEWEST_SIZES:
            raise ConfigError(
                f"mixer.nest={nest} with mixer.sizes={list(sizes)}: a size law needs nest=sizes "
                f"and at least {FEWEST_SIZES} model presets in sizes; without one, leave sizes out"
            )
        self.law, self.nest, self.sizes = law, nest, list(sizes)
        self.sweep = Sweep(
            num_proxies=num_proxies,
            target=target,
            max_usage=max_usage,
            max_epochs=max_epochs,
            seed=seed,
        )

    def plan(self, lab: Lab) -> Mixture:
        mixtures = self.sweep.mixtures(lab)
        results = self._train(lab, mixtures)
        losses: list[Mapping[str, float]] = [result.losses for result in results[0]]
        nested: dict[str, Any] = {}
        if self.nest != "no":
            losses, nested = self._nested(lab, results)
        self.table = table_of(mixtures, losses, list(lab.tokens))
        proposal = propose_from_table(
            "mixing-law",
            self.table,
            target=self.sweep.shares(lab, self.table),
            prior=lab.tokens,
            caps=self.sweep.caps(lab),
            surrogate=self.law,
            seed=self.sweep.seed,
        )
        self.findings = proposal.findings | nested
        return proposal.mixture

    def _train(self, lab: Lab, mixtures: list[Mixture]) -> list[list[ProxyResult]]:
        """Results by size and mixture; all proxies are asked for at once."""
        often = {"eval": {"every": max(lab.proxy_steps // CURVE_POINTS, 1)}}
        own: dict[str, Any] = {} if self.nest == "no" else often
        settings = [own | {"model": {"preset": size}} for size in self.sizes] or [own]
        names = [f"{size}, mixture" for size in self.sizes] or ["mixture"]
        proxies = [
            proxy
            for name, one in zip(names, settings, strict=True)
            for proxy in self.sweep.proxies(mixtures, name, one)
        ]
        results, number = lab.train(proxies), len(mixtures)
        return [results[first : first + number] for first in range(0, len(results), number)]

    def _nested(
        self, lab: Lab, results: list[list[ProxyResult]]
    ) -> tuple[list[Mapping[str, float]], dict[str, Any]]:
        """Losses predicted at the run's tokens, and size where sizes were tried."""
        curves: dict[Place, Curve] = {}
        for row in results:
            for n, result in enumerate(row):
                for source in result.losses:
                    place = (float(result.parameters), f"mixture {n + 1}", source)
                    curves[place] = _curve(result, source)
        size = float(lab.parameters if self.sizes else results[0][0].parameters)
        nested = nest(curves, size=size, tokens=lab.budget)
        losses = [dict(zip(nested.targets, row, strict=True)) for row in nested.loss_NV.tolist()]
        return list(losses), {"nested": _told(nested, size, lab.budget)}


def _curve(result: ProxyResult, source: str) -> Curve:
    """Loss over tokens of one source, the first third of the steps apart.

    The authors fit steps 10k to 30k of 30k: no power law holds while the learning rate warms up.
    """
    steps = result.curve[-1][0]
    points = [(n / steps, losses[source]) for n, losses in result.curve if 3 * n >= steps]
    part_X, loss_X = np.array(points).T
    return Curve(part_X * result.tokens, loss_X)


def _told(nested: Nested, size: float, tokens: int) -> dict[str, Any]:
    return {
        "parameters": size,
        "tokens": tokens,
        "step_in_sample": nested.step_in_sample,
        "step_held_out": nested.step_held_out,
        "size_in_sample": nested.size_in_sample,
        "size_held_out": nested.size_held_out,
        "notes": list(nested.notes),
    }

"""Data Mixing Law: proxies, an exponential law of the loss for each source, its exact optimum.

Ye et al., ICLR 2025: L_i(r) = c_i + k_i exp(t_i . r) for a mixture r; a transfer law, which is
c_i + (a_i . r)^-alpha_i, can take its place. Nested, the losses that the laws are fitted on are
themselves predicted: by a step law from the proxies' curves to the run's tokens, and by a size law
from several sizes of proxies to the run's model.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from dograph.errors import ConfigError
from dograph.mixers.base import Lab, Planner, ProxyResult
from dograph.mixers.sweep import Sweep, table_of
from dograph.mixtures.power_laws import LossCurve, Place, nest
from dograph.types import Mixture

CURVE_POINTS = 12  # of a proxy's learning curve, where a step law is fitted to it
FEWEST_SIZES = 3  # a size law has three parameters


class MixingLawOptions(Sweep):
    """What is tried, and the laws that are fitted to it."""

    owner: ClassVar[str] = "mixing-law"

    num_proxies: int = Field(32, ge=4)
    law: Literal["exponential", "transfer"] = "exponential"
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


class MixingLaw(Planner):
    """Draw from the mixture at which the fitted laws are lowest.

    `law`: `exponential`, the authors', or `transfer`, a power of the tokens that count.
    `nest: steps` predicts the losses at the run's number of tokens first; `nest: sizes` at its
    model's size too, from the presets in `sizes`, every mixture at each.
    """

    needs_losses: ClassVar[bool] = True

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.options = MixingLawOptions(**options)

    def plan(self, lab: Lab) -> Mixture:
        mixtures = self.options.mixtures(lab)
        often = {"eval": {"every": max(lab.proxy_steps // CURVE_POINTS, 1)}}
        own: dict[str, Any] = {} if self.options.nest == "no" else often
        proxies = []
        sizes: list[str | None] = [*self.options.sizes] or [None]
        for size in sizes:
            name, settings = "mixture", own
            if size is not None:
                name, settings = f"{size}, mixture", own | {"model": {"preset": size}}
            proxies += self.options.proxies(mixtures, name, settings)
        trained, number = lab.train(proxies), len(mixtures)  # all are asked for at once
        results = [trained[first : first + number] for first in range(0, len(trained), number)]
        losses: list[Mapping[str, float]] = [result.losses for result in results[0]]
        nested: dict[str, Any] = {}
        if self.options.nest != "no":
            losses, nested = self._nested(lab, results)
        self.table = table_of(mixtures, losses, list(lab.tokens))
        proposal = self.options.propose("mixing-law", lab, self.table, self.options.law)
        self.findings = proposal.findings | nested
        return proposal.mixture

    def _nested(
        self, lab: Lab, results: list[list[ProxyResult]]
    ) -> tuple[list[Mapping[str, float]], dict[str, Any]]:
        """Losses predicted at the run's tokens, and size where sizes were tried."""
        curves: dict[Place, LossCurve] = {}
        for row in results:
            for n, result in enumerate(row):
                for source in result.losses:
                    place = (float(result.parameters), f"mixture {n + 1}", source)
                    curves[place] = _curve(result, source)
        size = float(lab.parameters if self.options.sizes else results[0][0].parameters)
        nested = nest(curves, size=size, tokens=lab.budget)
        losses = [dict(zip(nested.targets, row, strict=True)) for row in nested.loss_NV.tolist()]
        told = {
            "parameters": size,
            "tokens": lab.budget,
            **nested.errors,
            "notes": list(nested.notes),
        }
        return list(losses), {"nested": told}


def _curve(result: ProxyResult, source: str) -> LossCurve:
    """Loss over tokens of one source, the first third of the steps apart.

    The authors fit steps 10k to 30k of 30k: no power law holds while the learning rate warms up.
    """
    steps = result.curve[-1][0]
    points = [(n / steps, losses[source]) for n, losses in result.curve if 3 * n >= steps]
    part_X, loss_X = np.array(points).T
    return LossCurve(part_X * result.tokens, loss_X)

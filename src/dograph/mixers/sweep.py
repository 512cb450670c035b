"""Proxies of many mixtures, for methods that learn from a table which mixture is best.

Shapes: N mixtures, S sources, V sources that have a validation loss.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from dograph.config import Options
from dograph.errors import ConfigError
from dograph.mixers.base import Lab, Proxy, require_sources
from dograph.mixtures.from_table import MEAN, Method, Proposal, Target, propose_from_table
from dograph.mixtures.proposals import generate_mixtures
from dograph.mixtures.tables import MixtureTable
from dograph.types import Mixture

NATURAL = "natural"  # as a target: every source by its training tokens


class Sweep(Options):
    """Which mixtures are tried, what is to be lowered, and what bounds the plan."""

    num_proxies: int = Field(ge=4)
    target: Any = "mean"  # a source, `mean`, `natural` (by tokens), a list, or shares by name
    max_usage: float = Field(15.0, ge=1)
    max_epochs: float | None = Field(4.0, gt=0)
    seed: int = Field(0, ge=0)

    def mixtures(self, lab: Lab) -> list[Mixture]:
        """As RegMix draws them, around the sources' shares of the tokens.

        What would end the plan after its proxies ends it here: bounds that leave no mixture, and
        targets that no source is named like.
        """
        self.caps(lab)
        named = self.target
        if isinstance(named, str):
            named = [] if named in (MEAN, NATURAL) else [named]
        elif not isinstance(named, Mapping | Sequence) or not named:
            raise ConfigError(
                f'mixer.target={named!r} must be a source, "{MEAN}", "{NATURAL}", a list of '
                "sources, or shares by source"
            )
        require_sources("target", named, lab.tokens)
        return generate_mixtures(
            lab.tokens, self.num_proxies, seed=self.seed, max_usage=self.max_usage
        )

    def proxies(
        self, mixtures: Sequence[Mixture], name: str, settings: Mapping[str, Any]
    ) -> list[Proxy]:
        """One for each mixture; all start from the same weights."""
        return [
            Proxy(
                f"{name} {n + 1}",
                {"name": "static", "weights": {k: w for k, w in mixture.weights.items() if w > 0}},
                self.seed,
                settings,
            )
            for n, mixture in enumerate(mixtures)
        ]

    def caps(self, lab: Lab) -> dict[str, float]:
        """The most that the plan may draw of each source.

        `max_usage` times its natural share, so that the plan stays where proxies have been, and
        no more than `max_epochs` times its tokens over the run that the plan is for.
        """
        total = sum(lab.tokens.values())
        caps = {name: min(1.0, self.max_usage * n / total) for name, n in lab.tokens.items()}
        if self.max_epochs is None:
            return caps
        if self.max_epochs * total < lab.budget:
            raise ConfigError(
                f"mixer.max_epochs={self.max_epochs:g}: the run draws {lab.budget:,} tokens, "
                f"{lab.budget / total:.2f} times the corpus' {total:,}; allow more epochs, or set "
                "it to null for no bound"
            )
        return {
            name: min(cap, self.max_epochs * lab.tokens[name] / lab.budget)
            for name, cap in caps.items()
        }

    def propose(
        self, method: Method, lab: Lab, table: MixtureTable, surrogate: str | None, **own: Any
    ) -> Proposal:
        """The mixture that a method finds best by the proxies' table, inside the caps."""
        target: Target = self.target
        if self.target == NATURAL and NATURAL not in table.targets:
            target = {name: float(lab.tokens[name]) for name in table.targets}
        return propose_from_table(
            method,
            table,
            target=target,
            prior=lab.tokens,
            caps=self.caps(lab),
            surrogate=surrogate,
            seed=self.seed,
            **own,
        )


def table_of(
    mixtures: Sequence[Mixture], losses: Sequence[Mapping[str, float]], sources: Sequence[str]
) -> MixtureTable:
    """Mixtures and the losses that proxies came to under them."""
    targets = list(dict.fromkeys(name for own in losses for name in own))
    return MixtureTable(
        sources=list(sources),
        targets=targets,
        runs=[f"mixture {n + 1}" for n in range(len(mixtures))],
        weight_NS=np.array([[m.weights.get(name, 0.0) for name in sources] for m in mixtures]),
        loss_NV=np.array([[own.get(name, np.nan) for name in targets] for own in losses]),
    )

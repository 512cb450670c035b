"""Proxies of many mixtures, for methods that learn from a table which mixture is best.

Shapes: N mixtures, S sources, V sources that have a validation loss.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dograph.errors import ConfigError, did_you_mean
from dograph.mixers.base import Lab, Proxy
from dograph.mixtures.proposals import MEAN, Target, generate_mixtures
from dograph.mixtures.tables import MixtureTable
from dograph.option_checks import require_number, require_whole
from dograph.types import Mixture

NATURAL = "natural"  # as a target: every source by its training tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Which mixtures are tried, what is to be lowered, and what bounds the plan."""

    num_proxies: int
    target: Target
    max_usage: float
    max_epochs: float | None
    seed: int

    def __post_init__(self) -> None:
        require_whole("mixer.num_proxies", self.num_proxies, least=4)
        require_whole("mixer.seed", self.seed, least=0)
        require_number("mixer.max_usage", self.max_usage, least=1)
        if self.max_epochs is not None:
            require_number("mixer.max_epochs", self.max_epochs, above=0)

    def mixtures(self, lab: Lab) -> list[Mixture]:
        """As RegMix draws them, around the sources' shares of the tokens.

        What would end the plan after its proxies ends it here: bounds that leave no mixture, and
        targets that no source is named like.
        """
        self.caps(lab)
        for name in self._target_names():
            if name not in lab.tokens:
                raise ConfigError(
                    f'mixer.target names "{name}", which is not a source; '
                    f"{did_you_mean(name, lab.tokens)}"
                )
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

    def _target_names(self) -> list[str]:
        """The sources that `target` names."""
        if isinstance(self.target, str):
            return [] if self.target in (MEAN, NATURAL) else [self.target]
        if not isinstance(self.target, Mapping | Sequence) or not self.target:
            raise ConfigError(
                f'mixer.target={self.target!r} must be a source, "{MEAN}", "{NATURAL}", a list of '
                "sources, or shares by source"
            )
        return [str(name) for name in self.target]

    def shares(self, lab: Lab, table: MixtureTable) -> Target:
        """What is to be lowered, in terms of the table."""
        if self.target != NATURAL or NATURAL in table.targets:
            return self.target
        return {name: float(lab.tokens[name]) for name in table.targets}


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

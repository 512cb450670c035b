"""Mixture reuse (Olmix): when a corpus changes, only its changed sources are weighed anew.

Sources that did not change keep their ratios of an earlier mixture and become one source. The plan
is made for that source and the others, then expanded: r_j = r_unchanged * ratio_j.

Shapes: N runs, S sources of the table, U unchanged sources.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from dograph.errors import ConfigError, did_you_mean, listed
from dograph.mixtures.tables import MixtureTable
from dograph.types import Mixture

UNCHANGED = "unchanged"
SAME_RATIOS = 0.02  # L1: closer ratios are those of the earlier mixture up to rounding


@dataclass(frozen=True)
class MixtureReuse:
    """Unchanged sources with their ratios, and the name of the source that stands for them."""

    name: str
    ratios: Mapping[str, float]  # sum to 1
    is_column: bool = False  # `name` is a source of the table; the ratios' sources are not

    @classmethod
    def of(
        cls, earlier: Mapping[str, float], unchanged: Sequence[str], table: MixtureTable
    ) -> Self:
        """Unchanged sources of the table; or one that stands for the sources which it lacks."""
        names = [table.aliases.get(name, name) for name in unchanged]
        if absent := [name for name in names if name not in table.sources]:
            hint = did_you_mean(absent[0], table.sources)
            raise ConfigError(f'unchanged: the table has no source "{absent[0]}"; {hint}')
        if is_column := len(names) == 1 and names[0] not in earlier:
            kept = {name: w for name, w in earlier.items() if name not in table.sources}
        else:
            if silent := [name for name in names if name not in earlier]:
                what = f"unchanged: the earlier mixture does not name {listed(silent)}"
                raise ConfigError(f"{what}; it names {listed(list(earlier))}")
            kept = {name: earlier[name] for name in names}
        if not sum(kept.values()) > 0:
            raise ConfigError(f"the earlier mixture has no weight on {listed(list(kept) or names)}")
        name = names[0] if is_column else UNCHANGED
        return cls(name, Mixture.normalised(kept).weights, is_column)

    def table(self, table: MixtureTable) -> MixtureTable:
        """The table with one source in place of the unchanged ones."""
        if self.is_column:
            return table
        at_U = [table.sources.index(name) for name in self.ratios]
        rest = [s for s in range(len(table.sources)) if s not in at_U]
        weight_NU = table.weight_NS[:, at_U]
        total_N1 = weight_NU.sum(1, keepdims=True)
        off_N = np.abs(weight_NU - total_N1 * np.array(list(self.ratios.values()))).sum(1)
        notes = list(table.notes)
        if other := int((off_N > SAME_RATIOS).sum()):
            notes.append(
                f"in {other} of {len(off_N)} runs the unchanged sources are not in the ratios of "
                f"the earlier mixture (L1 up to {off_N.max():.2f}): the fit takes them to be"
            )
        sources = [*(table.sources[s] for s in rest), self.name]
        weight_NS = np.hstack([table.weight_NS[:, rest], total_N1])
        return replace(table, sources=sources, weight_NS=weight_NS, notes=notes)

    def prior(self, prior: Mapping[str, float]) -> tuple[dict[str, float], float]:
        """The prior with one source, and KL(ratios || prior of the unchanged sources)."""
        if self.is_column:
            return dict(prior), 0.0
        own = {name: prior.get(name, 0.0) for name in self.ratios}
        if none := [name for name, ratio in self.ratios.items() if ratio > 0 and not own[name] > 0]:
            raise ConfigError(f"the prior has nothing of {listed(none)}, which the plan keeps")
        total = sum(own.values())
        kept = {name: ratio for name, ratio in self.ratios.items() if ratio > 0}
        distance = sum(r * float(np.log(r * total / own[name])) for name, r in kept.items())
        return {n: w for n, w in prior.items() if n not in own} | {self.name: total}, distance

    def caps(self, caps: Mapping[str, float]) -> dict[str, float]:
        """Caps with one source: as much of it as no cap of the unchanged sources forbids."""
        kept = [caps[n] / r for n, r in self.ratios.items() if n in caps and r > 0]
        others = {name: cap for name, cap in caps.items() if name not in self.ratios}
        return others | ({self.name: min([*kept, others.get(self.name, 1.0), 1.0])} if kept else {})

    def expanded(self, weights: Mapping[str, float]) -> dict[str, float]:
        """The weights of all sources."""
        whole = weights[self.name]
        others = {name: weight for name, weight in weights.items() if name != self.name}
        return others | {name: whole * ratio for name, ratio in self.ratios.items()}

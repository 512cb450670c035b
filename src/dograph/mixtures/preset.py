"""A published mixture, and how it fits a corpus that spells its sources otherwise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dograph.errors import ConfigError
from dograph.mixtures.file import MixtureFile, Provenance
from dograph.mixtures.names import by_canonical
from dograph.types import Mixture

LEAST_FIT = 0.5  # a corpus must have the sources of at least this much of a preset's weight


@dataclass(frozen=True, slots=True)
class Preset:
    """A mixture that somebody published."""

    name: str
    collection: str  # whose source names it is keyed by: a key of names.SPELLINGS
    weights: Mapping[str, float]  # as printed
    provenance: Provenance

    @property
    def file(self) -> MixtureFile:
        weights = dict(Mixture.normalised(self.weights).weights)
        return MixtureFile(weights=weights, provenance=self.provenance)

    def fit(self, sources: Sequence[str]) -> tuple[Mixture, list[str]]:
        """The mixture under a corpus' own source names, and one line for each thing left over."""
        theirs = by_canonical(sources, self.collection)
        shares = Mixture.normalised(self.weights).weights
        kept = {theirs[ours]: share for ours, share in shares.items() if ours in theirs}
        absent = [ours for ours in shares if ours not in theirs]
        fitting = sum(kept.values())
        if fitting < LEAST_FIT:
            raise ConfigError(
                f"the preset {self.name} does not fit this corpus: its sources are "
                f"{', '.join(shares)}; the corpus has {', '.join(sources)}. Give weights by your "
                "own names: mixer.weights, or a mixture file"
            )
        notes = []
        if absent:
            notes.append(
                f"the corpus has no {', '.join(absent)} of the preset {self.name} "
                f"({1 - fitting:.1%} of its weight): the rest was scaled up to sum to 1"
            )
        if others := [source for source in sources if source not in kept]:
            notes.append(f"the preset {self.name} does not name {', '.join(others)}: not drawn")
        return Mixture.normalised(kept), notes

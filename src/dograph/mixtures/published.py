"""Published mixtures (published.yaml), and how they match a corpus' source names."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from dograph.errors import ConfigError, did_you_mean
from dograph.files import load_yaml, package_text
from dograph.mixtures.file import MixtureFile, Provenance, read_mixture_file, squash
from dograph.types import Mixture

LEAST_FIT = 0.5  # a corpus must have sources with at least this share of a preset's weight

BY_NAME = "give weights by the corpus' own names: mixer.weights, or a mixture file"

_PUBLISHED = load_yaml(package_text("mixtures/published.yaml"))
# By collection: a corpus' spelling of a source, squashed, and our name for it.
CANONICAL: Mapping[str, Mapping[str, str]] = {
    collection: {
        prefix + spelling: ours
        for ours, others in known["sources"].items()
        for spelling in (squash(ours), *others)
        for prefix in known["prefixes"]
    }
    for collection, known in _PUBLISHED["collections"].items()
}


@dataclass(frozen=True, slots=True)
class Preset:
    """A published mixture."""

    name: str
    collection: str  # of source names: a key of CANONICAL
    weights: Mapping[str, float]  # as printed
    provenance: Provenance

    def fit(self, sources: Sequence[str]) -> tuple[Mixture, list[str]]:
        """The mixture under a corpus' own source names, and notes on unmatched sources."""
        theirs: dict[str, str] = {}  # our name -> the corpus' own
        for source in sources:
            ours = CANONICAL[self.collection].get(squash(source))
            if ours in theirs:
                both = f'both "{theirs[ours]}" and "{source}", spellings of "{ours}"'
                raise ConfigError(f"the corpus has {both}; {BY_NAME}")
            if ours is not None:
                theirs[ours] = source
        shares = Mixture.normalised(self.weights).weights
        kept = {theirs[ours]: share for ours, share in shares.items() if ours in theirs}
        absent = [ours for ours in shares if ours not in theirs]
        fitting = sum(kept.values())
        if fitting < LEAST_FIT:
            raise ConfigError(
                f"the preset {self.name} does not fit this corpus: its sources are "
                f"{', '.join(shares)}; the corpus has {', '.join(sources)}; {BY_NAME}"
            )
        notes = []
        if absent:
            lacks = f"the corpus has no {', '.join(absent)} of the preset {self.name}"
            lost = f"({1 - fitting:.1%} of its weight)"
            notes.append(f"{lacks} {lost}: the rest was scaled up to sum to 1")
        if others := [source for source in sources if source not in kept]:
            notes.append(f"the preset {self.name} does not name {', '.join(others)}: not drawn")
        return Mixture.normalised(kept), notes


PRESETS: Mapping[str, Preset] = {
    name: Preset(name, own["collection"], own["weights"], Provenance(**own["provenance"]))
    for name, own in _PUBLISHED["presets"].items()
}


def find_preset(name: str) -> Preset:
    if name not in PRESETS:
        what = "published mixture" if Path(name).exists() else "mixture file or published mixture"
        raise ConfigError(f'no {what} "{name}"; {did_you_mean(name, PRESETS)}')
    return PRESETS[name]


def find_mixture(name: str, sources: Sequence[str] | None = None) -> tuple[MixtureFile, list[str]]:
    """A mixture file, or a published mixture by name; the latter for `sources`, with notes."""
    if Path(name).exists():
        return read_mixture_file(Path(name)), []
    preset = find_preset(name)
    mixture, notes = Mixture.normalised(preset.weights), list[str]()
    if sources is not None:
        mixture, notes = preset.fit(sources)
    return MixtureFile(weights=dict(mixture.weights), provenance=preset.provenance), notes

"""What a mixer that weighs samples draws from."""

from collections.abc import Mapping

from dograph.types import Mixture

SAMPLINGS = ("uniform", "natural")


def sampling_mixture(sampling: str, tokens: Mapping[str, float]) -> Mixture:
    """`uniform`: alike from every source; `natural`: by tokens."""
    if sampling == "uniform":
        return Mixture.normalised(dict.fromkeys(tokens, 1.0))
    return Mixture.normalised({name: float(n) for name, n in tokens.items()})

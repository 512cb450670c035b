"""What a mixer that weighs samples draws from."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dograph.errors import ConfigError, did_you_mean
from dograph.mixers.fixed import stage
from dograph.types import Mixture

SAMPLINGS = ("uniform", "natural")


def check_sampling(sampling: Any) -> None:
    """Refuse what is no way to draw: not a name, a mixture file or weights by source."""
    if isinstance(sampling, Mapping) or sampling in SAMPLINGS:
        return
    if not isinstance(sampling, str) or Path(sampling).suffix not in (".yaml", ".yml"):
        raise ConfigError(
            f"mixer.sampling={sampling!r}; {did_you_mean(str(sampling), SAMPLINGS)}; or give a "
            "mixture file (.yaml), or weights by source"
        )


def sampling_mixture(sampling: Any, tokens: Mapping[str, float]) -> Mixture:
    """`uniform`: alike from every source; `natural`: by tokens; else the mixture given."""
    if sampling == "uniform":
        return Mixture.normalised(dict.fromkeys(tokens, 1.0))
    if sampling == "natural":
        return Mixture.normalised({name: float(n) for name, n in tokens.items()})
    return stage(sampling, "mixer.sampling")[0]

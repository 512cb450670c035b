"""Exports by name."""

from collections.abc import Callable, Mapping

from dograph.errors import ConfigError, did_you_mean
from dograph.mixtures import (
    axolotl,
    hf,
    levanter,
    litdata,
    litgpt,
    megatron,
    nanotron,
    olmo_core,
    plain,
)

Export = Callable[[Mapping[str, float], Mapping[str, str]], str]
EXPORTS: Mapping[str, Export] = {
    "hf": hf.export,
    "litdata": litdata.export,
    "litgpt": litgpt.export,
    "nanotron": nanotron.export,
    "olmo-core": olmo_core.export,
    "megatron": megatron.export,
    "levanter": levanter.export,
    "yaml": plain.export_yaml,
    "json": plain.export_json,
}
# Where a weight is a part of a source, and not of the mixture, sizes must be known.
SIZED: Mapping[str, Callable[[Mapping[str, float], Mapping[str, str], Mapping[str, int]], str]] = {
    "axolotl": axolotl.export
}
FORMATS = [*EXPORTS, *SIZED]


def export_mixture(
    name: str,
    mixture: Mapping[str, float],
    places: Mapping[str, str],
    sizes: Mapping[str, int] | None = None,
) -> str:
    """The configuration text of a mixture for the trainer `name`."""
    for place in places:
        if place not in mixture:
            raise ConfigError(
                f'--place names "{place}", which the mixture does not have; '
                f"{did_you_mean(place, mixture)}"
            )
    if name in SIZED:
        return SIZED[name](mixture, places, sizes or {})
    if name not in EXPORTS:
        raise ConfigError(f'no export "{name}"; {did_you_mean(name, FORMATS)}')
    return EXPORTS[name](mixture, places)

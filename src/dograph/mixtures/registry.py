"""Exports by name."""

from collections.abc import Callable, Mapping

from dograph.errors import ConfigError, did_you_mean
from dograph.mixtures.axolotl import export_axolotl
from dograph.mixtures.hf import export_hf
from dograph.mixtures.levanter import export_levanter
from dograph.mixtures.litdata import export_litdata
from dograph.mixtures.litgpt import export_litgpt
from dograph.mixtures.megatron import export_megatron
from dograph.mixtures.nanotron import export_nanotron
from dograph.mixtures.olmo_core import export_olmo_core
from dograph.mixtures.plain import export_json, export_yaml

Export = Callable[[Mapping[str, float], Mapping[str, str]], str]
EXPORTS: Mapping[str, Export] = {
    "hf": export_hf,
    "litdata": export_litdata,
    "litgpt": export_litgpt,
    "nanotron": export_nanotron,
    "olmo-core": export_olmo_core,
    "megatron": export_megatron,
    "levanter": export_levanter,
    "yaml": export_yaml,
    "json": export_json,
}
# Where a weight is a part of a source, and not of the mixture, sizes must be known.
SIZED: Mapping[str, Callable[[Mapping[str, float], Mapping[str, str], Mapping[str, int]], str]] = {
    "axolotl": export_axolotl
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

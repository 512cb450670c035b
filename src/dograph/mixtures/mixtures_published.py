"""Published mixtures by name. A preset never changes: a corrected one gets another name.

Weights are keyed by source name (see `names` for the order trap of the literature), written as
their authors printed them, and divided by their sum when used.
"""

from collections.abc import Mapping

from dograph.errors import ConfigError, did_you_mean
from dograph.mixtures.preset import Preset
from dograph.mixtures.published import PILE
from dograph.mixtures.slimpajama import SLIMPAJAMA

PRESETS: Mapping[str, Preset] = {preset.name: preset for preset in (*SLIMPAJAMA, *PILE)}


def find_preset(name: str) -> Preset:
    if name not in PRESETS:
        raise ConfigError(f'no preset "{name}"; {did_you_mean(name, PRESETS)}')
    return PRESETS[name]

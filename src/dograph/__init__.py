"""Data mixing for language-model pre-training, by what the model itself perceives."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dograph.corpus.corpus import Corpus as Corpus
    from dograph.corpus.sampler import Sampler as Sampler
    from dograph.mixers.base import Mixer as Mixer
    from dograph.types import Mixture as Mixture
    from dograph.types import Signals as Signals

__version__ = "0.1.0"

# Names are imported when first used: `import dograph` stays as cheap as an empty module.
_HOMES = {
    "Corpus": "dograph.corpus.corpus",
    "Mixer": "dograph.mixers.base",
    "Mixture": "dograph.types",
    "Sampler": "dograph.corpus.sampler",
    "Signals": "dograph.types",
}
__all__ = ["Corpus", "Mixer", "Mixture", "Sampler", "Signals"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dograph' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)

"""Data mixing for language-model pre-training, by what the model itself perceives."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dograph.data.corpus import Corpus as Corpus
    from dograph.data.loader import CorpusDataset as CorpusDataset
    from dograph.data.loader import MixtureSampler as MixtureSampler
    from dograph.data.sampler import Sampler as Sampler
    from dograph.mixers.base import Mixer as Mixer
    from dograph.mixers.dograph import DoGraph as DoGraph
    from dograph.sketch.cover import LayerRule as LayerRule
    from dograph.sketch.head import sketched_cross_entropy as sketched_cross_entropy
    from dograph.sketch.sketcher import Sketcher as Sketcher
    from dograph.train.noise import NoiseScale as NoiseScale
    from dograph.train.watch import SampleWatch as SampleWatch
    from dograph.types import Mixture as Mixture
    from dograph.types import Signals as Signals

__version__ = "0.1.0"

# Names are imported when first used: `import dograph` stays as cheap as an empty module.
_HOMES = {
    "Corpus": "dograph.data.corpus",
    "CorpusDataset": "dograph.data.loader",
    "DoGraph": "dograph.mixers.dograph",
    "LayerRule": "dograph.sketch.cover",
    "Mixer": "dograph.mixers.base",
    "Mixture": "dograph.types",
    "MixtureSampler": "dograph.data.loader",
    "NoiseScale": "dograph.train.noise",
    "SampleWatch": "dograph.train.watch",
    "Sampler": "dograph.data.sampler",
    "Signals": "dograph.types",
    "Sketcher": "dograph.sketch.sketcher",
    "sketched_cross_entropy": "dograph.sketch.head",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dograph' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)

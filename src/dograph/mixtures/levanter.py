"""Levanter: components and their train_weights.

Against `LmDataConfig` and `DatasetComponent` of lib/levanter/src/levanter/data/text/datasets.py
and the Training-Data-Guide (marin-community/marin 161966a, e621fef). Releases before `components`
called them `configs`, without `source`.
"""

from collections.abc import Mapping
from typing import Any

from dograph.mixtures.export import as_yaml, comments, hub_name, place_of, printed


def export_levanter(mixture: Mapping[str, float], places: Mapping[str, str]) -> str:
    """The `data` of a configuration."""
    weights = printed(mixture)
    head = comments(
        mixture,
        places,
        (
            "Levanter: the data of a configuration; add tokenizer and cache_dir.",
            """Weights count sequences of the training length, so they are shares of tokens
            (text components are concatenated and cut).""",
        ),
    )
    components = {
        name: {"source": _source(place_of(name, places, "data/{}/*.jsonl.gz"))} for name in weights
    }
    return head + as_yaml({"data": {"components": components, "train_weights": weights}})


def _source(place: str) -> dict[str, Any]:
    if (hub := hub_name(place)) is not None:
        return {"type": "hf", "id": hub}
    return {"type": "url", "train_urls": [place]}

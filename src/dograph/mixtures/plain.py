"""Weights alone, as a mixture file of ours or as JSON. Zeros are kept."""

import json
from collections.abc import Mapping

from dograph.mixtures.export import as_yaml, printed


def export_yaml(mixture: Mapping[str, float], places: Mapping[str, str]) -> str:
    """A mixture file: share of training tokens by source."""
    return "# Share of training tokens by source.\n" + as_yaml({"weights": _whole(mixture)})


def export_json(mixture: Mapping[str, float], places: Mapping[str, str]) -> str:
    """The same as JSON, which has no comments."""
    return json.dumps({"weights": _whole(mixture)}, indent=2, ensure_ascii=False) + "\n"


def _whole(mixture: Mapping[str, float]) -> dict[str, float]:
    rounded = printed(mixture)
    return {name: rounded.get(name, 0.0) for name in mixture}

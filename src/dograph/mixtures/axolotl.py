"""Axolotl: datasets of which a part is kept.

Against `SFTDataset` (axolotl-ai-cloud/axolotl 07e83ab) with the `weight` of pull request 3690
(merged May 2026): 0 < weight <= 1 is the part of a dataset's examples that is kept, drawn before
tokenising; what is kept is concatenated. It is no sampling weight, so a mixture w over sources
with T tokens is kept_s = c w_s / T_s, with c as large as kept <= 1 allows.
"""

import math
from collections.abc import Mapping
from typing import Any

from dograph.errors import ConfigError
from dograph.mixtures.export import (
    as_yaml,
    comments,
    file_kind,
    hub_name,
    place_of,
    printed,
)

DIGITS = 9


def export_axolotl(
    mixture: Mapping[str, float], places: Mapping[str, str], sizes: Mapping[str, int]
) -> str:
    """The `datasets` of a configuration. `sizes`: tokens of every source, in any common unit."""
    weights = printed(mixture)
    if missing := [name for name in weights if sizes.get(name, 0) <= 0]:
        raise ConfigError(
            "axolotl's weight is the part of a dataset to keep, so the size of every source must "
            f"be known; missing: {', '.join(missing)}. Give --corpus DIR, or --size NAME=TOKENS"
        )
    wanted = {name: weight / sizes[name] for name, weight in weights.items()}
    most = max(wanted.values())
    # Never rounded up past what is there, nor down to nothing.
    kept = {
        name: max(math.floor(part / most * 10**DIGITS), 1) / 10**DIGITS
        for name, part in wanted.items()
    }
    used = sum(kept[name] * sizes[name] for name in kept) / sum(sizes[name] for name in kept)
    head = comments(
        mixture,
        places,
        (
            "Axolotl (from May 2026 on): the datasets of a configuration.",
            f"""weight is the part of a dataset's examples that is kept, not a sampling weight:
            these keep {used:.1%} of all tokens, and what is kept has the mixture's shares of
            tokens. Streaming ignores it.""",
            f"the mixture: {', '.join(f'{name} {weight!r}' for name, weight in weights.items())}",
        ),
    )
    datasets = [_dataset(place_of(name, places), part) for name, part in kept.items()]
    return head + as_yaml({"datasets": datasets, "shuffle_merged_datasets": True})


def _dataset(place: str, kept: float) -> dict[str, Any]:
    entry: dict[str, Any] = {"path": hub_name(place) or place}
    if (kind := file_kind(place)) is not None and hub_name(place) is None:
        entry["ds_type"] = kind
    return entry | {"type": "completion", "split": "train", "weight": kept}

"""OLMo-core: a source mixture.

Against `SourceMixtureConfig` and `SourceMixtureList` of src/olmo_core/data/source_mixture.py
(allenai/OLMo-core 004bb46): 0 < target_ratio <= 1, ratios that sum to 1, at least one path a
source, max_repetition_ratio >= 1.
"""

from collections.abc import Mapping

from dograph.mixtures.export import as_yaml, comments, file_place_of, printed

MOST_REPEATS = 4.0  # beyond four epochs repeated text loses most of its worth


def export_olmo_core(mixture: Mapping[str, float], places: Mapping[str, str]) -> str:
    """The YAML of a `SourceMixtureList`."""
    weights = printed(mixture)
    head = comments(
        mixture,
        places,
        (
            "OLMo-core: SourceMixtureList, the source_list of a SourceMixtureDatasetConfig.",
            "target_ratio is a share of tokens. Paths are token files (.npy) or patterns of them.",
            f"""max_repetition_ratio: a source may be read through {MOST_REPEATS:g} times; the
            build refuses a mixture that needs more.""",
        ),
    )
    sources = [
        {
            "source_name": name,
            "target_ratio": weight,
            "paths": [file_place_of(name, places, "data/{}/*.npy")],
            "max_repetition_ratio": MOST_REPEATS,
        }
        for name, weight in weights.items()
    ]
    return head + as_yaml({"sources": sources})

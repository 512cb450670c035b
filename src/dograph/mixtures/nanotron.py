"""nanotron: a data stage over Nanosets.

Against `NanosetDatasetsArgs`, `DataArgs` and `DatasetStageArgs` of src/nanotron/config/config.py
(huggingface/nanotron 00708b8): as many weights as folders, one stage that starts at step 1, and
no key that the classes lack.
"""

from collections.abc import Mapping

from dograph.mixtures.export import as_yaml, comments, file_place_of, printed


def export_nanotron(mixture: Mapping[str, float], places: Mapping[str, str]) -> str:
    """The `data_stages` of a configuration."""
    weights = printed(mixture)
    head = comments(
        mixture,
        places,
        (
            "nanotron: put this into the configuration in place of its data_stages.",
            """Weights count samples of tokens.sequence_length tokens, so they are shares of
            tokens. Folders hold datatrove's tokenized files (.ds).""",
            f"in this order: {', '.join(weights)}",
        ),
    )
    dataset = {
        "dataset_folder": [file_place_of(name, places) for name in weights],
        "dataset_weights": list(weights.values()),
    }
    stage = {
        "name": "mixture",
        "start_training_step": 1,
        "data": {"dataset": dataset, "num_loading_workers": 1, "seed": 42},
    }
    return head + as_yaml({"data_stages": [stage]})

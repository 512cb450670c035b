"""Hugging Face `datasets`: `interleave_datasets` of streams.

Checked by running the text with datasets 5.2.0. `probabilities` are of examples and must sum to 1;
with "all_exhausted" a source of probability 0 would never end the stream, so zeros are left out.
"""

from collections.abc import Mapping

from dograph.mixtures.export import comments, file_kind, hub_name, place_of, printed


def export_hf(mixture: Mapping[str, float], places: Mapping[str, str]) -> str:
    """A Python snippet that makes `dataset`."""
    weights = printed(mixture)
    head = comments(
        mixture,
        places,
        (
            "Hugging Face datasets: one stream of a mixture.",
            """Probabilities count examples; they are shares of tokens where examples are equally
            long, so pack each source into blocks first, or divide each weight by the mean tokens
            of its documents and by the sum of them all.""",
            """The stream ends once every source was read through, others repeat until then;
            dataset.repeat(None) goes on for ever.""",
        ),
    )
    sources = "".join(f"    {name!r}: {_loaded(place_of(name, places))},\n" for name in weights)
    numbers = "".join(f"    {name!r}: {weight!r},\n" for name, weight in weights.items())
    return (
        f"{head}from datasets import interleave_datasets, load_dataset\n\n"
        f"sources = {{\n{sources}}}\n"
        f"weights = {{\n{numbers}}}\n"
        "dataset = interleave_datasets(\n"
        "    [sources[name] for name in weights],\n"
        "    probabilities=list(weights.values()),\n"
        "    seed=42,\n"
        '    stopping_strategy="all_exhausted",\n'
        ")\n"
    )


def _loaded(place: str) -> str:
    kind = file_kind(place)
    if (hub := hub_name(place)) is not None:
        what = repr(hub)
    elif kind is not None:
        what = f"{kind!r}, data_files={place!r}"
    else:
        what = repr(place)
    return f'load_dataset({what}, split="train", streaming=True)'

"""litdata: a `CombinedStreamingDataset` of tokenized chunks.

Checked by running the text with litdata 0.2.76. `iterate_over_all` is true by default and then
refuses weights, so it is set; the stream ends when one dataset does, and starts again at the next
epoch.
"""

from collections.abc import Mapping

from dograph.mixtures.export import comments, file_place_of, printed

MEANING = """Weights count items; with TokensLoader an item is a block of equally many tokens, so
they are shares of tokens."""


def export_litdata(mixture: Mapping[str, float], places: Mapping[str, str]) -> str:
    """A Python module with `train_dataset(block_size)`."""
    weights = printed(mixture)
    head = comments(mixture, places, ("litdata: one stream of a mixture.", MEANING))
    return (
        f"{head}from litdata import CombinedStreamingDataset, StreamingDataset, TokensLoader\n\n"
        f"{tables(weights, places)}\n\n"
        "def train_dataset(block_size, seed=42):\n"
        '    """Blocks of `block_size` tokens: the model\'s context and one more."""\n'
        "    return CombinedStreamingDataset(\n"
        f"{streams('block_size', 'seed', 8)}"
        "        weights=list(WEIGHTS.values()),\n"
        "        seed=seed,\n"
        "        iterate_over_all=False,\n"
        "    )\n"
    )


def tables(weights: Mapping[str, float], places: Mapping[str, str]) -> str:
    """Places and weights by name."""
    folders = "".join(f"    {name!r}: {file_place_of(name, places)!r},\n" for name in weights)
    numbers = "".join(f"    {name!r}: {weight!r},\n" for name, weight in weights.items())
    return (
        f"PLACES = {{  # folders made by litdata.optimize\n{folders}}}\nWEIGHTS = {{\n{numbers}}}\n"
    )


def streams(block_size: str, seed: str, indent: int) -> str:
    """The list of streams, an argument of CombinedStreamingDataset."""
    lines = (
        "[",
        "    StreamingDataset(",
        "        PLACES[name],",
        f"        item_loader=TokensLoader(block_size={block_size}),",
        "        shuffle=True,",
        "        drop_last=True,",
        f"        seed={seed},",
        "    )",
        "    for name in WEIGHTS",
        "],",
    )
    return "".join(f"{' ' * indent}{line}\n" for line in lines)

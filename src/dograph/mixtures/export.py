"""A mixture in the configuration formats of three trainers, and as plain YAML or JSON.

Each trainer has a writer that returns comments on what its weights mean, and the file's content.
"""

import json
import shlex
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from dograph.errors import ConfigError, require_known
from dograph.mixtures.file import as_yaml
from dograph.types import Mixture

DIGITS = 10  # significant ones: sums are within 1e-9 of 1, samplers ask for 1e-8
HUB = "hf:"  # prefix of a place that is a dataset on the Hugging Face hub
# file suffix -> the `datasets` builder that reads it
FILE_KINDS = {".jsonl": "json", ".txt": "text"}
FILE_KINDS |= {f".{kind}": kind for kind in ("json", "parquet", "csv", "arrow")}
COMPRESSION = (".gz", ".zst", ".bz2", ".xz")


class ExportSource(NamedTuple):
    """A source with a positive weight."""

    name: str
    weight: float  # as printed
    place: str  # path, pattern of paths, or hf:NAME


Sources = Sequence[ExportSource]
Exported = tuple[list[str], Any]  # comment lines; Python or shell text, or a mapping for YAML


def export_mixture(name: str, mixture: Mapping[str, float], places: Mapping[str, str]) -> str:
    """The configuration text of a mixture for the trainer `name`."""
    for source in places:
        what = f'--place names "{source}", which the mixture does not have'
        require_known(source, mixture, what)
    require_known(name, FORMATS, f'no export "{name}"')
    weights = printed(mixture)
    if name in ("yaml", "json"):  # the weights alone, zeros included
        content = {"weights": {source: weights.get(source, 0.0) for source in mixture}}
        if name == "json":
            return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        return "# Share of training tokens by source.\n" + as_yaml(content)
    write, placeholder = TRAINERS[name]
    sources = []
    for source, weight in weights.items():
        safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in source)
        place = places.get(source, placeholder.format(safe))
        if place.startswith(HUB) and name != "hf":
            raise ConfigError(
                f"--place {source}={place}: this trainer reads prepared token files, not the "
                "Hugging Face hub; give the path of the files"
            )
        sources.append(ExportSource(source, weight, place))
    lines, content = write(sources)
    if zero := [source for source, weight in mixture.items() if weight == 0]:
        lines.append(f"left out, weight 0: {', '.join(zero)}")
    if unplaced := [source for source in weights if source not in places]:
        lines.append(f"placeholders, put the real places here: {', '.join(unplaced)}")
    wrapped = [part for line in lines for part in textwrap.wrap(" ".join(line.split()), 98)]
    comments = "".join(f"# {line}\n" for line in wrapped)
    return comments + (content if isinstance(content, str) else as_yaml(content))


def printed(mixture: Mapping[str, float]) -> dict[str, float]:
    """The positive weights, divided by their sum, with the digits that are printed."""
    shares = Mixture.normalised({name: w for name, w in mixture.items() if w > 0}).weights
    return {name: float(f"{share:.{DIGITS}g}") for name, share in shares.items()}


def file_kind(place: str) -> str | None:
    """The `datasets` builder for a file or a pattern of files; None for other places."""
    suffixes = [suffix for suffix in PurePosixPath(place).suffixes if suffix not in COMPRESSION]
    return FILE_KINDS.get(suffixes[-1]) if suffixes and not place.startswith(HUB) else None


def _hf(sources: Sources) -> Exported:
    """Hugging Face `datasets`: a Python snippet that makes `dataset`.

    Checked by running the text with datasets 5.2.0. Probabilities must sum to 1; with
    "all_exhausted" a source of probability 0 would never end the stream, so zeros are left out.
    """
    loaded = weights = ""
    for source in sources:
        kind = file_kind(source.place)
        what = repr(source.place.removeprefix(HUB))
        what = f"{kind!r}, data_files={source.place!r}" if kind else what
        loaded += f'    {source.name!r}: load_dataset({what}, split="train", streaming=True),\n'
        weights += f"    {source.name!r}: {source.weight!r},\n"
    lines = [
        "Hugging Face datasets: one stream of a mixture.",
        """Probabilities count examples; they are shares of tokens where examples are equally
        long, so pack each source into blocks first, or divide each weight by the mean tokens
        of its documents and by the sum of them all.""",
        """The stream ends once every source was read through, others repeat until then;
        dataset.repeat(None) never ends.""",
    ]
    text = f"""from datasets import interleave_datasets, load_dataset

sources = {{
{loaded}}}
weights = {{
{weights}}}
dataset = interleave_datasets(
    [sources[name] for name in weights],
    probabilities=list(weights.values()),
    seed=42,
    stopping_strategy="all_exhausted",
)
"""
    return lines, text


def _megatron(sources: Sources) -> Exported:
    """The blend of --data-path, as a bash array of arguments.

    Against `get_blend_from_list` (NVIDIA/Megatron-LM, core 0.20): weight and prefix in turn. A file
    for --data-args-path is split at white space and has no comments, so this is shell text instead.
    """
    blend = "".join(f"  {source.weight!r} {shlex.quote(source.place)}\n" for source in sources)
    lines = [
        """Megatron-LM: source this in bash, then: torchrun ... pretrain_gpt.py
        "${DATA_ARGS[@]}" """,
        "For --data-args-path: the lines of weight and prefix alone, without comments.",
        """Weights count samples of --seq-length tokens, so they are shares of tokens. Places
        are prefixes of .bin and .idx files.""",
    ]
    return lines, f"DATA_ARGS=(\n  --data-path\n{blend})\n"


MOST_REPEATS = 4.0  # after four epochs repeated text is worth much less


def _olmo_core(sources: Sources) -> Exported:
    """A source mixture: the YAML of a `SourceMixtureList`.

    Against `SourceMixtureConfig` and `SourceMixtureList` (allenai/OLMo-core 004bb46): ratios in
    (0, 1] that sum to 1, at least one path a source, max_repetition_ratio >= 1.
    """
    lines = [
        "OLMo-core: SourceMixtureList, the source_list of a SourceMixtureDatasetConfig.",
        "target_ratio is a share of tokens. Paths are token files (.npy) or patterns of them.",
        f"""max_repetition_ratio: a source may be read through {MOST_REPEATS:g} times; the
        build refuses a mixture that needs more.""",
    ]
    keys = ("source_name", "target_ratio", "paths", "max_repetition_ratio")
    rows = [(source.name, source.weight, [source.place], MOST_REPEATS) for source in sources]
    return lines, {"sources": [dict(zip(keys, row, strict=True)) for row in rows]}


# How a mixture is written for a trainer, and what a place looks like there.
TRAINERS: Mapping[str, tuple[Callable[[Sources], Exported], str]] = {
    "hf": (_hf, "data/{}"),
    "olmo-core": (_olmo_core, "data/{}/*.npy"),
    "megatron": (_megatron, "data/{}_text_document"),
}
FORMATS = [*TRAINERS, "yaml", "json"]

"""What the exports share: weights as they are printed, places, comments."""

import json
import math
import shlex
import textwrap
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any

import yaml

from dograph.errors import ConfigError, did_you_mean
from dograph.types import Mixture

FEWEST_DIGITS, MOST_DIGITS = 6, 12  # after the point
HUB = "hf:"
FILE_KINDS = {  # ending of a data file -> the `datasets` builder that reads it
    ".jsonl": "json",
    ".json": "json",
    ".parquet": "parquet",
    ".csv": "csv",
    ".arrow": "arrow",
    ".txt": "text",
}
PACKERS = (".gz", ".zst", ".bz2", ".xz")


def printed(mixture: Mapping[str, float]) -> dict[str, float]:
    """The positive weights, rounded so that the decimals as printed sum to exactly 1.

    Largest remainders, ties to the first name; none is rounded to zero. Digits after the point:
    six, or as many more (up to twelve) as leave the smallest weight three figures.
    """
    shares = Mixture.normalised({name: w for name, w in mixture.items() if w > 0}).weights
    smallest = min(shares.values())
    digits = FEWEST_DIGITS
    while digits < MOST_DIGITS and smallest * 10**digits < 100:
        digits += 1
    unit = 10**digits
    parts = {name: max(int(share * unit), 1) for name, share in shares.items()}
    by_remainder = sorted(shares, key=lambda name: -(shares[name] * unit % 1))
    left = unit - sum(parts.values())
    for name in by_remainder[: max(left, 0)]:
        parts[name] += 1
    if left < 0:  # weights below one unit were raised to it: the largest pays
        parts[max(parts, key=lambda name: parts[name])] += left
    assert sum(parts.values()) == unit
    return {name: float(Decimal(part) / unit) for name, part in parts.items()}


def place_of(name: str, places: Mapping[str, str], pattern: str = "data/{}") -> str:
    """Where a source lies: as the user says, or a placeholder by its name."""
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in name)
    return places.get(name, pattern.format(safe))


def file_place_of(name: str, places: Mapping[str, str], pattern: str = "data/{}") -> str:
    """The same for trainers that read files they were prepared for, and no dataset of the hub."""
    place = place_of(name, places, pattern)
    if hub_name(place) is not None:
        raise ConfigError(
            f"--place {name}={place}: this trainer reads prepared token files, not the Hugging "
            "Face hub; give the path of the files"
        )
    return place


def hub_name(place: str) -> str | None:
    """The name of a dataset on the Hugging Face hub, for a place that is one."""
    return place.removeprefix(HUB) if place.startswith(HUB) else None


def file_kind(place: str) -> str | None:
    """How `datasets` reads a place that is a file or a pattern of files; None for a folder."""
    endings = [end for end in PurePosixPath(place).suffixes if end not in PACKERS]
    return FILE_KINDS.get(endings[-1]) if endings else None


def comments(
    mixture: Mapping[str, float], places: Mapping[str, str], lines: tuple[str, ...]
) -> str:
    """The head of an export: what its weights mean, and what is left to the reader."""
    told = list(lines)
    if zero := [name for name, weight in mixture.items() if weight == 0]:
        told.append(f"left out, weight 0: {', '.join(zero)}")
    if unplaced := [name for name, weight in mixture.items() if weight and name not in places]:
        told.append(f"placeholders, put the real places here: {', '.join(unplaced)}")
    wrapped = [part for line in told for part in textwrap.wrap(" ".join(line.split()), 98)]
    return "".join(f"# {line}\n" for line in wrapped)


def as_yaml(content: Any) -> str:
    text: str = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=1000)
    return text


# Axolotl: datasets of which a part is kept.
#
# Against `SFTDataset` (axolotl-ai-cloud/axolotl 07e83ab) with the `weight` of pull request 3690
# (merged May 2026): 0 < weight <= 1 is the part of a dataset's examples that is kept, drawn before
# tokenising; what is kept is concatenated. It is no sampling weight, so a mixture w over sources
# with T tokens is kept_s = c w_s / T_s, with c as large as kept <= 1 allows.
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


# Hugging Face `datasets`: `interleave_datasets` of streams.
#
# Checked by running the text with datasets 5.2.0. `probabilities` are of examples and must sum to
# 1; with "all_exhausted" a source of probability 0 would never end the stream, so zeros are left
# out.
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


# Levanter: components and their train_weights.
#
# Against `LmDataConfig` and `DatasetComponent` of lib/levanter/src/levanter/data/text/datasets.py
# and the Training-Data-Guide (marin-community/marin 161966a, e621fef). Releases before `components`
# called them `configs`, without `source`.
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


# litdata: a `CombinedStreamingDataset` of tokenized chunks.
#
# Checked by running the text with litdata 0.2.76. `iterate_over_all` is true by default and then
# refuses weights, so it is set; the stream ends when one dataset does, and starts again at the next
# epoch.
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


# LitGPT: a data module, since none of LitGPT's own takes a mixture.
#
# LitGPT 0.5.13 takes any importable subclass of `litgpt.data.DataModule` as `data` of its pretrain
# command; its LitData reads one folder, and TinyLlama's two have weights written into the code.
# Checked with LitGPT 0.5.13's own parser and litdata 0.2.76.
def export_litgpt(mixture: Mapping[str, float], places: Mapping[str, str]) -> str:
    """A Python module with the data module `Mixture`."""
    head = comments(
        mixture,
        places,
        (
            """LitGPT: a data module of a mixture. Save it as mixture_data.py where you start,
            then: PYTHONPATH=. litgpt pretrain MODEL --data mixture_data.Mixture""",
            """or in the configuration: data: {class_path: mixture_data.Mixture, init_args:
            {val_path: data/validation}}""",
            MEANING,
        ),
    )
    return f"{head}{_IMPORTS}\n{tables(printed(mixture), places)}\n{_CLASS}"


_IMPORTS = """from dataclasses import dataclass, field
from typing import Optional

from litdata import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset, TokensLoader
from litgpt.data import DataModule
from litgpt.tokenizer import Tokenizer
"""

_CLASS = f'''
@dataclass
class Mixture(DataModule):
    """Draws from the folders in PLACES with WEIGHTS."""

    val_path: str = "data/validation"
    seed: int = 42
    num_workers: int = 8
    batch_size: int = field(init=False, repr=False, default=1)
    seq_length: int = field(init=False, repr=False, default=2048)

    def __post_init__(self) -> None:
        super().__init__()

    def connect(
        self,
        tokenizer: Optional[Tokenizer] = None,
        batch_size: int = 1,
        max_seq_length: Optional[int] = None,
    ) -> None:
        self.batch_size = batch_size
        self.seq_length = (max_seq_length or 2048) + 1  # the next token as well

    def train_dataloader(self) -> StreamingDataLoader:
        dataset = CombinedStreamingDataset(
{streams("self.seq_length", "self.seed", 12)}\
            weights=list(WEIGHTS.values()),
            seed=self.seed,
            iterate_over_all=False,
        )
        return self._loader(dataset)

    def val_dataloader(self) -> StreamingDataLoader:
        loader = TokensLoader(block_size=self.seq_length)
        return self._loader(StreamingDataset(self.val_path, item_loader=loader))

    def _loader(self, dataset) -> StreamingDataLoader:
        return StreamingDataLoader(
            dataset,
            batch_size=self.batch_size,
            num_workers=self.num_workers,
            pin_memory=True,
            drop_last=True,
        )
'''


# Megatron-LM: the blend of --data-path.
#
# Against the help of --data-path (megatron/training) and `get_blend_from_list`
# (megatron/core/datasets/utils.py; NVIDIA/Megatron-LM, core 0.20): weight and prefix in turn. A
# file for --data-args-path is split at white space and has no comments, so this is shell text
# instead.
def export_megatron(mixture: Mapping[str, float], places: Mapping[str, str]) -> str:
    """A bash array of arguments."""
    weights = printed(mixture)
    head = comments(
        mixture,
        places,
        (
            """Megatron-LM: source this in bash, then: torchrun ... pretrain_gpt.py
            "${DATA_ARGS[@]}" """,
            "For --data-args-path: the lines of weight and prefix alone, without comments.",
            """Weights count samples of --seq-length tokens, so they are shares of tokens. Places
            are prefixes of .bin and .idx files.""",
        ),
    )
    lines = "".join(
        f"  {weight!r} {shlex.quote(file_place_of(name, places, 'data/{}_text_document'))}\n"
        for name, weight in weights.items()
    )
    return f"{head}DATA_ARGS=(\n  --data-path\n{lines})\n"


# nanotron: a data stage over Nanosets.
#
# Against `NanosetDatasetsArgs`, `DataArgs` and `DatasetStageArgs` of src/nanotron/config/config.py
# (huggingface/nanotron 00708b8): as many weights as folders, one stage that starts at step 1, and
# no key that the classes lack.
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


# OLMo-core: a source mixture.
#
# Against `SourceMixtureConfig` and `SourceMixtureList` of src/olmo_core/data/source_mixture.py
# (allenai/OLMo-core 004bb46): 0 < target_ratio <= 1, ratios that sum to 1, at least one path a
# source, max_repetition_ratio >= 1.
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


# Weights alone, as a mixture file of ours or as JSON. Zeros are kept.
def export_yaml(mixture: Mapping[str, float], places: Mapping[str, str]) -> str:
    """A mixture file: share of training tokens by source."""
    return "# Share of training tokens by source.\n" + as_yaml({"weights": _whole(mixture)})


def export_json(mixture: Mapping[str, float], places: Mapping[str, str]) -> str:
    """The same as JSON, which has no comments."""
    return json.dumps({"weights": _whole(mixture)}, indent=2, ensure_ascii=False) + "\n"


def _whole(mixture: Mapping[str, float]) -> dict[str, float]:
    rounded = printed(mixture)
    return {name: rounded.get(name, 0.0) for name in mixture}


# Exports by name.
Export = Callable[[Mapping[str, float], Mapping[str, str]], str]
EXPORTS: Mapping[str, Export] = {
    "hf": export_hf,
    "litdata": export_litdata,
    "litgpt": export_litgpt,
    "nanotron": export_nanotron,
    "olmo-core": export_olmo_core,
    "megatron": export_megatron,
    "levanter": export_levanter,
    "yaml": export_yaml,
    "json": export_json,
}
# Where a weight is a part of a source, and not of the mixture, sizes must be known.
SIZED: Mapping[str, Callable[[Mapping[str, float], Mapping[str, str], Mapping[str, int]], str]] = {
    "axolotl": export_axolotl
}
FORMATS = [*EXPORTS, *SIZED]


def export_mixture(
    name: str,
    mixture: Mapping[str, float],
    places: Mapping[str, str],
    sizes: Mapping[str, int] | None = None,
) -> str:
    """The configuration text of a mixture for the trainer `name`."""
    for place in places:
        if place not in mixture:
            raise ConfigError(
                f'--place names "{place}", which the mixture does not have; '
                f"{did_you_mean(place, mixture)}"
            )
    if name in SIZED:
        return SIZED[name](mixture, places, sizes or {})
    if name not in EXPORTS:
        raise ConfigError(f'no export "{name}"; {did_you_mean(name, FORMATS)}')
    return EXPORTS[name](mixture, places)

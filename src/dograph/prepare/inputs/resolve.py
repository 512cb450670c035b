"""What the user names on the command line, resolved into things that can be read one by one."""

import glob
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from dograph.corpus.manifest import Split
from dograph.errors import CorpusError
from dograph.prepare.inputs.archives import ARCHIVES
from dograph.prepare.inputs.hub import disk_splits, hub_splits
from dograph.prepare.inputs.splits import SPLIT_WORDS, choose_validation, source_of, split_word
from dograph.prepare.recipes import RECIPES

Kind = Literal["lines", "parquet", "text", "disk", "hub", "embedded", "megatron", "nanogpt"]

EMBEDDED = ("demo", "unigram", "bigram")
_LINES = (".jsonl", ".json", ".ndjson")
_RECORDS = (*_LINES, *(line + archive for line in _LINES for archive in ARCHIVES), ".parquet")
_TOKENS = (".bin", ".idx")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_HUB = re.compile(r"(?P<name>[^:@]+)(:(?P<config>[^@]+))?(@(?P<part>.+))?")
_ALLOWED = (
    "allowed: demo, unigram, bigram, a recipe name, .jsonl/.json (also .gz, .xz, .zst), .parquet, "
    "a folder of such files or of text, a saved dataset, hf:NAME, Megatron .bin/.idx, nanoGPT .bin"
)


@dataclass(frozen=True, slots=True)
class Input:
    """One thing to read: a file, a folder of text, one split of a dataset."""

    kind: Kind
    name: str  # as the manifest and every message show it
    split: Split
    source: str | None  # None: each record says
    path: Path | None = None
    hub: tuple[str, str | None] | None = None  # dataset and config
    part: str | None = None  # split of a dataset


def resolve_all(specs: Sequence[str], validation: Sequence[str], *, labelled: bool) -> list[Input]:
    """Everything to read, in order; an explicit validation replaces one that an input brings."""
    inputs = [entry for spec in specs for entry in resolve(spec, "train", labelled=labelled)]
    if validation:
        inputs = [entry for entry in inputs if entry.split == "train"]
        for spec in validation:
            brought = resolve(spec, "validation", labelled=labelled)
            inputs += [entry for entry in brought if entry.split == "validation"]
    for name, count in Counter(entry.name for entry in inputs).items():
        if count > 1:
            raise CorpusError(f"{name} is named twice among the inputs; name it once")
    return inputs


def resolve(spec: str, split: Split, *, labelled: bool) -> list[Input]:
    """The inputs behind one argument; `labelled` records name their own source."""
    name, separator, rest = spec.partition("=")
    if separator and "/" not in name and not Path(spec).exists():
        inputs = resolve(rest, split, labelled=False)
        return [replace(entry, source=name) for entry in inputs]
    if spec in EMBEDDED:
        return [Input("embedded", spec, split, None)]
    if spec in RECIPES:
        recipe = RECIPES[spec]
        return [
            Input("hub", f"hf:{recipe.hub}@{part}", into, None, hub=(recipe.hub, None), part=part)
            for part, into in recipe.splits.items()
        ]
    if spec.startswith("hf:"):
        return _from_hub(spec.removeprefix("hf:"), split, labelled)
    path = Path(spec)
    if path.exists():
        return _from_path(path, split, labelled)
    if Path(f"{spec}.idx").is_file():
        return _from_path(Path(f"{spec}.idx"), split, labelled)
    if glob.has_magic(spec):
        return _from_glob(spec, split, labelled)
    # a name such as user/dataset; where user/ is a folder here, a path was meant
    is_file_name = spec.endswith((*_RECORDS, *_TOKENS))
    if _HUB_NAME.fullmatch(spec) and not is_file_name and not path.parent.exists():
        return _from_hub(spec, split, labelled)
    raise CorpusError(f"there is no file or folder {spec!r}; {_ALLOWED}")


def _from_glob(spec: str, split: Split, labelled: bool) -> list[Input]:
    paths = sorted(glob.glob(spec, recursive=True))
    if not paths:
        raise CorpusError(f"no file matches {spec!r}; {_ALLOWED}")
    return [entry for path in paths for entry in _from_path(Path(path), split, labelled)]


def _from_hub(spec: str, split: Split, labelled: bool) -> list[Input]:
    match = _HUB.fullmatch(spec)
    if match is None:
        raise CorpusError(f"cannot read the dataset name {spec!r}; write hf:NAME[:CONFIG][@SPLIT]")
    name, config, part = match["name"], match["config"], match["part"]
    wanted: dict[str, Split] = {part: split} if part else {}
    if not part:
        wanted = _assign(hub_splits(name, config), split, f"hf:{spec}")
    source = None if labelled else Path(name).name
    label = f"hf:{name}:{config}" if config else f"hf:{name}"
    return [
        Input("hub", f"{label}@{part}", into, source, hub=(name, config), part=part)
        for part, into in wanted.items()
    ]


def _assign(parts: list[str], split: Split, name: str) -> dict[str, Split]:
    """The splits of a dataset to read, each with where it goes."""
    if "train" not in parts:
        if len(parts) == 1:
            return {parts[0]: split}
        raise CorpusError(f"{name} has the splits {', '.join(parts)}; pick one as {name}@SPLIT")
    chosen = choose_validation(parts)
    if chosen is None:
        return {"train": split}
    if split == "validation":
        return {chosen: split}
    return {"train": "train", chosen: "validation"}


def _from_path(path: Path, split: Split, labelled: bool) -> list[Input]:
    if path.is_dir():
        return _from_folder(path, split, labelled)
    if path.suffix in _TOKENS:
        paired = path.with_suffix(".idx").is_file()
        kind: Kind = "megatron" if paired else "nanogpt"
        file = path.with_suffix(".bin")
        if not file.is_file():
            raise CorpusError(f"{path} has no tokens beside it: {file} is missing")
        return [Input(kind, str(file), split, source_of(file), file)]
    if path.name.endswith(_RECORDS):
        kind = "parquet" if path.suffix == ".parquet" else "lines"
        return [Input(kind, str(path), split, None if labelled else source_of(path), path)]
    if path.suffix in (".txt", ".md"):
        return [Input("text", str(path), split, source_of(path), path)]
    raise CorpusError(f"cannot tell what {path} is by its name; {_ALLOWED}")


def _from_folder(folder: Path, split: Split, labelled: bool) -> list[Input]:
    if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
        return _from_disk(folder, split, labelled)
    folders = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
    if (folder / "train").is_dir():
        names = [p.name for p in folders if p.name in SPLIT_WORDS]
        return [
            entry
            for part, into in _assign(names, split, str(folder)).items()
            for entry in _from_folder(folder / part, into, labelled)
        ]
    files = [p for p in walk(folder) if p.name.endswith((*_RECORDS, *_TOKENS))]
    files = [p for p in files if p.suffix != ".idx" or not p.with_suffix(".bin").is_file()]
    if files:
        return _from_files(files, split, labelled)
    loose = any(p.is_file() for p in folder.iterdir() if not p.name.startswith("."))
    if loose and folders:
        raise CorpusError(
            f"{folder} holds both text files and folders; to take each folder as a source and "
            f"leave the loose files out, write '{folder}/*/'"
        )
    if loose:
        return [Input("text", str(folder), split, folder.absolute().name, folder)]
    if not folders:
        raise CorpusError(f"{folder} is empty; {_ALLOWED}")
    return [Input("text", str(p), split, p.name, p) for p in folders]


def _from_files(files: list[Path], split: Split, labelled: bool) -> list[Input]:
    """Files of one folder; one named after a validation split goes there if another trains."""
    words = {path: split_word(path) for path in files}
    chosen = choose_validation(word for word in words.values() if word)
    if split == "validation" or all(word == chosen for word in words.values()):
        return [entry for path in files for entry in _from_path(path, split, labelled)]
    inputs = []
    for path, word in words.items():
        if word is None or word in ("train", chosen):
            into: Split = "validation" if word is not None and word == chosen else "train"
            inputs += _from_path(path, into, labelled)
    return inputs


def _from_disk(folder: Path, split: Split, labelled: bool) -> list[Input]:
    source = None if labelled else folder.absolute().name
    parts = disk_splits(folder)
    if parts is None:
        return [Input("disk", str(folder), split, source, folder)]
    return [
        Input("disk", f"{folder}@{part}", into, source, folder, part=part)
        for part, into in _assign(parts, split, str(folder)).items()
    ]


def walk(folder: Path) -> Iterator[Path]:
    """Every file under a folder (or the file itself), hidden ones apart, in a fixed order."""
    if folder.is_file():
        yield folder
        return
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(root) / name for name in sorted(files) if not name.startswith("."))


def size_of(entry: Input) -> int | None:
    """Bytes on disk, None where nobody knows."""
    if entry.path is None:
        return None
    return sum(path.stat().st_size for path in walk(entry.path))


def stamp(entry: Input) -> str:
    """Changes when the input does: names, sizes and times of change, not contents."""
    digest = hashlib.blake2b(digest_size=16)
    paths = walk(entry.path) if entry.path is not None else iter(())
    for path in paths:
        status = path.stat()
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()

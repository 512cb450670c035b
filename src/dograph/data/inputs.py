"""What a corpus is prepared from: arguments resolved into inputs to read, and the options."""

import glob
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal, NoReturn

from dograph.data.corpus import Split
from dograph.data.formats import ARCHIVES, Fields, dataset_splits
from dograph.errors import ConfigError, CorpusError, did_you_mean
from dograph.files import load_yaml, package_text

Kind = Literal["lines", "parquet", "text", "disk", "hub", "embedded", "megatron", "nanogpt"]


@dataclass(frozen=True, slots=True)
class Input:
    """One thing to read: a file, a folder of text, one split of a dataset."""

    kind: Kind
    name: str  # shown in the manifest and in messages
    split: Split
    source: str | None  # None: each record names its own
    path: Path | None = None
    hub: tuple[str, str | None] | None = None  # dataset and config
    part: str | None = None  # split of a dataset

    @property
    def is_tokens(self) -> bool:
        """Whether it holds tokens made elsewhere, not text."""
        return self.kind in ("megatron", "nanogpt")

    @property
    def size(self) -> int | None:
        """Bytes on disk, None if unknown."""
        return None if self.path is None else sum(file.stat().st_size for file in walk(self.path))

    @property
    def stamp(self) -> str:
        """A digest that changes when the input does: of names, sizes and times, not contents."""
        digest = hashlib.blake2b(digest_size=16)
        for file in walk(self.path) if self.path is not None else ():
            status = file.stat()
            digest.update(f"{file}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
        return digest.hexdigest()


def walk(folder: Path) -> Iterator[Path]:
    """Every file under a folder (or the file itself) except hidden ones, in a fixed order."""

    def unreadable(error: OSError) -> NoReturn:
        raise CorpusError(
            f"cannot list {error.filename} ({error.strerror}); make it readable, or move it away"
        ) from error

    if folder.is_file():
        yield folder
        return
    for root, folders, files in os.walk(folder, onerror=unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(root) / name for name in sorted(files) if not name.startswith("."))


@dataclass(frozen=True, slots=True)
class Recipe:
    """A known corpus (recipes.yaml)."""

    name: str
    hub: str  # Hugging Face dataset
    validation: str  # name of its validation split
    source_field: str
    table: Mapping[str, float]  # sizes of its sources in the paper's data table, in any unit
    closed: bool  # documents of a source outside the table are left out

    def shares(self) -> dict[str, float]:
        """Share of bytes of each source in the paper."""
        total = sum(self.table.values())
        return {source: size / total for source, size in self.table.items()}


_RECIPES = load_yaml(package_text("data/recipes.yaml"))
RECIPES: Mapping[str, Recipe] = {name: Recipe(name, **own) for name, own in _RECIPES.items()}

# The first of these that an input has is its validation split.
VALIDATION_WORDS = ("validation", "valid", "val", "test")
SPLIT_WORDS = ("train", *VALIDATION_WORDS)

# Shard numbers have five digits or more: four digits may be a year, and two years are two sources.
_DIGEST = r"(-[0-9a-f]{16})?"  # after a shard number on the hub: 00000-of-00048-ab2b35705f029d94
_SHARD = re.compile(rf"[-_.]?(\d{{3,}}-of-\d{{3,}}{_DIGEST}|\d{{5,}})$")
_NUMBER = re.compile(rf"[-_.]?\d+(-of-\d+{_DIGEST})?$")
_SPLIT = re.compile(rf"(^|[-_.])({'|'.join(SPLIT_WORDS)})$", re.IGNORECASE)
_ENDINGS = re.compile(r"(\.(jsonl|json|ndjson|parquet|bin|idx|txt|md))?(\.(gz|xz|zst))?$")
_MEGATRON = re.compile(r"_(text|content)_(document|sentence)$")
_NAMELESS = ("", "part", "shard", "chunk", "data")


def split_word(path: Path, folder: Path | None = None) -> str | None:
    """The split in the name of a folder below `folder`, else of the file: "val" in a_val_01.bin."""
    below = path if path.is_dir() else path.parent
    for name in below.relative_to(folder).parts if folder is not None else ():
        if name.lower() in SPLIT_WORDS:
            return name.lower()
    if path.is_dir():
        return None
    match = _SPLIT.search(_NUMBER.sub("", _MEGATRON.sub("", _ENDINGS.sub("", path.name))))
    return match.group(2).lower() if match else None


def source_of(path: Path) -> str:
    """The source in a file's name, without shard number and split; else the folder's name."""
    stem = _SPLIT.sub("", _SHARD.sub("", _MEGATRON.sub("", _ENDINGS.sub("", path.name))))
    if stem.lower() not in _NAMELESS:
        return stem
    parent = path.absolute().parent
    while parent.name in (*SPLIT_WORDS, "data") and parent.parent != parent:
        parent = parent.parent
    return parent.name or "text"


EMBEDDED = ("demo", "unigram", "bigram", "junk", "junk@clean", "junk@trusted")
_LINES = (".jsonl", ".json", ".ndjson")
_RECORDS = (*_LINES, *(line + archive for line in _LINES for archive in ARCHIVES), ".parquet")
_TOKENS = (".bin", ".idx")
_FILES = (*_RECORDS, *_TOKENS)
_HUB = re.compile(r"(?P<name>[^:@]+)(:(?P<config>[^@]+))?(@(?P<part>.+))?")
_ALLOWED = (
    "allowed: demo, junk, unigram, bigram, a recipe name, .jsonl/.json (also .gz, .xz, .zst), "
    ".parquet, a folder of such files or of text, a saved dataset, hf:NAME, Megatron .bin/.idx, "
    "nanoGPT .bin"
)


def resolve_all(
    specs: Sequence[str], validation: Sequence[str], *, labelled: bool, recipe: Recipe | None = None
) -> tuple[list[Input], list[str]]:
    """What to read, in order, and the names of files and splits next to it that are not read.

    `validation` replaces validation text of the other inputs.
    """
    resolver = Resolver(labelled, recipe.validation if recipe else None)
    inputs = [entry for spec in specs for entry in resolver.find(spec, "train")]
    if validation:
        resolver.left_out += [entry.name for entry in inputs if entry.split == "validation"]
        inputs = [entry for entry in inputs if entry.split == "train"]
        given = [entry for spec in validation for entry in resolver.find(spec, "validation")]
        inputs += [entry for entry in given if entry.split == "validation"]
    seen: dict[tuple[object, ...], str] = {}
    for entry in inputs:
        key = (entry.path.resolve() if entry.path else entry.name, entry.part)
        if key in seen:
            also = "" if seen[key] == entry.name else f" (also as {seen[key]})"
            raise CorpusError(f"{entry.name} is named twice among the inputs{also}; name it once")
        seen[key] = entry.name
    used = {entry.name for entry in inputs}
    return inputs, [name for name in dict.fromkeys(resolver.left_out) if name not in used]


@dataclass(slots=True)
class Resolver:
    """Finds the inputs of an argument, and collects the names of what it leaves out."""

    labelled: bool  # records name their own source
    preferred: str | None = None  # name of the split to validate on, if it exists
    left_out: list[str] = field(default_factory=list)

    def find(self, spec: str, split: Split) -> Iterator[Input]:
        path = Path(spec)
        name, separator, rest = spec.partition("=")
        if separator and "/" not in name and not path.exists():
            named = replace(self, labelled=False)
            yield from (replace(entry, source=name) for entry in named.find(rest, split))
            return
        if spec in EMBEDDED:
            yield Input("embedded", spec, split, None)
            if spec in ("junk", "junk@clean") and split == "train":  # both have the same
                yield Input("embedded", "junk@validation", "validation", None)
        elif spec in RECIPES:
            recipe = RECIPES[spec]
            whole = Input("hub", f"hf:{recipe.hub}", split, None, hub=(recipe.hub, None))
            yield from self._divided(whole, {"train": "train", recipe.validation: "validation"})
        elif spec.startswith("hf:"):
            spec = spec.removeprefix("hf:")
            match = _HUB.fullmatch(spec)
            if match is None:
                raise CorpusError(f"{spec!r} is not a dataset name; write hf:NAME[:CONFIG][@SPLIT]")
            name, config, part = match["name"], match["config"], match["part"]
            into: Mapping[str, Split | None] = {part: split}
            if not part:
                into = self._assign(dataset_splits((name, config)), split, f"hf:{spec}")
            label = f"hf:{name}:{config}" if config else f"hf:{name}"
            source = None if self.labelled else Path(name).name
            yield from self._divided(Input("hub", label, split, source, hub=(name, config)), into)
        elif path.exists():
            yield from self._from_path(path, split)
        elif Path(f"{spec}.idx").is_file():
            yield from self._from_path(Path(f"{spec}.idx"), split)
        elif glob.has_magic(spec):
            paths = [Path(match) for match in sorted(glob.glob(spec, recursive=True))]
            if not paths:
                raise CorpusError(f"no file matches {spec!r}; {_ALLOWED}")
            while glob.has_magic(str(path)):
                path = path.parent
            yield from self._by_split(_token_pairs(paths), path, split)
        else:
            raise CorpusError(f"there is no file or folder {spec!r}; {_ALLOWED}")

    def _divided(self, whole: Input, into: Mapping[str, Split | None]) -> Iterator[Input]:
        """The splits of a dataset as inputs of their own."""
        for part, split in into.items():
            name = f"{whole.name}@{part}"
            if split is not None:
                yield replace(whole, name=name, split=split, part=part)
            else:
                self.left_out.append(name)

    def _assign(self, parts: Sequence[str], split: Split, name: str) -> dict[str, Split | None]:
        """The split of the corpus that each split of an input goes to; None: it is left out."""
        if len(parts) == 1:
            return {parts[0]: split}
        if "train" not in parts:
            raise CorpusError(f"{name} has the splits {', '.join(parts)}; pick one as {name}@SPLIT")
        words = (self.preferred, *VALIDATION_WORDS)
        chosen = next((word for word in words if word in parts), None)
        into: dict[str, Split | None] = {}
        if chosen is None or split == "train":
            into["train"] = split
        if chosen is not None:
            into[chosen] = "validation"
        return {**into, **{part: None for part in parts if part not in into}}

    def _from_path(self, path: Path, split: Split) -> Iterator[Input]:
        kind: Kind
        source: str | None = source_of(path)
        if path.is_dir():
            yield from self._from_folder(path, split)
            return
        if path.suffix in _TOKENS:
            kind = "megatron" if path.with_suffix(".idx").is_file() else "nanogpt"
            index, path = path, path.with_suffix(".bin")
            if not path.is_file():
                raise CorpusError(f"{index} is an index without tokens: copy {path} next to it")
        elif path.name.endswith(_RECORDS):
            kind = "parquet" if path.suffix == ".parquet" else "lines"
            source = None if self.labelled else source
        elif path.suffix in (".txt", ".md"):
            kind = "text"
        else:
            raise CorpusError(f"the name of {path} does not say what it is; {_ALLOWED}")
        yield Input(kind, str(path), split, source, path)

    def _from_folder(self, folder: Path, split: Split) -> Iterator[Input]:
        if _is_saved(folder):
            source = None if self.labelled else folder.absolute().name
            saved = Input("disk", str(folder), split, source, folder)
            parts = dataset_splits(folder)
            into = self._assign(parts, split, str(folder)) if parts else {}
            yield from self._divided(saved, into) if parts else [saved]
            return
        everything = list(walk(folder))
        files = _token_pairs(p for p in everything if p.name.endswith(_FILES))
        folders = sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))
        has_train = (folder / "train").is_dir()
        if has_train and not any(walk(folder / "train")):
            raise CorpusError(f"{folder / 'train'} is empty; {_ALLOWED}")
        if has_train and (not files or _is_saved(folder / "train")):
            # train/ and other splits, each with text or a saved dataset in it
            self.left_out.extend(str(p) for p in everything if p.parent == folder)
            yield from self._by_split(folders, folder, split, only_named=True)
        elif files:
            with_records = {p for file in files for p in file.parents}
            with_files = {p for file in everything for p in file.parents}
            for text in folders:
                if text in with_files and text not in with_records:
                    raise CorpusError(
                        f"{folder} holds both files of records ({files[0]}) and folders of text "
                        f"({text}); give each as an input of its own"
                    )
            yield from self._by_split(files, folder, split, only_named=has_train)
            self.left_out.extend(str(p) for p in everything if p.suffix == ".txt")
        elif folders and any(p.parent == folder for p in everything):
            raise CorpusError(
                f"{folder} holds both text files and folders; to take each folder as a source and "
                f"leave the other files out, write '{folder}/*/'"
            )
        elif not everything:
            raise CorpusError(f"{folder} is empty; {_ALLOWED}")
        else:
            for text in folders or [folder]:
                yield Input("text", str(text), split, text.absolute().name, text)

    def _by_split(
        self, paths: list[Path], folder: Path, split: Split, *, only_named: bool = False
    ) -> list[Input]:
        """Inputs by the split in their paths; paths without one train, or are left out."""
        words = [split_word(path, folder) for path in paths]
        names = [word or ("" if only_named else "train") for word in words]
        present = [name for name in dict.fromkeys(names) if name]
        if split == "validation" and "train" not in words:
            into: dict[str, Split | None] = dict.fromkeys(present, "validation")
        elif "train" not in present and len(present) > 1:
            raise CorpusError(
                f"{folder} has the splits {', '.join(present)} and none to train on; name the files"
            )
        else:
            into = self._assign(present, split, str(folder))
        inputs: list[Input] = []
        for path, name in zip(paths, names, strict=True):
            if part := into.get(name):
                inputs += self._from_path(path, part)
            else:
                self.left_out.append(str(path))
        return sorted(inputs, key=lambda entry: entry.split)


def _is_saved(folder: Path) -> bool:
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def _token_pairs(paths: Iterable[Path]) -> list[Path]:
    """One path for each pair of .bin and .idx."""
    return [p for p in paths if p.suffix != ".idx" or not p.with_suffix(".bin").is_file()]


# The options of `dograph data prepare`.

DEFAULT_VOCAB_SIZE = 4096
STAGING = ".preparing"
Value = str | int | float | bool | None


def _refuse(problems: Mapping[str, bool]) -> None:
    """Raise the first problem that applies."""
    for message, applies in problems.items():
        if applies:
            raise ConfigError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareOptions:
    """Options of a preparation; the help of the command explains each one."""

    inputs: tuple[str, ...]
    out: Path
    validation: tuple[str, ...] = ()
    validation_fraction: float | None = None  # None: 0.01, or 0.05 of an embedded corpus
    tokenizer: str = "bpe"
    vocab_size: int | None = None  # of bpe, or of tokens made elsewhere without a tokenizer
    eot: str | None = None
    eot_id: int | None = None  # of tokens made elsewhere
    recipe: str | None = None
    text_field: str = "text"
    source_field: str | None = None
    strata: int = 1
    toward: tuple[str, ...] = ()  # trusted text
    keep: float = 1.0  # fraction of the training documents
    seed: int = 0
    noise: bool = False  # in the planted corpora
    bad_records: Literal["refuse", "repair"] = "refuse"
    workers: int | None = None

    def __post_init__(self) -> None:
        held_out, recipe, workers = self.held_out([]), self.recipe, self.workers
        near, known = did_you_mean(recipe or "", RECIPES), self.known_corpus
        field = known.source_field if known else None
        _refuse(
            {
                "name at least one input, for example: dograph data prepare demo": not self.inputs,
                f"--validation-fraction must be in [0, 1), got {held_out}": not 0 <= held_out < 1,
                f"--keep must be above 0 and at most 1, got {self.keep}; it is the fraction of the "
                "documents to keep, 0.01 for one in a hundred": not 0 < self.keep <= 1,
                f"there is no recipe {recipe!r}; {near}": recipe not in (None, *RECIPES),
                f"the recipe takes sources from {field}; leave out --source-field, or the "
                "recipe": field is not None and self.source_field is not None,
                f"--strata must be at least 1, got {self.strata}": self.strata < 1,
                f"--workers must be at least 1, got {workers}": workers is not None and workers < 1,
            }
        )

    @property
    def known_corpus(self) -> Recipe | None:
        """The recipe, given by name or as the input itself."""
        named = set(RECIPES) & {self.recipe, *self.inputs}
        if len(named) > 1:
            raise ConfigError(f"one recipe at a time, got {' and '.join(sorted(named))}")
        return RECIPES[named.pop()] if named else None

    @property
    def fields(self) -> Fields:
        recipe = self.known_corpus
        return Fields(self.text_field, recipe.source_field if recipe else self.source_field)

    @property
    def only(self) -> frozenset[str] | None:
        """The sources to take; documents of others are left out. None: all sources."""
        recipe = self.known_corpus
        return frozenset(recipe.table) if recipe and recipe.closed else None

    @property
    def staging(self) -> Path:
        """The folder for everything until the corpus is complete."""
        return self.out / STAGING

    @property
    def bpe_vocab_size(self) -> int:
        return DEFAULT_VOCAB_SIZE if self.vocab_size is None else self.vocab_size

    def held_out(self, inputs: list[Input]) -> float:
        """Fraction of the documents for validation: 0 if the inputs have validation text."""
        if any(entry.split == "validation" for entry in inputs):
            return 0.0
        if self.validation_fraction is not None:
            return self.validation_fraction
        return 0.05 if set(self.inputs) <= set(EMBEDDED) else 0.01

    def recorded(self) -> dict[str, Value]:
        """The options that decide the result, for the journal and the manifest."""
        others = ("inputs", "out", "workers", "toward")
        given = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in others}
        return given | {
            "validation": " ".join(self.validation) or None,
            "validation_fraction": None if self.validation else self.held_out([]),
            "vocab_size": self.bpe_vocab_size if self.tokenizer == "bpe" else self.vocab_size,
            "recipe": self.known_corpus.name if self.known_corpus else None,
            "keep": float(self.keep),
            **({"toward": " ".join(self.toward)} if self.toward else {}),
        }

    def refuse_idle(self, inputs: list[Input]) -> None:
        """Refuse an option that would have no effect on these inputs, rather than ignore it."""
        tokens = next((entry.name for entry in inputs if entry.is_tokens), None)
        is_tokens = tokens is not None
        is_planted = any(entry.name in ("unigram", "bigram") for entry in inputs)
        for_text = f"is for text, and {tokens} holds tokens; leave it out, or name its source as"
        _refuse(
            {
                "--noise is for unigram and bigram; leave it out": self.noise and not is_planted,
                f"--vocab-size has no effect with --tokenizer {self.tokenizer}, which has its own "
                "vocabulary; leave one of the two out": self.vocab_size is not None
                and self.tokenizer != "bpe",
                f"--eot {self.eot_id} is a token id, for tokens made elsewhere; for text, name the "
                "token: --eot TOKEN": self.eot_id is not None and not is_tokens,
                f"--keep chooses documents by their text, and {tokens} holds tokens; leave it out, "
                "or prepare the text that the tokens were made of": self.keep < 1 and is_tokens,
                f"--toward scores text, and {tokens} holds tokens; leave it out, or prepare the "
                "text that the tokens were made of": bool(self.toward) and is_tokens,
                f"--recipe {for_text} NAME=INPUT": self.recipe is not None and is_tokens,
                f"--source-field {for_text} NAME=INPUT": self.source_field is not None
                and is_tokens,
                f"--text-field {for_text} NAME=INPUT": self.text_field != "text" and is_tokens,
            }
        )

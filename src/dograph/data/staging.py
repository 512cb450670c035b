"""The staging folder: the journal of an unfinished preparation, and the corpus built from it.

The journal is enough to continue exactly after a kill. The corpus is built in a folder of its own,
from files that are only read, so this step may be killed and repeated at any point. Then it is
moved into place, the manifest last.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from pydantic import BaseModel, Field

import dograph
from dograph.data.corpus import (
    DOCUMENT_DTYPE,
    MANIFEST,
    SCORED_DTYPE,
    Manifest,
    Split,
    StratumEntry,
    TokenizerEntry,
    read_model,
)
from dograph.data.digests import DIGESTS, write_digests
from dograph.data.encode import RAW_DOCUMENT_DTYPE, SCORED_RAW_DTYPE, TOKENIZER_FILE
from dograph.data.formats import Position
from dograph.data.inputs import STAGING, Input, PrepareOptions, Value
from dograph.errors import CorpusError, listed
from dograph.files import sha256_of, sync_file, write_json

REPAIRS = "repairs.jsonl"
SPLITS: tuple[Split, ...] = ("train", "validation")
PIECE = 1 << 20  # elements of a mapped array that are read at a time
MOST_NAMES = 20  # of files or sources, in an option that the manifest records
_JOURNAL = "journal.json"
# Options that do not decide the result: bad_records matters only if there are bad records, which
# the journal counts, and left_out names files that are not read.
_INDECISIVE = ("bad_records", "left_out")
# Options that were added later: an older corpus does not record them, and was made with these.
_ADDED: dict[str, Value] = {"keep": 1.0, "toward": None}


class Output(BaseModel):
    """What has been written of one split of one source, in STEM.tokens and STEM.documents."""

    split: Split
    source: str
    tokens: int = 0
    documents: int = 0
    bytes: int = 0
    unkept_documents: int = 0  # left out by --keep
    unkept_bytes: int = 0
    scored: bool = False  # --toward
    stem: Path = Field(default=Path(), exclude=True)  # named after its place in the list

    @property
    def raw_dtype(self) -> np.dtype:
        return SCORED_RAW_DTYPE if self.scored else RAW_DOCUMENT_DTYPE


class Recorded(BaseModel):
    """Everything that decides what a corpus contains."""

    version: Literal[1] = 1
    options: dict[str, Value]
    stamps: dict[str, str]  # of every input, in order, and of the tokenizer

    @property
    def fingerprint(self) -> str:
        """Equal for equal options and unchanged inputs in the same order."""
        content = json.dumps([dict(sorted(_decisive(self.options).items())), self.stamps])
        return hashlib.sha256(content.encode()).hexdigest()


class Journal(Recorded):
    """State after a whole number of chunks. Files may hold more, which is cut off on resuming."""

    tokenizer: TokenizerEntry
    position: Position = Position()
    outputs: list[Output] = []
    repairs: dict[str, int] = {}
    repairs_bytes: int = 0  # length of repairs.jsonl

    def write(self, staging: Path) -> None:
        write_json(staging / _JOURNAL, self.model_dump())


def resume(options: PrepareOptions, now: Recorded) -> Journal | None:
    """The journal to continue from, if any; refuses one of other options or inputs."""
    file = options.staging / _JOURNAL
    if not file.is_file():
        return None
    journal = read_model(Journal, file, f"delete {options.staging} to start over")
    changes = _option_changes(journal.options, now.options)
    for name in sorted({*journal.stamps, *now.stamps}):
        if name not in now.stamps or name not in journal.stamps:
            changes.append(f"{name} was {'added' if name in now.stamps else 'left out'}")
        elif journal.stamps[name] != now.stamps[name]:
            changes.append(f"{name} has changed")
    if not changes and list(journal.stamps) != list(now.stamps):
        changes.append(f"the order was {', '.join(journal.stamps)}, now {', '.join(now.stamps)}")
    policies = (journal.options["bad_records"], now.options["bad_records"])
    if journal.repairs and policies == ("repair", "refuse"):
        changes.append("bad records were repaired, which is now refused")
    if changes:
        raise CorpusError(
            f"an unfinished preparation with other options is here: {'; '.join(changes)}. Repeat "
            f"the command it began with to continue, or delete {options.staging} to start over"
        )
    return journal


def _decisive(options: Mapping[str, Value]) -> dict[str, Value]:
    """The options that decide what the corpus is."""
    kept = {name: value for name, value in options.items() if name not in _INDECISIVE}
    return {name: value for name, value in kept.items() if (name, value) not in _ADDED.items()}


def _option_changes(before: Mapping[str, Value], now: Mapping[str, Value]) -> list[str]:
    """Which options differ, in words."""
    old, new = _ADDED | _decisive(before), _ADDED | _decisive(now)
    return [
        f"--{name.replace('_', '-')} was {old.get(name)}, now {new.get(name)}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def finished_corpus(options: PrepareOptions, recorded: Recorded) -> Manifest | None:
    """The corpus in the output folder if these options give it; refuses another one."""
    out, now = options.out, recorded.options
    if not (out / MANIFEST).is_file():
        names = [path.name for path in out.iterdir()] if out.is_dir() else []
        if names and STAGING not in names:
            raise CorpusError(f"{out} is not empty and holds no corpus; choose another --out")
        return None
    manifest = Manifest.read(out)
    if manifest.options.get("fingerprint") == recorded.fingerprint:
        return manifest
    before = {name: manifest.options[name] for name in now if name in manifest.options}
    changes = _option_changes(before, now) or ["the inputs are others or have changed"]
    raise CorpusError(
        f"{out} already holds a corpus that was prepared differently: {'; '.join(changes)}. "
        "Choose another --out, or delete the folder to replace it"
    )


@contextmanager
def lock(staging: Path) -> Iterator[None]:
    """Keep other preparations out of this folder; the system releases it if this process dies."""
    staging.mkdir(parents=True, exist_ok=True)
    with open(staging / "lock", "wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CorpusError(
                f"{staging.parent} is being prepared by another process; wait for it, or choose "
                "another --out"
            ) from error
        try:
            yield
        finally:  # nothing else is here before work begins and after a corpus is published
            if [path.name for path in staging.iterdir()] == ["lock"]:
                shutil.rmtree(staging)


def clear(staging: Path) -> None:
    """Remove everything but the lock."""
    for path in staging.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "lock":
            path.unlink()


def finish(options: PrepareOptions, inputs: list[Input], journal: Journal) -> Manifest:
    """Build the corpus from what has been written, and publish it."""
    built = options.staging / "finished"
    shutil.rmtree(built, ignore_errors=True)
    built.mkdir()
    by_source, num_empty = _by_source(options, inputs, journal.outputs)
    dtype = journal.tokenizer.token_dtype
    entries: dict[Split, list[StratumEntry]] = {split: [] for split in SPLITS}
    for source, stem in file_stems(by_source).items():
        both = by_source[source]
        if options.held_out(inputs):
            both = hold_out(both, np.dtype(dtype), built)
        for split, output in zip(SPLITS, both, strict=True):
            if not output.documents:
                continue
            tokens, documents = f"{split}/{stem}.bin", f"{split}/{stem}.documents.npy"
            link(output.stem.with_suffix(".tokens"), built / tokens)
            raw_D = np.memmap(output.stem.with_suffix(".documents"), output.raw_dtype, "r")
            blocks = (block_D for _, block_D in pieces(raw_D))
            write_document_index(built / documents, blocks, output.documents)
            counts = output.model_dump(include={"source", "tokens", "documents", "bytes"})
            files = {"file": tokens, "documents_file": documents}
            sha256 = sha256_of(built / tokens)
            entry = StratumEntry(stratum=source, dtype=dtype, sha256=sha256, **counts, **files)
            entries[split].append(entry)
    for name in (TOKENIZER_FILE, REPAIRS):
        if (options.staging / name).is_file():
            link(options.staging / name, built / name)
    unkept: dict[str, Value] = {}
    num_unkept = sum(output.unkept_documents for output in journal.outputs)
    if not entries["train"]:
        raise CorpusError(
            f"--keep {options.keep:g} keeps none of the {num_unkept:,} training documents; give a "
            f"larger fraction and delete {options.staging} to start over"
            if num_unkept
            else "the inputs hold no training text; give other inputs"
        )
    if options.keep < 1:
        lost = {output.source for output in journal.outputs if output.unkept_documents}
        lost -= {entry.source for entry in entries["train"]}
        unkept["unkept_documents"] = num_unkept
        unkept["unkept_bytes"] = sum(output.unkept_bytes for output in journal.outputs)
        unkept["unkept_sources"] = listed(sorted(lost), MOST_NAMES) or None
    repairs = {**journal.repairs, "empty source": num_empty} if num_empty else journal.repairs
    return publish(options, inputs, journal, journal.tokenizer, entries, unkept, repairs)


def _by_source(
    options: PrepareOptions, inputs: list[Input], outputs: list[Output]
) -> tuple[dict[str, list[Output]], int]:
    """Training and validation output of each source with text, and how many outputs have none."""
    named = [(entry.split, entry.source) for entry in inputs if entry.source is not None]
    known = {(split, source): Output(split=split, source=source) for split, source in named}
    known |= {(output.split, output.source): output for output in outputs}
    with_text = {source for (_, source), output in known.items() if output.documents}
    filled_later = with_text if options.held_out(inputs) else set()  # by hold_out
    empty = [
        f'"{source}" ({split})'
        for (split, source), output in sorted(known.items())
        if not (output.documents or output.unkept_documents or source in filled_later)
    ]
    if empty and options.bad_records == "refuse":
        raise CorpusError(
            f"these sources have no text: {', '.join(empty)}. Leave their inputs out, or pass "
            "--bad-records repair, which drops them and counts them in the manifest"
        )
    for split, source in product(SPLITS, with_text):
        known.setdefault((split, source), Output(split=split, source=source))
    return {s: [known[split, s] for split in SPLITS] for s in with_text}, len(empty)


def hold_out(both: list[Output], dtype: np.dtype, folder: Path) -> list[Output]:
    """Move documents so that both splits of a source have some, if it has two different texts.

    If the hash puts all documents of a source in one split, those with the smallest (or largest)
    hash change sides, in new files in `folder`. Copies of a text have the same hash, so they stay
    together, except copies in other sources. A source of one text trains on it.
    """
    train, validation = both
    if train.documents and validation.documents:
        return both
    whole = train if train.documents else validation
    document_D = np.fromfile(whole.stem.with_suffix(".documents"), whole.raw_dtype)
    hash_D = document_D["hash"]
    if hash_D.min() == hash_D.max():
        return [whole, whole.model_copy(update={"documents": 0})]
    is_moved_D = hash_D == (hash_D.min() if whole is train else hash_D.max())
    start_D = np.concatenate([[0], document_D["end"][:-1]])
    token_N = np.memmap(whole.stem.with_suffix(".tokens"), dtype, "r")
    sides = []
    for member_D, name in ((~is_moved_D, "kept"), (is_moved_D, "moved")):
        stem = folder / f"{whole.stem.name}-{name}"
        with open(stem.with_suffix(".tokens"), "wb") as file:
            (own_D,) = copy_documents(file, token_N, [(start_D[member_D], document_D[member_D])])
        own_D.tofile(stem.with_suffix(".documents"))
        tokens, size = int(own_D["end"][-1]), int(own_D["bytes"].sum(dtype=np.int64))
        counts = {"tokens": tokens, "documents": len(own_D), "bytes": size}
        sides.append(whole.model_copy(update={"stem": stem, **counts}))
    return sides if whole is train else sides[::-1]


def copy_documents(
    output: BinaryIO, token_N: np.ndarray, pieces: Iterable[tuple[np.ndarray, np.ndarray]]
) -> Iterator[np.ndarray]:
    """Copy the tokens of documents to a file, and yield the documents with their new ends.

    A piece is the first token of each document, (D,), and the documents, (D,), with their `end`.
    """
    num_tokens = 0
    for start_D, document_D in pieces:
        for start, end in zip(start_D.tolist(), document_D["end"].tolist(), strict=True):
            output.write(token_N[start:end].data)  # no copy in memory, however long it is
        document_D["end"] = num_tokens + (document_D["end"] - start_D).cumsum()
        num_tokens = int(document_D["end"][-1]) if len(document_D) else num_tokens
        yield document_D


def pieces(value_N: np.ndarray, size: int | None = None) -> Iterator[tuple[int, np.ndarray]]:
    """An array in pieces of `size` elements, PIECE if not given, each with its first index."""
    size = size or PIECE
    for first in range(0, len(value_N), size):
        yield first, value_N[first : first + size]


def publish(
    options: PrepareOptions,
    inputs: list[Input],
    recorded: Recorded,
    tokenizer: TokenizerEntry,
    entries: Mapping[Split, list[StratumEntry]],
    more: Mapping[str, Value],
    repairs: Mapping[str, int],
) -> Manifest:
    """Divide the finished corpus into strata if asked to, and move it into place, manifest last."""
    out, built, recipe = options.out, options.staging / "finished", options.known_corpus
    manifest = Manifest(
        tokenizer=tokenizer,
        inputs=[entry.name for entry in inputs],
        train=entries["train"],
        validation=entries["validation"],
        recipe=recipe.name if recipe else None,
        options={**recorded.options, **more, "fingerprint": recorded.fingerprint},
        repairs=dict(sorted(repairs.items())),
        made_by=f"dograph {dograph.__version__}",
    )
    if options.strata > 1:
        from dograph.data.strata import split_into_strata

        manifest = split_into_strata(built, manifest, options.strata, options.seed)
    manifest.write(built)
    names = [name for name in (*manifest.files(), REPAIRS, MANIFEST) if (built / name).is_file()]
    write_digests(built, names)
    for name in (DIGESTS, *names):
        if not Path(name).is_absolute():  # token files made elsewhere stay there
            sync_file(built / name)
            (out / name).parent.mkdir(exist_ok=True)
            os.replace(built / name, out / name)
            sync_file((out / name).parent)
    clear(options.staging)
    return manifest


def link(source: Path, target: Path) -> None:
    """The same content under a second name; a copy if the file system has no hard links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def file_stems(sources: Iterable[str]) -> dict[str, str]:
    """A file name for each source; no two differ only in upper and lower case."""
    sources = sorted(sources)
    stems = [re.sub(r"[^\w.-]+", "-", s, flags=re.ASCII).strip("-.") for s in sources]
    lower = [stem.lower() for stem in stems]
    names = dict(zip(sources, stems, strict=True))
    for source, stem in names.items():
        if stem != source or len(stem) > 100 or lower.count(stem.lower()) > 1:
            digest = hashlib.blake2b(source.encode(), digest_size=4).hexdigest()
            names[source] = f"{stem[:80]}-{digest}".lstrip("-")
    return names


def write_document_index(path: Path, blocks: Iterable[np.ndarray], num: int) -> None:
    """Write an .npy of `num` documents, with scores if the blocks have them.

    Plain writes, not a memory map: on a full disk they raise an error instead of a signal.
    """
    with open(path, "wb") as file:
        for block in blocks:
            dtype = SCORED_DTYPE if "score" in (block.dtype.names or ()) else DOCUMENT_DTYPE
            if not file.tell():
                descr = np.lib.format.dtype_to_descr(dtype)
                header = {"descr": descr, "fortran_order": False, "shape": (num,)}
                np.lib.format.write_array_header_1_0(file, header)
            file.write(block[list(dtype.names or ())].astype(dtype).tobytes())

"""The staging folder: the journal of a preparation under way, then the corpus made of it.

The journal is enough to go on after a kill, exactly. The corpus is built in a folder of its own,
out of files that are only read, so that this step may be killed and repeated at any point. Then it
is moved into its place, the manifest last.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
from pydantic import BaseModel, Field, ValidationError

import dograph
from dograph.data.corpus import (
    DOCUMENT_DTYPE,
    MANIFEST,
    Manifest,
    Split,
    StratumEntry,
    TokenizerEntry,
)
from dograph.data.encode import RAW_DOCUMENT_DTYPE
from dograph.data.formats import Position
from dograph.data.inputs import Input
from dograph.data.options import STAGING, PrepareOptions, Value
from dograph.data.tokenizer import TOKENIZER_FILE
from dograph.errors import CorpusError
from dograph.files import sha256_of, sync_file, write_json

REPAIRS = "repairs.jsonl"
SPLITS: tuple[Split, ...] = ("train", "validation")
COPY_TOKENS = 1 << 20  # at once
_JOURNAL = "journal.json"
_REPLACED = "replaced.json"  # manifest of the corpus that a new one takes the place of
_BLOCK_DOCUMENTS = 1 << 16
# A policy for bad records matters only where there are some: the journal counts them. What was
# left out does not enter the corpus.
_INDECISIVE = ("bad_records", "left_out")
# Options that came later: a corpus from before has no record of them, and was made with these.
_ADDED: dict[str, Value] = {"keep": 1.0}


class Output(BaseModel):
    """What has been written of one split of one source, to the files STEM.tokens and .documents."""

    split: Split
    source: str
    tokens: int = 0
    documents: int = 0
    bytes: int = 0
    unkept_documents: int = 0  # left out by --keep
    unkept_bytes: int = 0
    stem: Path = Field(default=Path(), exclude=True)  # follows from its place among the outputs

    def blocks(self) -> Iterator[np.ndarray]:
        """The documents, block by block, of RAW_DOCUMENT_DTYPE."""
        with open(self.stem.with_suffix(".documents"), "rb") as file:
            while len(block := np.fromfile(file, RAW_DOCUMENT_DTYPE, _BLOCK_DOCUMENTS)):
                yield block


class Recorded(BaseModel):
    """All that decides what a corpus is."""

    version: Literal[1] = 1
    options: dict[str, Value]
    stamps: dict[str, str]  # of every input, in order, and of the tokenizer

    @property
    def fingerprint(self) -> str:
        """Equal for equal options and unchanged inputs in the same order."""
        content = json.dumps([dict(sorted(_decisive(self.options).items())), self.stamps])
        return hashlib.sha256(content.encode()).hexdigest()


class Journal(Recorded):
    """State after a whole number of chunks. Files may hold more: that is cut off on resuming."""

    tokenizer: TokenizerEntry
    position: Position = Position()
    outputs: list[Output] = []
    repairs: dict[str, int] = {}
    repairs_bytes: int = 0  # length of repairs.jsonl
    all_read: bool = False

    @classmethod
    def read(cls, staging: Path) -> "Journal | None":
        path = staging / _JOURNAL
        if not path.is_file():
            return None
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise CorpusError(f"{path} is damaged; begin anew with --restart ({error})") from error

    def write(self, staging: Path) -> None:
        write_json(staging / _JOURNAL, self.model_dump())

    def require_same(self, now: Recorded) -> None:
        """Refuse to go on with other options or inputs than the preparation began with."""
        changes = _option_changes(self.options, now.options)
        for name in sorted({*self.stamps, *now.stamps}):
            if name not in now.stamps or name not in self.stamps:
                changes.append(f"{name} was {'added' if name in now.stamps else 'left out'}")
            elif self.stamps[name] != now.stamps[name]:
                changes.append(f"{name} has changed")
        if not changes and list(self.stamps) != list(now.stamps):
            changes.append(f"the order was {', '.join(self.stamps)}, now {', '.join(now.stamps)}")
        policies = (self.options["bad_records"], now.options["bad_records"])
        if self.repairs and policies == ("repair", "refuse"):
            changes.append("bad records were repaired, which is now refused")
        if changes:
            raise CorpusError(
                "a preparation that began differently is unfinished here: "
                f"{'; '.join(changes)}. Repeat the command it began with to go on, "
                "or begin anew with --restart"
            )


def _decisive(options: Mapping[str, Value]) -> dict[str, Value]:
    return {
        name: value
        for name, value in options.items()
        if name not in _INDECISIVE and (name, value) not in _ADDED.items()
    }


def _option_changes(before: Mapping[str, Value], now: Mapping[str, Value]) -> list[str]:
    """Which options differ, in words."""
    old, new = _ADDED | _decisive(before), _ADDED | _decisive(now)
    return [
        f"--{name.replace('_', '-')} was {old.get(name)}, now {new.get(name)}"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def finished_corpus(out: Path, recorded: Recorded, *, overwrite: bool) -> Manifest | None:
    """The corpus in `out` if it is what these options give; refuses to touch anything else."""
    if not (out / MANIFEST).is_file():
        strangers = [path.name for path in out.iterdir()] if out.is_dir() else []
        if strangers and STAGING not in strangers:
            raise CorpusError(f"{out} is not empty and holds no corpus; choose another --out")
        return None
    try:
        manifest = Manifest.read(out)
    except CorpusError as error:
        if overwrite:
            return None
        raise CorpusError(f"{error} Pass --overwrite to replace it") from error
    if manifest.options.get("fingerprint") == recorded.fingerprint:
        return manifest
    if overwrite:
        return None
    options = recorded.options
    before = {name: manifest.options[name] for name in options if name in manifest.options}
    changes = "; ".join(_option_changes(before, options)) or "the inputs are others or have changed"
    raise CorpusError(
        f"{out} already holds a corpus that was prepared differently: {changes}. "
        "Choose another --out, or pass --overwrite to replace it"
    )


@contextmanager
def lock(staging: Path) -> Iterator[None]:
    """Keep a second preparation out of this folder; the system lifts it when we end, anyhow."""
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
        finally:  # once a corpus is published, and before anything is begun, nothing else is there
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
    built, spare = options.staging / "finished", options.staging / "moved"
    for folder in (built, spare):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    held_out = options.held_out(inputs)
    by_source, num_empty = _by_source(options, inputs, journal.outputs)
    repairs = {**journal.repairs, "empty source": num_empty} if num_empty else journal.repairs
    dtype = journal.tokenizer.token_dtype
    entries: dict[Split, list[StratumEntry]] = {split: [] for split in SPLITS}
    for source, stem in file_stems(by_source).items():
        both = by_source[source]
        if held_out:
            both = hold_out(both, np.dtype(dtype), spare)
        for split, output in zip(entries, both, strict=True):
            if not output.documents:
                continue
            tokens, documents = f"{split}/{stem}.bin", f"{split}/{stem}.documents.npy"
            link(output.stem.with_suffix(".tokens"), built / tokens)
            write_document_index(built / documents, output.blocks(), output.documents)
            counts = output.model_dump(include={"source", "tokens", "documents", "bytes"})
            files = {"file": tokens, "documents_file": documents}
            sha256 = sha256_of(built / tokens)
            entry = StratumEntry(stratum=source, dtype=dtype, sha256=sha256, **counts, **files)
            entries[split].append(entry)
    unkept = _unkept(options, journal.outputs, {entry.source for entry in entries["train"]})
    for name in (TOKENIZER_FILE, REPAIRS):
        if (options.staging / name).is_file():
            link(options.staging / name, built / name)
    manifest = Manifest(
        tokenizer=journal.tokenizer,
        inputs=[entry.name for entry in inputs],
        train=entries["train"],
        validation=entries["validation"],
        recipe=options.known_corpus.name if options.known_corpus else None,
        options={**journal.options, **unkept, "fingerprint": journal.fingerprint},
        repairs=dict(sorted(repairs.items())),
        made_by=f"dograph {dograph.__version__}",
    )
    return publish(options, manifest, built)


def _by_source(
    options: PrepareOptions, inputs: list[Input], outputs: list[Output]
) -> tuple[dict[str, list[Output]], int]:
    """Training and validation output of each source, and how many of them hold no text."""
    named = [(entry.split, entry.source) for entry in inputs if entry.source is not None]
    found = {(split, source): Output(split=split, source=source) for split, source in named}
    found |= {(output.split, output.source): output for output in outputs}
    with_text = {source for (_, source), output in found.items() if output.documents}
    empty = [
        f'"{source}" ({split})'
        for (split, source), output in sorted(found.items())
        if not (output.documents or output.unkept_documents)
        and not (options.held_out(inputs) and source in with_text)
    ]
    if empty and not options.repair:
        raise CorpusError(
            f"no text came out of these sources: {', '.join(empty)}. Leave their inputs out, or "
            "pass --bad-records repair, which drops them and counts it in the manifest"
        )
    for source in with_text:
        for split in SPLITS:
            found.setdefault((split, source), Output(split=split, source=source))
    return {s: [found[split, s] for split in SPLITS] for s in with_text}, len(empty)


def _unkept(options: PrepareOptions, outputs: list[Output], trained: set[str]) -> dict[str, Value]:
    """What --keep left out, for the manifest; sources that it left nothing of are named."""
    documents = sum(output.unkept_documents for output in outputs)
    if not trained and not documents:
        raise CorpusError("the inputs hold no training text at all; give other inputs")
    if not trained:
        raise CorpusError(
            f"--keep {options.keep:g} keeps none of the {documents:,} training documents; give a "
            "larger fraction and --restart"
        )
    if options.keep == 1:
        return {}
    lost = {output.source for output in outputs if output.unkept_documents} - trained
    return {
        "unkept_documents": documents,
        "unkept_bytes": sum(output.unkept_bytes for output in outputs),
        "unkept_sources": listed(sorted(lost)),
    }


def listed(names: Sequence[str], most: int = 20) -> str | None:
    """Names in a line of bounded length, None where there are none."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more if names else None


def hold_out(both: list[Output], dtype: np.dtype, folder: Path) -> list[Output]:
    """Move documents so that both sides have some, if there are two different texts at all.

    The last step of splitting by hash: a small source may have every document on one side. Then
    the documents of one extreme hash change sides: copies of a text within the source have one
    hash, so they stay together; copies in another source stay where they are. New files go to
    `folder`, named after the old ones. A source of one text trains on it.
    """
    train, validation = both
    if train.documents and validation.documents:
        return both
    whole = train if train.documents else validation
    bounds = [(int(b["hash"].min()), int(b["hash"].max())) for b in whole.blocks()]
    low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
    if low == high:
        return [whole, whole.model_copy(update={"documents": 0})]
    chosen = low if whole is train else high

    def members(*, is_moved: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        start = 0
        for block in whole.blocks():
            start_D = np.concatenate([[start], block["end"][:-1]])
            start = int(block["end"][-1])
            member_D = (block["hash"] == chosen) == is_moved
            yield start_D[member_D], block[member_D]

    token_N = np.memmap(whole.stem.with_suffix(".tokens"), dtype, "r")
    sides = []
    for is_moved, name in ((False, "kept"), (True, "moved")):
        stem = folder / f"{whole.stem.name}-{name}"
        side = Output(split=whole.split, source=whole.source, stem=stem)
        with (
            open(stem.with_suffix(".tokens"), "wb") as tokens,
            open(stem.with_suffix(".documents"), "wb") as documents,
        ):
            for own_D in copy_documents(tokens, token_N, members(is_moved=is_moved)):
                documents.write(own_D.tobytes())
                side.documents += len(own_D)
                side.bytes += int(own_D["bytes"].sum(dtype=np.int64))
            side.tokens = tokens.tell() // dtype.itemsize
        sides.append(side)
    return sides if whole is train else sides[::-1]


def copy_documents(
    output: BinaryIO, token_N: np.ndarray, pieces: Iterable[tuple[np.ndarray, np.ndarray]]
) -> Iterator[np.ndarray]:
    """Copy the tokens of documents to a file, and yield the documents with their ends there.

    A piece is the first token of each document, (D,), and the documents, (D,), with their `end`.
    """
    num_tokens = 0
    for start_D, document_D in pieces:
        for start, end in zip(start_D.tolist(), document_D["end"].tolist(), strict=True):
            for first in range(start, end, COPY_TOKENS):
                output.write(token_N[first : min(first + COPY_TOKENS, end)].tobytes())
        document_D["end"] = num_tokens + (document_D["end"] - start_D).cumsum()
        num_tokens = int(document_D["end"][-1]) if len(document_D) else num_tokens
        yield document_D


def publish(options: PrepareOptions, manifest: Manifest, built: Path) -> Manifest:
    """Divide into strata if asked to, then move everything from `built` into its place.

    A corpus that was there is replaced. The manifest comes last, so that it means complete.
    """
    if options.strata > 1:
        from dograph.data.strata import split_into_strata

        manifest = split_into_strata(built, manifest, options.strata, options.seed)
    out = options.out
    names = [name for name in corpus_files(manifest) if (built / name).is_file()]
    if (out / MANIFEST).is_file():
        os.replace(out / MANIFEST, built.parent / _REPLACED)
        remove_replaced(built.parent, out)
    for name in names:
        sync_file(built / name)
        (out / name).parent.mkdir(exist_ok=True)
        os.replace(built / name, out / name)
        sync_file((out / name).parent)
    manifest.write(out)
    clear(options.staging)
    return manifest


def remove_replaced(staging: Path, out: Path) -> None:
    """Delete the files of a corpus being replaced, perhaps begun before a kill.

    Where its manifest is damaged nobody knows which files were its own, and they stay.
    """
    replaced = staging / _REPLACED
    # beside a manifest the new files may be in place already, under the same names
    if not replaced.is_file() or (out / MANIFEST).is_file():
        return
    with suppress(ValidationError):
        for name in corpus_files(Manifest.model_validate_json(replaced.read_bytes())):
            (out / name).unlink(missing_ok=True)
    replaced.unlink()


def corpus_files(manifest: Manifest) -> list[str]:
    """Every file of a corpus that lies in its folder; tokens used where they are do not."""
    names = {REPAIRS}
    if manifest.tokenizer.file is not None:
        names.add(manifest.tokenizer.file)
    for entry in (*manifest.train, *manifest.validation):
        names |= {entry.file, entry.documents_file}
    return sorted(name for name in names if not Path(name).is_absolute())


def link(source: Path, target: Path) -> None:
    """The same content under a second name; a copy where the file system has no links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def file_stems(sources: Iterable[str]) -> dict[str, str]:
    """A file name for each source, also where the source's name is none.

    Two names never differ by case alone: some file systems would take them for one.
    """
    sources = sorted(sources)
    plain = {
        source: re.sub(r"[^\w.-]+", "-", source, flags=re.ASCII).strip("-.") for source in sources
    }
    lower = [stem.lower() for stem in plain.values()]
    stems = {}
    for source, stem in plain.items():
        if stem == source and len(stem) <= 100 and lower.count(stem.lower()) == 1:
            stems[source] = stem
        else:
            digest = hashlib.blake2b(source.encode(), digest_size=4).hexdigest()
            stems[source] = f"{stem[:80]}-{digest}".lstrip("-")
    return stems


def write_document_index(path: Path, blocks: Iterable[np.ndarray], num_documents: int) -> None:
    """Write an .npy of DOCUMENT_DTYPE from blocks that have its fields, and perhaps more.

    It is never held in memory as a whole. Plain writes, not a memory map: on a full disk they
    fail with an error, not with a signal.
    """
    header = {
        "descr": np.lib.format.dtype_to_descr(DOCUMENT_DTYPE),
        "fortran_order": False,
        "shape": (num_documents,),
    }
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            documents = np.empty(len(block), DOCUMENT_DTYPE)
            for name in DOCUMENT_DTYPE.names or ():
                documents[name] = block[name]
            file.write(documents.tobytes())

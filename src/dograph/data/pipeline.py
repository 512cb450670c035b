"""Prepare a corpus: read in order, encode in parallel, write in order, resume after a kill.

One thread reads and writes, the others encode; the result depends only on the inputs and the
options. A journal is kept, so that the same command continues after an interruption.
"""

import errno
import hashlib
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from dograph.data import encode, formats, staging
from dograph.data.corpus import MANIFEST, Manifest, refuse_summary
from dograph.data.encode import TokenizerFile, find_tokenizer, place_tokenizer, train_bpe
from dograph.data.external import prepare_external
from dograph.data.formats import Bad, Chunk, Line, Position, RawRow
from dograph.data.inputs import EMBEDDED, Input, PrepareOptions, resolve_all, walk
from dograph.data.toward import TextScorer
from dograph.errors import CorpusError, listed
from dograph.files import sync_file

COMMIT_SECONDS = 5.0
SAMPLE_BYTES = 20_000_000  # of text, to train a tokenizer on
_CHUNK_ROWS = 4096
# Each source has its own files and its own row in every table: a field with more values than this
# is a mistake (a URL, an author), not a source.
MAX_SOURCES = 1000
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class PreparationProgress(NamedTuple):
    """How far a preparation is."""

    stage: Literal["training the tokenizer", "reading trusted text", "encoding", "finishing"]
    read_bytes: int = 0  # of the inputs, as they are on disk
    total_bytes: int | None = None  # None if unknown
    text_bytes: int = 0
    documents: int = 0
    tokens: int = 0
    unkept_bytes: int = 0  # of text that --keep left out
    unkept_documents: int = 0


Report = Callable[[PreparationProgress], None]


class Prepared(NamedTuple):
    """A complete corpus, and whether it existed before."""

    manifest: Manifest
    already: bool


def prepare(options: PrepareOptions, report: Report = lambda _: None) -> Prepared:
    """Prepare a corpus, or continue a preparation that was stopped; calls `report` on the way."""
    try:
        inputs, left_out = resolve_all(
            options.inputs,
            options.validation,
            labelled=options.fields.source is not None,
            recipe=options.known_corpus,
        )
        options.refuse_idle(inputs)
        for entry in inputs:
            refuse_summary(entry.source)
        empty = [entry.name for entry in inputs if entry.size == 0]
        if empty and options.bad_records == "refuse":
            raise CorpusError(
                f"{empty[0]} is empty; leave it out, or pass --bad-records repair to drop it"
            )
        stamps = {f"the input {e.name}": f"{e.split}:{e.source}:{e.stamp}" for e in inputs}
        stamps |= {f"the trusted text {e.name}": e.stamp for e in trusted_inputs(options)}
        given = None
        if options.tokenizer != "bpe":
            given = find_tokenizer(options.tokenizer)
            content = f"{given.content}\0{given.eos}".encode()
            stamps[f"the tokenizer {options.tokenizer}"] = hashlib.sha256(content).hexdigest()
        asked = options.recorded() | {"left_out": listed(left_out, staging.MOST_NAMES) or None}
        recorded = staging.Recorded(options=asked, stamps=stamps)
        manifest = staging.finished_corpus(options, recorded)
        if manifest is not None:
            if options.staging.is_dir():  # left over from a kill after the manifest was written
                with staging.lock(options.staging):
                    staging.clear(options.staging)
            return Prepared(manifest, already=True)
        with staging.lock(options.staging):
            if any(entry.is_tokens for entry in inputs):
                manifest = prepare_external(options, inputs, given, recorded)
            else:
                journal = Preparation(options, inputs, report).run(given, recorded)
                report(PreparationProgress("finishing"))
                manifest = staging.finish(options, inputs, journal)
            return Prepared(manifest, already=False)
    except OSError as error:
        out = options.out
        if error.errno in _DISK_FULL:
            free = shutil.disk_usage(out if out.exists() else out.parent).free
            raise CorpusError(
                f"the disk is full: {free / 1e6:.1f} MB are free at {out} ({error.strerror}). "
                "Free some space and repeat the command: it continues where it stopped"
            ) from error
        name = f"{error.filename}: " if error.filename else ""
        raise CorpusError(f"{name}{error.strerror or error}") from error


class Preparation:
    """Reads, encodes and writes text, and keeps the journal of the chunks that are written."""

    journal: staging.Journal

    def __init__(self, options: PrepareOptions, inputs: list[Input], report: Report) -> None:
        self.options = options
        self.folder = options.staging
        self.inputs = inputs
        self.report = report
        self.sizes = [entry.size for entry in inputs]
        self.total_bytes = None if None in self.sizes else sum(size or 0 for size in self.sizes)
        self._committed = time.monotonic()
        self._unsynced: set[Path] = set()

    def run(self, given: TokenizerFile | None, recorded: staging.Recorded) -> staging.Journal:
        """Process everything that the journal does not have yet."""
        options, inputs = self.options, self.inputs
        journal = staging.resume(options, recorded)
        if journal is None:
            staging.clear(self.folder)
            if given is None:
                self.report(PreparationProgress("training the tokenizer"))
                texts = sample_texts(options, inputs)
                given = TokenizerFile(train_bpe(texts, options.bpe_vocab_size), None)
            tokenizer = place_tokenizer(given, self.folder, options)
            journal = staging.Journal(**recorded.model_dump(), tokenizer=tokenizer)
            journal.write(self.folder)
        journal.options = recorded.options
        encoder = encode.ChunkEncoder(options, inputs, journal.tokenizer)
        if options.toward:  # also after an interruption: it takes seconds, and is always the same
            self.report(PreparationProgress("reading trusted text"))
            trusted = checked_texts(trusted_inputs(options), options)
            sample = (text.encode() for text in sample_texts(options, inputs))
            encoder.scorer = TextScorer((own.content for own in trusted if own.content), sample)
        self.journal = journal
        self._cut_files()
        chunks = read_chunks(inputs, journal.position, options)
        workers = options.workers or os.cpu_count() or 1
        with closing(encode.encode_in_order(chunks, encoder, workers)) as stream:
            for encoded in stream:
                self.write(encoded)
                self.report(self._progress())
        self.commit()
        return journal

    def _cut_files(self) -> None:
        """Remove what was written after the journal was."""
        folder, outputs = self.folder, self.journal.outputs
        sizes = dict.fromkeys((*folder.glob("*.tokens"), *folder.glob("*.documents")), 0)
        sizes[folder / staging.REPAIRS] = self.journal.repairs_bytes
        itemsize = np.dtype(self.journal.tokenizer.token_dtype).itemsize
        for number, output in enumerate(outputs):
            output.stem = folder / f"{number:04d}"
            sizes[output.stem.with_suffix(".tokens")] = output.tokens * itemsize
            documents = output.documents * output.raw_dtype.itemsize
            sizes[output.stem.with_suffix(".documents")] = documents
        for path, size in sizes.items():
            have = path.stat().st_size if path.exists() else 0
            if have < size:
                raise CorpusError(
                    f"{path} should hold {size} bytes, found {have}; delete {folder} to start over"
                )
            if have > size:
                os.truncate(path, size)

    def write(self, encoded: encode.Encoded) -> None:
        """Append a chunk; whatever interrupts it, the last commit stays valid."""
        journal, entry = self.journal, self.inputs[encoded.input]
        listing = b""
        for bad in encoded.bad:
            row = {"place": encode.where(entry, bad), "kind": bad.kind, "what": bad.what}
            listing += json.dumps(row | {"done": bad.repair}).encode() + b"\n"
        if listing:
            self._append(self.folder / staging.REPAIRS, listing)
        self.append_groups(encoded.groups)
        journal.repairs = dict(encoded.counts + Counter(journal.repairs))
        journal.repairs_bytes += len(listing)
        journal.position = encoded.end
        if time.monotonic() - self._committed >= COMMIT_SECONDS:
            self.commit()

    def append_groups(self, groups: list[encode.EncodedGroup]) -> None:
        """Write the groups of a chunk, and count them in the journal."""
        by_key = {(output.split, output.source): output for output in self.journal.outputs}
        for group in groups:
            output = by_key.get((group.split, group.source))
            if output is None:
                refuse_summary(group.source)
                number = len(self.journal.outputs)
                if number >= 2 * MAX_SOURCES:
                    raise CorpusError(
                        f"more than {MAX_SOURCES} sources, the latest {group.source!r}: name a "
                        "field with fewer values with --source-field"
                    )
                stem = self.folder / f"{number:04d}"
                output = staging.Output(split=group.split, source=group.source, stem=stem)
                output.scored = bool(self.options.toward)
                self.journal.outputs.append(output)
            documents = group.document_M.copy()
            documents["end"] += output.tokens
            self._append(output.stem.with_suffix(".tokens"), group.token_N.tobytes())
            self._append(output.stem.with_suffix(".documents"), documents.tobytes())
            output.tokens += len(group.token_N)
            output.documents += len(documents)
            output.bytes += int(documents["bytes"].sum(dtype=np.int64))
            output.unkept_documents += group.unkept_documents
            output.unkept_bytes += group.unkept_bytes

    def _append(self, path: Path, content: bytes) -> None:
        with open(path, "ab") as file:
            file.write(content)
        self._unsynced.add(path)

    def commit(self) -> None:
        """Put everything written so far on disk for good."""
        for path in sorted(self._unsynced):  # before the journal counts on them
            sync_file(path)
        self._unsynced.clear()
        self.journal.write(self.folder)
        self._committed = time.monotonic()

    def _progress(self) -> PreparationProgress:
        position = self.journal.position
        read = sum(size or 0 for size in self.sizes[: position.input]) + position.consumed
        names = ("bytes", "documents", "tokens", "unkept_bytes", "unkept_documents")
        sums = [sum(getattr(output, name) for output in self.journal.outputs) for name in names]
        return PreparationProgress("encoding", read, self.total_bytes, *sums)


def sample_texts(options: PrepareOptions, inputs: list[Input]) -> Iterator[str]:
    """Text to train a tokenizer on: as many bytes from the start of each training input."""
    threshold, only = encode.hash_threshold(options.held_out(inputs)), options.only
    tolerant = replace(options, bad_records="repair")  # encoding reports bad records later
    training = [entry for entry in inputs if entry.split == "train"]
    for entry in training:
        left = SAMPLE_BYTES // len(training)
        for text in checked_texts([entry], tolerant):
            if (
                (only is None or text.source in only)
                and encode.is_kept(text.content, options.keep, options.seed)
                and encode.text_hash(text.content, options.seed, "validation") >= threshold
            ):
                yield text.text
                left -= len(text.content)
                if left <= 0:
                    break


def trusted_inputs(options: PrepareOptions) -> list[Input]:
    """What --toward names, both splits of what has two; their sources do not matter."""
    inputs, _ = resolve_all(options.toward, (), labelled=False)
    for entry in inputs:
        if entry.is_tokens:
            raise CorpusError(f"--toward takes text, and {entry.name} holds tokens; give its text")
    return [replace(entry, source="trusted") for entry in inputs]


def checked_texts(inputs: list[Input], options: PrepareOptions) -> Iterator[encode.CheckedText]:
    """All records of all inputs that pass the checks, in order."""
    for chunk in read_chunks(inputs, Position(), options):
        yield from encode.Checker(chunk, inputs[chunk.input], options).texts()


def read_chunks(inputs: list[Input], start: Position, options: PrepareOptions) -> Iterator[Chunk]:
    """All records of all inputs, in order, from `start` on."""
    for index in range(start.input, len(inputs)):
        position = start if index == start.input else Position(input=index)
        for chunk in _chunks(inputs[index], position, options):
            if chunk.bad and options.bad_records == "refuse":
                raise encode.refusal(inputs[index], chunk.bad[0])
            yield chunk


def _chunks(entry: Input, start: Position, options: PrepareOptions) -> Iterator[Chunk]:
    """Records in chunks of about CHUNK_BYTES."""
    rows: list[RawRow | Line] = []
    bad: list[Bad] = []
    first, size, at = start.record, 0, start
    for row in _rows(entry, start, options):
        if isinstance(row, Bad):
            bad.append(row)
            at = at._replace(record=at.record + row.lost)
            ends = row.lost > 0  # the rows of a chunk are numbered without a gap
        else:
            rows.append(row)
            text, offset = (row.content, row.end) if isinstance(row, Line) else (row.text, 0)
            length = len(text) if isinstance(text, str | bytes) else 0
            consumed = at.consumed + length if row.consumed is None else row.consumed
            size, at = size + length, Position(start.input, at.record + 1, offset, consumed)
            ends = size >= formats.CHUNK_BYTES or len(rows) >= _CHUNK_ROWS
        if ends:
            yield Chunk(start.input, first, rows, at, bad)
            rows, bad, first, size = [], [], at.record, 0
    yield Chunk(start.input, first, rows, Position(start.input + 1), bad)


def _rows(entry: Input, start: Position, options: PrepareOptions) -> Iterator[RawRow | Line | Bad]:
    place, record = entry.hub or entry.path, start.record
    if place is None:
        from dograph.data import embedded  # here, because most preparations do not need it

        documents = embedded.embedded_documents(entry.name, options.noise, options.seed)
        for source, text in islice(documents, record, None):
            yield RawRow(text, source)
    elif isinstance(place, tuple) or entry.kind == "disk":
        yield from formats.read_dataset(place, entry.part, record, options.fields)
    elif entry.kind == "parquet":
        yield from formats.read_parquet(place, record, options.fields)
    elif entry.kind == "lines":
        yield from formats.read_lines(place, start)
    else:
        for path in islice(walk(place), record, None):
            if path.stat().st_size > formats.MAX_RECORD_BYTES:
                yield formats.too_long(file=str(path))
            else:
                yield RawRow(path.read_bytes(), None, str(path))


def ensure_corpus(name: str, report: Report = lambda _: None) -> Path:
    """The folder of a corpus; an embedded one is prepared on first use, under ./data/."""
    if name not in EMBEDDED:
        return Path(name).resolve()
    folder = Path("data") / name
    if not (folder / MANIFEST).is_file():
        own: dict[str, Any] = {"toward": ("junk@trusted",), "strata": 8} if name == "junk" else {}
        prepare(PrepareOptions(inputs=(name,), out=folder, **own), report)
    return folder.resolve()

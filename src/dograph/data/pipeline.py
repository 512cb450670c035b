"""Text to a corpus: read in order, encode in parallel, write as one, and never lose what is done.

One process reads and writes, the others encode; what is written depends on the inputs and the
options alone. A journal is kept on the way, so that the same command goes on after a kill.
"""

import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from dograph.data import encode, formats, staging
from dograph.data.corpus import MANIFEST, Manifest
from dograph.data.external import prepare_external
from dograph.data.formats import Bad, Chunk, Position, RawRow
from dograph.data.inputs import EMBEDDED, Input, resolve_all, walk
from dograph.data.options import PrepareOptions
from dograph.data.tokenizer import FoundTokenizer, find_tokenizer, place_tokenizer, train_bpe
from dograph.errors import CorpusError
from dograph.files import sync_file

COMMIT_SECONDS = 5.0
SAMPLE_BYTES = 20_000_000  # of text, to train a tokenizer on
_CHUNK_ROWS = 4096
# Each source has its own files and its own row in every table: a label with more values than
# this is a mistake (an address, an author), not a source.
MAX_SOURCES = 1000
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class PreparationProgress(NamedTuple):
    """How far a preparation has come."""

    stage: Literal["training the tokenizer", "encoding", "finishing"]
    read_bytes: int = 0  # of the inputs, as they are on disk
    total_bytes: int | None = None  # None where nobody knows
    text_bytes: int = 0
    documents: int = 0
    tokens: int = 0
    unkept_bytes: int = 0  # of text that --keep left out
    unkept_documents: int = 0


class Prepared(NamedTuple):
    """A complete corpus, and whether it was there before."""

    manifest: Manifest
    already: bool


def prepare(
    options: PrepareOptions, report: Callable[[PreparationProgress], None] = lambda _: None
) -> Prepared:
    """Prepare a corpus, or go on with one that was stopped; `report` is told of the progress."""
    try:
        return _prepare(options, report)
    except OSError as error:
        out = options.out
        if error.errno in _DISK_FULL:
            free = shutil.disk_usage(out if out.exists() else out.parent).free
            raise CorpusError(
                f"the disk is full: {free / 1e6:.1f} MB are free at {out} ({error.strerror}). "
                "Make room and repeat the command: it goes on where it stopped"
            ) from error
        name = f"{error.filename}: " if error.filename else ""
        raise CorpusError(f"{name}{error.strerror or error}") from error


def _prepare(options: PrepareOptions, report: Callable[[PreparationProgress], None]) -> Prepared:
    inputs, left_out = resolve_all(
        options.inputs,
        options.validation,
        labelled=options.fields.source is not None,
        recipe=options.known_corpus,
    )
    options.refuse_idle(inputs)
    sizes = [entry.size for entry in inputs]
    if not options.repair and 0 in sizes:
        raise CorpusError(
            f"{inputs[sizes.index(0)].name} is empty; leave it out, or pass --bad-records repair "
            "to drop it"
        )
    stamps = {f"the input {e.name}": f"{e.split}:{e.source}:{e.stamp}" for e in inputs}
    found = None
    if options.tokenizer != "bpe":
        found = find_tokenizer(options.tokenizer)
        content = f"{found.content}\0{found.eos}".encode()
        stamps[f"the tokenizer {options.tokenizer}"] = hashlib.sha256(content).hexdigest()
    asked = options.recorded() | {"left_out": staging.listed(left_out)}
    recorded = staging.Recorded(options=asked, stamps=stamps)
    manifest = staging.finished_corpus(options.out, recorded, overwrite=options.overwrite)
    if manifest is not None:
        if options.staging.is_dir():  # left behind by a kill after the manifest was written
            with staging.lock(options.staging):
                journal = staging.Journal.read(options.staging)
                if journal is None or journal.fingerprint == recorded.fingerprint:
                    staging.clear(options.staging)
        return Prepared(manifest, already=True)
    with staging.lock(options.staging):
        staging.remove_replaced(options.staging, options.out)
        if any(entry.is_tokens for entry in inputs):
            manifest = prepare_external(options, inputs, found, recorded)
        else:
            preparation = Preparation(options, inputs, sizes, report)
            preparation.run(found, recorded)
            report(PreparationProgress("finishing"))
            manifest = staging.finish(options, inputs, preparation.journal)
        return Prepared(manifest, already=False)


class Preparation:
    """Text on its way: what has been written so far, and the journal that says so.

    A pair of files grows for each split of each source. Lengths on record are those of whole
    chunks only.
    """

    journal: staging.Journal

    def __init__(
        self,
        options: PrepareOptions,
        inputs: list[Input],
        sizes: list[int | None],
        report: Callable[[PreparationProgress], None],
    ) -> None:
        self.options = options
        self.folder = options.staging
        self.inputs = inputs
        self.report = report
        self.sizes = sizes  # of each input on disk; None where nobody knows
        self.total_bytes = None if None in sizes else sum(size or 0 for size in sizes)
        self._committed = time.monotonic()
        self._writing = False
        self._unsynced: set[Path] = set()

    def run(self, found: FoundTokenizer | None, recorded: staging.Recorded) -> None:
        """Read, encode and write everything that the journal does not have yet."""
        options, inputs = self.options, self.inputs
        with encode.EncodingWorkers(options.workers or os.cpu_count() or 1) as workers:
            if (self.total_bytes or 0) >= encode.SMALL_CHUNKS * formats.CHUNK_BYTES:
                workers.start_all()  # they load their libraries while the tokenizer is made ready
            self.journal = journal = self._open_journal(found, recorded)
            self._cut_files()
            if journal.all_read:
                return
            read = read_chunks(inputs, journal.position, options)
            try:
                for encoded in workers.encode_in_order(read, options, inputs, journal.tokenizer):
                    self.write(encoded)
                    self.report(self._progress())
            except BaseException:
                with suppress(OSError):  # on a full disk the last commit stands
                    self.commit()
                raise
        journal.all_read = True
        self.commit()

    def _open_journal(
        self, found: FoundTokenizer | None, recorded: staging.Recorded
    ) -> staging.Journal:
        """The journal to go on with, or a new one with the tokenizer in place."""
        options, folder = self.options, self.folder
        journal = None if options.restart else staging.Journal.read(folder)
        if journal is not None:
            journal.require_same(recorded)
            journal.options = recorded.options
            return journal
        staging.clear(folder)
        if found is None:
            self.report(PreparationProgress("training the tokenizer"))
            texts = sample_texts(options, self.inputs)
            found = FoundTokenizer(train_bpe(texts, options.bpe_vocab_size), None)
        tokenizer = place_tokenizer(found, folder, options.tokenizer, options.eot)
        journal = staging.Journal(**recorded.model_dump(), tokenizer=tokenizer)
        journal.write(folder)
        return journal

    def _cut_files(self) -> None:
        """Take away what was written after the journal was."""
        folder, outputs = self.folder, self.journal.outputs
        for path in (*folder.glob("*.tokens"), *folder.glob("*.documents")):
            if int(path.stem) >= len(outputs):
                path.unlink()
        sizes = {folder / staging.REPAIRS: self.journal.repairs_bytes}
        itemsize = np.dtype(self.journal.tokenizer.token_dtype).itemsize
        for number, output in enumerate(outputs):
            output.stem = folder / f"{number:04d}"
            sizes[output.stem.with_suffix(".tokens")] = output.tokens * itemsize
            documents = output.documents * encode.RAW_DOCUMENT_DTYPE.itemsize
            sizes[output.stem.with_suffix(".documents")] = documents
        for path, size in sizes.items():
            have = path.stat().st_size if path.exists() else 0
            if have < size:
                raise CorpusError(
                    f"{path} should hold {size} bytes, found {have}; begin anew with --restart"
                )
            if path.exists() or path.name != staging.REPAIRS:
                with open(path, "ab") as file:
                    file.truncate(size)

    def write(self, encoded: encode.Encoded) -> None:
        """Append a chunk; after an interruption on the way the last commit stands."""
        self._writing = True
        journal, entry = self.journal, self.inputs[encoded.input]
        listing = b""
        for bad in encoded.bad:
            row = {"place": encode.where(entry, bad), "kind": bad.kind, "what": bad.what}
            listing += json.dumps(row | {"done": bad.repair}).encode() + b"\n"
        if listing:
            self._append(self.folder / staging.REPAIRS, listing)
        self.append_groups(encoded.groups)
        counts = [(bad.kind, 1) for bad in encoded.bad]
        counts += [(f"excluded: {source}", n) for source, n in encoded.excluded.items()]
        for kind, count in counts:
            journal.repairs[kind] = journal.repairs.get(kind, 0) + count
        journal.repairs_bytes += len(listing)
        journal.position = encoded.end
        self._writing = False
        if time.monotonic() - self._committed >= COMMIT_SECONDS:
            self.commit()

    def append_groups(self, groups: list[encode.EncodedGroup]) -> None:
        """Write the groups of one chunk; on a failure the record still says what was whole."""
        by_key = {(output.split, output.source): output for output in self.journal.outputs}
        for group in groups:
            key = (group.split, group.source)
            if key not in by_key:
                number = len(by_key)
                if number >= 2 * MAX_SOURCES:
                    raise CorpusError(
                        f"more than {MAX_SOURCES} sources, the latest {group.source!r}: name a "
                        "field with fewer values with --source-field"
                    )
                stem = self.folder / f"{number:04d}"
                by_key[key] = staging.Output(split=group.split, source=group.source, stem=stem)
                self.journal.outputs.append(by_key[key])
            output = by_key[key]
            documents = group.document_M.copy()
            documents["end"] += output.tokens
            self._append(output.stem.with_suffix(".tokens"), group.token_N.tobytes())
            self._append(output.stem.with_suffix(".documents"), documents.tobytes())
        for group in groups:
            output = by_key[group.split, group.source]
            output.tokens += len(group.token_N)
            output.documents += len(group.document_M)
            output.bytes += int(group.document_M["bytes"].sum(dtype=np.int64))
            output.unkept_documents += group.unkept_documents
            output.unkept_bytes += group.unkept_bytes

    def _append(self, path: Path, content: bytes) -> None:
        with open(path, "ab") as file:
            file.write(content)
        self._unsynced.add(path)

    def commit(self) -> None:
        """Everything written so far is safe once this returns; half a chunk is not kept."""
        if self._writing:
            return
        for path in sorted(self._unsynced):  # before the journal speaks of them
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
    """A bounded, fixed sample to train a tokenizer on: the first texts of each training input.

    An equal amount of each. Bad records are passed over: reading everything will name the first.
    """
    threshold, only = encode.hash_threshold(options.held_out(inputs)), options.only
    tolerant = replace(options, bad_records="repair")
    training = [entry for entry in inputs if entry.split == "train"]
    for entry in training:
        left = SAMPLE_BYTES // len(training)
        pieces = read_chunks([entry], Position(), tolerant)
        for text in chain.from_iterable(encode.Checker(c, entry, tolerant).texts() for c in pieces):
            if (
                (only is None or text.source in only)
                and encode.is_kept(text.content, options.keep, options.seed)
                and encode.text_hash(text.content, options.seed, "validation") >= threshold
            ):
                yield text.text
                left -= len(text.content)
                if left <= 0:
                    break


def read_chunks(inputs: list[Input], start: Position, options: PrepareOptions) -> Iterator[Chunk]:
    """All records of all inputs, in order, from `start` on."""
    for index in range(start.input, len(inputs)):
        position = start if index == start.input else Position(input=index)
        entry = inputs[index]
        if entry.kind == "lines" and entry.path is not None:
            made = formats.read_lines(entry.path, position)
        else:
            made = _chunks_of_rows(entry, position, options)
        for chunk in made:
            if chunk.bad and not options.repair:
                raise encode.refusal(entry, chunk.bad[0])
            yield chunk


def _chunks_of_rows(entry: Input, start: Position, options: PrepareOptions) -> Iterator[Chunk]:
    """Rows gathered into chunks of about CHUNK_BYTES."""
    rows: list[RawRow] = []
    bad: list[Bad] = []
    first = record = start.record
    consumed, size = start.consumed, 0
    row_bytes = None  # on disk, of a compressed table; elsewhere rows are as stored
    if entry.kind == "parquet" and entry.path is not None:
        row_bytes = entry.path.stat().st_size / max(formats.count_rows(entry.path), 1)
    for piece in _rows(entry, start.record, options):
        if isinstance(piece, Bad):
            bad.append(piece)
            record += piece.lost
            ends = piece.lost > 0  # rows of a chunk are numbered without a gap
        else:
            rows.append(piece)
            record += 1
            length = len(piece.text) if isinstance(piece.text, str | bytes) else 0
            size, consumed = size + length, consumed + length
            ends = size >= formats.CHUNK_BYTES or len(rows) >= _CHUNK_ROWS
        if ends:
            read = int(record * row_bytes) if row_bytes else consumed
            yield Chunk(start.input, first, rows, Position(start.input, record, 0, read), bad)
            rows, bad, first, size = [], [], record, 0
    yield Chunk(start.input, first, rows, Position(start.input + 1), bad)


def _rows(entry: Input, start: int, options: PrepareOptions) -> Iterator[RawRow | Bad]:
    place = entry.hub or entry.path
    if place is None:
        from dograph.data import embedded  # here, for most preparations need none of it

        documents = (
            embedded.demo_documents()
            if entry.name == "demo"
            else embedded.planted_documents(entry.name, noise=options.noise, seed=options.seed)
        )
        for source, text in islice(documents, start, None):
            yield RawRow(text, source)
    elif isinstance(place, tuple) or entry.kind == "disk":
        yield from formats.read_dataset(place, entry.part, start, options.fields)
    elif entry.kind == "parquet":
        yield from formats.read_parquet(place, start, options.fields)
    else:
        for path in islice(walk(place), start, None):
            if path.stat().st_size > formats.MAX_RECORD_BYTES:
                yield formats.too_long()._replace(file=str(path), lost=1)
            else:
                yield RawRow(path.read_bytes(), None, str(path))


def ensure_corpus(
    name: str, report: Callable[[PreparationProgress], None] = lambda _: None
) -> Path:
    """The folder of a corpus; an embedded one is prepared on first use, under ./data/."""
    if name not in EMBEDDED:
        return Path(name).resolve()
    folder = Path("data") / name
    if not (folder / MANIFEST).is_file():
        prepare(PrepareOptions(inputs=(name,), out=folder), report)
    return folder.resolve()

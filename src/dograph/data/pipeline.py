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
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from dograph.data import chunks
from dograph.data.chunks import Input, listed, stamp
from dograph.data.corpus import MANIFEST, Manifest, TokenizerEntry
from dograph.data.encode import SMALL_CHUNKS, Encoded, EncodingWorkers, sample_texts
from dograph.data.external import prepare_external
from dograph.data.finish import REPAIRS, finish, remove_replaced
from dograph.data.inputs import EMBEDDED, resolve_all
from dograph.data.journal import (
    Journal,
    Outputs,
    Recorded,
    clear,
    finished_corpus,
    lock,
    read_journal,
)
from dograph.data.options import PrepareOptions
from dograph.data.readers import RefusedRecordError, read_chunks, refusal, where
from dograph.data.tokenizer import (
    TOKENIZER_FILE,
    FoundTokenizer,
    end_of_text,
    find_tokenizer,
    open_tokenizer,
    train_bpe,
    vocabulary_size,
)
from dograph.errors import CorpusError
from dograph.files import sha256_of, sync_file, write_text

COMMIT_SECONDS = 5.0
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
    stamps = {f"the input {e.name}": f"{e.split}:{e.source}:{stamp(e.path)}" for e in inputs}
    found = None
    if options.tokenizer != "bpe":
        found = find_tokenizer(options.tokenizer)
        content = f"{found.content}\0{found.eos}".encode()
        stamps[f"the tokenizer {options.tokenizer}"] = hashlib.sha256(content).hexdigest()
    recorded = Recorded({**options.recorded(), "left_out": listed(left_out)}, stamps)
    manifest = finished_corpus(options.out, recorded, overwrite=options.overwrite)
    if manifest is not None:
        if options.staging.is_dir():  # left behind by a kill after the manifest was written
            with lock(options.staging):
                journal = read_journal(options.staging)
                if journal is None or journal.fingerprint == recorded.fingerprint:
                    clear(options.staging)
        return Prepared(manifest, already=True)
    with lock(options.staging):
        remove_replaced(options.staging, options.out)
        if any(entry.is_tokens for entry in inputs):
            manifest = prepare_external(options, inputs, found, recorded)
            return Prepared(manifest, already=False)
        preparation = Preparation(options, inputs, sizes, found, recorded, report)
        preparation.encode()
        report(PreparationProgress("finishing"))
        manifest = finish(options, inputs, preparation.journal, preparation.outputs)
        return Prepared(manifest, already=False)


@dataclass
class Preparation:
    """Text on its way: what has been written so far, and the journal that says so."""

    options: PrepareOptions
    inputs: list[Input]
    sizes: list[int | None]  # of each input on disk; None where nobody knows
    found: FoundTokenizer | None  # None: to be trained
    recorded: Recorded
    report: Callable[[PreparationProgress], None]
    journal: Journal = field(init=False)
    outputs: Outputs = field(init=False)
    _committed: float = field(default_factory=time.monotonic)
    _writing: bool = False

    def __post_init__(self) -> None:
        self.total_bytes = None if None in self.sizes else sum(size or 0 for size in self.sizes)
        self._repairs = self.options.staging / REPAIRS

    def encode(self) -> None:
        """Read, encode and write everything that the journal does not have yet."""
        options, inputs = self.options, self.inputs
        with EncodingWorkers(options.workers or os.cpu_count() or 1) as workers:
            if (self.total_bytes or 0) >= SMALL_CHUNKS * chunks.CHUNK_BYTES:
                workers.start_all()  # they load their libraries while the tokenizer is made ready
            self.journal = journal = self._open_journal()
            self.outputs = Outputs(options.staging, journal.outputs, journal.tokenizer.token_dtype)
            if self._repairs.exists():
                with open(self._repairs, "ab") as file:
                    file.truncate(journal.repairs_bytes)
            if journal.all_read:
                return
            read = read_chunks(inputs, journal.position, options)
            try:
                for encoded in workers.encode_in_order(read, options, inputs, journal.tokenizer):
                    self.write(encoded)
                    self.report(self._progress())
            except BaseException as error:
                with suppress(OSError):  # on a full disk the last commit stands
                    self.commit()
                if isinstance(error, RefusedRecordError):
                    raise refusal(inputs[error.input], error.bad) from error
                raise
        journal.all_read = True
        self.commit()

    def _open_journal(self) -> Journal:
        """The journal to go on with, or a new one with the tokenizer in place."""
        options, staging, found = self.options, self.options.staging, self.found
        journal = None if options.restart else read_journal(staging)
        if journal is not None:
            journal.require_same(self.recorded)
            journal.options = self.recorded.options
            return journal
        clear(staging)
        if found is None:
            self.report(PreparationProgress("training the tokenizer"))
            texts = sample_texts(options, self.inputs)
            found = FoundTokenizer(train_bpe(texts, options.bpe_vocab_size), None)
        path = staging / TOKENIZER_FILE
        write_text(path, found.content)
        tokenizer = open_tokenizer(path, options.tokenizer)
        entry = TokenizerEntry(
            name=options.tokenizer,
            file=TOKENIZER_FILE,
            sha256=sha256_of(path),
            vocab_size=vocabulary_size(tokenizer),
            eot_id=end_of_text(tokenizer, options.eot, found.eos),
        )
        recorded = self.recorded
        journal = Journal(options=recorded.options, stamps=recorded.stamps, tokenizer=entry)
        journal.write(staging)
        return journal

    def write(self, encoded: Encoded) -> None:
        """Append a chunk; after an interruption on the way the last commit stands."""
        self._writing = True
        entries = [
            {
                "place": where(self.inputs[encoded.input], bad),
                "kind": bad.kind,
                "what": bad.what,
                "done": bad.repair,
            }
            for bad in encoded.bad
        ]
        listing = "".join(json.dumps(entry) + "\n" for entry in entries).encode()
        if listing:
            with open(self._repairs, "ab") as file:
                file.write(listing)
        self.outputs.append(encoded.groups)
        repairs = self.journal.repairs
        for bad in encoded.bad:
            repairs[bad.kind] = repairs.get(bad.kind, 0) + 1
        for source, count in encoded.excluded.items():
            kind = f"excluded: {source}"
            repairs[kind] = repairs.get(kind, 0) + count
        self.journal.repairs_bytes += len(listing)
        self.journal.position = encoded.end
        self._writing = False
        if time.monotonic() - self._committed >= COMMIT_SECONDS:
            self.commit()

    def commit(self) -> None:
        """Everything written so far is safe once this returns; half a chunk is not kept."""
        if self._writing:
            return
        self.outputs.sync()
        if self._repairs.exists():
            sync_file(self._repairs)
        self.journal.write(self.options.staging)
        self._committed = time.monotonic()

    def _progress(self) -> PreparationProgress:
        position, outputs = self.journal.position, self.journal.outputs
        return PreparationProgress(
            "encoding",
            sum(size or 0 for size in self.sizes[: position.input]) + position.consumed,
            self.total_bytes,
            sum(output.bytes for output in outputs),
            sum(output.documents for output in outputs),
            sum(output.tokens for output in outputs),
            sum(output.unkept_bytes for output in outputs),
            sum(output.unkept_documents for output in outputs),
        )


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

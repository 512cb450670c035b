"""Text to a corpus: read in order, encode in parallel, write as one, and never lose what is done.

One process reads and writes, the others encode; what is written depends on the inputs and the
options alone. A journal is kept on the way, so that the same command goes on after a kill.
"""

import errno
import hashlib
import json
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import dograph
from dograph.data import chunks
from dograph.data.chunks import Fields, Input, listed, size_of, stamp
from dograph.data.corpus import MANIFEST, Manifest, TokenizerEntry
from dograph.data.encode import SMALL_CHUNKS, Encoded, Encoding, Workers, sample_texts
from dograph.data.external import prepare_external
from dograph.data.finish import Finishing, finish
from dograph.data.inputs import EMBEDDED, resolve_all
from dograph.data.journal import (
    STAGING,
    Journal,
    Outputs,
    Value,
    clear,
    fingerprint,
    finished_corpus,
    lock,
    read_journal,
    require_same,
)
from dograph.data.options import PrepareOptions, refuse_idle_options
from dograph.data.publish import REPAIRS, remove_replaced
from dograph.data.readers import Reading, RefusedRecordError, read_chunks, refusal, where
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

# A preparation under way: what has been written so far, and the journal that says so.


COMMIT_SECONDS = 5.0


class Preparation:
    """Writes encoded chunks and commits to the journal now and then."""

    def __init__(self, staging: Path, journal: Journal, inputs: list[Input], dtype: str) -> None:
        self.staging = staging
        self.journal = journal
        self.inputs = inputs
        self.outputs = Outputs(staging, journal.outputs, dtype)
        self._committed = time.monotonic()
        self._writing = False
        self._repairs = staging / REPAIRS
        if self._repairs.exists():
            with open(self._repairs, "ab") as file:
                file.truncate(journal.repairs_bytes)

    def write(self, encoded: Encoded) -> None:
        """Append a chunk; after an interruption on the way the last commit stands."""
        self._writing = True
        listed = self._list_repairs(encoded)
        self.outputs.append(encoded.groups)
        repairs = self.journal.repairs
        for kind in [bad.kind for bad in encoded.bad]:
            repairs[kind] = repairs.get(kind, 0) + 1
        for source, count in encoded.excluded.items():
            kind = f"excluded: {source}"
            repairs[kind] = repairs.get(kind, 0) + count
        self.journal.repairs_bytes += listed
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
        self.journal.write(self.staging)
        self._committed = time.monotonic()

    def _list_repairs(self, encoded: Encoded) -> int:
        """Add to repairs.jsonl; returns the bytes that took."""
        lines = []
        for bad in encoded.bad:
            entry = {
                "place": where(self.inputs[encoded.input], bad),
                "kind": bad.kind,
                "what": bad.what,
                "done": bad.repair,
            }
            lines.append(json.dumps(entry) + "\n")
        if not lines:
            return 0
        content = "".join(lines).encode()
        with open(self._repairs, "ab") as file:
            file.write(content)
        return len(content)


_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Progress(NamedTuple):
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


@dataclass(frozen=True, slots=True)
class _Job:
    """Options with everything looked up that they name."""

    options: PrepareOptions
    inputs: list[Input]
    sizes: list[int | None]  # of each input on disk; None where nobody knows
    found: FoundTokenizer | None  # None: to be trained
    recorded: dict[str, Value]
    stamps: dict[str, str]
    validation_fraction: float  # 0 where validation text is given

    @property
    def staging(self) -> Path:
        return self.options.out / STAGING

    @property
    def total_bytes(self) -> int | None:
        known = [size for size in self.sizes if size is not None]
        return sum(known) if len(known) == len(self.sizes) else None

    @property
    def only(self) -> frozenset[str] | None:
        recipe = self.options.known_corpus
        return frozenset(recipe.table) if recipe and recipe.closed else None

    @property
    def reading(self) -> Reading:
        options = self.options
        return Reading(_fields(options), options.bad_records, options.seed, options.noise)


def prepare(
    options: PrepareOptions, report: Callable[[Progress], None] = lambda _: None
) -> Prepared:
    """Prepare a corpus, or go on with one that was stopped; `report` is told of the progress."""
    try:
        return _prepare(options, report)
    except OSError as error:
        raise _explained(error, options.out) from error


def _prepare(options: PrepareOptions, report: Callable[[Progress], None]) -> Prepared:
    job = _look_up(options)
    manifest = finished_corpus(options.out, job.recorded, job.stamps, overwrite=options.overwrite)
    if manifest is not None:
        _clear_leftover(job)
        return Prepared(manifest, already=True)
    with lock(job.staging):
        remove_replaced(job.staging, options.out)
        if any(entry.is_tokens for entry in job.inputs):
            manifest = prepare_external(job.inputs, options, job.found, job.recorded, job.stamps)
            return Prepared(manifest, already=False)
        preparation = _encode_all(job, report)
        report(Progress("finishing"))
        recipe = options.known_corpus
        finishing = Finishing(
            staging=job.staging,
            out=options.out,
            inputs=[entry.name for entry in job.inputs],
            expected=[(e.split, e.source) for e in job.inputs if e.source is not None],
            holds_out=job.validation_fraction > 0,
            repair=options.bad_records == "repair",
            keep=options.keep,
            recipe=recipe.name if recipe else None,
            strata=options.strata,
            seed=options.seed,
            made_by=f"dograph {dograph.__version__}",
        )
        return Prepared(finish(preparation.journal, preparation.outputs, finishing), already=False)


def _look_up(options: PrepareOptions) -> _Job:
    labelled = _fields(options).source is not None
    inputs, left_out = resolve_all(
        options.inputs, options.validation, labelled=labelled, recipe=options.known_corpus
    )
    refuse_idle_options(options, inputs)
    sizes = [size_of(entry.path) for entry in inputs]
    if options.bad_records == "refuse":
        for entry, size in zip(inputs, sizes, strict=True):
            if size == 0:
                raise CorpusError(
                    f"{entry.name} is empty; leave it out, or pass --bad-records repair to drop it"
                )
    stamps = {f"the input {e.name}": f"{e.split}:{e.source}:{stamp(e.path)}" for e in inputs}
    found = None
    if options.tokenizer != "bpe":
        found = find_tokenizer(options.tokenizer)
        content = f"{found.content}\0{found.eos}".encode()
        stamps[f"the tokenizer {options.tokenizer}"] = hashlib.sha256(content).hexdigest()
    given = any(entry.split == "validation" for entry in inputs)
    fraction = 0.0 if given else options.held_out
    recorded = {**options.recorded(), "left_out": listed(left_out)}
    return _Job(options, inputs, sizes, found, recorded, stamps, fraction)


def _clear_leftover(job: _Job) -> None:
    """A kill after the manifest was written leaves the staging folder behind."""
    if job.staging.is_dir():
        with lock(job.staging):
            journal = read_journal(job.staging)
            if journal is None or journal.fingerprint == fingerprint(job.recorded, job.stamps):
                clear(job.staging)


def _fields(options: PrepareOptions) -> Fields:
    recipe = options.known_corpus
    return Fields(options.text_field, recipe.source_field if recipe else options.source_field)


def _journal(job: _Job, report: Callable[[Progress], None]) -> Journal:
    """The journal to go on with, or a new one with the tokenizer in place."""
    journal = None if job.options.restart else read_journal(job.staging)
    if journal is not None:
        require_same(journal, job.recorded, job.stamps)
        journal.options = job.recorded
        return journal
    clear(job.staging)
    if job.found is None:
        report(Progress("training the tokenizer"))
        texts = sample_texts(
            job.inputs,
            job.reading,
            keep=job.options.keep,
            validation_fraction=job.validation_fraction,
            only=job.only,
        )
        content, eos = train_bpe(texts, job.options.bpe_vocab_size), None
    else:
        content, eos = job.found
    path = job.staging / TOKENIZER_FILE
    write_text(path, content)
    tokenizer = open_tokenizer(path, job.options.tokenizer)
    entry = TokenizerEntry(
        name=job.options.tokenizer,
        file=TOKENIZER_FILE,
        sha256=sha256_of(path),
        vocab_size=vocabulary_size(tokenizer),
        eot_id=end_of_text(tokenizer, job.options.eot, eos),
    )
    journal = Journal(options=job.recorded, stamps=job.stamps, tokenizer=entry)
    journal.write(job.staging)
    return journal


def _encoding(job: _Job, tokenizer: TokenizerEntry) -> Encoding:
    assert tokenizer.eot_id is not None
    return Encoding(
        tokenizer=str(job.staging / TOKENIZER_FILE),
        eot_id=tokenizer.eot_id,
        dtype="uint16" if tokenizer.vocab_size <= 1 << 16 else "uint32",
        fields=job.reading.fields,
        splits=tuple(entry.split for entry in job.inputs),
        sources=tuple(entry.source for entry in job.inputs),
        only=job.only,
        keep=job.options.keep,
        validation_fraction=job.validation_fraction,
        seed=job.options.seed,
        repair=job.options.bad_records == "repair",
    )


def _encode_all(job: _Job, report: Callable[[Progress], None]) -> Preparation:
    """Read, encode and write everything that the journal does not have yet."""
    with Workers(job.options.num_workers) as workers:
        if (job.total_bytes or 0) >= SMALL_CHUNKS * chunks.CHUNK_BYTES:
            workers.start()  # they load their libraries while the tokenizer is made ready here
        journal = _journal(job, report)
        encoding = _encoding(job, journal.tokenizer)
        preparation = Preparation(job.staging, journal, job.inputs, encoding.dtype)
        if journal.all_read:
            return preparation
        read = read_chunks(job.inputs, journal.position, job.reading)
        try:
            for encoded in workers.encode_in_order(read, encoding):
                preparation.write(encoded)
                report(_progress(job, journal))
        except BaseException as error:
            with suppress(OSError):  # on a full disk the last commit stands
                preparation.commit()
            if isinstance(error, RefusedRecordError):
                raise refusal(where(job.inputs[error.input], error.bad), error.bad) from error
            raise
    journal.all_read = True
    preparation.commit()
    return preparation


def _progress(job: _Job, journal: Journal) -> Progress:
    done = sum(size or 0 for size in job.sizes[: journal.position.input])
    outputs = journal.outputs
    return Progress(
        "encoding",
        done + journal.position.consumed,
        job.total_bytes,
        sum(output.bytes for output in outputs),
        sum(output.documents for output in outputs),
        sum(output.tokens for output in outputs),
        sum(output.unkept_bytes for output in outputs),
        sum(output.unkept_documents for output in outputs),
    )


def _explained(error: OSError, out: Path) -> CorpusError:
    if error.errno in _DISK_FULL:
        free = shutil.disk_usage(out if out.exists() else out.parent).free
        return CorpusError(
            f"the disk is full: {free / 1e6:.1f} MB are free at {out} ({error.strerror}). "
            "Make room and repeat the command: it goes on where it stopped"
        )
    name = f"{error.filename}: " if error.filename else ""
    return CorpusError(f"{name}{error.strerror or error}")


# Corpora that need no download: prepared on first use, under data/ in the current directory.


def ensure_corpus(name: str, report: Callable[[Progress], None] = lambda _: None) -> Path:
    """The folder of a corpus; an embedded one is prepared if it is not there yet."""
    if name not in EMBEDDED:
        return Path(name).resolve()
    folder = Path("data") / name
    if not (folder / MANIFEST).is_file():
        prepare(PrepareOptions(inputs=(name,), out=folder), report)
    return folder.resolve()

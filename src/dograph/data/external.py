"""A corpus over tokens made elsewhere: the files are used where they are, and only indexed."""

import hashlib
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

import dograph
from dograph.data.chunks import Input
from dograph.data.corpus import DOCUMENT_DTYPE, Manifest, Split, StratumEntry, TokenizerEntry
from dograph.data.journal import (
    STAGING,
    Value,
    clear,
    fingerprint,
    read_journal,
    require_same,
)
from dograph.data.options import PrepareOptions
from dograph.data.publish import file_stems, publish, write_document_index
from dograph.data.tokenizer import (
    TOKENIZER_FILE,
    FoundTokenizer,
    end_of_text,
    open_tokenizer,
    token_bytes,
    vocabulary_size,
)
from dograph.errors import ConfigError, CorpusError
from dograph.files import sha256_of, write_text

# Files of tokens made elsewhere, read block by block.


TokenDtype = Literal["uint8", "uint16", "uint32", "int16", "int32", "int64"]
BLOCK_TOKENS = 1 << 20


@dataclass(frozen=True, slots=True)
class TokenFile:
    """Where the tokens of a file are, and of what type."""

    path: Path
    dtype: TokenDtype
    header_bytes: int
    tokens: int

    def blocks(self, start: int, end: int) -> Iterator[np.ndarray]:
        """Tokens `start` to `end`, in order."""
        dtype = np.dtype(self.dtype).newbyteorder("<")
        with open(self.path, "rb") as file:
            file.seek(self.header_bytes + start * dtype.itemsize)
            for first in range(start, end, BLOCK_TOKENS):
                yield np.fromfile(file, dtype, min(BLOCK_TOKENS, end - first))


class Digest(NamedTuple):
    """What reading a run of tokens tells."""

    sha256: str
    largest: int
    bytes: int | None


def digest(
    file: TokenFile, start: int, end: int, vocab_size: int | None, bytes_V: np.ndarray | None
) -> Digest:
    """Read a run of tokens once: refuse ids out of range, hash, find the largest, count bytes."""
    sha = hashlib.sha256()
    largest = size = 0
    position = start
    for block in file.blocks(start, end):
        low, high = int(block.min()), int(block.max())
        if low < 0 or (vocab_size is not None and high >= vocab_size):
            wrong = (block < 0) | (block >= (vocab_size if vocab_size is not None else high + 1))
            at = int(np.flatnonzero(wrong)[0])
            limit = "" if vocab_size is None else f" and below the vocabulary size {vocab_size}"
            raise CorpusError(
                f"{file.path}: token {position + at} is {int(block[at])}; ids must be at least 0"
                f"{limit}. Is it the right --tokenizer (or --vocab-size) for this file?"
            )
        largest = max(largest, high)
        if bytes_V is not None:
            size += int(bytes_V[block].sum())
        sha.update(block.tobytes())
        position += len(block)
    return Digest(sha.hexdigest(), largest, size if bytes_V is not None else None)


# Megatron's indexed datasets: tokens in NAME.bin, sequences and documents in NAME.idx.
#
# The index: magic, version, type code of the tokens, number of sequences, number of document
# bounds; then the sequences' lengths (int32) and byte offsets (int64), then the bounds (int64),
# which count sequences. All little-endian.


_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES: dict[int, TokenDtype] = {
    1: "uint8",
    3: "int16",
    4: "int32",
    5: "int64",
    8: "uint16",
}
_UNUSABLE = {2: "int8", 6: "float64", 7: "float32"}


def open_megatron(tokens: Path) -> tuple[TokenFile, Iterator[np.ndarray]]:
    """The tokens of NAME.bin, and where its documents end, in blocks."""
    index = tokens.with_suffix(".idx")
    with open(index, "rb") as file:
        header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise CorpusError(f"{index} is cut off within its header; copy it again")
    magic, version, code, sequences, bounds = _HEADER.unpack(header)
    if magic != _MAGIC or version != 1:
        raise CorpusError(f"{index} is not a Megatron index of version 1; is it another file?")
    if code not in _DTYPES:
        name = _UNUSABLE.get(code, f"of an unknown type ({code})")
        raise CorpusError(
            f"{index} says that its tokens are {name}; allowed: {', '.join(_DTYPES.values())}"
        )
    wanted = _HEADER.size + sequences * 12 + bounds * 8
    if index.stat().st_size < wanted or sequences < 1 or bounds < 2:
        raise CorpusError(
            f"{index} holds {index.stat().st_size} bytes; {sequences} sequences and {bounds} "
            f"document bounds need {wanted}, and there must be at least one document"
        )
    unmeasured = TokenFile(tokens, _DTYPES[code], header_bytes=0, tokens=0)
    return _checked(unmeasured, index, sequences, bounds)


def _checked(
    file: TokenFile, index: Path, sequences: int, bounds: int
) -> tuple[TokenFile, Iterator[np.ndarray]]:
    """Refuse an index that does not describe this token file from end to end."""
    at = _HEADER.size
    length_S = np.memmap(index, "<i4", "r", at, (sequences,))
    offset_S = np.memmap(index, "<i8", "r", at + 4 * sequences, (sequences,))
    bound_D = np.memmap(index, "<i8", "r", at + 12 * sequences, (bounds,))
    itemsize = np.dtype(file.dtype).itemsize
    expected = 0  # where the next sequence should start
    for first in range(0, sequences, BLOCK_TOKENS):
        lengths = length_S[first : first + BLOCK_TOKENS].astype(np.int64)
        ends = expected + np.cumsum(lengths) * itemsize
        starts = np.concatenate([[expected], ends[:-1]])
        wrong = (lengths < 0) | (offset_S[first : first + BLOCK_TOKENS] != starts)
        if wrong.any():
            raise CorpusError(
                f"{index}: sequence {first + int(wrong.argmax())} does not follow the one before; "
                "the index is damaged"
            )
        expected = int(ends[-1])
    size = file.path.stat().st_size
    if size != expected or not size:
        raise CorpusError(
            f"{file.path} holds {size} bytes, its index {index} describes {expected}; "
            "copy both files again"
        )
    previous = 0
    for first in range(0, bounds, BLOCK_TOKENS):
        block = bound_D[first : first + BLOCK_TOKENS]
        if (np.diff(block, prepend=previous) < 0).any() or int(block[-1]) > sequences:
            raise CorpusError(f"{index}: its document bounds are out of range or out of order")
        previous = int(block[-1])
    if bound_D[0] != 0 or bound_D[-1] != sequences:
        raise CorpusError(f"{index}: its documents do not cover all {sequences} sequences")
    num_tokens = size // itemsize
    ends_D = _document_ends(bound_D, offset_S, itemsize, num_tokens)
    return replace(file, tokens=num_tokens), ends_D


def _document_ends(
    bound_D: np.ndarray, offset_S: np.ndarray, itemsize: int, num_tokens: int
) -> Iterator[np.ndarray]:
    """A document ends where the sequence after it starts."""
    for first in range(1, len(bound_D), BLOCK_TOKENS):
        block = bound_D[first : first + BLOCK_TOKENS]
        inside = np.minimum(block, len(offset_S) - 1)
        yield np.where(block < len(offset_S), offset_S[inside] // itemsize, num_tokens)


# Flat files of tokens: nanoGPT's (nothing but uint16), and those of llm.c with a header.


GPT2_EOT = 50256
_HEADER_INTS = 256
# magic number -> version, type of the tokens
_FORMATS: dict[int, tuple[int, TokenDtype]] = {20240520: (1, "uint16"), 20240801: (7, "uint32")}


def open_nanogpt(path: Path) -> TokenFile:
    """The tokens of a flat file."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        header = np.fromfile(file, "<i4", _HEADER_INTS)
    version, dtype = _FORMATS.get(int(header[0]) if len(header) else 0, (0, "uint16"))
    if not version or len(header) < _HEADER_INTS:
        if size % 2 or not size:
            raise CorpusError(
                f"{path} holds {size} bytes, which is no whole number of uint16 tokens; "
                "it is cut off, or another kind of file"
            )
        return TokenFile(path, "uint16", 0, size // 2)
    num_tokens = int(header[2])
    wanted = header.nbytes + num_tokens * np.dtype(dtype).itemsize
    if int(header[1]) != version or num_tokens < 1 or size != wanted:
        raise CorpusError(
            f"{path}: its header (version {int(header[1])}, {num_tokens} tokens) asks for version "
            f"{version} and {wanted} bytes, found {size}; it is cut off or damaged"
        )
    return TokenFile(path, dtype, header.nbytes, num_tokens)


def document_ends(file: TokenFile, eot_id: int | None) -> Iterator[np.ndarray]:
    """One past each end-of-text, and the end of the file."""
    position = last = 0
    for block in file.blocks(0, file.tokens):
        if eot_id is not None and len(found := np.flatnonzero(block == eot_id)):
            last = position + int(found[-1]) + 1
            yield position + found + 1
        position += len(block)
    if last < file.tokens:
        yield np.array([file.tokens], np.int64)


def holds_token(file: TokenFile, token: int) -> bool:
    return any(bool((block == token).any()) for block in file.blocks(0, file.tokens))


_BLOCK_DOCUMENTS = 1 << 16


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive documents of a token file that go to one split."""

    entry: Input
    number: int  # of the input
    split: Split
    file: TokenFile
    ends_D: np.ndarray  # of all documents of the file, memory-mapped
    first: int
    last: int

    @property
    def start(self) -> int:
        return int(self.ends_D[self.first - 1]) if self.first else 0

    @property
    def end(self) -> int:
        return int(self.ends_D[self.last - 1])

    def documents(self) -> Iterator[np.ndarray]:
        for first in range(self.first, self.last, _BLOCK_DOCUMENTS):
            last = min(first + _BLOCK_DOCUMENTS, self.last)
            block = np.empty(last - first, DOCUMENT_DTYPE)
            block["end"] = self.ends_D[first:last] - self.start
            block["record"] = np.arange(first, last)
            block["input"] = self.number
            yield block


def prepare_external(
    inputs: list[Input],
    options: PrepareOptions,
    found: FoundTokenizer | None,
    recorded: dict[str, Value],
    stamps: dict[str, str],
) -> Manifest:
    """Index token files, check them, and write the manifest of a corpus over them."""
    _refuse_text(inputs, options, found)
    _refuse_strata(inputs, options.strata)
    built = options.out / STAGING / "finished"
    journal = None if options.restart else read_journal(built.parent)
    if journal is not None:  # of text, half done
        require_same(journal, recorded, stamps)
    clear(built.parent)
    built.mkdir()
    meaning = _meaning(options, found, built)
    given = any(entry.split == "validation" for entry in inputs)
    fraction = 0.0 if given else options.held_out
    runs: list[_Run] = []
    eot_id = meaning.eot_id
    guessed = False
    for number, entry in enumerate(inputs):
        file, ends_D, used_eot = _open(entry, number, meaning.eot_id, built.parent)
        guessed |= used_eot is not None and meaning.eot_id is None
        eot_id = used_eot if eot_id is None else eot_id
        runs += _split(_Run(entry, number, entry.split, file, ends_D, 0, len(ends_D)), fraction)
    digests = [
        digest(run.file, run.start, run.end, meaning.vocab_size, meaning.bytes_V) for run in runs
    ]
    vocab_size = meaning.vocab_size or max(made.largest for made in digests) + 1
    entries = _entries(runs, digests, built)
    manifest = Manifest(
        tokenizer=TokenizerEntry(
            name=options.tokenizer if found else "unknown",
            file=TOKENIZER_FILE if found else None,
            sha256=sha256_of(built / TOKENIZER_FILE) if found else None,
            vocab_size=vocab_size,
            eot_id=eot_id,
        ),
        inputs=[entry.name for entry in inputs],
        train=[entry for run, entry in zip(runs, entries, strict=True) if run.split == "train"],
        validation=[e for run, e in zip(runs, entries, strict=True) if run.split != "train"],
        options={
            **recorded,
            "eot_guessed": guessed,
            "fingerprint": fingerprint(recorded, stamps),
        },
        made_by=f"dograph {dograph.__version__}",
    )
    if options.strata > 1:
        from dograph.data.strata import split_into_strata

        manifest = split_into_strata(built, manifest, options.strata, options.seed)
    publish(manifest, built, options.out)
    clear(built.parent)
    return manifest


@dataclass(frozen=True, slots=True)
class _Meaning:
    """What is known of the token ids."""

    vocab_size: int | None
    eot_id: int | None
    bytes_V: np.ndarray | None


def _meaning(options: PrepareOptions, found: FoundTokenizer | None, built: Path) -> _Meaning:
    if found is None:
        return _Meaning(options.vocab_size, options.eot_id, None)
    write_text(built / TOKENIZER_FILE, found.content)
    tokenizer = open_tokenizer(built / TOKENIZER_FILE, options.tokenizer)
    eot_id = options.eot_id
    if eot_id is None:
        eot_id = end_of_text(tokenizer, options.eot, found.eos)
    return _Meaning(vocabulary_size(tokenizer), eot_id, token_bytes(built / TOKENIZER_FILE, eot_id))


def _refuse_text(
    inputs: list[Input], options: PrepareOptions, found: FoundTokenizer | None
) -> None:
    text = [entry.name for entry in inputs if not entry.is_tokens]
    if text:
        raise CorpusError(
            f"{text[0]} is text and {next(e.name for e in inputs if e.is_tokens)} holds tokens; "
            "prepare them as two corpora, or give the text of both"
        )
    if options.eot is not None and found is None:
        raise ConfigError("--eot names a token of --tokenizer; without one, give --eot-id")


def _refuse_strata(inputs: list[Input], strata: int) -> None:
    files = Counter((entry.split, entry.source) for entry in inputs)
    for (split, source), number in files.items():
        if strata > 1 and number > 1:
            raise ConfigError(
                f'--strata cannot divide "{source}": it lies in {number} token files ({split}), '
                "and only a source in one file can be divided; leave --strata out, make one file "
                "of them, or name each as a source with NAME=INPUT"
            )


def _open(
    entry: Input, number: int, eot_id: int | None, folder: Path
) -> tuple[TokenFile, np.ndarray, int | None]:
    """The token file, where its documents end, and the end-of-text id that told."""
    assert entry.path is not None
    if entry.kind == "megatron":
        file, blocks = open_megatron(entry.path)
    else:
        file = open_nanogpt(entry.path)
        if eot_id is None and file.dtype == "uint16" and holds_token(file, GPT2_EOT):
            eot_id = GPT2_EOT
        blocks = document_ends(file, eot_id)
    path = folder / f"{number:04d}.ends"
    with open(path, "wb") as ends:
        for block in blocks:
            ends.write(block.astype("<i8").tobytes())
    return file, np.memmap(path, "<i8", "r"), eot_id


def _split(run: _Run, fraction: float) -> list[_Run]:
    """Hold out the last documents, about `fraction` of the tokens but at least one of several."""
    if not fraction or run.last < 2:
        return [run]
    wanted = round(run.file.tokens * (1 - fraction))
    # the first document that starts at or after `wanted`, neither the first nor past the last
    cut = int(np.searchsorted(run.ends_D, wanted, side="left")) + 1
    cut = min(max(cut, 1), run.last - 1)
    return [replace(run, last=cut), replace(run, first=cut, split="validation")]


def _entries(runs: list[_Run], digests: list[Digest], built: Path) -> list[StratumEntry]:
    files = Counter((run.split, run.entry.source) for run in runs)
    stems = file_stems({run.entry.source or "" for run in runs})
    seen: Counter[tuple[Split, str]] = Counter()
    entries = []
    for run, made in zip(runs, digests, strict=True):
        source = run.entry.source or ""
        key = (run.split, source)
        # a source in several files is several strata, one a file
        several = files[key] > 1
        suffix = f".{seen[key]}" if several else ""
        name = f"{run.split}/{stems[source]}{suffix}.documents.npy"
        (built / name).parent.mkdir(exist_ok=True)
        write_document_index(built / name, run.documents(), run.last - run.first)
        entries.append(
            StratumEntry(
                source=source,
                stratum=f"{source}/{seen[key]}" if several else source,
                file=str(run.file.path.resolve()),
                dtype=run.file.dtype,
                header_bytes=run.file.header_bytes,
                first_token=run.start,
                tokens=run.end - run.start,
                documents=run.last - run.first,
                bytes=made.bytes,
                sha256=made.sha256,
                documents_file=name,
            )
        )
        seen[key] += 1
    return entries

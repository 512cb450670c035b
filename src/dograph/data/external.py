"""A corpus over tokens made elsewhere: the files are used where they are, and only indexed."""

import hashlib
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

import dograph
from dograph.data import staging
from dograph.data.corpus import DOCUMENT_DTYPE, Manifest, Split, StratumEntry, TokenizerEntry
from dograph.data.inputs import Input
from dograph.data.options import PrepareOptions
from dograph.data.tokenizer import TOKENIZER_FILE, FoundTokenizer, place_tokenizer, token_bytes
from dograph.errors import ConfigError, CorpusError

TokenDtype = Literal["uint8", "uint16", "uint32", "int16", "int32", "int64"]
BLOCK_TOKENS = 1 << 20
_BLOCK_DOCUMENTS = 1 << 16


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


# Megatron's indexed datasets: tokens in NAME.bin, sequences and documents in NAME.idx.
#
# The index: magic, version, type code of the tokens, number of sequences, number of document
# bounds; then the sequences' lengths (int32) and byte offsets (int64), then the bounds (int64),
# which count sequences. All little-endian.

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES: dict[int, TokenDtype] = {1: "uint8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
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
    at, itemsize = _HEADER.size, np.dtype(_DTYPES[code]).itemsize
    length_S = np.memmap(index, "<i4", "r", at, (sequences,))
    offset_S = np.memmap(index, "<i8", "r", at + 4 * sequences, (sequences,))
    bound_D = np.memmap(index, "<i8", "r", at + 12 * sequences, (bounds,))
    size = _check_index(index, itemsize, length_S, offset_S, bound_D)
    if tokens.stat().st_size != size or not size:
        raise CorpusError(
            f"{tokens} holds {tokens.stat().st_size} bytes, its index {index} describes {size}; "
            "copy both files again"
        )

    def ends_D() -> Iterator[np.ndarray]:
        """A document ends where the sequence after it starts."""
        for first in range(1, bounds, BLOCK_TOKENS):
            block = bound_D[first : first + BLOCK_TOKENS]
            inside = np.minimum(block, sequences - 1)
            yield np.where(block < sequences, offset_S[inside], size) // itemsize

    return TokenFile(tokens, _DTYPES[code], 0, size // itemsize), ends_D()


def _check_index(
    index: Path, itemsize: int, length_S: np.ndarray, offset_S: np.ndarray, bound_D: np.ndarray
) -> int:
    """The size of the token file that an index describes, from end to end."""
    size = 0  # where the next sequence should start
    for first in range(0, len(length_S), BLOCK_TOKENS):
        lengths = length_S[first : first + BLOCK_TOKENS].astype(np.int64)
        ends = size + np.cumsum(lengths) * itemsize
        starts = np.concatenate([[size], ends[:-1]])
        wrong = (lengths < 0) | (offset_S[first : first + BLOCK_TOKENS] != starts)
        if wrong.any():
            raise CorpusError(
                f"{index}: sequence {first + int(wrong.argmax())} does not follow the one before; "
                "the index is damaged"
            )
        size = int(ends[-1])
    previous = 0
    for first in range(0, len(bound_D), BLOCK_TOKENS):
        block = bound_D[first : first + BLOCK_TOKENS]
        if (np.diff(block, prepend=previous) < 0).any() or int(block[-1]) > len(length_S):
            raise CorpusError(f"{index}: its document bounds are out of range or out of order")
        previous = int(block[-1])
    if bound_D[0] != 0 or bound_D[-1] != len(length_S):
        raise CorpusError(f"{index}: its documents do not cover all {len(length_S)} sequences")
    return size


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


@dataclass(frozen=True, slots=True)
class _Run:
    """Consecutive documents of a token file that go to one split."""

    source: str
    number: int  # of the input
    split: Split
    file: TokenFile
    first: int  # number of its first document in the file
    start: int  # its first token in the file
    ends_D: np.ndarray  # of its documents in the file, memory-mapped

    @property
    def end(self) -> int:
        return int(self.ends_D[-1])

    def documents(self) -> Iterator[np.ndarray]:
        for first in range(0, len(self.ends_D), _BLOCK_DOCUMENTS):
            ends = self.ends_D[first : first + _BLOCK_DOCUMENTS]
            block = np.empty(len(ends), DOCUMENT_DTYPE)
            block["end"] = ends - self.start
            block["record"] = self.first + first + np.arange(len(ends))
            block["input"] = self.number
            yield block

    def digest(
        self, vocab_size: int | None, bytes_V: np.ndarray | None
    ) -> tuple[str, int, int | None]:
        """Read the tokens once, refuse ids out of range: their hash, the largest, their bytes."""
        sha = hashlib.sha256()
        largest = size = 0
        position = self.start
        for block in self.file.blocks(self.start, self.end):
            low, high = int(block.min()), int(block.max())
            if low < 0 or (vocab_size is not None and high >= vocab_size):
                most = high if vocab_size is None else vocab_size - 1
                at = int(np.flatnonzero((block < 0) | (block > most))[0])
                limit = "" if vocab_size is None else f" and below the vocabulary size {vocab_size}"
                raise CorpusError(
                    f"{self.file.path}: token {position + at} is {int(block[at])}; ids must be at "
                    f"least 0{limit}. Is it the right --tokenizer (or --vocab-size) for this file?"
                )
            largest = max(largest, high)
            if bytes_V is not None:
                size += int(bytes_V[block].sum())
            sha.update(block.tobytes())
            position += len(block)
        return sha.hexdigest(), largest, size if bytes_V is not None else None


def prepare_external(
    options: PrepareOptions,
    inputs: list[Input],
    found: FoundTokenizer | None,
    recorded: staging.Recorded,
) -> Manifest:
    """Index token files, check them, and write the manifest of a corpus over them."""
    _refuse(options, inputs, found)
    folder, built = options.staging, options.staging / "finished"
    journal = None if options.restart else staging.Journal.read(folder)
    if journal is not None:  # of text, half done
        journal.require_same(recorded)
    staging.clear(folder)
    built.mkdir()
    held_out = options.held_out(inputs)
    vocab_size, eot_id, bytes_V = options.vocab_size, options.eot_id, None
    tokenizer = None
    if found is not None:
        tokenizer = place_tokenizer(found, built, options.tokenizer, options.eot, eot_id)
        vocab_size, eot_id = tokenizer.vocab_size, tokenizer.eot_id
        bytes_V = token_bytes(built / TOKENIZER_FILE, eot_id)
    runs: list[_Run] = []
    guesses = []  # ends of text that no one named
    for number, entry in enumerate(inputs):
        file, ends_D, guess = _open(entry, eot_id, folder / f"{number:04d}.ends")
        guesses += [guess] if guess is not None else []
        cut = len(ends_D)
        if held_out and cut > 1:
            # the first document that starts where the share begins or later; at least the last
            share = int(np.searchsorted(ends_D, round(file.tokens * (1 - held_out)))) + 1
            cut = min(share, len(ends_D) - 1)
        source = entry.source or ""
        runs.append(_Run(source, number, entry.split, file, 0, 0, ends_D[:cut]))
        if cut < len(ends_D):
            start = runs[-1].end
            runs.append(_Run(source, number, "validation", file, cut, start, ends_D[cut:]))
    digests = [run.digest(vocab_size, bytes_V) for run in runs]
    tokenizer = tokenizer or TokenizerEntry(
        name="unknown",
        file=None,
        sha256=None,
        vocab_size=vocab_size or max(largest for _, largest, _ in digests) + 1,
        eot_id=guesses[0] if guesses else eot_id,
    )
    entries = _entries(runs, digests, built)
    manifest = Manifest(
        tokenizer=tokenizer,
        inputs=[entry.name for entry in inputs],
        train=entries["train"],
        validation=entries["validation"],
        options={
            **recorded.options,
            "eot_guessed": bool(guesses),
            "fingerprint": recorded.fingerprint,
        },
        made_by=f"dograph {dograph.__version__}",
    )
    return staging.publish(options, manifest, built)


def _refuse(options: PrepareOptions, inputs: list[Input], found: FoundTokenizer | None) -> None:
    """What tokens made elsewhere cannot be asked for."""
    text = [entry.name for entry in inputs if not entry.is_tokens]
    if text:
        raise CorpusError(
            f"{text[0]} is text and {next(e.name for e in inputs if e.is_tokens)} holds tokens; "
            "prepare them as two corpora, or give the text of both"
        )
    if options.eot is not None and found is None:
        raise ConfigError("--eot names a token of --tokenizer; without one, give its id: --eot ID")
    files = Counter((entry.split, entry.source) for entry in inputs)
    for (split, source), number in files.items():
        if options.strata > 1 and number > 1:
            raise ConfigError(
                f'--strata cannot divide "{source}": it lies in {number} token files ({split}), '
                "and only a source in one file can be divided; leave --strata out, make one file "
                "of them, or name each as a source with NAME=INPUT"
            )


def _open(entry: Input, eot_id: int | None, ends: Path) -> tuple[TokenFile, np.ndarray, int | None]:
    """The token file, where its documents end (kept in `ends`), and a guess at the end of text."""
    assert entry.path is not None
    guess = None
    if entry.kind == "megatron":
        file, blocks = open_megatron(entry.path)
    else:
        file = open_nanogpt(entry.path)
        if eot_id is None and file.dtype == "uint16":
            is_there = (bool((block == GPT2_EOT).any()) for block in file.blocks(0, file.tokens))
            guess = GPT2_EOT if any(is_there) else None
        blocks = document_ends(file, guess if eot_id is None else eot_id)
    with open(ends, "wb") as output:
        for block in blocks:
            output.write(block.astype("<i8").tobytes())
    return file, np.memmap(ends, "<i8", "r"), guess


def _entries(
    runs: list[_Run], digests: list[tuple[str, int, int | None]], built: Path
) -> dict[Split, list[StratumEntry]]:
    """The strata, with their document files: a source in several files is one stratum a file."""
    files = Counter((run.split, run.source) for run in runs)
    stems = staging.file_stems({run.source for run in runs})
    seen: Counter[tuple[Split, str]] = Counter()
    entries: dict[Split, list[StratumEntry]] = {"train": [], "validation": []}
    for run, (sha256, _, num_bytes) in zip(runs, digests, strict=True):
        key = (run.split, run.source)
        number = f"{seen[key]}" if files[key] > 1 else ""
        seen[key] += 1
        name = f"{run.split}/{stems[run.source]}{number and f'.{number}'}.documents.npy"
        (built / name).parent.mkdir(exist_ok=True)
        staging.write_document_index(built / name, run.documents(), len(run.ends_D))
        entries[run.split].append(
            StratumEntry(
                source=run.source,
                stratum=f"{run.source}/{number}" if number else run.source,
                file=str(run.file.path.resolve()),
                dtype=run.file.dtype,
                header_bytes=run.file.header_bytes,
                first_token=run.start,
                tokens=run.end - run.start,
                documents=len(run.ends_D),
                bytes=num_bytes,
                sha256=sha256,
                documents_file=name,
            )
        )
    return entries

"""A corpus over token files made by other tools: they stay where they are and are only indexed."""

import struct
from collections import Counter
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dograph.data import staging
from dograph.data.corpus import DOCUMENT_DTYPE, Manifest, Split, StratumEntry, TokenizerEntry
from dograph.data.encode import TOKENIZER_FILE, TokenizerFile, place_tokenizer, token_bytes
from dograph.data.inputs import Input, PrepareOptions
from dograph.data.staging import Recorded, pieces
from dograph.errors import ConfigError, CorpusError

# Megatron's indexed datasets: tokens in NAME.bin, sequences and documents in NAME.idx.
#
# The index: magic, version, type code of the tokens, number of sequences, number of document
# bounds; then the sequences' lengths (int32) and byte offsets (int64), then the bounds (int64),
# which count sequences. All little-endian.

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_DTYPES = {1: "uint8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
_UNUSABLE = {2: "int8", 6: "float64", 7: "float32"}


def open_megatron(path: Path) -> tuple[np.memmap, Iterator[np.ndarray]]:
    """The tokens of NAME.bin, memory-mapped, and where its documents end, in blocks."""
    index = path.with_suffix(".idx")
    with open(index, "rb") as file:
        header = file.read(_HEADER.size)
    if len(header) < _HEADER.size:
        raise CorpusError(f"{index} ends within its header; copy it again")
    magic, version, code, sequences, bounds = _HEADER.unpack(header)
    if magic != _MAGIC or version != 1:
        raise CorpusError(f"{index} is not a Megatron index of version 1; is it another file?")
    if code not in _DTYPES:
        name = _UNUSABLE.get(code, f"of an unknown type ({code})")
        raise CorpusError(
            f"{index} says that its tokens are {name}; allowed: {', '.join(_DTYPES.values())}"
        )
    at, have, dtype = _HEADER.size, index.stat().st_size, np.dtype(_DTYPES[code])
    needed = at + sequences * 12 + bounds * 8
    if have < needed or sequences < 1 or bounds < 2:
        raise CorpusError(
            f"{index} holds {have} bytes; {sequences} sequences and {bounds} document bounds need "
            f"{needed}, and there must be at least one document"
        )
    length_S = np.memmap(index, "<i4", "r", at, (sequences,))
    offset_S = np.memmap(index, "<i8", "r", at + 4 * sequences, (sequences,))
    bound_D = np.memmap(index, "<i8", "r", at + 12 * sequences, (bounds,))
    size = _check_index(index, dtype.itemsize, length_S, offset_S, bound_D)
    if path.stat().st_size != size or not size:
        raise CorpusError(
            f"{path} holds {path.stat().st_size} bytes, its index {index} describes {size}; "
            "copy both files again"
        )
    # a document ends where the sequence after it starts
    ends = (
        np.where(block < sequences, offset_S[np.minimum(block, sequences - 1)], size)
        // dtype.itemsize
        for _, block in pieces(bound_D[1:])
    )
    return np.memmap(path, dtype, "r"), ends


def _check_index(
    index: Path, itemsize: int, length_S: np.ndarray, offset_S: np.ndarray, bound_D: np.ndarray
) -> int:
    """The size of the token file that an index describes; refuses gaps and overlaps."""
    size = 0  # where the next sequence should start
    for first, block in pieces(length_S):
        ends = size + np.cumsum(block, dtype=np.int64) * itemsize
        starts = np.concatenate([[size], ends[:-1]])
        wrong = (block < 0) | (offset_S[first : first + len(block)] != starts)
        if wrong.any():
            raise CorpusError(
                f"{index}: sequence {first + int(wrong.argmax())} does not follow the one before; "
                "the index is damaged"
            )
        size = int(ends[-1])
    previous = 0
    for _, block in pieces(bound_D):
        if (np.diff(block, prepend=previous) < 0).any() or int(block[-1]) > len(length_S):
            raise CorpusError(f"{index}: its document bounds are out of range or out of order")
        previous = int(block[-1])
    if bound_D[0] != 0 or bound_D[-1] != len(length_S):
        raise CorpusError(f"{index}: its documents do not cover all {len(length_S)} sequences")
    return size


# Flat token files: nanoGPT's (uint16 and no header), and those of llm.c with a header.

GPT2_EOT = 50256
_HEADER_INTS = 256
_FORMATS = {20240520: (1, "uint16"), 20240801: (7, "uint32")}  # magic number: version, dtype


def open_nanogpt(path: Path) -> np.memmap:
    """The tokens of a flat file, memory-mapped after its header."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        header = np.fromfile(file, "<i4", _HEADER_INTS)
    version, dtype = _FORMATS.get(int(header[0]) if len(header) else 0, (0, "uint16"))
    if not version or len(header) < _HEADER_INTS:
        if size % 2 or not size:
            raise CorpusError(
                f"{path} holds {size} bytes, which is not a whole number of uint16 tokens; "
                "it is cut off, or another kind of file"
            )
        return np.memmap(path, np.uint16, "r")
    num_tokens = int(header[2])
    needed = header.nbytes + num_tokens * np.dtype(dtype).itemsize
    if int(header[1]) != version or num_tokens < 1 or size != needed:
        raise CorpusError(
            f"{path}: its header (version {int(header[1])}, {num_tokens} tokens) asks for version "
            f"{version} and {needed} bytes, found {size}; it is cut off or damaged"
        )
    return np.memmap(path, dtype, "r", header.nbytes)


def document_ends(token_N: np.ndarray, eot_id: int | None) -> Iterator[np.ndarray]:
    """One past each end-of-text token, and the end of the file."""
    for first, block in pieces(token_N) if eot_id is not None else ():
        yield first + np.flatnonzero(block == eot_id) + 1
    if token_N[-1] != eot_id:
        yield np.array([len(token_N)], np.int64)


class _Part(NamedTuple):
    """Consecutive documents of a token file that go to one split."""

    input: int
    source: str
    split: Split
    token_N: np.memmap  # all tokens of the file, which knows its name and header's size
    start: int  # its first token
    first: int  # number of its first document
    end_D: np.ndarray  # one past the last token of each of its documents, memory-mapped


def prepare_external(
    options: PrepareOptions, inputs: list[Input], given: TokenizerFile | None, recorded: Recorded
) -> Manifest:
    """Index token files, check them, and write the manifest of a corpus over them."""
    _refuse(options, inputs, given)
    staging.resume(options, recorded)  # refuses if text with other options is half prepared
    staging.clear(options.staging)
    built = options.staging / "finished"
    built.mkdir()
    vocab_size, eot_id, bytes_V = options.vocab_size, options.eot_id, None
    tokenizer = None
    if given is not None:
        tokenizer = place_tokenizer(given, built, options)
        vocab_size, eot_id = tokenizer.vocab_size, tokenizer.eot_id
        bytes_V = token_bytes(built / TOKENIZER_FILE, eot_id)
    parts: list[_Part] = []
    guesses = []  # at the end-of-text token, where none was given
    for number, entry in enumerate(inputs):
        ends = options.staging / f"{number:04d}.ends"
        own, guess = _open(number, entry, eot_id, options.held_out(inputs), ends)
        parts += own
        guesses += [guess] if guess is not None else []
    num_parts = Counter((part.split, part.source) for part in parts)
    stems = staging.file_stems({part.source for part in parts})
    entries: dict[Split, list[StratumEntry]] = {"train": [], "validation": []}
    largest = 0
    for part in parts:
        name, stem, own_entries = part.source, stems[part.source], entries[part.split]
        if num_parts[part.split, part.source] > 1:  # a source in several files: a stratum each
            place = sum(entry.source == part.source for entry in own_entries)
            name, stem = f"{name}/{place}", f"{stem}.{place}"
        stratum, highest = _index(part, name, built, f"{part.split}/{stem}", vocab_size, bytes_V)
        own_entries.append(stratum)
        largest = max(largest, highest)
    tokenizer = tokenizer or TokenizerEntry(
        name="unknown",
        file=None,
        sha256=None,
        vocab_size=vocab_size or largest + 1,
        eot_id=guesses[0] if guesses else eot_id,
    )
    more = {"eot_guessed": bool(guesses)}
    return staging.publish(options, inputs, recorded, tokenizer, entries, more, repairs={})


def _refuse(options: PrepareOptions, inputs: list[Input], given: TokenizerFile | None) -> None:
    """Refuse what cannot be done with tokens made elsewhere."""
    text = [entry.name for entry in inputs if not entry.is_tokens]
    if text:
        raise CorpusError(
            f"{text[0]} is text and {next(e.name for e in inputs if e.is_tokens)} holds tokens; "
            "prepare them as two corpora, or give the text of both"
        )
    if options.eot is not None and given is None:
        raise ConfigError("--eot names a token of --tokenizer; without one, give its id: --eot ID")
    files = Counter((entry.split, entry.source) for entry in inputs)
    for (split, source), number in files.items():
        if options.strata > 1 and number > 1:
            raise ConfigError(
                f'--strata cannot divide "{source}": it is in {number} token files ({split}), '
                "and only a source in one file can be divided; leave --strata out, join the files, "
                "or give each its own source name with NAME=INPUT"
            )


def _open(
    number: int, entry: Input, eot_id: int | None, held_out: float, ends: Path
) -> tuple[list[_Part], int | None]:
    """The parts of a token file, their ends kept in `ends`, and a guess at its end-of-text id."""
    assert entry.path is not None
    guess = None
    if entry.kind == "megatron":
        token_N, blocks = open_megatron(entry.path)
    else:
        token_N = open_nanogpt(entry.path)
        if eot_id is None and token_N.dtype == np.uint16:
            is_in = ((block == GPT2_EOT).any() for _, block in pieces(token_N))
            eot_id = guess = GPT2_EOT if any(is_in) else None
        blocks = document_ends(token_N, eot_id)
    with open(ends, "wb") as output:
        for block in blocks:
            output.write(block.astype("<i8").tobytes())
    end_D = np.memmap(ends, "<i8", "r")
    cut = len(end_D)
    if held_out and cut > 1:
        # the first document that starts in the held-out share; at least the last document
        share = int(np.searchsorted(end_D, round(len(token_N) * (1 - held_out)))) + 1
        cut = min(share, len(end_D) - 1)
    source = entry.source or ""
    parts = [_Part(number, source, entry.split, token_N, 0, 0, end_D[:cut])]
    if cut < len(end_D):
        start = int(end_D[cut - 1])
        parts.append(_Part(number, source, "validation", token_N, start, cut, end_D[cut:]))
    return parts, guess


def _index(
    part: _Part, name: str, out: Path, stem: str, vocab_size: int | None, bytes_V: np.ndarray | None
) -> tuple[StratumEntry, int]:
    """Write the documents of a part, read its tokens once: its entry, and the largest token id."""

    def documents() -> Iterator[np.ndarray]:
        for first, end_D in pieces(part.end_D):
            block = np.empty(len(end_D), DOCUMENT_DTYPE)
            block["end"] = end_D - part.start
            block["record"] = part.first + first + np.arange(len(end_D))
            block["input"] = part.input
            yield block

    digest = sha256()
    largest = size = 0
    file, token_N = part.token_N.filename, part.token_N[part.start : int(part.end_D[-1])]
    for first, block in pieces(token_N):
        low, high = int(block.min()), int(block.max())
        if low < 0 or (vocab_size is not None and high >= vocab_size):
            most = high if vocab_size is None else vocab_size - 1
            at = int(np.flatnonzero((block < 0) | (block > most))[0])
            limit = "" if vocab_size is None else f" and below the vocabulary size {vocab_size}"
            raise CorpusError(
                f"{file}: token {part.start + first + at} is {int(block[at])}; ids must be at "
                f"least 0{limit}. Is it the right --tokenizer (or --vocab-size) for this file?"
            )
        largest = max(largest, high)
        size += 0 if bytes_V is None else int(bytes_V[block].sum())
        digest.update(block.tobytes())
    documents_file = f"{stem}.documents.npy"
    (out / documents_file).parent.mkdir(exist_ok=True)
    staging.write_document_index(out / documents_file, documents(), len(part.end_D))
    fields = {
        "source": part.source,
        "stratum": name,
        "file": str(file),
        "dtype": token_N.dtype.name,
        "header_bytes": part.token_N.offset,
        "first_token": part.start,
        "tokens": len(token_N),
        "documents": len(part.end_D),
        "bytes": None if bytes_V is None else size,
        "sha256": digest.hexdigest(),
        "documents_file": documents_file,
    }
    return StratumEntry.model_validate(fields), largest

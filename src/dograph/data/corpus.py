"""A prepared corpus on disk, opened for reading."""

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from dograph.errors import CorpusError, require
from dograph.files import write_json

MANIFEST = "manifest.json"
Split = Literal["train", "validation"]


class StratumEntry(BaseModel):
    """One stratum of one split: a run of tokens in one file. Without --strata, a source has one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    source: str
    stratum: str  # the source's name, or "<source>/<number>" with --strata
    file: str  # token file, relative to the manifest, or absolute where it is used as it is
    dtype: Literal["uint8", "uint16", "uint32", "int16", "int32", "int64"]
    header_bytes: int = 0  # to skip at the start of the file
    first_token: int = 0  # where this stratum starts in the file
    tokens: int
    documents: int
    bytes: int | None  # UTF-8 bytes of the text; None where only tokens were given
    sha256: str  # of this stratum's tokens, as stored
    documents_file: str  # .npy of DOCUMENT_DTYPE, relative to the manifest


class TokenizerEntry(BaseModel):
    """The tokenizer that the tokens were made with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str  # what the user asked for: a path, a Hugging Face name, "bpe"
    file: str | None  # tokenizer.json, relative to the manifest; None where only tokens were given
    sha256: str | None
    vocab_size: int
    eot_id: int | None  # appended to every document

    @property
    def token_dtype(self) -> Literal["uint16", "uint32"]:
        """The type that its ids are stored as."""
        return "uint16" if self.vocab_size <= 1 << 16 else "uint32"


class Manifest(BaseModel):
    """What is in a prepared corpus, how it was made, digests to check it by."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["dograph-corpus"] = "dograph-corpus"
    version: Literal[1] = 1
    tokenizer: TokenizerEntry
    inputs: list[str]  # DOCUMENT_DTYPE's `input` points here
    train: list[StratumEntry]
    validation: list[StratumEntry]
    recipe: str | None = None
    options: dict[str, str | int | float | bool | None] = {}
    repairs: dict[str, int] = {}  # kind of bad record -> how many were mended or skipped
    made_by: str

    @classmethod
    def read(cls, directory: Path) -> Self:
        path = directory / MANIFEST
        if not path.is_file():
            raise CorpusError(
                f"{directory} is not a prepared corpus: it has no {MANIFEST}. "
                f"Prepare one with: dograph data prepare INPUT --out {directory}"
            )
        try:
            return cls.model_validate_json(path.read_bytes())
        except ValidationError as error:
            raise CorpusError(f"{path} is damaged: {error}. Prepare the corpus again.") from error

    def write(self, directory: Path) -> None:
        write_json(directory / MANIFEST, self.model_dump())


# One record a document, in the order of the tokens.
DOCUMENT_DTYPE = np.dtype(
    [
        ("end", "<i8"),  # one past its last token, counted from the stratum's first token
        ("record", "<i8"),  # line or row in the input file, from 0
        ("input", "<i4"),  # index into Manifest.inputs
    ]
)


@dataclass(frozen=True, slots=True)
class DocumentSpan:
    """A document's place in a stratum."""

    index: int
    start: int
    end: int
    input: int
    record: int


class StratumTokens:
    """One stratum, memory-mapped: blocks for training, documents for people.

    Opening it reads nothing. A block is `seq_len` consecutive tokens; blocks do not overlap, and
    the tail that does not fill a block is left out. Documents run on inside a block, divided by the
    end-of-text token.
    """

    def __init__(self, directory: Path, entry: StratumEntry) -> None:
        self.entry = entry
        self.directory = directory
        path = directory / entry.file  # an absolute `file` replaces `directory`
        itemsize = np.dtype(entry.dtype).itemsize
        wanted = entry.header_bytes + (entry.first_token + entry.tokens) * itemsize
        if not path.is_file() or path.stat().st_size < wanted:
            have = path.stat().st_size if path.is_file() else "no file"
            raise CorpusError(
                f"{path} should hold at least {wanted} bytes, found {have}; "
                "prepare the corpus again, or copy the whole folder"
            )
        offset = entry.header_bytes + entry.first_token * itemsize
        mapped = np.memmap(path, entry.dtype, "r", offset, (entry.tokens,))
        self.token_N = mapped.view(np.ndarray)  # the same memory without memmap's slow indexing

    @cached_property
    def documents(self) -> np.ndarray:
        """The documents of this stratum, memory-mapped, of DOCUMENT_DTYPE."""
        path = self.directory / self.entry.documents_file
        documents: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
        return documents.view(np.ndarray)

    @cached_property
    def _end_D(self) -> Any:
        return self.documents["end"]

    def num_blocks(self, seq_len: int) -> int:
        return self.entry.tokens // seq_len

    def read_block(self, block: int, seq_len: int) -> np.ndarray:
        return self.token_N[block * seq_len : (block + 1) * seq_len]

    def locate(self, token: int) -> tuple[int, int]:
        """The document that a token is in, and its offset there."""
        # Not np.searchsorted: it would copy the whole strided field on every call.
        document = bisect_right(self._end_D, token)
        return document, token - (int(self._end_D[document - 1]) if document else 0)

    def document(self, index: int) -> DocumentSpan:
        end, record, source = self.documents[index].tolist()
        start = int(self.documents["end"][index - 1]) if index else 0
        return DocumentSpan(index=index, start=start, end=end, input=source, record=record)


class Corpus:
    """Sources, strata and tokens of a prepared corpus. Opening it maps files and reads none."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory).resolve()
        self.manifest = Manifest.read(self.directory)
        self.train, self.validation = (
            [StratumTokens(self.directory, entry) for entry in entries]
            for entries in (self.manifest.train, self.manifest.validation)
        )
        if not self.train:
            raise CorpusError(f"{self.directory} holds no training tokens; prepare it again")
        self.sources = list(dict.fromkeys(stratum.entry.source for stratum in self.train))

    @property
    def digest(self) -> str:
        """What the training text is, in one string: equal digests mean equal samples."""
        rows = [f"{s.entry.stratum}:{s.entry.sha256}:{s.entry.dtype}" for s in self.train]
        return hashlib.sha256("\n".join(rows).encode()).hexdigest()

    @property
    def vocab_size(self) -> int:
        return self.manifest.tokenizer.vocab_size

    def strata(self, split: Split) -> list[StratumTokens]:
        return self.train if split == "train" else self.validation

    def tokens_by_source(self, split: Split = "train") -> dict[str, int]:
        totals = dict.fromkeys(self.sources, 0)
        for stratum in self.strata(split):
            source = stratum.entry.source
            totals[source] = totals.get(source, 0) + stratum.entry.tokens
        return totals

    def bytes_per_token(self, split: Split) -> dict[str, float | None]:
        """Text bytes behind one token, per source; None where the text was never seen."""
        ratio: dict[str, float | None] = {}
        for source, tokens in self.tokens_by_source(split).items():
            sizes = [s.entry.bytes for s in self.strata(split) if s.entry.source == source]
            known = [size for size in sizes if size is not None]
            complete = tokens > 0 and len(known) == len(sizes)
            ratio[source] = sum(known) / tokens if complete else None
        return ratio

    @cached_property
    def tokenizer(self) -> Any:
        """The `tokenizers.Tokenizer` of this corpus."""
        file = self.manifest.tokenizer.file
        if file is None:
            raise CorpusError(
                f"{self.directory} was made from tokens alone, so its text cannot be shown; "
                "prepare it with --tokenizer to name the tokenizer they were made with"
            )
        return require("tokenizers", "corpus").Tokenizer.from_file(str(self.directory / file))

    def text(self, stratum: StratumTokens, start: int, end: int) -> str:
        ids = stratum.token_N[start:end].tolist()
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False)
        return text


# A fixed choice of blocks with equally many from every source, for looking at what a model sees.
# No draw is involved: the same corpus and numbers give the same blocks.


@dataclass(frozen=True, slots=True)
class Block:
    """One block of one source and its place there."""

    source: int  # index into the corpus' sources
    stratum: StratumTokens
    index: int  # which block of that stratum
    seq_len: int

    def tokens(self) -> np.ndarray:
        return self.stratum.read_block(self.index, self.seq_len).astype(np.int64)

    def place(self) -> dict[str, str | int]:
        """Names to find it by: source, stratum, row (block), document and offset in tokens."""
        document, offset = self.stratum.locate(self.index * self.seq_len)
        return {
            "source": self.stratum.entry.source,
            "stratum": self.stratum.entry.stratum,
            "row": self.index,
            "document": document,
            "offset": offset,
        }

    def text(self, corpus: Corpus) -> str:
        start = self.index * self.seq_len
        return corpus.text(self.stratum, start, start + self.seq_len)


def blocks_by_source(corpus: Corpus, split: Split, seq_len: int) -> dict[str, int]:
    """How many whole blocks each source has in a split."""
    have = dict.fromkeys(corpus.sources, 0)
    for stratum in corpus.strata(split):
        if stratum.entry.source in have:
            have[stratum.entry.source] += stratum.num_blocks(seq_len)
    return have


def even_blocks(
    corpus: Corpus, split: Split, seq_len: int, total: int, *, least: int = 1
) -> list[Block]:
    """At most `total` blocks, source by source, evenly spaced in each source's text.

    Sources with fewer than `least` blocks are passed over.
    """
    have = blocks_by_source(corpus, split, seq_len)
    take = equal_shares({source: n for source, n in have.items() if n >= least}, total)
    return [
        Block(corpus.sources.index(source), stratum, index, seq_len)
        for source, count in take.items()
        for stratum, index in spaced_blocks(
            [s for s in corpus.strata(split) if s.entry.source == source], seq_len, count
        )
    ]


def spaced_blocks(
    strata: Sequence[StratumTokens], seq_len: int, most: int
) -> list[tuple[StratumTokens, int]]:
    """At most `most` blocks, evenly spaced over the strata's text: each one's stratum and index."""
    ends = np.cumsum([0, *(s.num_blocks(seq_len) for s in strata)], dtype=np.int64)
    count = min(most, int(ends[-1]))
    places = np.linspace(0, ends[-1] - 1, count).round().astype(np.int64)
    found = np.searchsorted(ends, places, side="right") - 1
    return [(strata[s], int(place - ends[s])) for s, place in zip(found, places, strict=True)]


def equal_shares(have: Mapping[str, int], total: int) -> dict[str, int]:
    """`total` shared out equally, as far as each has any; what is over goes to the first ones."""
    take = dict.fromkeys(have, 0)
    while left := min(total, sum(have.values())) - sum(take.values()):
        wanting = [name for name in have if take[name] < have[name]]
        each = left // len(wanting)
        for name in wanting if each else wanting[:left]:
            take[name] += min(max(each, 1), have[name] - take[name])
    return take

"""A prepared corpus on disk, opened for reading."""

import hashlib
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from dograph.errors import CorpusError, require
from dograph.files import write_json

MANIFEST = "manifest.json"
SUMMARIES = ("mean", "natural", "worst")  # over sources, in metrics: no source may be called so
Split = Literal["train", "validation"]
Model = TypeVar("Model", bound=BaseModel)
_WHOLE = "prepare the corpus again, or copy the whole folder"


def refuse_summary(source: str | None) -> None:
    if source in SUMMARIES:
        raise CorpusError(
            f'a source is called "{source}", but metrics use the names {", ".join(SUMMARIES)} for '
            "summaries over all sources; rename it with NAME=INPUT, or in its --source-field"
        )


class StratumEntry(BaseModel, extra="forbid", frozen=True):
    """One stratum of one split: consecutive tokens in a file. Without --strata, a whole source."""

    source: str
    stratum: str  # the source's name, or "<source>/<number>" with --strata
    file: str  # token file, relative to the manifest; absolute if made by another tool
    dtype: Literal["uint8", "uint16", "uint32", "int16", "int32", "int64"]
    header_bytes: int = 0  # to skip at the start of the file
    first_token: int = 0  # index of its first token in the file
    tokens: int
    documents: int
    bytes: int | None  # UTF-8 bytes of the text; None if only tokens were given
    sha256: str  # of this stratum's tokens, as stored
    documents_file: str  # .npy of DOCUMENT_DTYPE, or SCORED_DTYPE, relative to the manifest


class TokenizerEntry(BaseModel, extra="forbid", frozen=True):
    """The tokenizer that the tokens were made with."""

    name: str  # what the user asked for: a path, a Hugging Face name, "bpe"
    file: str | None  # tokenizer.json, relative to the manifest; None if only tokens were given
    sha256: str | None
    vocab_size: int
    eot_id: int | None  # appended to every document

    @property
    def token_dtype(self) -> Literal["uint16", "uint32"]:
        """The type that its ids are stored as."""
        return "uint16" if self.vocab_size <= 1 << 16 else "uint32"


class Manifest(BaseModel, extra="forbid", frozen=True):
    """Contents of a prepared corpus, how it was made, and digests to check it with."""

    format: Literal["dograph-corpus"] = "dograph-corpus"
    version: Literal[1] = 1
    tokenizer: TokenizerEntry
    inputs: list[str]  # DOCUMENT_DTYPE's `input` points here
    train: list[StratumEntry]
    validation: list[StratumEntry]
    recipe: str | None = None
    options: dict[str, str | int | float | bool | None] = {}
    repairs: dict[str, int] = {}  # kind of bad record -> how many were repaired or skipped
    made_by: str

    @classmethod
    def read(cls, directory: Path) -> Self:
        path = directory / MANIFEST
        if not path.is_file():
            raise CorpusError(
                f"{directory} is not a prepared corpus: it has no {MANIFEST}. "
                f"Prepare one with: dograph data prepare INPUT --out {directory}"
            )
        return read_model(cls, path, f"delete {directory} and prepare the corpus again")

    def write(self, directory: Path) -> None:
        write_json(directory / MANIFEST, self.model_dump())

    def files(self) -> list[str]:
        """Token and document files, and the tokenizer, with names as in the entries."""
        entries = (*self.train, *self.validation)
        names = [name for entry in entries for name in (entry.file, entry.documents_file)]
        return [*names, self.tokenizer.file] if self.tokenizer.file else names


def read_model(model: type[Model], path: Path, remedy: str) -> Model:
    """The content of a JSON file; a damaged one is refused."""
    try:
        return model.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise CorpusError(f"{path} is damaged; {remedy} ({error})") from error


# One record a document, in the order of the tokens.
DOCUMENT_DTYPE = np.dtype(
    [
        ("end", "<i8"),  # one past its last token, counted from the stratum's first token
        ("record", "<i8"),  # line or row in the input file, from 0
        ("input", "<i4"),  # index into Manifest.inputs
    ]
)
SCORED_DTYPE = np.dtype([*DOCUMENT_DTYPE.descr, ("score", "<f4")])  # with --toward


class StratumTokens:
    """One stratum, memory-mapped: opening it reads nothing.

    A block is `seq_len` consecutive tokens. Blocks do not overlap, the tail that does not fill one
    is left out, and a block may span documents, which the end-of-text token separates.
    """

    def __init__(self, directory: Path, entry: StratumEntry, vocab_size: int | None = None) -> None:
        self.entry = entry
        self.directory = directory
        self.vocab_size = vocab_size  # blocks with other tokens are refused, if it is given
        self.path = directory / entry.file  # an absolute `file` replaces `directory`
        self.dtype = np.dtype(entry.dtype)
        self.offset = entry.header_bytes + entry.first_token * self.dtype.itemsize
        self.require_whole(mapped=False)
        mapped = np.memmap(self.path, entry.dtype, "r", self.offset, (entry.tokens,))
        self.token_N = mapped.view(np.ndarray)  # the same memory without memmap's slow indexing

    def require_whole(self, *, mapped: bool = True) -> None:
        """Refuse a token file that is too short: to read a map beyond its end kills the process.

        Once it is mapped, a deleted file can still be read.
        """
        needed = self.offset + self.entry.tokens * self.dtype.itemsize
        try:
            found: int | str = os.stat(self.path).st_size
        except OSError as error:
            found = needed if mapped else str(error.strerror)
        if isinstance(found, str) or found < needed:
            raise CorpusError(
                f"{self.path} should hold at least {needed} bytes, found: {found}; {_WHOLE}"
            )

    @cached_property
    def documents(self) -> np.ndarray:
        """The documents of this stratum, memory-mapped, of DOCUMENT_DTYPE or SCORED_DTYPE."""
        path, entry = self.directory / self.entry.documents_file, self.entry
        found = "others"
        try:
            loaded: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False).view(np.ndarray)
            is_known = loaded.dtype in (DOCUMENT_DTYPE, SCORED_DTYPE)
            facts = (len(loaded), int(loaded["end"][-1]))
            if is_known and facts == (entry.documents, entry.tokens):
                return loaded
        except Exception as error:  # each kind of damage raises another one
            found = str(error)
        raise CorpusError(
            f"{path} should hold {entry.documents} documents of {entry.tokens} tokens, found: "
            f"{found}; {_WHOLE}"
        )

    def num_blocks(self, seq_len: int) -> int:
        return self.entry.tokens // seq_len

    def read_block(self, block: int, seq_len: int) -> np.ndarray:
        """The tokens of a block; refuses one that holds ids outside of the vocabulary."""
        token_T = self.token_N[block * seq_len : (block + 1) * seq_len]
        # As unsigned numbers, negative ids are large ones: one comparison finds both.
        unsigned_T = token_T.view(f"u{self.dtype.itemsize}")
        if self.vocab_size is not None and unsigned_T.max(initial=0) >= self.vocab_size:
            at = int((unsigned_T >= self.vocab_size).argmax())
            byte = self.offset + (block * seq_len + at) * self.dtype.itemsize
            raise CorpusError(
                f"{self.path}: the token at byte {byte} is {token_T[at]}, but ids must be in 0 to "
                f"{self.vocab_size - 1}: the file has changed since it was prepared. Restore it "
                f"from a copy; dograph data verify {self.directory} lists all damage"
            )
        return token_T

    def spans(self, document_D: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First token of each of these documents, and one past its last."""
        end_D = self.documents["end"]
        return np.where(document_D > 0, end_D[document_D - 1], 0), end_D[document_D]

    def locate(self, token: int) -> tuple[int, int]:
        """The document that a token is in, and its offset there."""
        # Not np.searchsorted: it would copy the whole strided field on every call.
        end_D: Any = self.documents["end"]
        document = bisect_right(end_D, token)
        return document, token - (int(end_D[document - 1]) if document else 0)


class Corpus:
    """Sources, strata and tokens of a prepared corpus. Opening it only maps files into memory."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory).resolve()
        self.manifest = Manifest.read(self.directory)
        self.train, self.validation = (
            [StratumTokens(self.directory, entry, self.vocab_size) for entry in entries]
            for entries in (self.manifest.train, self.manifest.validation)
        )
        if not self.train:
            raise CorpusError(f"{self.directory} holds no training tokens; prepare it again")
        self.sources = list(dict.fromkeys(stratum.entry.source for stratum in self.train))

    @property
    def digest(self) -> str:
        """Hash of the training tokens: equal digests mean equal samples."""
        rows = [f"{s.entry.stratum}:{s.entry.sha256}:{s.entry.dtype}" for s in self.train]
        return hashlib.sha256("\n".join(rows).encode()).hexdigest()

    @property
    def vocab_size(self) -> int:
        return self.manifest.tokenizer.vocab_size

    def strata(self, split: Split) -> list[StratumTokens]:
        return self.train if split == "train" else self.validation

    def tokens_by_source(self, split: Split = "train") -> dict[str, int]:
        totals = Counter(dict.fromkeys(self.sources, 0))
        for stratum in self.strata(split):
            totals[stratum.entry.source] += stratum.entry.tokens
        return dict(totals)

    def scores(self) -> dict[str, float]:
        """Mean score of every training stratum towards trusted text (--toward); empty without."""
        means = {}
        for stratum in self.train:
            if stratum.documents.dtype == SCORED_DTYPE:
                length_D = np.diff(stratum.documents["end"], prepend=0)
                mean = np.average(stratum.documents["score"], weights=length_D)
                means[stratum.entry.stratum] = float(mean)
        return means

    def bytes_per_token(self, split: Split) -> dict[str, float | None]:
        """Bytes of text per token of each source; None if the text is not known."""
        ratio: dict[str, float | None] = dict.fromkeys(self.tokens_by_source(split))
        for source, tokens in self.tokens_by_source(split).items():
            sizes = [s.entry.bytes for s in self.strata(split) if s.entry.source == source]
            if tokens > 0 and None not in sizes:
                ratio[source] = sum(size or 0 for size in sizes) / tokens
        return ratio

    @cached_property
    def tokenizer(self) -> Any:
        """The `tokenizers.Tokenizer` of this corpus."""
        file = self.manifest.tokenizer.file
        if file is None:
            raise CorpusError(
                f"{self.directory} was made from tokens without a tokenizer, so its text cannot be "
                "shown; prepare it again with the --tokenizer that the tokens were made with"
            )
        tokenizers = require("tokenizers", "corpus")
        try:
            return tokenizers.Tokenizer.from_file(str(self.directory / file))
        except Exception as error:  # the library raises nothing narrower
            raise CorpusError(
                f"{self.directory / file} cannot be read as a tokenizer ({error}); {_WHOLE}"
            ) from error


# A fixed selection of blocks, equally many per source, for probes and inspection. Nothing is
# random: the same corpus and numbers give the same blocks.


@dataclass(frozen=True, slots=True)
class Block:
    """One block of one source."""

    stratum: StratumTokens
    index: int  # which block of that stratum
    seq_len: int

    def tokens(self) -> np.ndarray:
        return self.stratum.read_block(self.index, self.seq_len).astype(np.int64)

    def place(self) -> dict[str, str | int]:
        """Where it is: source, stratum, row (block), document and offset in tokens."""
        document, offset = self.stratum.locate(self.index * self.seq_len)
        return {
            "source": self.stratum.entry.source,
            "stratum": self.stratum.entry.stratum,
            "row": self.index,
            "document": document,
            "offset": offset,
        }

    def text(self, corpus: Corpus, most: int | None = None) -> str:
        """Its text, or that of its first `most` tokens."""
        start = self.index * self.seq_len
        ids = self.stratum.token_N[start : start + self.seq_len][:most].tolist()
        text: str = corpus.tokenizer.decode(ids, skip_special_tokens=False)
        return text


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
    """At most `total` blocks, evenly spaced in each source that has at least `least` of them."""
    have = blocks_by_source(corpus, split, seq_len)
    take = equal_shares({source: n for source, n in have.items() if n >= least}, total)
    blocks = []
    for source, count in take.items():
        strata = [s for s in corpus.strata(split) if s.entry.source == source]
        blocks += spaced_blocks(strata, seq_len, count)
    return blocks


def spaced_blocks(strata: Sequence[StratumTokens], seq_len: int, most: int) -> list[Block]:
    """At most `most` blocks, evenly spaced over the strata."""
    ends = np.cumsum([0, *(s.num_blocks(seq_len) for s in strata)], dtype=np.int64)
    count = min(most, int(ends[-1]))
    places = np.linspace(0, ends[-1] - 1, count).round().astype(np.int64)
    stratum_N = np.searchsorted(ends, places, side="right") - 1
    pairs = zip(stratum_N, places, strict=True)
    return [Block(strata[s], int(place - ends[s]), seq_len) for s, place in pairs]


def equal_shares(have: Mapping[str, int], total: int) -> dict[str, int]:
    """`total` divided equally, none getting more than it has; remainders go to the first ones."""
    places = enumerate(have.values())
    rounds = sorted((n, place) for place, most in places for n in range(min(most, total)))
    taken = Counter(place for _, place in rounds[:total])
    return {name: taken[place] for place, name in enumerate(have)}

"""Memory-mapped tokens of one stratum: blocks for training, documents for people.

A block is `seq_len` consecutive tokens; blocks do not overlap, and the tail that does not fill a
block is left out. Documents run on inside a block, divided by the end-of-text token.
"""

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dograph.data.manifest import StratumEntry
from dograph.errors import CorpusError

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
    """One stratum, memory-mapped: opening it reads nothing."""

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
        mapped = np.memmap(
            path,
            mode="r",
            dtype=entry.dtype,
            offset=entry.header_bytes + entry.first_token * itemsize,
            shape=(entry.tokens,),
        )
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

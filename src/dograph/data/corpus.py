"""A prepared corpus on disk, opened for reading."""

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any

from dograph.data.manifest import Manifest, Split
from dograph.data.tokens import StratumTokens
from dograph.errors import CorpusError, require


class Corpus:
    """Sources, strata and tokens of a prepared corpus. Opening it maps files and reads none."""

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory).resolve()
        self.manifest = Manifest.read(self.directory)
        self.train = [StratumTokens(self.directory, entry) for entry in self.manifest.train]
        self.validation = [
            StratumTokens(self.directory, entry) for entry in self.manifest.validation
        ]
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
            totals[stratum.entry.source] = (
                totals.get(stratum.entry.source, 0) + stratum.entry.tokens
            )
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

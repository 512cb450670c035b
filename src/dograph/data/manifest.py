"""The manifest of a prepared corpus: what is in it, how it was made, digests to check it by."""

import json
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from dograph.errors import CorpusError
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


class Manifest(BaseModel):
    """Everything about a prepared corpus but the tokens."""

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
        except (ValidationError, json.JSONDecodeError) as error:
            raise CorpusError(f"{path} is damaged: {error}. Prepare the corpus again.") from error

    def write(self, directory: Path) -> None:
        write_json(directory / MANIFEST, self.model_dump())

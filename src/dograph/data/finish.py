"""From raw files to a corpus: documents indexed, digests taken, the manifest written last.

Everything is built in a folder of its own inside the staging folder, out of files that are only
read, so that this step may be killed and repeated at any point.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np

from dograph.data.chunks import listed
from dograph.data.corpus import Manifest, Split, StratumEntry
from dograph.data.encode import RAW_DOCUMENT_DTYPE
from dograph.data.journal import Journal, Outputs, Value, clear
from dograph.data.publish import REPAIRS, file_stems, link, publish, write_document_index
from dograph.data.tokenizer import TOKENIZER_FILE
from dograph.errors import CorpusError
from dograph.files import sha256_of

# Every source gets validation text: the last step of splitting by hash.
#
# A small source may have every document on one side. Then the documents of one extreme hash change
# sides: copies of a text within the source have one hash, so they stay together; copies in another
# source stay where they are.


_BLOCK_DOCUMENTS = 1 << 16
_BLOCK_TOKENS = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """The raw files of one split of one source."""

    tokens_path: Path
    documents_path: Path
    tokens: int
    documents: int
    bytes: int


def hold_out(train: Part, validation: Part, dtype: np.dtype, folder: Path) -> tuple[Part, Part]:
    """Move documents so that both sides have some, if there are two different texts at all.

    New files go to `folder`, named after the old ones. A source of one text trains on it.
    """
    if train.documents and validation.documents:
        return train, validation
    whole, from_train = (train, True) if train.documents else (validation, False)
    low, high = _extreme_hashes(whole.documents_path)
    if low == high:
        empty = validation if from_train else train
        return whole, empty
    kept, moved = _divide(whole, low if from_train else high, dtype, folder)
    return (kept, moved) if from_train else (moved, kept)


def raw_documents(path: Path) -> Iterator[np.ndarray]:
    """The documents of a raw file, block by block."""
    with open(path, "rb") as file:
        while len(block := np.fromfile(file, RAW_DOCUMENT_DTYPE, _BLOCK_DOCUMENTS)):
            yield block


def _extreme_hashes(path: Path) -> tuple[int, int]:
    bounds = [(int(b["hash"].min()), int(b["hash"].max())) for b in raw_documents(path)]
    return min(low for low, _ in bounds), max(high for _, high in bounds)


def _divide(whole: Part, chosen: int, dtype: np.dtype, folder: Path) -> tuple[Part, Part]:
    """Copy the documents apart: those without and those with the chosen hash."""
    sides = [_Side(folder / f"{whole.tokens_path.stem}-{name}") for name in ("kept", "moved")]
    start = 0
    with open(whole.tokens_path, "rb") as tokens:
        for block in raw_documents(whole.documents_path):
            moved_D = block["hash"] == chosen
            cuts = [0, *(np.flatnonzero(np.diff(moved_D)) + 1).tolist(), len(block)]
            for first, last in pairwise(cuts):
                run = block[first:last]
                sides[int(moved_D[first])].copy(tokens, run, start, dtype)
                start = int(run["end"][-1])
    kept, moved = (side.part() for side in sides)
    return kept, moved


class _Side:
    """One of the two sides while documents are copied to it."""

    def __init__(self, stem: Path) -> None:
        self.tokens_path = stem.with_suffix(".tokens")
        self.documents_path = stem.with_suffix(".documents")
        self.tokens = self.documents = self.bytes = 0
        self.tokens_path.write_bytes(b"")
        self.documents_path.write_bytes(b"")

    def copy(self, source: BinaryIO, run: np.ndarray, start: int, dtype: np.dtype) -> None:
        documents = run.copy()
        documents["end"] += self.tokens - start
        left = int(run["end"][-1]) - start
        self.tokens += left
        self.documents += len(run)
        self.bytes += int(run["bytes"].sum(dtype=np.int64))
        with open(self.documents_path, "ab") as file:
            file.write(documents.tobytes())
        with open(self.tokens_path, "ab") as file:
            while left:
                block = source.read(min(left, _BLOCK_TOKENS) * dtype.itemsize)
                file.write(block)
                left -= len(block) // dtype.itemsize

    def part(self) -> Part:
        return Part(self.tokens_path, self.documents_path, self.tokens, self.documents, self.bytes)


_SPLITS: tuple[Split, ...] = ("train", "validation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finishing:
    """What finishing needs beside the journal."""

    staging: Path
    out: Path
    inputs: list[str]
    expected: list[tuple[Split, str]]  # sources that the inputs promise
    holds_out: bool  # validation is split off the training documents
    repair: bool
    keep: float
    recipe: str | None
    strata: int
    seed: int
    made_by: str


def finish(journal: Journal, outputs: Outputs, finishing: Finishing) -> Manifest:
    """Build the corpus from what has been written, and publish it."""
    built = finishing.staging / "finished"
    spare = finishing.staging / "moved"
    for folder in (built, spare):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    parts, empty = _parts(outputs, finishing)
    repairs = _without_empty(journal.repairs, empty, finishing.repair)
    if finishing.holds_out:
        for source, (train, validation) in parts.items():
            parts[source] = hold_out(train, validation, outputs.dtype, spare)
    entries: dict[Split, list[StratumEntry]] = {split: [] for split in _SPLITS}
    for source, stem in file_stems(parts).items():
        for split, part in zip(_SPLITS, parts[source], strict=True):
            if part.documents:
                entries[split].append(_build(part, built, f"{split}/{stem}", source, outputs.dtype))
    if not entries["train"]:
        raise _nothing_to_train_on(outputs, finishing.keep)
    for name in (TOKENIZER_FILE, REPAIRS):
        if (finishing.staging / name).is_file():
            link(finishing.staging / name, built / name)
    manifest = Manifest(
        tokenizer=journal.tokenizer,
        inputs=finishing.inputs,
        train=entries["train"],
        validation=entries["validation"],
        recipe=finishing.recipe,
        options={
            **journal.options,
            **_unkept(outputs, {entry.source for entry in entries["train"]}, finishing.keep),
            "fingerprint": journal.fingerprint,
        },
        repairs=repairs,
        made_by=finishing.made_by,
    )
    if finishing.strata > 1:
        from dograph.data.strata import split_into_strata

        manifest = split_into_strata(built, manifest, finishing.strata, finishing.seed)
    publish(manifest, built, finishing.out)
    clear(finishing.staging)
    return manifest


def _parts(
    outputs: Outputs, finishing: Finishing
) -> tuple[dict[str, tuple[Part, Part]], list[tuple[Split, str]]]:
    """Raw files by source, and the sources that came out without text."""
    nothing = Part(Path(), Path(), 0, 0, 0)
    found: dict[tuple[Split, str], Part] = dict.fromkeys(finishing.expected, nothing)
    for number, output in enumerate(outputs.outputs):
        found[output.split, output.source] = Part(
            outputs.tokens_path(number),
            outputs.documents_path(number),
            output.tokens,
            output.documents,
            output.bytes,
        )
    parts = {
        source: (found.get(("train", source), nothing), found.get(("validation", source), nothing))
        for source in sorted({source for _, source in found})
    }
    unkept = {
        (output.split, output.source) for output in outputs.outputs if output.unkept_documents
    }
    empty = [
        (split, source)
        for split, source in sorted(found)
        if not found[split, source].documents
        and (split, source) not in unkept
        and not (finishing.holds_out and any(part.documents for part in parts[source]))
    ]
    parts = {name: both for name, both in parts.items() if any(part.documents for part in both)}
    return parts, empty


def _without_empty(
    repairs: dict[str, int], empty: list[tuple[Split, str]], repair: bool
) -> dict[str, int]:
    """The count of repairs once empty sources are dropped, if they may be."""
    if empty and not repair:
        names = ", ".join(f'"{source}" ({split})' for split, source in empty)
        raise CorpusError(
            f"no text came out of these sources: {names}. Leave their inputs out, or pass "
            "--bad-records repair, which drops them and counts it in the manifest"
        )
    counts = {**repairs, "empty source": len(empty)} if empty else repairs
    return dict(sorted(counts.items()))


def _unkept(outputs: Outputs, trained: set[str], keep: float) -> dict[str, Value]:
    """What --keep left out, for the manifest; sources that it left nothing of are named."""
    if keep == 1:
        return {}
    lost = {output.source for output in outputs.outputs if output.unkept_documents} - trained
    return {
        "unkept_documents": sum(output.unkept_documents for output in outputs.outputs),
        "unkept_bytes": sum(output.unkept_bytes for output in outputs.outputs),
        "unkept_sources": listed(sorted(lost)),
    }


def _nothing_to_train_on(outputs: Outputs, keep: float) -> CorpusError:
    unkept = sum(output.unkept_documents for output in outputs.outputs)
    if not unkept:
        return CorpusError("the inputs hold no training text at all; give other inputs")
    return CorpusError(
        f"--keep {keep:g} keeps none of the {unkept:,} training documents; give a larger fraction "
        "and --restart"
    )


def _build(part: Part, built: Path, stem: str, source: str, dtype: np.dtype) -> StratumEntry:
    tokens, documents = f"{stem}.bin", f"{stem}.documents.npy"
    link(part.tokens_path, built / tokens)
    write_document_index(built / documents, raw_documents(part.documents_path), part.documents)
    name: Literal["uint16", "uint32"] = "uint16" if dtype == np.uint16 else "uint32"
    return StratumEntry(
        source=source,
        stratum=source,
        file=tokens,
        dtype=name,
        tokens=part.tokens,
        documents=part.documents,
        bytes=part.bytes,
        sha256=sha256_of(built / tokens),
        documents_file=documents,
    )

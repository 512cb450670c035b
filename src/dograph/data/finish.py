"""From raw files to a corpus: documents indexed, digests taken, the manifest written last.

Everything is built in a folder of its own inside the staging folder, out of files that are only
read, so that this step may be killed and repeated at any point. Then it is moved into its place.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import ValidationError

import dograph
from dograph.data.chunks import Input, listed
from dograph.data.corpus import DOCUMENT_DTYPE, MANIFEST, Manifest, Split, StratumEntry
from dograph.data.encode import RAW_DOCUMENT_DTYPE
from dograph.data.journal import Journal, Output, Outputs, clear
from dograph.data.options import PrepareOptions, Value
from dograph.data.tokenizer import TOKENIZER_FILE
from dograph.errors import CorpusError
from dograph.files import sha256_of, sync_file

REPAIRS = "repairs.jsonl"
_REPLACED = "replaced.json"  # manifest of the corpus that a new one takes the place of
_BLOCK_DOCUMENTS = 1 << 16
_SPLITS: tuple[Split, ...] = ("train", "validation")


@dataclass(frozen=True, slots=True)
class RawFiles:
    """The raw files of one split of one source."""

    stem: Path = Path()  # of .tokens and .documents
    tokens: int = 0
    documents: int = 0
    bytes: int = 0

    def blocks(self) -> Iterator[np.ndarray]:
        """The documents, block by block."""
        with open(self.stem.with_suffix(".documents"), "rb") as file:
            while len(block := np.fromfile(file, RAW_DOCUMENT_DTYPE, _BLOCK_DOCUMENTS)):
                yield block


def finish(
    options: PrepareOptions, inputs: list[Input], journal: Journal, outputs: Outputs
) -> Manifest:
    """Build the corpus from what has been written, and publish it."""
    built, spare = options.staging / "finished", options.staging / "moved"
    for folder in (built, spare):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    raw, empty = _by_source(options, inputs, outputs)
    repairs = {**journal.repairs, "empty source": len(empty)} if empty else journal.repairs
    dtype = journal.tokenizer.token_dtype
    entries: dict[Split, list[StratumEntry]] = {split: [] for split in _SPLITS}
    for source, stem in file_stems(raw).items():
        both = raw[source]
        if options.held_out(inputs):
            both = hold_out(*both, np.dtype(dtype), spare)
        for split, files in zip(_SPLITS, both, strict=True):
            if not files.documents:
                continue
            tokens, documents = f"{split}/{stem}.bin", f"{split}/{stem}.documents.npy"
            link(files.stem.with_suffix(".tokens"), built / tokens)
            write_document_index(built / documents, files.blocks(), files.documents)
            entries[split].append(
                StratumEntry(
                    source=source,
                    stratum=source,
                    file=tokens,
                    dtype=dtype,
                    tokens=files.tokens,
                    documents=files.documents,
                    bytes=files.bytes,
                    sha256=sha256_of(built / tokens),
                    documents_file=documents,
                )
            )
    unkept = _unkept(options, outputs.outputs, {entry.source for entry in entries["train"]})
    for name in (TOKENIZER_FILE, REPAIRS):
        if (options.staging / name).is_file():
            link(options.staging / name, built / name)
    manifest = Manifest(
        tokenizer=journal.tokenizer,
        inputs=[entry.name for entry in inputs],
        train=entries["train"],
        validation=entries["validation"],
        recipe=options.known_corpus.name if options.known_corpus else None,
        options={**journal.options, **unkept, "fingerprint": journal.fingerprint},
        repairs=dict(sorted(repairs.items())),
        made_by=f"dograph {dograph.__version__}",
    )
    return publish(options, manifest, built)


def _by_source(
    options: PrepareOptions, inputs: list[Input], outputs: Outputs
) -> tuple[dict[str, tuple[RawFiles, RawFiles]], list[tuple[Split, str]]]:
    """Raw files of training and validation by source, and the sources that hold no text."""
    found = {
        (entry.split, entry.source): RawFiles() for entry in inputs if entry.source is not None
    }
    for number, out in enumerate(outputs.outputs):
        stem = outputs.stem(number)
        found[out.split, out.source] = RawFiles(stem, out.tokens, out.documents, out.bytes)
    raw = {
        source: (
            found.get(("train", source), RawFiles()),
            found.get(("validation", source), RawFiles()),
        )
        for source in sorted({source for _, source in found})
    }
    with_text = {source for source, both in raw.items() if any(files.documents for files in both)}
    unkept = {(out.split, out.source) for out in outputs.outputs if out.unkept_documents}
    empty = [
        (split, source)
        for split, source in sorted(found)
        if not found[split, source].documents
        and (split, source) not in unkept
        and not (options.held_out(inputs) and source in with_text)
    ]
    if empty and not options.repair:
        names = ", ".join(f'"{source}" ({split})' for split, source in empty)
        raise CorpusError(
            f"no text came out of these sources: {names}. Leave their inputs out, or pass "
            "--bad-records repair, which drops them and counts it in the manifest"
        )
    return {source: both for source, both in raw.items() if source in with_text}, empty


def _unkept(options: PrepareOptions, outputs: list[Output], trained: set[str]) -> dict[str, Value]:
    """What --keep left out, for the manifest; sources that it left nothing of are named."""
    documents = sum(output.unkept_documents for output in outputs)
    if not trained and not documents:
        raise CorpusError("the inputs hold no training text at all; give other inputs")
    if not trained:
        raise CorpusError(
            f"--keep {options.keep:g} keeps none of the {documents:,} training documents; give a "
            "larger fraction and --restart"
        )
    if options.keep == 1:
        return {}
    lost = {output.source for output in outputs if output.unkept_documents} - trained
    return {
        "unkept_documents": documents,
        "unkept_bytes": sum(output.unkept_bytes for output in outputs),
        "unkept_sources": listed(sorted(lost)),
    }


def hold_out(
    train: RawFiles, validation: RawFiles, dtype: np.dtype, folder: Path
) -> tuple[RawFiles, RawFiles]:
    """Move documents so that both sides have some, if there are two different texts at all.

    The last step of splitting by hash: a small source may have every document on one side. Then
    the documents of one extreme hash change sides: copies of a text within the source have one
    hash, so they stay together; copies in another source stay where they are. New files go to
    `folder`, named after the old ones. A source of one text trains on it.
    """
    if train.documents and validation.documents:
        return train, validation
    whole = train if train.documents else validation
    bounds = [(int(b["hash"].min()), int(b["hash"].max())) for b in whole.blocks()]
    low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
    if low == high:
        return whole, RawFiles()
    chosen = low if whole is train else high
    token_N = np.memmap(whole.stem.with_suffix(".tokens"), dtype, "r")
    sides = []
    for is_moved, name in ((False, "kept"), (True, "moved")):
        stem = folder / f"{whole.stem.name}-{name}"
        start = num_tokens = num_documents = num_bytes = 0
        with (
            open(stem.with_suffix(".tokens"), "wb") as tokens,
            open(stem.with_suffix(".documents"), "wb") as documents,
        ):
            for block in whole.blocks():
                start_D = np.concatenate([[start], block["end"][:-1]])
                start = int(block["end"][-1])
                member_D = (block["hash"] == chosen) == is_moved
                start_D, own_D = start_D[member_D], block[member_D]
                for first, last in zip(start_D.tolist(), own_D["end"].tolist(), strict=True):
                    tokens.write(token_N[first:last].tobytes())
                own_D["end"] = num_tokens + (own_D["end"] - start_D).cumsum()
                documents.write(own_D.tobytes())
                num_tokens = int(own_D["end"][-1]) if len(own_D) else num_tokens
                num_documents += len(own_D)
                num_bytes += int(own_D["bytes"].sum(dtype=np.int64))
        sides.append(RawFiles(stem, num_tokens, num_documents, num_bytes))
    kept, moved = sides
    return (kept, moved) if whole is train else (moved, kept)


def publish(options: PrepareOptions, manifest: Manifest, built: Path) -> Manifest:
    """Divide into strata if asked to, then move everything from `built` into its place.

    A corpus that was there is replaced. The manifest comes last, so that it means complete.
    """
    if options.strata > 1:
        from dograph.data.strata import split_into_strata

        manifest = split_into_strata(built, manifest, options.strata, options.seed)
    out = options.out
    names = [name for name in corpus_files(manifest) if (built / name).is_file()]
    if (out / MANIFEST).is_file():
        os.replace(out / MANIFEST, built.parent / _REPLACED)
        remove_replaced(built.parent, out)
    for name in names:
        sync_file(built / name)
        (out / name).parent.mkdir(exist_ok=True)
        os.replace(built / name, out / name)
        sync_file((out / name).parent)
    manifest.write(out)
    clear(options.staging)
    return manifest


def remove_replaced(staging: Path, out: Path) -> None:
    """Delete the files of a corpus being replaced, perhaps begun before a kill.

    Where its manifest is damaged nobody knows which files were its own, and they stay.
    """
    replaced = staging / _REPLACED
    # beside a manifest the new files may be in place already, under the same names
    if not replaced.is_file() or (out / MANIFEST).is_file():
        return
    with suppress(ValidationError):
        for name in corpus_files(Manifest.model_validate_json(replaced.read_bytes())):
            (out / name).unlink(missing_ok=True)
    replaced.unlink()


def corpus_files(manifest: Manifest) -> list[str]:
    """Every file of a corpus that lies in its folder; tokens used where they are do not."""
    names = {REPAIRS}
    if manifest.tokenizer.file is not None:
        names.add(manifest.tokenizer.file)
    for entry in (*manifest.train, *manifest.validation):
        names |= {entry.file, entry.documents_file}
    return sorted(name for name in names if not Path(name).is_absolute())


def link(source: Path, target: Path) -> None:
    """The same content under a second name; a copy where the file system has no links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def file_stems(sources: Iterable[str]) -> dict[str, str]:
    """A file name for each source, also where the source's name is none.

    Two names never differ by case alone: some file systems would take them for one.
    """
    sources = sorted(sources)
    plain = {
        source: re.sub(r"[^\w.-]+", "-", source, flags=re.ASCII).strip("-.") for source in sources
    }
    lower = [stem.lower() for stem in plain.values()]
    stems = {}
    for source, stem in plain.items():
        if stem == source and len(stem) <= 100 and lower.count(stem.lower()) == 1:
            stems[source] = stem
        else:
            digest = hashlib.blake2b(source.encode(), digest_size=4).hexdigest()
            stems[source] = f"{stem[:80]}-{digest}".lstrip("-")
    return stems


def write_document_index(path: Path, blocks: Iterable[np.ndarray], num_documents: int) -> None:
    """Write an .npy of DOCUMENT_DTYPE from blocks that have its fields, and perhaps more.

    It is never held in memory as a whole. Plain writes, not a memory map: on a full disk they
    fail with an error, not with a signal.
    """
    header = {
        "descr": np.lib.format.dtype_to_descr(DOCUMENT_DTYPE),
        "fortran_order": False,
        "shape": (num_documents,),
    }
    with open(path, "wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        for block in blocks:
            documents = np.empty(len(block), DOCUMENT_DTYPE)
            for name in DOCUMENT_DTYPE.names or ():
                documents[name] = block[name]
            file.write(documents.tobytes())

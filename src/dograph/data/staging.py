"""From raw files to a corpus: documents indexed, digests taken, the manifest written last.

Everything is built in a folder of its own inside the staging folder, out of files that are only
read, so that this step may be killed and repeated at any point. Then it is moved into its place.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from pydantic import ValidationError

import dograph
from dograph.data.corpus import DOCUMENT_DTYPE, MANIFEST, Manifest, Split, StratumEntry
from dograph.data.inputs import Input
from dograph.data.journal import Journal, Output, clear
from dograph.data.options import PrepareOptions, Value
from dograph.data.tokenizer import TOKENIZER_FILE
from dograph.errors import CorpusError
from dograph.files import sha256_of, sync_file

REPAIRS = "repairs.jsonl"
_REPLACED = "replaced.json"  # manifest of the corpus that a new one takes the place of


def finish(options: PrepareOptions, inputs: list[Input], journal: Journal) -> Manifest:
    """Build the corpus from what has been written, and publish it."""
    built, spare = options.staging / "finished", options.staging / "moved"
    for folder in (built, spare):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    held_out = options.held_out(inputs)
    by_source, num_empty = _by_source(options, inputs, journal.outputs)
    repairs = {**journal.repairs, "empty source": num_empty} if num_empty else journal.repairs
    dtype = journal.tokenizer.token_dtype
    entries: dict[Split, list[StratumEntry]] = {"train": [], "validation": []}
    for source, stem in file_stems(by_source).items():
        both = by_source[source]
        if held_out:
            both = hold_out(*both, np.dtype(dtype), spare)
        for split, output in zip(entries, both, strict=True):
            if not output.documents:
                continue
            tokens, documents = f"{split}/{stem}.bin", f"{split}/{stem}.documents.npy"
            link(output.stem.with_suffix(".tokens"), built / tokens)
            write_document_index(built / documents, output.blocks(), output.documents)
            entries[split].append(
                StratumEntry(
                    source=source,
                    stratum=source,
                    file=tokens,
                    dtype=dtype,
                    tokens=output.tokens,
                    documents=output.documents,
                    bytes=output.bytes,
                    sha256=sha256_of(built / tokens),
                    documents_file=documents,
                )
            )
    unkept = _unkept(options, journal.outputs, {entry.source for entry in entries["train"]})
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
    options: PrepareOptions, inputs: list[Input], outputs: list[Output]
) -> tuple[dict[str, tuple[Output, Output]], int]:
    """Training and validation output of each source, and how many of them hold no text."""
    named = [(entry.split, entry.source) for entry in inputs if entry.source is not None]
    found = {(split, source): Output(split=split, source=source) for split, source in named}
    found |= {(output.split, output.source): output for output in outputs}
    with_text = {source for (_, source), output in found.items() if output.documents}
    empty = [
        f'"{source}" ({split})'
        for (split, source), output in sorted(found.items())
        if not (output.documents or output.unkept_documents)
        and not (options.held_out(inputs) and source in with_text)
    ]
    if empty and not options.repair:
        raise CorpusError(
            f"no text came out of these sources: {', '.join(empty)}. Leave their inputs out, or "
            "pass --bad-records repair, which drops them and counts it in the manifest"
        )
    nothing = Output(split="train", source="")
    both = {
        source: (
            found.get(("train", source), nothing),
            found.get(("validation", source), nothing),
        )
        for source in with_text
    }
    return both, len(empty)


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


def listed(names: Sequence[str], most: int = 20) -> str | None:
    """Names in a line of bounded length, None where there are none."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more if names else None


def hold_out(
    train: Output, validation: Output, dtype: np.dtype, folder: Path
) -> tuple[Output, Output]:
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
        return whole, whole.model_copy(update={"documents": 0})
    chosen = low if whole is train else high
    token_N = np.memmap(whole.stem.with_suffix(".tokens"), dtype, "r")
    sides = []
    for is_moved, name in ((False, "kept"), (True, "moved")):
        stem = folder / f"{whole.stem.name}-{name}"
        side = Output(split=whole.split, source=whole.source, stem=stem)
        start = 0
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
                own_D["end"] = side.tokens + (own_D["end"] - start_D).cumsum()
                documents.write(own_D.tobytes())
                side.tokens = int(own_D["end"][-1]) if len(own_D) else side.tokens
                side.documents += len(own_D)
                side.bytes += int(own_D["bytes"].sum(dtype=np.int64))
        sides.append(side)
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

"""A finished corpus moved into its folder; the manifest comes last, so that it means complete."""

import hashlib
import os
import re
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from dograph.data.corpus import DOCUMENT_DTYPE, MANIFEST, Manifest
from dograph.files import sync_file

REPAIRS = "repairs.jsonl"
_REPLACED = "replaced.json"  # manifest of the corpus that a new one takes the place of


def publish(manifest: Manifest, built: Path, out: Path) -> None:
    """Move the files of `manifest` from `built` to `out`, in place of a corpus that was there."""
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


# The document index of a stratum, written without ever holding it in memory.


def write_document_index(path: Path, blocks: Iterable[np.ndarray], num_documents: int) -> None:
    """Write an .npy of DOCUMENT_DTYPE from blocks that have its fields, and perhaps more.

    Plain writes, not a memory map: on a full disk they fail with an error, not with a signal.
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

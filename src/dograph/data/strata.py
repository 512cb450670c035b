"""Strata: every source of a finished corpus divided into groups of like documents (`--strata N`).

Groups are found on training documents; then every document of the source, training and
validation, goes to the group nearest to it. Memory does not grow with the corpus: documents are
copied one by one, and which group each belongs to lies in a file.

Shapes: D documents, K groups, V vocabulary.
"""

import hashlib
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from dograph.data.document_index import write_document_index
from dograph.data.groups import Groups, chunks, find_groups, spans
from dograph.data.manifest import Manifest, StratumEntry
from dograph.data.publish import corpus_files
from dograph.data.tokenizer import token_bytes
from dograph.data.tokens import StratumTokens
from dograph.errors import ConfigError, CorpusError
from dograph.files import sync_file

COPY_TOKENS = 1 << 20  # at once

log = logging.getLogger(__name__)


def split_into_strata(directory: Path, manifest: Manifest, num_strata: int, seed: int) -> Manifest:
    """Divide every source of a finished corpus into at most `num_strata` strata.

    Strata are called "<source>/0", "<source>/1" and so on, by falling number of training tokens.
    A source gets no more strata than it has training documents, and no empty stratum appears.
    New files are written first, then the manifest, and the old files are deleted last: the corpus
    is whole at every moment.
    """
    _check(manifest, num_strata)
    if num_strata == 1:
        return manifest
    bytes_V = None
    if manifest.tokenizer.file is not None:
        bytes_V = token_bytes(directory / manifest.tokenizer.file, manifest.tokenizer.eot_id)
    validation = {entry.source: entry for entry in manifest.validation}
    new_train: list[StratumEntry] = []
    new_validation: list[StratumEntry] = []
    for entry in manifest.train:
        stratum = StratumTokens(directory, entry)
        label_D, groups = _ranked_by_size(stratum, find_groups(stratum, num_strata, seed))
        new_train += _write_strata(stratum, label_D, bytes_V)
        if entry.source in validation:
            stratum = StratumTokens(directory, validation.pop(entry.source))
            new_validation += _write_strata(stratum, _assign(stratum, groups), bytes_V)
    new_validation += validation.values()  # of sources without training text to find groups in
    divided = manifest.model_copy(update={"train": new_train, "validation": new_validation})
    divided.write(directory)
    for name in set(corpus_files(manifest)) - set(corpus_files(divided)):
        (directory / name).unlink()
    return divided


def _check(manifest: Manifest, num_strata: int) -> None:
    if num_strata < 1:
        raise ConfigError(f"the number of strata must be at least 1, got {num_strata}")
    entries = [*manifest.train, *manifest.validation]
    taken = corpus_files(manifest)
    for entry in entries:
        if entry.stratum != entry.source:
            raise CorpusError(
                f'"{entry.source}" is already divided into strata ("{entry.stratum}"); '
                "prepare the corpus again with the number of strata you want"
            )
        for group in range(num_strata):
            for name in _new_files(entry, group):
                if name in taken:
                    raise CorpusError(
                        f'the strata of "{entry.source}" need the file name {name}, which another '
                        "source has; give one of the two another name"
                    )


def _assign(stratum: StratumTokens, groups: Groups) -> np.ndarray:
    """The group of every document, (D,), in a file that vanishes with the array."""
    num_documents = stratum.entry.documents
    with tempfile.TemporaryFile(dir=stratum.directory) as file:
        # A full disk must raise an error here, not a signal when the map is written to.
        if hasattr(os, "posix_fallocate"):  # macOS has none
            os.posix_fallocate(file.fileno(), 0, 4 * num_documents)
        label_D = np.memmap(file, dtype=np.int32, mode="w+", shape=(num_documents,))
    for chunk_D in chunks(num_documents):
        label_D[chunk_D] = groups.nearest(stratum, chunk_D)
    return label_D


def _ranked_by_size(stratum: StratumTokens, groups: Groups) -> tuple[np.ndarray, Groups]:
    """Assign the training documents and number the groups anew: largest first, none empty."""
    label_D = _assign(stratum, groups)
    tokens_K = np.zeros(len(groups.centre_KF), dtype=np.int64)
    for chunk_D in chunks(len(label_D)):
        start_D, end_D = spans(stratum, chunk_D)
        np.add.at(tokens_K, label_D[chunk_D], end_D - start_D)
    order_K = np.argsort(-tokens_K, kind="stable")[: np.count_nonzero(tokens_K)]
    rank_K = np.zeros(len(tokens_K), dtype=np.int32)
    rank_K[order_K] = np.arange(len(order_K))
    for chunk_D in chunks(len(label_D)):
        label_D[chunk_D] = rank_K[label_D[chunk_D]]
    return label_D, replace(groups, centre_KF=groups.centre_KF[order_K])


def _write_strata(
    stratum: StratumTokens, label_D: np.ndarray, bytes_V: np.ndarray | None
) -> list[StratumEntry]:
    """One entry, and its files, for every group that has documents."""
    sizes: Counter[int] = Counter()
    for chunk_D in chunks(len(label_D)):
        sizes.update(label_D[chunk_D].tolist())
    entries = [
        _write_stratum(stratum, (group, size), label_D, bytes_V)
        for group, size in sorted(sizes.items())
    ]
    total, known = sum(entry.bytes or 0 for entry in entries), stratum.entry.bytes
    if total == known:
        return entries
    if known is not None and bytes_V is None:
        log.warning(
            'the tokenizer of "%s" does not spell text byte by byte; the bytes of its strata stay '
            "unknown, and with them its bits per byte",
            stratum.entry.source,
        )
    elif known is not None:
        log.warning(
            'the tokens of "%s" spell %d bytes but its text had %d, for its tokenizer changes the '
            "text; the bytes of its strata stay unknown, and with them its bits per byte",
            stratum.entry.source,
            total,
            known,
        )
    return [entry.model_copy(update={"bytes": None}) for entry in entries]


def _write_stratum(
    stratum: StratumTokens, group: tuple[int, int], label_D: np.ndarray, bytes_V: np.ndarray | None
) -> StratumEntry:
    """Copy the documents of one group, given as (number, size), in document order."""
    number, num_documents = group
    file, documents_file = _new_files(stratum.entry, number)
    directory = stratum.directory
    digest = hashlib.sha256()
    num_tokens = num_bytes = 0
    with open(directory / file, "wb") as output:
        for chunk_D in chunks(len(label_D)):
            start_D, end_D = spans(stratum, chunk_D[label_D[chunk_D] == number])
            num_tokens += int((end_D - start_D).sum())
            for token_N in _pieces(stratum, start_D, end_D):
                content = token_N.tobytes()
                output.write(content)
                digest.update(content)
                num_bytes += 0 if bytes_V is None else int(bytes_V[token_N].sum())
    index = _document_index(stratum, number, label_D)
    write_document_index(directory / documents_file, index, num_documents)
    sync_file(directory / file)
    sync_file(directory / documents_file)
    return stratum.entry.model_copy(
        update={
            "stratum": f"{stratum.entry.source}/{number}",
            "file": file,
            "header_bytes": 0,
            "first_token": 0,
            "tokens": num_tokens,
            "documents": num_documents,
            "bytes": None if bytes_V is None else num_bytes,
            "sha256": digest.hexdigest(),
            "documents_file": documents_file,
        }
    )


def _document_index(
    stratum: StratumTokens, number: int, label_D: np.ndarray
) -> Iterator[np.ndarray]:
    """The documents of one group, their ends counted anew."""
    num_tokens = 0
    for chunk_D in chunks(len(label_D)):
        member_D = chunk_D[label_D[chunk_D] == number]
        start_D, end_D = spans(stratum, member_D)
        document_D = stratum.documents[member_D]
        document_D["end"] = num_tokens + (end_D - start_D).cumsum()
        num_tokens += int((end_D - start_D).sum())
        yield document_D


def _pieces(stratum: StratumTokens, start_D: np.ndarray, end_D: np.ndarray) -> Iterator[np.ndarray]:
    """The tokens of these documents, no more than COPY_TOKENS at once."""
    for start, end in zip(start_D.tolist(), end_D.tolist(), strict=True):
        for first in range(start, end, COPY_TOKENS):
            yield stratum.token_N[first : min(first + COPY_TOKENS, end)]


def _new_files(entry: StratumEntry, group: int) -> tuple[str, str]:
    """Names of a group's token and document files, relative to the manifest."""
    # A file outside the corpus, or one that holds several strata, lends its name to none.
    is_own = not Path(entry.file).is_absolute() and entry.first_token == 0
    stem = Path(entry.file if is_own else entry.documents_file)
    documents = Path(entry.documents_file)
    return (
        stem.with_suffix(f".{group}.bin").as_posix(),
        documents.with_suffix(f".{group}.npy").as_posix(),
    )

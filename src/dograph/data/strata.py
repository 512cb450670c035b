"""Strata: each source of a finished corpus divided into groups of similar documents (`--strata N`).

A document's features are its token 1- and 2-grams, hashed with signs into F buckets. Spherical
K-means on a sample of the training documents gives the groups; then every document, training and
validation, goes to the nearest group of its source. With --toward the groups are quantiles of the
documents' scores instead. Of a corpus that is larger than memory only the groups are held, four
bytes a document: documents are copied one by one.

Shapes: D documents, F features, K groups, N tokens, V vocabulary.
"""

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

from dograph.data.corpus import SCORED_DTYPE, Manifest, StratumEntry, StratumTokens
from dograph.data.encode import token_bytes
from dograph.data.sampler import mix64
from dograph.data.staging import copy_documents, pieces, write_document_index
from dograph.errors import CorpusError
from dograph.files import sha256_of
from dograph.rng import key64, stream

NUM_FEATURES = 1024
FEATURE_TOKENS = 4096  # only the first so many tokens of a document are used
CHUNK_DOCUMENTS = 256
SAMPLE_DOCUMENTS = 10_000  # of a source, to fit the groups on
ITERATIONS = 25
RESTARTS = 4

log = logging.getLogger(__name__)


# The group of some documents, (D,), given by their numbers in a stratum.
Assign = Callable[[StratumTokens, np.ndarray], np.ndarray]


def by_score(stratum: StratumTokens, sample_D: np.ndarray, num_groups: int) -> Assign:
    """At most `num_groups` groups of about equally many tokens; group 0 has the highest scores."""
    start_D, end_D = stratum.spans(sample_D)
    score_D = stratum.documents["score"][sample_D]
    order_D = np.argsort(score_D, kind="stable")
    until_D = (end_D - start_D)[order_D].cumsum()
    wanted = until_D[-1] * np.arange(1, num_groups) / num_groups
    least = np.unique(score_D[order_D][np.searchsorted(until_D, wanted)])
    least = least[least > score_D.min()]  # of all groups but the last, which must not be empty
    return lambda own, document_D: (own.documents["score"][document_D, None] < least).sum(axis=1)


class Nearest:
    """Assigns documents to the nearest of the fitted groups of one source; ties: the lower one.

    At most `most` groups, and no more than there are documents.
    """

    def __init__(self, stratum: StratumTokens, sample_D: np.ndarray, most: int, seed: int) -> None:
        self.salt, parts = key64(seed, "strata", "hash"), pieces(sample_D, CHUNK_DOCUMENTS)
        features = [ngram_features(stratum, chunk_D, self.salt) for _, chunk_D in parts]
        feature_DF = np.concatenate(features)
        self.mean_F = feature_DF.mean(axis=0)  # subtracted first: it is common to all groups
        rng = stream(seed, "strata", "kmeans", stratum.entry.source)
        num_groups = min(most, stratum.entry.documents)
        self.centre_KF = spherical_kmeans(_unit(feature_DF - self.mean_F), num_groups, rng)

    def __call__(self, stratum: StratumTokens, document_D: np.ndarray) -> np.ndarray:
        unit_DF = _unit(ngram_features(stratum, document_D, self.salt) - self.mean_F)
        group_D: np.ndarray = (unit_DF @ self.centre_KF.T).argmax(axis=1)
        return group_D


def _labelled(stratum: StratumTokens, assign: Assign) -> np.ndarray:
    """The group of every document, (D,)."""
    label_D = np.empty(stratum.entry.documents, np.int32)
    for first, own_D in pieces(label_D, CHUNK_DOCUMENTS):
        own_D[:] = assign(stratum, first + np.arange(len(own_D)))
    return label_D


def ngram_features(stratum: StratumTokens, document_D: np.ndarray, salt: int) -> np.ndarray:
    """Signed hashed counts of token 1- and 2-grams, log-scaled, as unit vectors, (D, F)."""
    start_D, end_D = stratum.spans(document_D)
    length_D = np.minimum(end_D - start_D, FEATURE_TOKENS)
    document_N = np.repeat(np.arange(len(document_D)), length_D)
    skip_D = start_D - (length_D.cumsum() - length_D)
    token_N = stratum.token_N[np.arange(len(document_N)) + np.repeat(skip_D, length_D)]
    one_N = mix64(token_N.astype(np.uint64) + np.uint64(salt))
    two_N = mix64(one_N[:-1] + token_N[1:].astype(np.uint64))
    inside_N = document_N[1:] == document_N[:-1]  # both tokens in the same document
    hash_N = np.concatenate([one_N, two_N[inside_N]])
    row_N = np.concatenate([document_N, document_N[1:][inside_N]])
    bucket_N = row_N * NUM_FEATURES + (hash_N % np.uint64(NUM_FEATURES)).astype(np.int64)
    sign_N = np.where(hash_N >> np.uint64(63), 1.0, -1.0)
    count_DF = np.bincount(bucket_N, sign_N, len(document_D) * NUM_FEATURES)
    count_DF = count_DF.reshape(len(document_D), NUM_FEATURES)
    return _unit(np.copysign(np.log1p(np.abs(count_DF)), count_DF).astype(np.float32))


def spherical_kmeans(unit_DF: np.ndarray, num_groups: int, rng: np.random.Generator) -> np.ndarray:
    """Centres, (K, F), of at most `num_groups` groups of unit vectors: the best of several starts.

    A start is K-means++: each next centre is drawn with probability proportional to its distance
    (1 - cosine) from the nearest centre so far. There are fewer groups than asked for if there are
    fewer distinct documents.
    """
    best_KF, best_cohesion = unit_DF[:1], -np.inf
    for _ in range(RESTARTS):
        chosen = [int(rng.integers(len(unit_DF)))]
        distance_D = np.full(len(unit_DF), np.inf)
        for _ in range(1, num_groups):
            distance_D = np.minimum(distance_D, 1 - unit_DF @ unit_DF[chosen[-1]])
            distance_D[distance_D < 1e-6] = 0  # the same document, up to rounding
            total_D = distance_D.cumsum()
            if total_D[-1] == 0:
                break
            chosen.append(int(np.searchsorted(total_D, rng.random() * total_D[-1], side="right")))
        centre_KF = unit_DF[chosen]
        for _ in range(ITERATIONS):
            before_KF, centre_KF = centre_KF, moved_centres(unit_DF, centre_KF)
            if np.array_equal(before_KF, centre_KF):
                break
        cohesion = float((unit_DF @ centre_KF.T).max(axis=1).sum(dtype=np.float64))
        if cohesion > best_cohesion:
            best_KF, best_cohesion = centre_KF, cohesion
    return best_KF


def moved_centres(unit_DF: np.ndarray, centre_KF: np.ndarray) -> np.ndarray:
    """One iteration: each centre moves to the mean direction of the documents nearest to it.

    Ties go to the lower index. A centre without documents moves to the document that is least
    similar to its own centre.
    """
    similarity_DK = unit_DF @ centre_KF.T
    member_KD = np.eye(len(centre_KF), dtype=np.float32)[:, similarity_DK.argmax(axis=1)]
    moved_KF = _unit(member_KD @ unit_DF)
    empty = np.flatnonzero(member_KD.sum(axis=1) == 0)
    moved_KF[empty] = unit_DF[similarity_DK.max(axis=1).argsort(kind="stable")[: len(empty)]]
    return moved_KF


def _unit(vector_DF: np.ndarray) -> np.ndarray:
    """Rows scaled to length 1; a row of zeros stays."""
    length_D = np.linalg.norm(vector_DF, axis=1, keepdims=True)
    return vector_DF / np.where(length_D > 0, length_D, 1)


def split_into_strata(directory: Path, manifest: Manifest, num_strata: int, seed: int) -> Manifest:
    """Divide every source of a built corpus into at most `num_strata` strata, none empty.

    They are named "<source>/0", "<source>/1" and so on, by decreasing number of training tokens,
    or by decreasing score (--toward). Their files are new; the manifest no longer names those of
    whole sources.
    """
    for entry in (*manifest.train, *manifest.validation):
        names = {name for group in range(num_strata) for name in _new_files(entry, group)}
        if taken := sorted(names.intersection(manifest.files())):
            raise CorpusError(
                f'the strata of "{entry.source}" need the file name {taken[0]}, which another '
                "source has; give one of the two another name"
            )
    bytes_V = None
    if manifest.tokenizer.file is not None:
        bytes_V = token_bytes(directory / manifest.tokenizer.file, manifest.tokenizer.eot_id)
    validation = {entry.source: entry for entry in manifest.validation}
    new_train: list[StratumEntry] = []
    new_validation: list[StratumEntry] = []
    for entry in manifest.train:
        stratum = StratumTokens(directory, entry)
        sample_D = np.arange(entry.documents)  # that groups are fitted on
        if entry.documents > SAMPLE_DOCUMENTS:
            rng = stream(seed, "strata", "sample", entry.source)
            sample_D = np.sort(rng.choice(entry.documents, SAMPLE_DOCUMENTS, replace=False))
        assign: Assign
        if stratum.documents.dtype == SCORED_DTYPE:
            assign = by_score(stratum, sample_D, num_strata)
            label_D = _labelled(stratum, assign)
        else:
            assign = Nearest(stratum, sample_D, num_strata, seed)
            label_D = _ranked_by_size(stratum, assign)
        new_train += _write_strata(stratum, label_D, bytes_V)
        if entry.source in validation:
            stratum = StratumTokens(directory, validation.pop(entry.source))
            new_validation += _write_strata(stratum, _labelled(stratum, assign), bytes_V)
    new_validation += validation.values()  # of sources without training text to fit groups on
    return manifest.model_copy(update={"train": new_train, "validation": new_validation})


def _new_files(entry: StratumEntry, group: int) -> tuple[str, str]:
    """Names of a group's token and document files, relative to the manifest."""
    # The name of a file that is outside the corpus, or holds several strata, is not used.
    is_own = not Path(entry.file).is_absolute() and entry.first_token == 0
    tokens = Path(entry.file if is_own else entry.documents_file).with_suffix(f".{group}.bin")
    return tokens.as_posix(), Path(entry.documents_file).with_suffix(f".{group}.npy").as_posix()


def _ranked_by_size(stratum: StratumTokens, nearest: Nearest) -> np.ndarray:
    """Assign the training documents and renumber the groups: largest first, none empty."""
    label_D = _labelled(stratum, nearest)
    tokens_K = np.zeros(len(nearest.centre_KF), dtype=np.int64)
    for first, own_D in pieces(label_D):
        start_D, end_D = stratum.spans(first + np.arange(len(own_D)))
        np.add.at(tokens_K, own_D, end_D - start_D)
    order_K = np.argsort(-tokens_K, kind="stable")
    rank_K = np.argsort(order_K)
    for _, own_D in pieces(label_D):
        own_D[:] = rank_K[own_D]
    nearest.centre_KF = nearest.centre_KF[order_K[: np.count_nonzero(tokens_K)]]
    return label_D


def _write_strata(
    stratum: StratumTokens, label_D: np.ndarray, bytes_V: np.ndarray | None
) -> list[StratumEntry]:
    """Copy the documents of each group, in document order, to files of its own: their entries."""
    old, directory, token_N = stratum.entry, stratum.directory, stratum.token_N
    sizes = Counter(group for _, own_D in pieces(label_D) for group in own_D.tolist())
    entries = []
    for group, num_documents in sorted(sizes.items()):
        file, documents_file = _new_files(old, group)
        parts = pieces(label_D, CHUNK_DOCUMENTS)
        own = (first + np.flatnonzero(part_D == group) for first, part_D in parts)
        members = ((stratum.spans(own_D)[0], stratum.documents[own_D]) for own_D in own)
        with open(directory / file, "wb") as output:
            copied = copy_documents(output, token_N, members)
            write_document_index(directory / documents_file, copied, num_documents)
            num_tokens = output.tell() // token_N.itemsize
        num_bytes = None
        if bytes_V is not None:
            own_N = np.memmap(directory / file, token_N.dtype, "r")
            num_bytes = sum(int(bytes_V[piece_N].sum()) for _, piece_N in pieces(own_N))
        counts = {"tokens": num_tokens, "documents": num_documents, "bytes": num_bytes}
        files = {"file": file, "sha256": sha256_of(directory / file), "first_token": 0}
        files |= {"documents_file": documents_file, "header_bytes": 0}
        entries.append(old.model_copy(update={"stratum": f"{old.source}/{group}"} | counts | files))
    if sum(entry.bytes or 0 for entry in entries) == old.bytes:
        return entries
    if old.bytes is not None:
        log.warning(
            'the bytes of the strata of "%s" are unknown, and so are its bits per byte: its '
            "tokenizer changes the text or is not byte-level",
            old.source,
        )
    return [entry.model_copy(update={"bytes": None}) for entry in entries]

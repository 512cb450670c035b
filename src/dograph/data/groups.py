"""Groups of like documents inside one source, found without labels.

A document's features are its token 1- and 2-grams, hashed with signs into F buckets; spherical
K-means on a bounded sample of the documents finds the groups. Features exist for one chunk of
documents at a time, so memory does not grow with the source.

Shapes: D documents, N tokens, F features, K groups.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dograph.data.tokens import StratumTokens
from dograph.rng import key64, stream

NUM_FEATURES = 1024
FEATURE_TOKENS = 4096  # of a longer document, the first so many are looked at
CHUNK_DOCUMENTS = 256
SAMPLE_DOCUMENTS = 10_000  # of a source, to find its groups by
ITERATIONS = 25
RESTARTS = 4


@dataclass(frozen=True, slots=True)
class Groups:
    """What it takes to say which group a document belongs to."""

    salt: int  # of the n-gram hash
    mean_F: np.ndarray  # features of the average document, which tell no two groups apart
    centre_KF: np.ndarray  # unit vectors

    def nearest(self, stratum: StratumTokens, document_D: np.ndarray) -> np.ndarray:
        """The group of each of these documents, (D,). Ties go to the lower index."""
        unit_DF = _unit(ngram_features(stratum, document_D, self.salt) - self.mean_F)
        group_D: np.ndarray = (unit_DF @ self.centre_KF.T).argmax(axis=1)
        return group_D


def find_groups(stratum: StratumTokens, num_groups: int, seed: int) -> Groups:
    """At most `num_groups` groups, and no more than there are documents."""
    source, num_documents = stratum.entry.source, stratum.entry.documents
    salt = key64(seed, "strata", "hash")
    sample_D = np.arange(min(num_documents, SAMPLE_DOCUMENTS))
    if num_documents > SAMPLE_DOCUMENTS:
        rng = stream(seed, "strata", "sample", source)
        sample_D = np.sort(rng.choice(num_documents, SAMPLE_DOCUMENTS, replace=False))
    feature_DF = np.concatenate(
        [ngram_features(stratum, sample_D[chunk_D], salt) for chunk_D in chunks(len(sample_D))]
    )
    mean_F = feature_DF.mean(axis=0)
    rng = stream(seed, "strata", "kmeans", source)
    centre_KF = spherical_kmeans(_unit(feature_DF - mean_F), min(num_groups, num_documents), rng)
    return Groups(salt, mean_F, centre_KF)


def ngram_features(stratum: StratumTokens, document_D: np.ndarray, salt: int) -> np.ndarray:
    """Signed hashed counts of token 1- and 2-grams, log-scaled, as unit vectors, (D, F)."""
    start_D, end_D = spans(stratum, document_D)
    length_D = np.minimum(end_D - start_D, FEATURE_TOKENS)
    document_N = np.repeat(np.arange(len(document_D)), length_D)
    skip_D = start_D - (length_D.cumsum() - length_D)
    token_N = stratum.token_N[np.arange(len(document_N)) + np.repeat(skip_D, length_D)]
    one_N = _mix(token_N.astype(np.uint64) + np.uint64(salt))
    two_N = _mix(one_N[:-1] + token_N[1:].astype(np.uint64))
    inside_N = document_N[1:] == document_N[:-1]  # a pair across two documents is no pair
    hash_N = np.concatenate([one_N, two_N[inside_N]])
    row_N = np.concatenate([document_N, document_N[1:][inside_N]])
    bucket_N = row_N * NUM_FEATURES + (hash_N % np.uint64(NUM_FEATURES)).astype(np.int64)
    sign_N = np.where(hash_N >> np.uint64(63), 1.0, -1.0)
    count_DF = np.bincount(bucket_N, sign_N, len(document_D) * NUM_FEATURES)
    count_DF = count_DF.reshape(len(document_D), NUM_FEATURES)
    return _unit(np.copysign(np.log1p(np.abs(count_DF)), count_DF).astype(np.float32))


def spherical_kmeans(unit_DF: np.ndarray, num_groups: int, rng: np.random.Generator) -> np.ndarray:
    """Centres, (K, F), of at most `num_groups` groups of unit vectors: the best of several starts.

    There are fewer groups than asked for where there are fewer distinct documents.
    """
    best_KF, best_cohesion = unit_DF[:1], -np.inf
    for _ in range(RESTARTS):
        centre_KF = _plus_plus(unit_DF, num_groups, rng)
        for _ in range(ITERATIONS):
            before_KF, centre_KF = centre_KF, moved_centres(unit_DF, centre_KF)
            if np.array_equal(before_KF, centre_KF):
                break
        cohesion = float((unit_DF @ centre_KF.T).max(axis=1).sum(dtype=np.float64))
        if cohesion > best_cohesion:
            best_KF, best_cohesion = centre_KF, cohesion
    return best_KF


def moved_centres(unit_DF: np.ndarray, centre_KF: np.ndarray) -> np.ndarray:
    """One iteration: each centre moves to the middle of the documents nearest to it.

    Ties go to the lower index. A centre without documents moves to the document that is least like
    its own centre.
    """
    similarity_DK = unit_DF @ centre_KF.T
    member_KD = np.eye(len(centre_KF), dtype=np.float32)[:, similarity_DK.argmax(axis=1)]
    moved_KF = _unit(member_KD @ unit_DF)
    empty = np.flatnonzero(member_KD.sum(axis=1) == 0)
    lonely = similarity_DK.max(axis=1).argsort(kind="stable")[: len(empty)]
    moved_KF[empty] = unit_DF[lonely]
    return moved_KF


def spans(stratum: StratumTokens, document_D: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First token of each of these documents, and one past its last."""
    end_D = stratum.documents["end"]
    return np.where(document_D > 0, end_D[document_D - 1], 0), end_D[document_D]


def chunks(num_documents: int) -> Iterator[np.ndarray]:
    """The numbers from 0 to `num_documents`, a chunk at a time."""
    for start in range(0, num_documents, CHUNK_DOCUMENTS):
        yield np.arange(start, min(start + CHUNK_DOCUMENTS, num_documents))


def _plus_plus(unit_DF: np.ndarray, num_groups: int, rng: np.random.Generator) -> np.ndarray:
    """K-means++: each next centre with probability proportional to its squared distance."""
    chosen = [int(rng.integers(len(unit_DF)))]
    distance_D = np.full(len(unit_DF), np.inf)
    for _ in range(1, num_groups):
        distance_D = np.minimum(distance_D, 1 - unit_DF @ unit_DF[chosen[-1]])
        distance_D[distance_D < 1e-6] = 0  # the same document, up to rounding
        total_D = distance_D.cumsum()
        if total_D[-1] == 0:
            break
        chosen.append(int(np.searchsorted(total_D, rng.random() * total_D[-1], side="right")))
    return unit_DF[chosen]


def _unit(vector_DF: np.ndarray) -> np.ndarray:
    """Rows scaled to length 1; a row of zeros stays."""
    length_D = np.linalg.norm(vector_DF, axis=1, keepdims=True)
    unit_DF: np.ndarray = vector_DF / np.where(length_D > 0, length_D, 1)
    return unit_DF


def _mix(key_N: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64: every bit of the key reaches every bit of the hash."""
    key_N = (key_N ^ (key_N >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    key_N = (key_N ^ (key_N >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    hash_N: np.ndarray = key_N ^ (key_N >> np.uint64(31))
    return hash_N

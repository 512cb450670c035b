"""Groups of documents: features by their properties, K-means against scikit-learn."""

import numpy as np
import pytest

from dograph.data.corpus import StratumTokens
from dograph.data.strata import moved_centres, ngram_features, spherical_kmeans
from dograph.rng import stream
from token_corpora import random_tokens, write_split


def test_features_of_a_document_do_not_depend_on_its_neighbours(tmp_path):
    tokens = random_tokens(50)
    together = write_split(tmp_path, "train", "together", tokens)
    alone = write_split(tmp_path, "train", "alone", tokens[20:21])
    np.testing.assert_array_equal(
        ngram_features(StratumTokens(tmp_path, together), np.array([3, 20]), salt=5)[1],
        ngram_features(StratumTokens(tmp_path, alone), np.array([0]), salt=5)[0],
    )


def test_features_see_the_order_of_tokens(tmp_path):
    entry = write_split(tmp_path, "train", "web", [[1, 2, 3, 4], [1, 2, 3, 4], [4, 3, 2, 1]])
    feature = ngram_features(StratumTokens(tmp_path, entry), np.arange(3), salt=5)
    np.testing.assert_allclose(np.linalg.norm(feature, axis=1), 1, rtol=1e-6)
    assert feature[0] @ feature[1] == pytest.approx(1)
    assert feature[0] @ feature[2] < 0.8


def mixed(value):
    """SplitMix64's finaliser on Python's integers."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        value = (value ^ value >> shift) * factor % 2**64
    return value


def test_features_are_signed_counts_of_hashes(tmp_path):
    """By a loop: the highest bit is the sign, the lowest ten are the bucket."""
    tokens = random_tokens(6)
    expected = np.zeros((len(tokens), 1024))
    for row, document in zip(expected, tokens, strict=True):
        ones = [mixed(int(token) + 5) for token in document]
        twos = [mixed((one + int(b)) % 2**64) for one, b in zip(ones, document[1:], strict=False)]
        for key in (*ones, *twos):
            row[key % 1024] += 1 if key >> 63 else -1
    expected = np.sign(expected) * np.log1p(np.abs(expected))
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    stratum = StratumTokens(tmp_path, write_split(tmp_path, "train", "web", tokens))
    got = ngram_features(stratum, np.arange(len(tokens)), salt=5)
    np.testing.assert_allclose(got, expected, atol=1e-6)


def test_kmeans_is_as_good_as_the_reference_on_the_sphere():
    cluster = pytest.importorskip("sklearn.cluster", reason="scikit-learn is the judge here")
    rng = stream(0, "sphere")
    point = rng.normal(size=(400, 16)) + 2 * rng.normal(size=(8, 16))[rng.integers(0, 8, 400)]
    unit = (point / np.linalg.norm(point, axis=1, keepdims=True)).astype(np.float32)
    centre = spherical_kmeans(unit, 8, stream(0, "start"))
    reference = cluster.KMeans(8, n_init=10, random_state=0).fit(unit).cluster_centers_
    reference /= np.linalg.norm(reference, axis=1, keepdims=True)
    cohesion, best = ((unit @ c.T).max(axis=1).mean() for c in (centre, reference))
    assert cohesion > 0.99 * best


def test_a_centre_without_documents_moves_to_the_loneliest_one():
    angle = np.deg2rad([0, 5, 10, 100])
    unit = np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)
    moved = moved_centres(unit, unit[[1, 1]])  # a tie everywhere: all documents go to the first
    mean = unit.sum(axis=0)
    np.testing.assert_allclose(moved, [mean / np.linalg.norm(mean), unit[3]], atol=1e-6)

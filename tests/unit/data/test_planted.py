"""Planted corpora against their stated truth, with scipy and scikit-learn as judges."""

import math
from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from dograph.data import embedded as planted
from dograph.errors import ConfigError

KINDS = ["unigram", "bigram"]
SOURCES = [*planted.ZIPF_EXPONENTS, planted.NOISE]
V = planted.NUM_WORDS


@pytest.fixture(scope="module", params=KINDS)
def corpus(request):
    """A kind, and the word indices of its documents by source, (D, T) each."""
    place = {word: index for index, word in enumerate(planted.vocabulary())}
    words = {}
    for source, text in planted.planted_documents(request.param, noise=True):
        words.setdefault(source, []).append([place[word] for word in text.split(" ")])
    return request.param, {source: np.array(rows) for source, rows in words.items()}


def entropy_rate(kind, source):
    """Entropy of the next word in nats given the chain: the lowest loss that any model can have.

    H = -sum_i p_i sum_j P_ij log P_ij, with p stationary. The first word of a document has the
    entropy of p itself.
    """
    p_V, next_VV = planted.word_probabilities(kind, source), planted.transitions(kind, source)
    return float(-p_V @ (next_VV * np.log(next_VV)).sum(axis=1))


def test_words_are_distinct_and_pronounceable():
    words = planted.vocabulary()
    assert len(set(words)) == len(words) == V
    assert all(word[1] in "aeiou" and word[3] in "aeiou" for word in words)


def test_shape_of_the_corpus(corpus):
    _, words = corpus
    assert list(words) == SOURCES
    assert all(word_DT.shape == (300, 300) for word_DT in words.values())


def test_noise_is_left_out_unless_asked_for():
    documents = planted.planted_documents("bigram", num_documents=2, num_words=5)
    sources = Counter(source for source, _ in documents)
    assert sources == dict.fromkeys(SOURCES[:-1], 2)
    assert planted.NOISE not in sources


def test_another_seed_gives_another_corpus_and_the_same_seed_the_same():
    def texts(seed):
        return list(planted.planted_documents("bigram", seed=seed, num_documents=3, num_words=20))

    assert texts(0) == texts(0)
    assert not set(texts(0)) & set(texts(1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("source", SOURCES)
def test_transitions_are_a_chain_with_the_stated_stationary_distribution(kind, source):
    next_VV = planted.transitions(kind, source)
    assert (next_VV > 0).all()  # hence irreducible and aperiodic: one stationary distribution
    np.testing.assert_allclose(next_VV.sum(axis=1), 1, atol=1e-12)
    eigenvalues, vectors = np.linalg.eig(next_VV.T)
    leading = vectors[:, np.argmax(eigenvalues.real)].real
    np.testing.assert_allclose(
        leading / leading.sum(), planted.word_probabilities(kind, source), atol=1e-10
    )


def test_bigram_sources_share_frequencies_but_few_favoured_pairs():
    favoured = []
    for source in SOURCES[:-1]:
        next_VV = planted.transitions("bigram", source)
        np.testing.assert_allclose(next_VV.sum(axis=0), 1, atol=1e-12)  # doubly stochastic
        favoured.append(next_VV > 2 / V)
        assert 5 * V < favoured[-1].sum() <= planted.NUM_SUCCESSORS * V  # some coincide
        assert next_VV[favoured[-1]].sum() > 0.9 * V
    for i, first_VV in enumerate(favoured):
        for second_VV in favoured[:i]:
            assert (first_VV & second_VV).sum() < 0.2 * first_VV.sum()


def test_frequencies_and_pairs_are_the_planted_ones(corpus):
    kind, words = corpus
    for source, word_DT in words.items():
        p_V = planted.word_probabilities(kind, source)
        # First words of documents are independent, as a chi-square test asks; later words are not.
        first = np.bincount(word_DT[:, 0], minlength=V)
        assert chisquare(first, p_V * first.sum()).pvalue > 1e-4
        pair_VV = _pair_counts(word_DT)
        expected_VV = planted.transitions(kind, source) * pair_VV.sum(axis=1, keepdims=True)
        statistic = ((pair_VV - expected_VV) ** 2 / expected_VV).sum()
        freedom = V * (V - 1)
        assert abs(statistic - freedom) < 5 * math.sqrt(2 * freedom)


def test_entropy_rate_is_what_a_model_that_knows_the_chain_pays(corpus):
    kind, words = corpus
    for source, word_DT in words.items():
        next_VV = planted.transitions(kind, source)
        cost_N = -np.log(next_VV[word_DT[:, :-1], word_DT[:, 1:]]).ravel()
        error = cost_N.std() / math.sqrt(cost_N.size)
        assert abs(cost_N.mean() - entropy_rate(kind, source)) < 4 * error + 1e-12


def test_noise_cannot_be_predicted_and_every_other_source_can():
    for kind in KINDS:
        rates = {source: entropy_rate(kind, source) for source in SOURCES}
        assert rates.pop("noise") == pytest.approx(math.log(V))
        assert max(rates.values()) < math.log(V) - 0.2
        assert len({round(rate, 2) for rate in rates.values()}) == len(rates)


@pytest.mark.parametrize("with_noise", [False, True])
def test_what_bag_of_words_and_bag_of_pairs_can_see(corpus, with_noise):
    kind, words = corpus
    sources = SOURCES if with_noise else SOURCES[:-1]
    word_DT = np.concatenate([words[source][:100] for source in sources])
    truth_D = np.repeat(np.arange(len(sources)), 100)
    bag_DV = np.stack([np.bincount(row_T, minlength=V) for row_T in word_DT])
    pairs_DP = np.stack([_pair_counts(row_T[None]).ravel() for row_T in word_DT])
    if kind == "unigram":
        assert _agreement(bag_DV, truth_D) > 0.99
    else:
        assert _agreement(bag_DV, truth_D) < 0.05
        assert _agreement(np.sqrt(pairs_DP), truth_D) > 0.95


@pytest.mark.parametrize(("kind", "source"), [("trigram", "alpha"), ("bigram", "alhpa")])
def test_unknown_names_are_refused_with_the_nearest_known_one(kind, source):
    with pytest.raises(ConfigError, match=r'did you mean "(bigram|unigram|alpha)"'):
        entropy_rate(kind, source)


def _pair_counts(word_DT):
    pair = word_DT[:, :-1] * V + word_DT[:, 1:]
    return np.bincount(pair.ravel(), minlength=V * V).reshape(V, V)


def _agreement(feature_DF, truth_D):
    """Normalised mutual information between the truth and K-means on these features."""
    cluster = pytest.importorskip("sklearn.cluster", reason="scikit-learn is the judge here")
    metrics = pytest.importorskip("sklearn.metrics")
    kmeans = cluster.KMeans(len(set(truth_D)), n_init=3, random_state=0)
    return metrics.normalized_mutual_info_score(truth_D, kmeans.fit_predict(feature_DF))

"""Planted corpora: made-up text whose sources, and whose best possible loss, are known exactly.

Every source is a stationary Markov chain over one vocabulary, shared by all:

- `unigram`: words are drawn independently; the sources differ in word frequencies.
- `bigram`: every word is equally frequent in every source; the sources differ only in which word
  follows which, so nothing that counts single words can tell them apart.

The optional source `noise` draws words independently and uniformly: there is nothing to learn.

Shapes: V words of the vocabulary, D documents.
"""

from collections.abc import Iterator
from typing import Literal

import numpy as np

from dograph.data.documents import Document
from dograph.errors import ConfigError, did_you_mean
from dograph.rng import stream

Kind = Literal["unigram", "bigram"]

NUM_WORDS = 64
NOISE = "noise"
# Frequency of the r-th most frequent word of a source is proportional to r ** -exponent. The
# exponents differ, so that the sources differ in how predictable they are.
ZIPF_EXPONENTS = {"alpha": 0.8, "beta": 1.0, "gamma": 1.2, "delta": 1.4}
NUM_SUCCESSORS = 6  # words that usually follow a word, each as often, other ones in every source
# How often a word is followed by one of them rather than by any word; the sources differ here too.
FOLLOW_PROBABILITIES = {"alpha": 0.995, "beta": 0.99, "gamma": 0.98, "delta": 0.97}


def planted_documents(
    kind: Kind,
    *,
    noise: bool = False,
    seed: int = 0,
    num_documents: int = 300,
    num_words: int = 300,
) -> Iterator[Document]:
    """A planted corpus, source by source: `num_documents` of `num_words` words in each."""
    words = vocabulary(seed)
    for source in source_names(noise=noise):
        first_V = word_probabilities(kind, source, seed)
        next_VV = transitions(kind, source, seed)
        rng = stream(seed, "planted", kind, source)
        for word_T in _sample(first_V, next_VV, (num_documents, num_words), rng):
            yield Document(source, " ".join(words[word] for word in word_T))


def source_names(*, noise: bool = False) -> list[str]:
    return [*ZIPF_EXPONENTS, NOISE] if noise else list(ZIPF_EXPONENTS)


def vocabulary(seed: int = 0) -> list[str]:
    """The made-up words; a word's place here is its index in every array of this module."""
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    picked = stream(seed, "planted", "vocabulary").choice(
        len(syllables) ** 2, size=NUM_WORDS, replace=False
    )
    return [
        syllables[first] + syllables[second]
        for first, second in (divmod(int(index), len(syllables)) for index in picked)
    ]


def word_probabilities(kind: Kind, source: str, seed: int = 0) -> np.ndarray:
    """How frequent each word is in a source, (V,): the stationary distribution of its chain."""
    _check(kind, source)
    if kind == "bigram" or source == NOISE:
        return np.full(NUM_WORDS, 1 / NUM_WORDS)
    weight_V = np.arange(1.0, NUM_WORDS + 1) ** -ZIPF_EXPONENTS[source]
    rank_V = stream(seed, "planted", "ranks", source).permutation(NUM_WORDS)
    frequency_V: np.ndarray = weight_V[rank_V] / weight_V.sum()
    return frequency_V


def transitions(kind: Kind, source: str, seed: int = 0) -> np.ndarray:
    """Probability of the next word (column) given this one (row), (V, V).

    In `bigram` this is a mixture of the uniform matrix and six random permutations. All are doubly
    stochastic, hence so is the mixture, hence the uniform distribution is stationary. Every source
    has its own six.
    """
    _check(kind, source)
    if kind == "unigram" or source == NOISE:
        return np.tile(word_probabilities(kind, source, seed), (NUM_WORDS, 1))
    rng = stream(seed, "planted", "permutations", source)
    eye_VV = np.eye(NUM_WORDS)
    follow = FOLLOW_PROBABILITIES[source]
    permuted = [eye_VV[rng.permutation(NUM_WORDS)] for _ in range(NUM_SUCCESSORS)]
    next_VV: np.ndarray = (1 - follow) / NUM_WORDS + follow * np.mean(permuted, axis=0)
    return next_VV


def entropy_rate(kind: Kind, source: str, seed: int = 0) -> float:
    """Nats per word that remain when the chain is known: no model's loss can be lower.

    H = -sum_i p_i sum_j P_ij log P_ij, with p stationary. The first word of a document costs
    more: the entropy of p itself.
    """
    p_V, next_VV = word_probabilities(kind, source, seed), transitions(kind, source, seed)
    return float(-p_V @ (next_VV * np.log(next_VV)).sum(axis=1))


def _sample(
    first_V: np.ndarray, next_VV: np.ndarray, shape: tuple[int, int], rng: np.random.Generator
) -> np.ndarray:
    """Word indices, (D, T), from a chain that starts in its stationary distribution."""
    num_documents, num_words = shape
    word_DT = np.empty(shape, dtype=np.int64)
    # Inverse transform sampling; the last threshold is left out, for rounding may put it below 1.
    threshold_VV = next_VV.cumsum(axis=1)[:, :-1]
    word_DT[:, 0] = np.searchsorted(first_V.cumsum()[:-1], rng.random(num_documents), side="right")
    for position in range(1, num_words):
        threshold_DV = threshold_VV[word_DT[:, position - 1]]
        word_DT[:, position] = (threshold_DV <= rng.random((num_documents, 1))).sum(axis=1)
    return word_DT


def _check(kind: str, source: str) -> None:
    if kind not in ("unigram", "bigram"):
        raise ConfigError(
            f'no planted corpus "{kind}"; {did_you_mean(kind, ["unigram", "bigram"])}'
        )
    if source not in source_names(noise=True):
        raise ConfigError(
            f'no planted source "{source}"; {did_you_mean(source, source_names(noise=True))}'
        )

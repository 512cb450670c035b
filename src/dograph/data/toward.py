"""Scores of documents towards trusted text, from hashed words and word pairs (`--toward FILES`).

A document's score is the mean over its n-grams of a log-ratio (DSIR, Xie et al. 2023, has the sum;
with the mean, length does not decide), scaled:

    raw score = 1/n sum_g log(p_trusted(g) / p_corpus(g))   over its n words and pairs g
    p_corpus(g) = (count + 1) / (total + F)                 from a sample of the training text
    p_trusted(g) = (count + MU p_corpus(g)) / (total + MU)

With add-one smoothing of both, an n-gram that neither text has would count for the smaller one, so
that noise would score highest. Here it counts against trusted text.

A document that is also among the trusted ones is scored without its own counts. So are all trusted
documents, one at a time, and scores are scaled by what they get: 0 is the score that nine in ten
of them reach (a threshold for filters), 1 their median.

Shapes: N bytes or n-grams, D documents, F buckets.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

from dograph.data.sampler import mix64
from dograph.errors import CorpusError

BUCKET_BITS = 18
NUM_BUCKETS = 1 << BUCKET_BITS
MU = 10_000.0  # n-grams; docs/log.md has the figures behind both
MOST_BYTES = 1 << 20  # of a document that are read
LEAST_DOCUMENTS = 10  # of trusted text
LOW_QUANTILE = 0.1  # of the scores of trusted documents
_AT_ONCE = 256  # documents
LONGEST = 16  # bytes of a word
_POWER = np.cumprod(np.full(LONGEST, 1099511628211, np.uint64))
# A byte is a space (0), part of a word (2: letters, digits, _ and all beyond ASCII) or another (1).
_LOWER = np.frombuffer(bytes(range(256)).lower(), np.uint8)
_WORD = b"_0123456789abcdefghijklmnopqrstuvwxyz" + bytes(range(128, 256))
_KIND = np.array([0 if b in b" \t\n\r\v\f" else 1 + (b in _WORD) for b in _LOWER], np.uint8)


def hashed_ngrams(texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """The bucket of every word and pair of adjacent words, and the document that it is in.

    A word is a run of bytes of one kind, in lower case; longer ones than LONGEST are cut. The hash
    of b_1 ... b_n is the sum of b_j 1099511628211^j modulo 2^64, mixed.
    """
    cut = [text[:MOST_BYTES] for text in texts]
    byte_N = np.frombuffer(b"\n".join([*cut, b""]), np.uint8)
    kind_N = _KIND[byte_N]
    run = np.concatenate([[0], np.flatnonzero(kind_N[1:] != kind_N[:-1]) + 1])
    place_N = np.arange(len(byte_N)) - np.repeat(run, np.diff(run, append=len(byte_N)))
    place_N %= LONGEST
    start = np.flatnonzero(place_N == 0)
    plain = np.add.reduceat(_LOWER[byte_N] * _POWER[place_N], start)
    is_word = kind_N[start] > 0
    plain, start = plain[is_word], start[is_word]
    document = np.searchsorted(np.cumsum([len(text) + 1 for text in cut]), start, side="right")
    one = mix64(plain)
    inside = document[1:] == document[:-1]
    two = mix64(one[:-1] + plain[1:])[inside]
    bucket_N = (np.concatenate([one, two]) >> np.uint64(64 - BUCKET_BITS)).astype(np.int64)
    return bucket_N, np.concatenate([document, document[1:][inside]])


class TextScorer:
    """Scores documents; the scores depend neither on their order nor on how they are grouped."""

    zero, one = 0.0, 1.0  # raw scores that are scaled to 0 and to 1

    def __init__(self, trusted: Iterable[bytes], corpus: Iterable[bytes]) -> None:
        """From trusted text, which is kept in memory, and a sample of the corpus."""
        self.trusted = dict.fromkeys(trusted)
        if len(self.trusted) < LEAST_DOCUMENTS:
            raise CorpusError(
                f"--toward needs at least {LEAST_DOCUMENTS} different documents, got "
                f"{len(self.trusted)}: each is set aside in turn to learn which scores trusted "
                "text gets. Give more, or cut long texts, as in a .jsonl with a paragraph a line"
            )
        self.trusted_F, corpus_F = np.zeros((2, NUM_BUCKETS), np.int64)
        for count_F, texts in ((self.trusted_F, self.trusted), (corpus_F, corpus)):
            for some in _batches(texts):
                count_F += np.bincount(hashed_ngrams(some)[0], minlength=NUM_BUCKETS)
        self.corpus_F = (corpus_F + 1) / (corpus_F.sum() + NUM_BUCKETS)  # probabilities
        score_D = np.concatenate([self(some) for some in _batches(self.trusted)])
        self.zero, median = np.quantile(score_D, [LOW_QUANTILE, 0.5]).tolist()
        self.one = max(median, self.zero + 1e-3)  # all may have the same score

    def __call__(self, texts: Sequence[bytes]) -> np.ndarray:
        """The score of each text, (D,) in float32; that of unseen words if it has none."""
        bucket_N, document_N = hashed_ngrams(texts)
        count_N, total = self.trusted_F[bucket_N], self.trusted_F.sum()
        total_N = np.full(len(count_N), total)
        for document in [d for d, text in enumerate(texts) if text in self.trusted]:
            own = np.flatnonzero(document_N == document)
            _, place, count = np.unique(bucket_N[own], return_inverse=True, return_counts=True)
            count_N[own] -= count[place]
            total_N[own] -= len(own)
        ratio_N = np.log((count_N / self.corpus_F[bucket_N] + MU) / (total_N + MU))
        # bincount adds in the order of the n-grams, whatever other documents there are
        count_D = np.bincount(document_N, minlength=len(texts))
        score_D = np.bincount(document_N, ratio_N, len(texts)) / np.maximum(count_D, 1)
        score_D = np.where(count_D, score_D, np.log(MU / (total + MU)))
        return ((score_D - self.zero) / (self.one - self.zero)).astype(np.float32)


def _batches(texts: Iterable[bytes]) -> Iterator[list[bytes]]:
    rest = iter(texts)
    while some := list(islice(rest, _AT_ONCE)):
        yield some

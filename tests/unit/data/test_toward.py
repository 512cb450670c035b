"""Scores towards trusted text: by an oracle in plain Python, junk found, kills, strata by score."""

import math
import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from dograph.data import formats
from dograph.data import pipeline as preparation
from dograph.data.corpus import DOCUMENT_DTYPE, Corpus
from dograph.data.digests import verify
from dograph.data.embedded import JUNK, junk_documents, planted_documents
from dograph.data.inputs import PrepareOptions
from dograph.data.pipeline import prepare as prepare_corpus
from dograph.data.sampler import sample_origin
from dograph.data.toward import MU, TextScorer
from dograph.errors import ConfigError, CorpusError
from dograph.rng import stream
from dograph.types import SampleIds
from text_inputs import files_of, prepare, text, write_jsonl, write_tokenizer

WORD = rb"[0-9a-z_\x80-\xff]{1,16}|[^\s0-9a-z_\x80-\xff]{1,16}"
ODD = ["  \n\t", "x" * 50, "Größe; 数学数学数学数学 -- a_b2  A_B2?!", "one", "!" * 40 + " ok"]


def mixed(value):
    """SplitMix64's finaliser, with Python's integers."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
    return value ^ (value >> 31)


def ngrams(content):
    """The buckets of a text, one word and one pair after another."""
    plain = [
        sum(byte * 1099511628211 ** (j + 1) for j, byte in enumerate(word)) % 2**64
        for word in re.findall(WORD, content.lower())
    ]
    pairs = pairwise(plain)
    hashes = [mixed(one) for one in plain]
    hashes += [mixed((mixed(one) + two) % 2**64) for one, two in pairs]
    return [value >> (64 - 18) for value in hashes]


def oracle(content, trusted, corpus):
    """A document's score in nats; it is not in `trusted`."""
    trust = Counter(gram for other in trusted for gram in ngrams(other))
    common = Counter(gram for other in corpus for gram in ngrams(other))
    num_trust, num_common = trust.total(), common.total()
    ratios = []
    for gram in ngrams(content):
        p_corpus = (common[gram] + 1) / (num_common + 2**18)
        p_trusted = (trust[gram] + MU * p_corpus) / (num_trust + MU)
        ratios.append(math.log(p_trusted / p_corpus))
    return sum(ratios) / len(ratios) if ratios else math.log(MU / (num_trust + MU))


def scaled(raw, trusted, corpus):
    """Raw scores, as 0 is the tenth percentile of trusted documents set aside, 1 their median."""
    aside = [oracle(t, [o for o in trusted if o != t], corpus) for t in dict.fromkeys(trusted)]
    low, median = np.quantile(aside, [0.1, 0.5])
    return (np.array(raw) - low) / (median - low)


TRUSTED = [text(n, 20).encode() for n in range(500, 512)]
RAW = [text(n, 30).encode() for n in range(20)] + [odd.encode() for odd in ODD]


def test_scores_are_those_of_a_plain_oracle():
    scorer = TextScorer(TRUSTED, RAW)
    expected = scaled([oracle(content, TRUSTED, RAW) for content in RAW], TRUSTED, RAW)
    np.testing.assert_allclose(scorer(RAW), expected, rtol=1e-4, atol=1e-4)
    one_by_one = np.concatenate([scorer([content]) for content in reversed(RAW)])[::-1]
    assert np.array_equal(scorer(RAW), one_by_one)  # bit for bit, however they are grouped


def test_a_trusted_document_is_scored_as_if_it_were_not_trusted():
    scorer = TextScorer([*TRUSTED, TRUSTED[3]], [*RAW, *TRUSTED])  # one of them given twice
    for n in (0, 3, 11):
        others, corpus = TRUSTED[:n] + TRUSTED[n + 1 :], [*RAW, *TRUSTED]
        expected = scaled([oracle(TRUSTED[n], others, corpus)], TRUSTED, corpus)[0]
        assert scorer([RAW[0], TRUSTED[n]])[1] == pytest.approx(expected, rel=1e-4, abs=1e-4)
    assert np.median(scorer(TRUSTED)) == pytest.approx(1, abs=1e-5)
    assert np.quantile(scorer(TRUSTED), 0.1) == pytest.approx(0, abs=1e-5)


def test_length_does_not_decide():
    scorer = TextScorer(TRUSTED, RAW)
    short, long = scorer([b" ".join([RAW[0]] * times) for times in (300, 3000)])
    assert short == pytest.approx(long, abs=1e-3)


def auc(clean, junk):
    """How often a clean document has the higher score."""
    return float((clean[:, None] > junk).mean() + (clean[:, None] == junk).mean() / 2)


def test_junk_of_every_kind_scores_below_text_in_the_trusted_style():
    """All words are equally frequent: only pairs tell shuffled words from text."""
    own = [words for _, words in planted_documents("bigram", num_documents=60, num_words=150)]
    clean, trusted = own[::2], own[1::12]
    rng = stream(0, "test")
    junk = {kind: [spoil(words, rng) for words in clean[:12]] for kind, spoil in JUNK.items()}
    corpus = [words.encode() for words in clean + [j for some in junk.values() for j in some]]
    scorer = TextScorer([words.encode() for words in trusted], corpus)
    clean_D = scorer([words.encode() for words in clean])
    for kind, some in junk.items():
        assert auc(clean_D, scorer([words.encode() for words in some])) > 0.98, kind


@pytest.mark.slow
def test_the_junk_corpus_has_a_third_of_junk_and_its_scores_find_it(tmp_path):
    out, kinds = tmp_path / "junk", [kind for _, _, kind in junk_documents("junk")]
    assert np.mean([kind is not None for kind in kinds]) == pytest.approx(0.35, abs=0.03)
    prepare(out, "junk", tokenizer="bpe", vocab_size=500, toward=("junk@trusted",))
    corpus = Corpus(out)
    found = {
        int(record): float(score)
        for stratum in corpus.train
        for record, score in zip(
            stratum.documents["record"], stratum.documents["score"], strict=True
        )
    }
    assert len(found) == len(kinds)
    by_kind = {
        kind: np.array([found[n] for n, own in enumerate(kinds) if own == kind])
        for kind in (None, *JUNK)
    }
    assert (by_kind[None] >= 0).mean() > 0.75
    for kind, (least, most_kept) in {
        "shuffled words": (0.6, 0.75),
        "replaced characters": (0.95, 0.01),
        "base64": (0.99, 0.01),
        "repeated passage": (0.99, 0.01),
    }.items():
        assert auc(by_kind[None], by_kind[kind]) > least
        assert (by_kind[kind] >= 0).mean() <= most_kept
    validation = {words for _, words, _ in junk_documents("junk@validation")}
    trusted = {words for _, words, _ in junk_documents("junk@trusted")}
    clean = {words for _, words, _ in junk_documents("junk@clean")}
    assert not (validation | clean) & trusted
    assert not validation & clean
    assert clean == {words for _, words, kind in junk_documents("junk") if kind is None}


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.setattr(formats, "CHUNK_BYTES", 1000)
    write_jsonl(tmp_path / "a.jsonl", [text(n, 30) for n in range(40)])
    write_jsonl(tmp_path / "b.jsonl", [*(text(n) for n in range(40, 60)), *ODD[1:]])
    write_jsonl(tmp_path / "good.jsonl", [content.decode() for content in TRUSTED])
    return {
        "inputs": (str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")),
        "tokenizer": str(write_tokenizer(tmp_path / "tokenizer.json")),
        "validation_fraction": 0.1,
        "toward": (str(tmp_path / "good.jsonl"),),
        "workers": 1,
    }


def test_a_prepared_corpus_has_the_scores_beside_its_documents(tmp_path, job):
    prepare_corpus(PrepareOptions(out=tmp_path / "out", **job))
    corpus = Corpus(tmp_path / "out")
    texts = {
        "a": [text(n, 30) for n in range(40)],
        "b": [*(text(n) for n in range(40, 60)), *ODD[1:]],
    }
    held = {
        (stratum.entry.source, int(record))
        for stratum in corpus.validation
        for record in stratum.documents["record"]
    }
    sample = [
        own.encode()
        for source, some in texts.items()
        for n, own in enumerate(some)
        if (source, n) not in held
    ]
    for stratum in (*corpus.train, *corpus.validation):
        for document in stratum.documents[::9]:
            content = texts[stratum.entry.source][document["record"]].encode()
            expected = scaled([oracle(content, TRUSTED, sample)], TRUSTED, sample)[0]
            assert document["score"] == pytest.approx(expected, rel=1e-4, abs=1e-4)
    for stratum in corpus.train:
        length_D = np.diff(stratum.documents["end"], prepend=0)
        mean = (stratum.documents["score"] * length_D).sum() / length_D.sum()
        assert corpus.scores()[stratum.entry.stratum] == pytest.approx(mean, rel=1e-5)
    ids = SampleIds(*[np.zeros(1, dtype=np.int64)] * 5)
    first = corpus.train[0].documents[0]
    assert sample_origin(corpus, ids, 0)["line"] == first["record"] + 1


def test_scores_depend_neither_on_threads_nor_on_a_kill(tmp_path, job, monkeypatch):
    job = {**job, "strata": 3}
    prepare_corpus(PrepareOptions(out=tmp_path / "true", **job))
    truth = files_of(tmp_path / "true")
    prepare_corpus(PrepareOptions(out=tmp_path / "threads", **{**job, "workers": 3}))
    assert files_of(tmp_path / "threads") == truth
    left = iter(range(6))

    def report(_progress):
        if next(left, None) is None:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(preparation, "COMMIT_SECONDS", 0.0)
        with pytest.raises(KeyboardInterrupt):
            prepare_corpus(PrepareOptions(out=tmp_path / "out", **job), report)
    other = {**job, "toward": ()}
    with pytest.raises(
        CorpusError, match=r"--toward was .*good.jsonl, now None.*delete .*\.preparing"
    ):
        prepare_corpus(PrepareOptions(out=tmp_path / "out", **other))
    prepare_corpus(PrepareOptions(out=tmp_path / "out", **job))
    assert files_of(tmp_path / "out") == truth


def test_changed_trusted_text_and_a_changed_score_are_noticed(tmp_path, job):
    out = tmp_path / "out"
    prepare_corpus(PrepareOptions(out=out, **job))
    assert prepare_corpus(PrepareOptions(out=out, **job)).already
    assert not verify(out).damage
    file = out / "train" / "a.documents.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")  # of the last document's score
    assert "a.documents.npy" in verify(out).damage[0]
    write_jsonl(tmp_path / "good.jsonl", [content.decode() for content in TRUSTED[1:]])
    with pytest.raises(CorpusError, match="the inputs are others or have changed"):
        prepare_corpus(PrepareOptions(out=out, **job))


def test_strata_are_groups_of_neighbouring_scores(tmp_path, job):
    plain = prepare_corpus(PrepareOptions(out=tmp_path / "whole", **job))
    prepare_corpus(PrepareOptions(out=tmp_path / "out", **job, strata=4))
    whole, divided = Corpus(tmp_path / "whole"), Corpus(tmp_path / "out")
    for before, after in ((whole.train, divided.train), (whole.validation, divided.validation)):
        for stratum in before:
            groups = [s for s in after if s.entry.source == stratum.entry.source]
            together = np.concatenate([group.documents for group in groups])
            assert sorted(together["record"]) == sorted(stratum.documents["record"])
            names = [group.entry.stratum for group in groups]
            assert names == sorted(names)
            for higher, lower in pairwise(groups):
                assert higher.documents["score"].min() > lower.documents["score"].max()
    sizes = [stratum.entry.tokens for stratum in divided.train if stratum.entry.source == "a"]
    assert len(sizes) == 4
    assert max(sizes) - min(sizes) <= 2 * np.diff(whole.train[0].documents["end"]).max()
    assert plain.manifest.options["strata"] == 1


def test_without_toward_nothing_changes(tmp_path, job):
    del job["toward"]
    manifest = prepare_corpus(PrepareOptions(out=tmp_path / "out", **job)).manifest
    corpus = Corpus(tmp_path / "out")
    assert all(stratum.documents.dtype == DOCUMENT_DTYPE for stratum in corpus.train)
    assert corpus.scores() == {}
    assert "toward" not in manifest.options  # as in corpora of older versions


def test_what_cannot_be_scored_is_refused(tmp_path, job):
    few = write_jsonl(tmp_path / "few.jsonl", [text(n) for n in range(9)])
    with pytest.raises(CorpusError, match="at least 10 different documents, got 9"):
        prepare_corpus(PrepareOptions(out=tmp_path / "few", **{**job, "toward": (str(few),)}))
    (tmp_path / "x.bin").write_bytes(np.arange(1000, dtype=np.uint16).tobytes())
    tokens = str(tmp_path / "x.bin")
    with pytest.raises(CorpusError, match=r"--toward takes text, and .*x.bin holds tokens"):
        prepare_corpus(PrepareOptions(out=tmp_path / "tok", **{**job, "toward": (tokens,)}))
    own = {"inputs": (tokens,), "toward": job["toward"]}
    with pytest.raises(ConfigError, match=r"--toward scores text, and .*x.bin holds tokens"):
        prepare_corpus(PrepareOptions(out=tmp_path / "in", vocab_size=70000, eot_id=0, **own))

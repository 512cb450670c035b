"""The mixture that comes closest to a target's vector, and the tables that vectors come from."""

import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from corpora import write_corpus
from dograph.config import MixerConfig
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError
from dograph.mixers.domain2vec import Domain2Vec, closest_mixture, read_vectors
from dograph.mixers.registry import build_mixer
from dograph.testing import check_mixer
from dograph.train.assembly import settled
from lab_runs import config_of

SCRIPT = Path(__file__).parents[3] / "examples" / "domain_vectors.py"
SMALL = ("--meta-domains", "6", "--documents", "80")
V = np.array([[0.7, 0.1, 0.1], [0.1, 0.6, 0.1], [0.1, 0.2, 0.2], [0.1, 0.1, 0.6]])
TARGET = np.array([0.35, 0.25, 0.15, 0.25])
VECTORS = {**dict(zip("abc", V.T.tolist(), strict=True)), "target": TARGET.tolist()}
BEST = {"a": 0.414141, "b": 0.292929, "c": 0.292929}


TOKENS = {"a": 3_000_000, "b": 1_000_000, "c": 2_000_000}


class Lab:
    tokens = strata = TOKENS
    budget, steps, proxy_steps = 10_000_000, 100, 50


def test_the_closest_mixture_is_the_known_one():
    np.testing.assert_allclose(closest_mixture(V, TARGET), list(BEST.values()), atol=1e-6)
    assert Domain2Vec(vectors=VECTORS).plan(Lab()).weights == pytest.approx(BEST, abs=1e-6)


def test_a_target_that_is_a_source_gives_that_source():
    for source in range(3):
        np.testing.assert_allclose(closest_mixture(V, V[:, source]), np.eye(3)[source], atol=1e-9)


def test_the_order_of_sources_and_the_scale_of_vectors_do_not_matter():
    random = np.random.default_rng(2)
    vector_DS, target_D = random.dirichlet(np.ones(30), 12).T, random.dirichlet(np.ones(30))
    order, weight_S = random.permutation(12), closest_mixture(vector_DS, target_D)
    np.testing.assert_allclose(closest_mixture(vector_DS[:, order], target_D), weight_S[order])
    np.testing.assert_allclose(closest_mixture(1e4 * vector_DS, 1e4 * target_D), weight_S)


@pytest.mark.parametrize("shape", [(2, 3), (7, 260), (17, 30), (12, 5)])
def test_no_mixture_within_the_caps_is_closer(shape):
    """The optimality conditions: weight can only move to sources whose slope is not lower."""
    random = np.random.default_rng(sum(shape))
    for _ in range(10):
        vector_DS = random.dirichlet(np.full(shape[1], 0.2), shape[0]).T
        target_D = random.dirichlet(np.full(shape[1], 0.2))
        cap_S = np.minimum(random.uniform(0.05, 0.6, shape[0]) + 1 / shape[0], 1)
        weight_S = closest_mixture(vector_DS, target_D, cap_S)
        assert weight_S.sum() == pytest.approx(1)
        assert (weight_S >= 0).all()
        assert (weight_S <= cap_S + 1e-7).all()
        slope_S = vector_DS.T @ (vector_DS @ weight_S - target_D)
        can_fall, can_rise = slope_S[weight_S > 1e-9], slope_S[weight_S < cap_S - 1e-6]
        assert can_rise.size == 0 or can_fall.max() <= can_rise.min() + 1e-9


def test_no_source_is_read_more_often_than_allowed():
    mixer = Domain2Vec(vectors=VECTORS | {"target": V[:, 1].tolist()}, max_epochs=2.0)
    weights = mixer.plan(Lab()).weights  # two epochs of each: 0.6, 0.2, 0.4
    assert weights["b"] == pytest.approx(0.2)
    assert weights["c"] == pytest.approx(0.4)  # closer to b than a is
    free = Domain2Vec(vectors=VECTORS | {"target": V[:, 1].tolist()}, max_epochs=None)
    assert free.plan(Lab()).weights == pytest.approx({"a": 0, "b": 1, "c": 0}, abs=1e-9)
    with pytest.raises(ConfigError, match=r"max_epochs=1: the run draws 10,000,000 tokens"):
        Domain2Vec(vectors=VECTORS, max_epochs=1.0).plan(Lab())


@pytest.mark.parametrize("max_epochs", [2.0, None])
def test_a_source_without_training_text_is_not_drawn(max_epochs, monkeypatch):
    monkeypatch.setattr(Lab, "tokens", {"a": 6_000_000, "b": 0, "c": 4_000_000})
    mixer = Domain2Vec(vectors=VECTORS | {"target": V[:, 1].tolist()}, max_epochs=max_epochs)
    weights = mixer.plan(Lab()).weights
    assert weights["b"] == 0
    assert sum(weights.values()) == pytest.approx(1)


def test_it_is_a_mixer():
    check_mixer(Domain2Vec(vectors=VECTORS))


def table(path, rows):
    path.write_text("name,m0,m1,m2,m3\n" + "\n".join(rows) + "\n")
    return str(path)


def test_a_run_keeps_the_vectors_of_its_table(tmp_path):
    rows = [",".join([name, *map(str, vector)]) for name, vector in VECTORS.items()]
    file = table(tmp_path / "vectors.csv", rows)
    assert read_vectors(file) == VECTORS
    base = config_of(tmp_path)
    mixer = MixerConfig(name="domain2vec", vectors=file, max_epochs=3.0)
    kept = settled(base.model_copy(update={"mixer": mixer})).mixer
    assert kept.options == {"vectors": VECTORS, "max_epochs": 3.0}
    (tmp_path / "vectors.csv").unlink()  # a resumed run does not need it
    again = type(base).model_validate_json(
        base.model_copy(update={"mixer": kept}).model_dump_json()
    )
    resumed = build_mixer("domain2vec", again.mixer.options)
    assert resumed.plan(Lab()).weights == pytest.approx(BEST, abs=1e-6)


@pytest.mark.parametrize(
    ("rows", "options", "told"),
    [
        (["a,1,0,0,0", "target,1,0,0"], {}, "vectors.csv, line 3: 4 cells.*\n.*a column `name`"),
        (["a,1,0,0,0", "a,1,0,0,0"], {}, 'run "a" has "m0" twice'),
        (["a,1,0,0,x", "target,1,0,0,0"], {}, '"x" is not a finite number'),
        (["a,1,0,,0", "target,1,0,0,0"], {}, '"a" has no number in the column "m2"'),
        (["a,1,0,0,0", "Target,1,0,0,0"], {}, 'has no "target".*did you mean "Target"'),
        (["a,1,0,0,0", "t,1,0,0,0"], {"target": "t"}, 'has no "b"; it needs a vector of each'),
        (["a,1,0,0,0", "target,1,0,0,0"], {"max_epochs": 0}, "max_epochs"),
    ],
)
def test_wrong_vectors_are_refused(tmp_path, rows, options, told):
    file = table(tmp_path / "vectors.csv", rows)
    with pytest.raises(ConfigError, match=told):
        build_mixer("domain2vec", {"vectors": file, **options}).plan(Lab())


def test_other_wrong_options_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"mixer\.vectors: cannot read .*none\.csv"):
        Domain2Vec(vectors=str(tmp_path / "none.csv"))
    with pytest.raises(ConfigError, match=r"same number of values each: \{'a': 2, 'target': 1\}"):
        Domain2Vec(vectors={"a": [1.0, 0.0], "target": [1.0]})
    with pytest.raises(ConfigError, match=r"mixer\.vectors"):
        Domain2Vec()


@pytest.fixture(scope="module")
def corpora(tmp_path_factory):
    """A corpus of three sources, one of them in strata, and more text like the last one."""
    folder = tmp_path_factory.mktemp("corpora")
    sizes = {"alpha": 4000, "beta": 4000, "gamma": 4000}
    write_corpus(folder / "mine", sizes, strata=2)
    write_corpus(folder / "more", sizes)
    return folder


def test_meta_domains_find_the_source_that_the_target_is_like(corpora, tmp_path):
    made = subprocess.run(
        [sys.executable, SCRIPT, corpora / "mine", corpora / "more", tmp_path / "v.csv", *SMALL],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "4 vectors of 6 meta-domains" in made.stdout
    assert "4/4 sources; K-means of 6 meta-domains" in made.stderr
    vectors = read_vectors(str(tmp_path / "v.csv"))
    assert list(vectors) == ["alpha", "beta", "gamma", "target"]
    for vector in vectors.values():
        assert sum(vector) == pytest.approx(1)
    lab = type("Own", (), {"tokens": dict.fromkeys(("alpha", "beta", "gamma"), 100), "budget": 1})
    weights = Domain2Vec(vectors=vectors).plan(lab).weights
    assert weights == pytest.approx(dict.fromkeys(lab.tokens, 1 / 3), abs=0.1)  # a third of each


def test_meta_domains_of_one_source_and_what_they_refuse(corpora, tmp_path):
    vectors_of = runpy.run_path(str(SCRIPT))["domain_vectors"]
    mine = Corpus(corpora / "mine")
    write_corpus(tmp_path / "gamma", {"x": 200, "y": 200, "gamma": 4000})
    target = Corpus(tmp_path / "gamma")
    target.sources = ["gamma"]
    how = {"num_meta": 6, "number": 80, "seed": 3}
    vectors = vectors_of(mine, target, **how)
    lab = type("Own", (), {"tokens": dict.fromkeys(mine.sources, 100), "budget": 1})
    assert Domain2Vec(vectors=vectors).plan(lab).weights["gamma"] > 0.9
    assert vectors_of(mine, target, **how) == vectors
    write_corpus(tmp_path / "named", {"target": 400})
    with pytest.raises(ConfigError, match='called "target"; rename it'):
        vectors_of(Corpus(tmp_path / "named"), target)
    manifest = (tmp_path / "named" / "manifest.json").read_text()
    other = manifest.replace('"sha256": null', '"sha256": "0"', 1)
    (tmp_path / "named" / "manifest.json").write_text(other)
    with pytest.raises(ConfigError, match=r"another tokenizer.*prepare it with --tokenizer"):
        vectors_of(mine, Corpus(tmp_path / "named"))

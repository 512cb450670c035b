from pathlib import Path

import pytest

from corpora import write_corpus
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError
from dograph.mixers.base import Proxy
from dograph.plan.jobs import RESULT
from dograph.plan.lab import ProxyLab
from dograph.train.forecast import run_flops
from lab_runs import Here, config_of

ALPHA = {"name": "static", "weights": {"alpha": 1.0}}
BETA = {"name": "static", "weights": {"beta": 1.0}}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return Corpus(write_corpus(tmp_path_factory.mktemp("corpus") / "c"))


def open_lab(corpus, folder, pool=None, steps=2):
    target = config_of(corpus.directory, steps=100)
    proxy = config_of(corpus.directory, steps=steps)
    return ProxyLab(target, proxy, folder=folder, pool=pool or Here())


def test_facts_are_those_of_the_target(corpus, tmp_path):
    lab = open_lab(corpus, tmp_path)
    assert lab.tokens == {"alpha": 6000, "beta": 3000, "gamma": 1000}
    assert lab.strata == lab.tokens
    assert (lab.budget, lab.steps) == (100 * 8 * 32, 100)


def test_a_proxy_is_the_labs_configuration_with_its_own_on_top(corpus, tmp_path):
    settings = {"train": {"steps": 6}, "optim": {"lr": 1e-4}, "eval": {"max_samples_per_source": 2}}
    config = open_lab(corpus, tmp_path, steps=12).resolve(Proxy("p", ALPHA, 7, settings))
    assert (config.train.steps, config.train.batch_size) == (6, 8)
    assert (config.eval.max_samples_per_source, config.eval.every) == (2, 4)
    assert (config.optim.lr, config.optim.lr_end) == (1e-4, 2e-4)
    assert config.optim.warmup_steps == 1  # 2 of 12 were warm-up
    assert (config.seed, config.mixer.name) == (7, "static")
    assert config.mixer.options == {"weights": {"alpha": 1.0}}


def test_a_proxys_own_warmup_stays(corpus, tmp_path):
    settings = {"train": {"steps": 6}, "optim": {"warmup_steps": 5}}
    config = open_lab(corpus, tmp_path, steps=12).resolve(Proxy("p", ALPHA, 0, settings))
    assert config.optim.warmup_steps == 5


def test_a_wrong_proxy_is_named_before_any_is_made(corpus, tmp_path):
    pool = Here()
    wrong = Proxy("the wrong one", ALPHA, 0, {"train": {"stepz": 3}})
    with pytest.raises(ConfigError, match='"the wrong one"'):
        open_lab(corpus, tmp_path, pool).train([Proxy("good", ALPHA), wrong])
    assert pool.asked == []


def test_another_corpus_is_refused(corpus, tmp_path):
    target, other = config_of(corpus.directory), config_of(tmp_path)
    with pytest.raises(ConfigError, match="run's own corpus"):
        ProxyLab(target, other, folder=tmp_path, pool=Here())
    with pytest.raises(ConfigError, match=r"data\.corpus"):
        open_lab(corpus, tmp_path).resolve(Proxy("p", ALPHA, 0, {"data": {"corpus": "x"}}))


def test_equal_proxies_are_made_once_and_kept(corpus, tmp_path, capsys):
    pool = Here()
    lab = open_lab(corpus, tmp_path, pool)
    first, second, third = lab.train(
        [Proxy("a", ALPHA, 0), Proxy("b", BETA, 0), Proxy("again a", ALPHA, 0)]
    )
    assert [job.label for job in pool.asked] == ["a", "b"]
    assert first == third
    assert first.losses != second.losses
    [again] = lab.train([Proxy("a", ALPHA, 0)])
    assert again == first
    assert len(pool.asked) == 2
    assert (len(lab.used), lab.cached) == (2, set())

    later = open_lab(corpus, tmp_path, pool)
    [found, new] = later.train([Proxy("a", ALPHA, 0), Proxy("c", ALPHA, 1)])
    assert found == first
    assert new.losses != first.losses
    assert [job.label for job in pool.asked] == ["a", "b", "c"]
    assert (len(later.used), later.cached) == (2, {Path(pool.asked[0].config.run).name})
    assert "1 proxy to train (tiny; 2 steps), 1 more made before" in capsys.readouterr().err


@pytest.mark.slow
def test_a_damaged_result_is_told_and_made_anew(corpus, tmp_path, capsys):
    pool = Here()
    [before] = open_lab(corpus, tmp_path, pool).train([Proxy("a", ALPHA, 0)])
    [file] = tmp_path.glob(f"*/{RESULT}")
    file.write_text("{")
    capsys.readouterr()
    lab = open_lab(corpus, tmp_path, pool)
    assert lab.train([Proxy("a", ALPHA, 0)]) == [before]
    assert 'the result of "a" is damaged' in capsys.readouterr().err
    assert len(pool.asked) == 2
    assert (len(lab.used), lab.cached) == (1, set())


def test_cost_is_told_beside_the_targets(corpus, tmp_path):
    lab = open_lab(corpus, tmp_path, steps=5)
    batch = lab.survey([Proxy("a", ALPHA, 0), Proxy("b", BETA, 3)])
    flops = 2 * run_flops(config_of(corpus.directory, steps=5), corpus)
    assert lab.describe(batch).endswith(
        # the target makes 100 steps of the same, the proxies 10
        f": {2 * 5 * 8 * 32:,} tokens, {flops:.2e} FLOPs, "
        "0.1 x those of the run that the plan is for"
    )
    many = lab.survey([Proxy(f"{seed}", ALPHA, seed) for seed in range(21)])
    # proxy-1m is larger than these, so it is not named; than gpt2-proxy it is smaller
    assert lab.describe(many).endswith("1.1 x those of the run that the plan is for")
    large = config_of(corpus.directory, steps=5, model={"preset": "gpt2-proxy"})
    lab = ProxyLab(lab.target, large, folder=tmp_path, pool=Here())
    told = lab.describe(lab.survey([Proxy("a", ALPHA, 0)]))
    assert told.endswith(
        "x those of the run that the plan is for; cheaper: --proxy model.preset=proxy-1m"
    )
    assert not list(tmp_path.iterdir())

"""What a folder of a comparison takes in, and what contradicts it; nothing is trained."""

import json
from dataclasses import replace

import pytest

from comparisons import ask_of
from corpora import write_corpus
from dograph.compare.session import forecast_lines
from dograph.config import parse_config
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError, RunError


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return Corpus(write_corpus(tmp_path_factory.mktemp("ask") / "corpus"))


@pytest.fixture
def ask(corpus, tmp_path):
    def make(mixers, seeds, *, steps=60, **rest):
        values = {"data": {"corpus": str(corpus.directory)}, "train": {"steps": steps}}
        config = parse_config(values | {"mixer": {"name": "natural"}}, "test")
        folders = {"out": tmp_path / "out", "lab": tmp_path / "lab"}
        return ask_of(config, mixers, seeds, **folders, **rest)

    return make


def stored(ask):
    return json.loads((ask.out / "ask.json").read_text())


def labels(ask):
    return [method.label for method in ask.methods]


def test_an_empty_folder_is_taken_as_it_is_asked(ask, corpus):
    first = ask("uniform", (0, 1))
    for _ in range(2):
        first.take_folder(corpus, shared=True)
        assert stored(first) == json.loads(json.dumps(first.record(corpus)))


def test_less_than_the_folder_holds_takes_nothing_away(ask, corpus):
    wide = ask("uniform,regmix,wide=dograph[num_domains=17]", (0, 1, 2))
    wide.take_folder(corpus, shared=True)
    before = stored(wide)
    ask("wide=dograph[num_domains=17]", (1,)).take_folder(corpus, shared=True)
    assert stored(wide) == before


def test_a_folder_made_under_old_names_of_settings_is_continued(ask, corpus):
    mixers = "unit=dograph[normalize_gradients=true,num_domains=5]"
    ask(mixers, (0, 1)).take_folder(corpus)
    file = ask(mixers, (0, 1)).out / "ask.json"
    record = json.loads(file.read_text())
    evaluation = record["settings"]["eval"]
    evaluation["max_blocks"] = evaluation.pop("max_samples_per_source")
    mixer = record["methods"]["unit"]["mixer"]
    del mixer["normalize_gradients"]
    mixer |= {"within": "unit", "min_size": 1}
    file.write_text(json.dumps(record))
    old_words = "unit=dograph[within=unit,num_domains=5]"
    for words in (mixers, old_words):
        ask(words, (0, 1, 2)).take_folder(corpus)
    with pytest.raises(RunError, match="normalize_gradients"):
        ask(old_words.replace("unit,", "mean,"), (0, 1, 2)).take_folder(corpus)


def test_what_is_new_comes_after_what_is_there(ask, corpus):
    ask("uniform", (0, 1)).take_folder(corpus, shared=True)
    more = ask("regmix", (2, 1))
    more.take_folder(corpus, shared=True)
    whole = stored(more)
    assert list(whole["methods"]) == ["natural", "uniform", "regmix"]
    assert whole["seeds"] == [0, 1, 2]
    assert whole["proxy"] is not None
    everything = ask("regmix,unimax,uniform", (2, 1, 0))
    everything.take_folder(corpus, shared=True)
    assert list(stored(everything)["methods"]) == labels(everything)  # as asked
    assert stored(everything)["seeds"] == [2, 1, 0]


def test_the_baseline_of_the_folder_stays(ask, corpus):
    ask("uniform", (0,)).take_folder(corpus, shared=True)
    other = ask("unimax", (0,), baseline="uniform")
    other.take_folder(corpus, shared=True)
    assert sorted(stored(other)["methods"]) == ["natural", "uniform", "unimax"]
    assert stored(other)["baseline"] == "natural"


@pytest.mark.parametrize(
    ("mixers", "changes", "told"),
    [
        ("uniform", {"steps": 90}, "train.steps: 60 stored, 90 requested"),
        ("plan=doge", {}, "methods.plan.mixer.name: regmix stored, doge requested"),
        ("plan=regmix[num_proxies=9]", {}, "num_proxies: none stored, 9 requested"),
        ("uniform", {"replan": True}, "replan: false stored, true requested"),
    ],
)
def test_what_contradicts_the_folder_is_refused_and_changes_nothing(
    ask, corpus, mixers, changes, told
):
    first = ask("uniform,plan=regmix", (0, 1))
    first.take_folder(corpus, shared=True)
    before = stored(first)
    with pytest.raises(RunError, match=told):
        ask(mixers, (0,), **changes).take_folder(corpus, shared=True)
    assert stored(first) == before


def test_a_method_that_is_missing_is_told_as_it_would_be_typed(ask, corpus):
    ask("uniform,plan=regmix[num_proxies=9,max_epochs=null]", (0, 1)).take_folder(corpus)
    with pytest.raises(RunError) as refused:
        ask("uniform", (0,)).take_folder(corpus)
    told = str(refused.value).splitlines()
    named = "mixer.name=regmix mixer.num_proxies=9 mixer.max_epochs=null"
    assert f"  methods.plan: {named} stored, none requested" in told
    assert "  seeds: [0, 1] stored, [0] requested" in told
    (proxy,) = [line for line in told if line.startswith("  proxy: ")]
    assert proxy.endswith(" more stored, none requested")
    assert "{" not in str(refused.value)


def test_other_proxies_are_refused_where_both_have_some(ask, corpus):
    first = ask("plan=regmix", (0,))
    first.take_folder(corpus, shared=True)
    other = first.proxy.model_copy(
        update={"train": first.proxy.train.model_copy(update={"steps": 33})}
    )
    with pytest.raises(RunError, match=r"proxy.train.steps: \d+ stored, 33 requested"):
        replace(first, proxy=other).take_folder(corpus, shared=True)
    ask("uniform", (0,)).take_folder(corpus, shared=True)  # none is asked for
    assert stored(first)["proxy"] is not None


def test_a_folder_with_something_else_is_refused(ask, corpus, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match="is not empty and holds no comparison"):
        ask("uniform", (0,)).take_folder(corpus, shared=True)


def test_a_plan_that_is_refused_can_be_left_out(ask, corpus):
    with pytest.raises(
        ConfigError, match=r"plan: mixer.max_epochs=4.*\nOr leave plan out of --mixe"
    ):
        next(forecast_lines(ask("uniform,plan=regmix", (0,), steps=50_000), corpus))


def test_other_learning_rates_are_another_comparison(ask, corpus):
    tuned = {"rates": (1e-3, 2e-3), "tune": {"seed": 9}}
    ask("uniform", (0, 1), **tuned).take_folder(corpus)
    ask("uniform", (0, 1), **tuned).take_folder(corpus)
    for other in ({}, tuned | {"rates": (1e-3,)}, tuned | {"tune": {"seed": 8}}):
        with pytest.raises(RunError, match=r"holds another comparison:\n  rates"):
            ask("uniform", (0, 1), **other).take_folder(corpus)

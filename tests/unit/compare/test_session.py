"""Whole comparisons of tiny runs, in this process."""

import json
from dataclasses import replace

import numpy as np
import pytest

from comparisons import STEPS, ask, made, printed, run_of
from dograph.compare.session import open_corpus, without_unable
from dograph.data.corpus import Corpus
from dograph.errors import RunError
from dograph.mixers.registry import MIXERS
from dograph.plan.jobs import Stopped
from dograph.records import read_metrics
from dograph.train.assembly import open_sampler
from dograph.train.forecast import run_flops
from dograph.types import Mixture
from lab_runs import Here


@pytest.fixture(scope="module")
def cheap(place):
    asked = ask(place, "uniform,dograph[num_domains=2]", out="cheap")
    pool = Here()
    return asked, made(asked, pool), pool


def test_a_cell_is_a_run_for_every_method_and_seed(place, cheap):
    _, findings, pool = cheap
    labels = ["natural", "uniform", "dograph-num_domains-2"]
    expected = [f"{label}-s{seed}" for seed in (0, 1) for label in labels]
    assert pool.made == expected == [cell["label"] for cell in findings["cells"]]
    assert [method["label"] for method in findings["methods"]] == labels
    assert findings["failures"] == {}
    for cell in findings["cells"]:
        stored = run_of(place, "cheap", cell["label"]).config()
        assert (stored.seed, stored.train.steps) == (cell["seed"], STEPS)


def test_pairs_begin_with_the_same_weights_and_samples(place, cheap):
    """A method that draws the same mixture has the same loss at step 1, before any update."""
    first = {}
    for cell in cheap[1]["cells"]:
        rows = list(read_metrics(run_of(place, "cheap", cell["label"]).metrics_file))
        first[cell["method"], cell["seed"]] = rows[0]["train/loss_nats"]
    for seed in (0, 1):
        natural = first["natural", seed]
        assert first["dograph-num_domains-2", seed] == pytest.approx(natural, rel=1e-6)
        assert first["uniform", seed] != natural  # other samples
    assert first["natural", 0] != first["natural", 1]


def test_pairs_draw_the_same_samples_of_a_source(place, cheap):
    """Under other mixtures too, the n-th sample of a source is the same one."""
    corpus = Corpus(place / "corpus")
    drawn = {}
    for name, weights in {"natural": [6, 3, 1], "uniform": [1, 1, 1]}.items():
        config = run_of(place, "cheap", f"{name}-s1").config()
        sampler = open_sampler(config, corpus)
        mixture = dict(zip(corpus.sources, weights, strict=True))
        sampler.remix(0, Mixture.normalised(mixture), "plan")
        ids = [sampler.draw(step) for step in range(STEPS)]
        stratum, block = (
            np.concatenate([getattr(batch, part) for batch in ids])
            for part in ("stratum_B", "block_B")
        )
        drawn[name] = {s: set(block[stratum == s].tolist()) for s in range(3)}
    for s in range(3):
        few, many = sorted((drawn["natural"][s], drawn["uniform"][s]), key=len)
        assert few <= many


def test_figures_are_those_of_the_runs(place, cheap):
    findings = cheap[1]
    for cell in findings["cells"]:
        rows = list(read_metrics(run_of(place, "cheap", cell["label"]).metrics_file))
        last = [row for row in rows if "valid/mean/loss_nats" in row][-1]
        for name in ("mean", "natural", "worst"):
            assert cell["summaries"][name] == pytest.approx(last[f"valid/{name}/loss_nats"])
        losses = cell["losses"].values()
        assert cell["summaries"]["gap"] == pytest.approx(max(losses) - min(losses))
    means = {
        (cell["method"], cell["seed"]): cell["summaries"]["mean"] for cell in findings["cells"]
    }
    uniform = next(m for m in findings["methods"] if m["label"] == "uniform")
    pairs = [means["uniform", seed] - means["natural", seed] for seed in (0, 1)]
    told = uniform["differences"]["mean"]
    assert told["mean"] == pytest.approx(np.mean(pairs))
    assert told["claim"] == "no claim: 2 of 5 seeds"
    assert told["over_items"]["low"] <= told["mean"] <= told["over_items"]["high"]
    assert uniform["most_epochs"]["source"] == "gamma"
    spread = uniform["losses"]["mean"]
    one, other = (means["uniform", seed] for seed in (0, 1))
    assert spread["mean"] == pytest.approx((one + other) / 2)
    assert spread["deviation"] == pytest.approx(abs(one - other) / 2**0.5)  # a sample's, not n's


def test_costs_are_counted(place, cheap):
    findings = cheap[1]
    corpus = Corpus(place / "corpus")
    for cell in findings["cells"]:
        config = run_of(place, "cheap", cell["label"]).config()
        assert cell["flops"]["total"] == run_flops(config, corpus)
        assert cell["seconds"]["total"] > 0
        assert cell["peak_bytes"] > 2**20
    by_label = {method["label"]: method["flops"]["total"] for method in findings["methods"]}
    assert by_label["dograph-num_domains-2"] > by_label["natural"] == by_label["uniform"]


def test_files(place, cheap):
    out, findings = place / "cheap", cheap[1]
    stored = json.loads((out / "compare.json").read_text())
    assert (stored["format"], stored["version"]) == ("dograph-compare", 1)
    assert stored["cells"] == json.loads(json.dumps(findings["cells"]))
    needed = {
        "command", "budget", "baseline", "seeds", "config", "corpus", "environment", "methods",
        "cells", "failures", "notes",
    }  # fmt: skip
    assert needed <= set(stored)


def test_tables_fit_into_a_hundred_columns(cheap):
    text = printed(cheap[1])
    assert max(map(len, text.splitlines())) <= 100
    assert "…" not in text
    for word in ("natural", "uniform", "gap", "FLOPs", "GiB", "alpha", "gamma"):
        assert word in text


def test_what_is_finished_is_not_made_again(place, cheap):
    asked, findings, _ = cheap
    pool = Here()
    again = made(asked, pool)
    assert pool.made == []
    assert again["cells"] == findings["cells"]
    assert again["methods"] == findings["methods"]


@pytest.mark.slow
def test_a_stop_loses_nothing_and_more_may_come(place):
    asked = ask(place, "uniform", out="stopped", seeds=(0,))
    with pytest.raises(Stopped):
        made(asked, Here(most=1))
    pool = Here()
    made(asked, pool)
    assert pool.made == ["uniform-s0"]
    more = Here()
    made(ask(place, "unimax,uniform", out="stopped", seeds=(0,)), more)
    assert more.made == ["unimax-s0"]
    ask(place, "unimax,uniform", out="stopped", seeds=(1, 0)).take_folder(Corpus(place / "corpus"))


def test_other_settings_are_refused_by_name(place, cheap):
    asked, _, _ = cheap
    longer = asked.config.model_copy(
        update={"train": asked.config.train.model_copy(update={"steps": 9})}
    )
    with pytest.raises(RunError, match=r"train.steps: 6 stored, 9 requested"):
        made(replace(asked, config=longer))
    with pytest.raises(RunError, match="budget: tokens stored, compute requested"):
        made(replace(asked, budget="compute"))
    with pytest.raises(RunError, match="seeds"):
        made(replace(asked, seeds=(0,)))
    fewer = tuple(m for m in asked.methods if m.label != "uniform")
    with pytest.raises(RunError, match=r"methods.uniform"):
        made(replace(asked, methods=fewer))


def test_warnings_come_once_with_their_methods(place):
    said = []
    asked = ask(place, "natural,dograph[num_domains=6],paper=dograph[recipe=paper]", out="warned")
    open_corpus(asked, said.append)
    few = [text for text in said if "samples for each domain" in text]
    assert len(few) == 2  # 6 domains, and the 11 of the recipe
    assert few[0].startswith("warning (dograph-num_domains-6): ")
    everywhere = [text for text in said if "validation blocks" in text]
    assert [text.count("natural") for text in everywhere] == [1]


def able_of_all(asked):
    """The labels of those that can run, and the reasons of the others."""
    said = []
    labels = [method.label for method in without_unable(asked, said.append).methods]
    return labels, dict(text.split(" is left out of all: ") for text in said)


def test_all_is_every_method_that_can_run_and_the_others_have_a_reason(place):
    labels, reasons = able_of_all(ask(place, "all", out="able"))
    assert labels[0] == "natural"
    assert {*labels, *reasons} == set(MIXERS)
    assert not set(labels) & set(reasons)
    assert {"ado", "odm", "doremi", "doge", "regmix", "mixing-law", "dograph"} <= set(labels)
    assert reasons["static"].startswith("the static mixer needs one of mixer.file")
    assert "mixer.stages must be a mapping" in reasons["scheduled"]
    assert "proxies of a plan" in reasons["doremi-proxy"]


def test_methods_of_all_that_a_corpus_cannot_serve_are_left_out(place):
    """The run is so long that no mixture keeps RegMix within its epochs."""
    named = "law=mixing-law,odd=static[weights={nope: 1}]"
    asked = ask(place, f"all,{named}", out="long")
    train = asked.config.train.model_copy(update={"steps": 10**6})
    longer = asked.config.model_copy(update={"train": train})
    labels, reasons = able_of_all(replace(asked, config=longer))
    for label in ("regmix", "mixing-law"):
        assert label not in labels
        assert reasons[label].startswith("mixer.max_epochs=4")
    assert {"law", "odd", "odm", "doremi"} <= set(labels)  # a method that is named is refused later

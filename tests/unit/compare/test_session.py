"""Whole comparisons of tiny runs, in this process."""

import csv
import gc
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from corpora import write_corpus
from dograph.compare.ask import Ask
from dograph.compare.methods import parse_methods
from dograph.compare.session import run_compare
from dograph.compare.table import tables
from dograph.corpus.corpus import Corpus
from dograph.errors import DographError, RunError
from dograph.lab.jobs import Stopped, run_job
from dograph.lab.planning import default_proxy
from dograph.lab.pool import job_failed
from dograph.models.build import build_model
from dograph.training.assembly import open_sampler
from dograph.training.config import parse_config
from dograph.training.flops import run_flops, step_flops
from dograph.training.metrics import read_metrics
from dograph.training.run_dir import RunDirectory
from dograph.types import Mixture

STEPS = 6


class Here:
    """A pool of this process: one job after another."""

    def __init__(self, most=None):
        self.made, self.most = [], most

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def run(self, jobs, on_done=None, on_start=None, on_death=None):
        found = []
        for job in jobs:
            if self.most is not None and len(self.made) >= self.most:
                raise Stopped(2)
            if on_start is not None:
                on_start(job)
            try:
                found.append(run_job(job))
            except (DographError, ArithmeticError) as error:
                raise job_failed(job, str(error)) from error
            self.made.append(job.label)
            if on_done is not None:
                on_done(job, found[-1])
        return found


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    build_model("tiny", vocab_size=100, seq_len=16, dropout=0.0, seed=0)
    gc.collect()
    gc.freeze()  # every run collects twice, and would look through all that was imported
    folder = tmp_path_factory.mktemp("compare")
    write_corpus(folder / "corpus")
    yield folder
    gc.unfreeze()


def ask(place, mixers, *, out, seeds=(0, 1), budget="tokens", baseline="natural", **changes):
    values = {
        "data": {"corpus": str(place / "corpus"), "seq_len": 16},
        "model": {"preset": "tiny"},
        "mixer": {"name": "natural"},
        "sketch": {"dim": 80},
        "optim": {"warmup_steps": 2},
        "train": {"steps": STEPS, "batch_size": 6, "device": "cpu"},
        "eval": {"every": 0, "max_blocks": 4},
        "checkpoint": {"every": 0},
        "probe": {"rows": 0},
    }
    config = parse_config(values, "test")
    methods = tuple(parse_methods(mixers, config, baseline))
    planned = any(method.is_planned for method in methods)
    asked = Ask(
        config=config,
        proxy=default_proxy(config) if planned else None,
        methods=methods,
        seeds=tuple(seeds),
        budget=budget,
        replan=False,
        out=place / out,
        lab=place / "lab",
        command="dograph compare test",
    )
    return replace(asked, **changes)


def made(asked, pool=None, say=lambda text: None):
    return run_compare(asked, pool or Here(), say)


@pytest.fixture(scope="module")
def cheap(place):
    asked = ask(place, "uniform,dograph[num_domains=2]", out="cheap")
    pool = Here()
    return asked, made(asked, pool), pool


def run_of(place, out, cell):
    return RunDirectory.open(place / out / "cells" / cell)


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
        rows = read_metrics(run_of(place, "cheap", cell["label"]).metrics_file)
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
        rows = read_metrics(run_of(place, "cheap", cell["label"]).metrics_file)
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
    cells = list(csv.DictReader((out / "cells.csv").open()))
    assert len(cells) == 6
    assert float(cells[3]["loss_mean"]) == stored["cells"][3]["summaries"]["mean"]
    assert float(cells[3]["loss/alpha"]) == stored["cells"][3]["losses"]["alpha"]
    methods = list(csv.DictReader((out / "methods.csv").open()))
    assert [row["method"] for row in methods] == [m["label"] for m in stored["methods"]]
    told = stored["methods"][1]["differences"]["mean"]
    assert float(methods[1]["difference_mean_interval_low"]) == told["interval"]["low"]


def test_tables_fit_into_a_hundred_columns(cheap):
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for table in tables(cheap[1]):
        console.print(table)
    text = console.export_text()
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
    with pytest.raises(RunError, match=r"train.steps: 6 there, 9 asked"):
        made(replace(asked, config=longer))
    with pytest.raises(RunError, match="budget: tokens there, compute asked"):
        made(replace(asked, budget="compute"))
    with pytest.raises(RunError, match="seeds"):
        made(replace(asked, seeds=(0,)))
    fewer = tuple(m for m in asked.methods if m.label != "uniform")
    with pytest.raises(RunError, match=r"methods.uniform"):
        made(replace(asked, methods=fewer))


def test_a_cell_that_fails_is_named_and_the_others_are_made(place):
    asked = ask(place, "bad=compare_mixers:Breaks,uniform", out="failing", seeds=(0,))
    findings = made(asked)
    assert list(findings["failures"]) == ["bad-s0"]
    assert "this mixer breaks" in findings["failures"]["bad-s0"]
    by_label = {method["label"]: method for method in findings["methods"]}
    assert by_label["bad"]["failed"] == ["bad-s0"]
    assert by_label["uniform"]["differences"]["mean"]["seeds"] == 1
    assert any(note.startswith("failed") for note in findings["notes"])
    assert "bad (1 failed)" in _printed(findings)
    pool = Here()
    made(asked, pool)
    assert pool.made == []  # tried again, and failed again; the others are there


def _printed(findings):
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for table in tables(findings):
        console.print(table)
    return console.export_text()


def test_one_plan_serves_all_seeds_and_counts_in_every_run(place):
    asked = ask(place, "plan=compare_mixers:Scout", out="planned", seeds=(0, 1))
    pool, said = Here(), []
    findings = made(asked, pool, said.append)
    assert "plan: note: one proxy alone" in said
    assert "plan: advice: ask more" in said
    assert pool.made[0] == "scout"
    assert pool.made.count("scout") == 1
    method = findings["methods"][1]
    assert method["one_plan_for_all_seeds"]
    weights = method["plans"][0]["weights"]
    assert sorted(weights.values()) == [0.25, 0.25, 0.5]
    for seed in (0, 1):
        stored = run_of(place, "planned", f"plan-s{seed}").config().mixer
        assert (stored.name, stored.options["weights"]) == ("static", weights)
    natural, planned = findings["methods"]
    corpus = Corpus(place / "corpus")
    proxy = parse_config(
        asked.proxy.model_dump(mode="json")
        | {"train": asked.proxy.train.model_dump() | {"steps": 4}},
        "proxy",
    )
    assert planned["flops"]["plan"] == run_flops(proxy, corpus)
    assert planned["flops"]["total"] - natural["flops"]["total"] == planned["flops"]["plan"]
    for cell in findings["cells"]:  # in every run, as each would need it
        seconds = cell["seconds"]
        assert seconds["total"] == seconds["train"] + seconds["plan"]
        assert (seconds["plan"] > 0) == (cell["method"] == "plan")
    assert any("one plan serves all seeds of plan" in note for note in findings["notes"])
    assert "plan*" in _printed(findings)


def test_equal_compute_gives_the_proxies_to_the_others(place):
    asked = ask(
        place, "plan=compare_mixers:Scout,dograph[num_domains=2]", out="compute", budget="compute",
        seeds=(0,),
    )  # fmt: skip
    findings = made(asked)
    natural, planned, sketched = findings["methods"]
    corpus = Corpus(place / "corpus")
    step = step_flops(asked.config, corpus)  # plain, of natural and of the planned
    # The proxy's 4 steps are those of the same model: natural makes them instead.
    assert planned["steps"] == [STEPS]
    assert natural["steps"] == [STEPS + 4]
    own = step_flops(asked.methods[2].config(asked.config), corpus)
    assert sketched["steps"] == [int((STEPS + 4) * step / own)]
    for method in findings["methods"]:
        assert method["flops"]["total"] == pytest.approx((STEPS + 4) * step, rel=own / step / 8)
    stored = run_of(place, "compute", "natural-s0").config()
    assert (stored.train.steps, stored.optim.warmup_steps) == (10, 3)
    rows = read_metrics(run_of(place, "compute", "natural-s0").metrics_file)
    rates = [row["optim/lr"] for row in rows if "optim/lr" in row]
    assert rates[-1] == pytest.approx(stored.optim.lr_end)


@pytest.mark.slow
def test_replanning_makes_one_plan_a_seed(place):
    asked = ask(place, "plan=compare_mixers:Scout[steps=3]", out="replanned", replan=True)
    pool = Here()
    findings = made(asked, pool)
    assert pool.made.count("scout") == 2
    method = findings["methods"][1]
    assert not method["one_plan_for_all_seeds"]
    assert [plan["seed"] for plan in method["plans"]] == [0, 1]
    files = sorted(path.name for path in (Path(asked.out) / "plans").glob("*.yaml"))
    assert files == ["plan-s0.yaml", "plan-s1.yaml"]


@pytest.mark.slow
def test_a_plan_that_fails_takes_its_cells_alone(place):
    said = []
    asked = ask(place, "hopeless=compare_mixers:Hopeless,uniform", out="hopeless", seeds=(0,))
    findings = made(asked, say=said.append)
    assert list(findings["failures"]) == ["hopeless-s0"]
    assert "its plan failed" in findings["failures"]["hopeless-s0"]
    assert any("its plan failed" in line for line in said)
    assert findings["methods"][2]["differences"]["mean"]["seeds"] == 1


def test_a_folder_that_cannot_be_is_told(place):
    (place / "file").write_text("")
    asked = ask(place, "uniform", out="file", seeds=(0,))
    with pytest.raises(RunError, match=r"cannot be written: .*; name another folder"):
        made(asked)


@pytest.mark.parametrize(
    "mixer",
    ["static[weights={alfa: 1}]", "scheduled[stages={0: {alpha: 1}, 3: {alfa: 1}}]"],
)
def test_sources_that_are_not_there_are_told_before_any_cell(place, mixer):
    pool = Here()
    asked = ask(place, f"wrong={mixer}", out="wrong", seeds=(0,))
    with pytest.raises(DographError, match=r'wrong: .*"alfa".*did you mean "alpha"'):
        made(asked, pool)
    assert pool.made == []

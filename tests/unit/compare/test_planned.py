"""Comparisons with planned methods: their plans, and what is counted for them."""

from pathlib import Path

import pytest

from comparisons import STEPS, ask, made, printed, run_of
from dograph.compare.findings import Findings
from dograph.compare.tables import tables
from dograph.config import parse_config
from dograph.data.corpus import Corpus
from dograph.records import read_metrics
from dograph.train.forecast import run_flops, step_flops
from lab_runs import Here

pytestmark = pytest.mark.slow


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
    assert any("all seeds of plan use one plan" in note for note in findings["notes"])
    assert "plan of plan: surrogate linear, fitted on 1 proxies" in findings["notes"]
    assert "plan* (linear)" in printed(findings)
    costs = tables(Findings.of_json(findings))[1]
    assert costs.columns[:3] == ("method", "needs", "proxies")
    assert [row[:3] for row in costs.rows][1] == ["plan* (linear)", "labels, proxies", "1"]
    del planned["needs"]  # as in files of earlier versions
    assert Findings.of_json(findings).methods[1].needs == []


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
    rows = list(read_metrics(run_of(place, "compute", "natural-s0").metrics_file))
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
    assert tables(Findings.of_json(findings))[1].rows[1][2] == "2"  # proxies of both plans
    files = sorted(path.name for path in (Path(asked.out) / "plans").glob("*.yaml"))
    assert files == ["plan-s0.yaml", "plan-s1.yaml"]

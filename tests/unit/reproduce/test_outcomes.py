"""Tables and verdicts from findings made by hand."""

from dataclasses import replace

import pytest
from scipy import stats

from dograph.eval.evaluate import EvalRequest
from dograph.reproduce import paper
from dograph.reproduce.outcomes import (
    cost,
    model_scale,
    num_domains,
    objectives,
    validation_loss,
)
from dograph.reproduce.session import finish, setup_differences

MEANS = {
    "uniform": 5.0,
    "natural": 5.1,
    "dynamic-loss": 4.9,
    "regmix": 4.8,
    "dograph-paper": 5.05,
    "dograph": 4.7,
}


def words(outcome):
    return {(v.of, v.says): v.verdict for v in outcome.verdicts}


def rows(outcome, sheet=0):
    return {row[0]: row[1:] for row in outcome.tables[sheet].rows}


def test_losses_beside_the_papers(by_hand):
    # A seed's noise is in all of its runs, so differences are exact.
    found = validation_loss(
        by_hand.study("validation-loss", by_hand.findings(by_hand.levels(MEANS)))
    )
    table = rows(found)
    assert list(table) == [
        "natural",
        "uniform",
        "dynamic-loss",
        "regmix",
        "dograph-paper",
        "dograph",
    ]
    assert table["uniform"][0].startswith("5.0001 ± 0.01")
    assert table["uniform"][1] == "148.4"  # exp
    assert table["dograph-paper"][2] == "+0.050 [+0.050,+0.050]"
    assert table["dograph-paper"][3] == "[-0.500,+0.500]"
    assert table["dograph-paper"][4:] == ["3.09", "22.0", "-1.04"]
    assert table["natural"][4:] == ["", "", ""]
    assert found.data["methods"]["dograph-paper"]["paper_difference"] == pytest.approx(-1.04)
    told = words(found)
    assert told["dograph-paper", "DoGraph below Uniform"] == "opposite"
    assert told["dograph", "DoGraph below Uniform"] == "sign only"
    assert told["dynamic-loss", "Dynamic Loss-Based below Uniform"] == "sign only"
    assert told["regmix", "RegMix above Uniform"] == "opposite"
    assert told["doremi", "DoReMi below Uniform"] == "no verdict"
    assert told["dograph-paper", "DoGraph lowest of the seven methods"] == "opposite"
    assert told["dograph", "DoGraph lowest of the seven methods"] == "confirmed"
    lines = [verdict.line for verdict in found.verdicts]
    assert any("DoReMi below Uniform: not tested, no finished run of doremi" in x for x in lines)


def test_rows_that_need_no_domains_come_first(by_hand):
    means = dict.fromkeys(("uniform", "doge", "inverse-norm", "natural"), 5.0)
    study = by_hand.study("validation-loss", by_hand.findings(by_hand.levels(means)))
    assert study.rows == ["natural", "inverse-norm", "uniform", "doge"]


def test_few_seeds_show_figures_and_no_verdict(by_hand):
    cells = by_hand.levels({"uniform": 5.0, "dograph-paper": 3.96}, seeds=(10, 11))
    found = validation_loss(by_hand.study("validation-loss", by_hand.findings(cells)))
    assert {verdict.verdict for verdict in found.verdicts} == {"no verdict"}
    cells = by_hand.levels({"uniform": 5.0, "dograph-paper": 3.96})
    found = validation_loss(by_hand.study("validation-loss", by_hand.findings(cells)))
    assert words(found)["dograph-paper", "DoGraph below Uniform"] == "confirmed"  # 1.04, in size


def test_a_failed_cell_is_left_out_with_its_pair(by_hand):
    cells = by_hand.levels({"uniform": 5.0, "dograph-paper": 4.0})
    cells[-1]["error"] = "it broke"  # dograph-paper, last seed
    found = validation_loss(by_hand.study("validation-loss", by_hand.findings(cells)))
    record = found.data["methods"]
    assert record["dograph-paper"]["loss_nats"]["seeds"] == 4
    assert record["uniform"]["loss_nats"]["seeds"] == 5
    assert words(found)["dograph-paper", "DoGraph below Uniform"] == "no verdict"


def test_what_the_paper_claims_in_size(by_hand):
    found = validation_loss(
        by_hand.study("validation-loss", by_hand.findings(by_hand.levels(MEANS)))
    )
    sizes = {(v.of, v.says): v.paper for v in found.verdicts if v.paper is not None}
    assert sizes["dograph-paper", "DoGraph below Uniform"] == pytest.approx(3.09 - 4.13)
    printed = paper.VALIDATION_LOSS["dynamic-loss"]
    assert printed != 4.13
    says = "DoGraph below Dynamic Loss-Based"
    assert sizes["dograph-paper", says] == pytest.approx(3.09 - printed)
    assert sizes["dograph", says] == pytest.approx(3.09 - printed)


def test_the_natural_loss_stands_beside_the_mean(by_hand):
    cells = by_hand.levels({"uniform": 5.0, "dograph-paper": 4.0})
    for one in cells:
        one["summaries"]["natural"] = 6.5
    found = validation_loss(by_hand.study("validation-loss", by_hand.findings(cells)))
    record = found.data["methods"]["dograph-paper"]
    assert record["natural"]["mean"] == pytest.approx(6.5)
    assert record["loss_nats"]["mean"] == pytest.approx(4.0001)


def test_a_method_of_which_every_run_failed_was_not_tested(by_hand):
    cells = by_hand.levels({"uniform": 5.0, "dograph-paper": 4.0})
    for one in cells:
        if one["method"] == "dograph-paper":
            one["error"] = "it broke"
    found = validation_loss(by_hand.study("validation-loss", by_hand.findings(cells)))
    lines = [v.line for v in found.verdicts if v.of == "dograph-paper"]
    assert all("not tested, no finished run of dograph-paper" in line for line in lines)


def wavering(by_hand, means):
    """Differences to uniform that are not the same in every seed."""
    cells = by_hand.levels(means)
    for one in cells:
        if one["method"] != "uniform":
            one["summaries"]["mean"] += (-0.04, 0.03, 0.0, 0.02, -0.01)[one["seed"] - 10]
    return cells


def test_the_lowest_of_all_is_of_the_papers_methods_at_once(by_hand):
    """Bonferroni over the rivals there are; a row that the paper does not have is no rival."""
    means = {"uniform": 5.0, "natural": 4.0, "regmix": 5.5, "doge": 5.5, "dograph-paper": 4.96}
    cells = wavering(by_hand, means)
    found = validation_loss(by_hand.study("validation-loss", by_hand.findings(cells)))
    says = "DoGraph lowest of the seven methods"
    told = next(v for v in found.verdicts if (v.of, v.says) == ("dograph-paper", says))
    pairs = [-0.08, -0.01, -0.04, -0.02, -0.05]
    assert told.ours.value == pytest.approx(-0.04)
    for interval, level in ((told.ours.interval, 0.05), (told.ours.simultaneous, 0.05 / 3)):
        reach = stats.t.ppf(1 - level / 2, 4) * stats.sem(pairs)
        assert interval.high == pytest.approx(-0.04 + reach)
    assert told.ours.interval.high < 0 < told.ours.simultaneous.high
    assert (told.verdict, "against uniform" in told.line) == ("unclear", True)


def test_objectives_beside_the_papers(by_hand):
    means = {"uniform": 5.0, "variance": 5.2, "robust": 5.4, "alignment": 5.0, "uncertainty": 5.1}
    found = objectives(by_hand.study("objectives", by_hand.findings(by_hand.levels(means))))
    table = rows(found)
    assert table["variance"][2:4] == ["+0.100 [+0.100,+0.100]", "+0.200 [+0.200,+0.200]"]
    assert table["uncertainty"][2] == ""
    assert table["alignment"][5] == "+0.06"
    assert table["robust"][6] == "O(m)"
    told = words(found)
    assert told["uncertainty", "uncertainty below variance"] == "sign only"
    assert told["uncertainty", "uncertainty below alignment"] == "opposite"
    cheapest = found.verdicts[-1]
    assert (cheapest.of, cheapest.verdict) == ("robust", "no verdict")
    assert "lowest computational cost: not tested, docs/cost.md" in cheapest.line


def test_a_u_of_domains(by_hand):
    means = {"uniform": 5.0, "m7": 5.3, "m9": 5.2, "m11": 5.1, "m13": 5.1, "m15": 5.05}
    found = num_domains(by_hand.study("num-domains", by_hand.findings(by_hand.levels(means))))
    told = words(found)
    assert told["m11", "m = 11 below m = 7"] == "confirmed"
    assert told["m11", "m = 11 below m = 15"] == "opposite"
    assert told["m11", "m = 11 below m = 13"] == "unclear"


def test_model_sizes(by_hand):
    levels = {"tiny": (5.0, 4.9), "demo": (4.5, 4.95)}
    studies = {}
    for size, (uniform, dograph) in levels.items():
        cells = by_hand.levels({"uniform": uniform, "dograph-paper": dograph})
        studies[size] = by_hand.study("model-scale", by_hand.findings(cells), size=size)
    found = model_scale(studies)
    assert rows(found)["uniform"][1].startswith("4.5001")
    assert rows(found, 1)["dograph-paper"] == ["-0.100 [-0.100,-0.100]", "+0.450 [+0.450,+0.450]"]
    told = words(found)
    assert told["dograph-paper", "DoGraph below Uniform at tiny"] == "confirmed"
    assert told["dograph-paper", "DoGraph below Uniform at demo"] == "opposite"
    assert told["dograph-paper", "DoGraph below RegMix at tiny"] == "no verdict"
    assert told["uniform", "the loss of uniform falls from tiny to demo"] == "confirmed"
    falls = "the loss of dograph-paper falls from tiny to demo"
    assert told["dograph-paper", falls] == "opposite"
    stored = found.data["methods"]["dograph-paper"]["demo"]
    assert stored["loss_nats"]["mean"] == pytest.approx(4.95, abs=2e-4)
    assert stored["less_uniform"]["mean"] == pytest.approx(0.45)
    assert "model.preset" not in "".join(setup_differences(studies["tiny"]))


def test_a_failure_at_each_size_is_kept(by_hand, tmp_path):
    made = by_hand.findings(by_hand.levels({"uniform": 5.0}))
    made = replace(made, failures={"doge-s10": "it broke"})
    studies = {size: by_hand.study("model-scale", made, size=size) for size in ("tiny", "demo")}
    outcome = finish(studies, EvalRequest(), tmp_path, print)
    assert list(outcome.failures) == ["tiny/doge-s10", "demo/doge-s10"]
    assert "demo: warning: b was read through 5.0 times" in outcome.notes


def test_costs_count_plans_and_are_taken_seed_by_seed(by_hand):
    seconds = {"uniform": 10.0, "regmix": 10.0, "dograph-paper": 10.451}
    plans = {"uniform": 0.0, "regmix": 5.0, "dograph-paper": 0.0}
    flops = {"uniform": 100.0, "regmix": 100.0, "dograph-paper": 110.0}
    means = dict.fromkeys(seconds, 5.0)
    cells = by_hand.levels(means, seconds=seconds, plan=plans, flops=flops)
    for one in cells:  # no two runs take the same time
        if one["method"] == "dograph-paper":
            one["seconds"]["train"] += (one["seed"] - 12) * 1e-3
            one["seconds"]["total"] = one["seconds"]["train"]
    found = cost(by_hand.study("cost", by_hand.findings(cells)))
    table = rows(found)
    assert table["regmix"][1:3] == ["5.0", "+50.0 [+50.0,+50.0]"]
    assert table["dograph-paper"][2] == "+4.5 [+4.5,+4.5]"
    assert table["dograph-paper"][4] == "+10.0"
    assert table["regmix"][4] == "+5.0"  # of FLOPs, its plan's 5 counted
    # 700 x 48 x 512 tokens in 10 s; 100e9 take 16.1 h.
    assert table["uniform"][5] == f"{100e9 / (700 * 48 * 512) * 10 / 3600:.1f}"
    assert found.data["methods"]["regmix"]["seconds"]["mean"] == 15
    own = {claim.says: claim for claim in found.verdicts if claim.of == "dograph-paper"}
    alone = own["DoGraph takes more time than RegMix (training alone)"]
    counted = own["DoGraph takes more time than RegMix (including RegMix's plan)"]
    assert alone.ours.value == pytest.approx(4.51)
    assert alone.verdict == "confirmed"  # 4.51 per cent, by construction
    assert counted.ours.value == pytest.approx(100 * (10.451 / 15 - 1))
    assert counted.verdict == "opposite"
    assert words(found)["dograph", alone.says] == "no verdict"


def test_what_differs_is_told_from_the_settings(by_hand):
    cells = by_hand.levels({"uniform": 5.0, "dograph-paper": 4.9})
    lines = setup_differences(by_hand.study("validation-loss", by_hand.findings(cells)))
    text = "\n".join(lines)
    assert "model.preset gpt2-mini (paper's preset: gpt2-medium)" in text
    assert "train.steps 700 (paper's preset: 20000)" in text
    assert f"a run: {700 * 48 * 512:,} tokens; paper: {20_000 * 48 * 512:,}" in text
    assert "optim.betas [0.9, 0.95] (paper's preset: [0.9, 0.999])" in text
    assert "seeds: 5 (10, 11, 12, 13, 14); the paper does not say" in text
    assert "proxies are gpt2-proxy of 175 steps" in text

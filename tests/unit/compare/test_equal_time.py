"""Equal time: interpolation, shared errors, learning rates, and a whole comparison."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats as reference

from comparisons import ask, made, printed, run_of
from dograph import stats
from dograph.compare import equal_time
from dograph.compare.arms import parse_rates
from dograph.compare.cells import lay_out
from dograph.compare.equal_time import Curve, tuning, with_best_rates, with_equal_time
from dograph.compare.findings import CellFindings, Findings, MethodFindings, RunCost
from dograph.compare.session import forecast_lines
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError, RunError
from dograph.stats import Estimate, mean_estimate
from lab_runs import Here

LENGTHS = np.array([1.0, 1.05, 1.12])
EXACT = Estimate(1.06, None, 1)


def curve(a_N, b_N):
    """Seeds whose losses are a - b log(length)."""
    return Curve(LENGTHS, np.array(a_N)[:, None] - np.array(b_N)[:, None] * np.log(LENGTHS))


def test_the_baseline_is_interpolated_at_the_methods_time():
    own = np.array([4.9, 5.0])
    found = curve([5.0, 5.2], [0.7, 0.6]).difference(own, 1.06, EXACT, 1)
    expected = own - [5.0 - 0.7 * math.log(1.06), 5.2 - 0.6 * math.log(1.06)]
    assert found.value == pytest.approx(expected.mean(), abs=1e-12)
    assert found.interval.low == pytest.approx(mean_estimate(expected).interval.low, abs=1e-12)


def test_a_bend_of_the_curve_is_followed():
    bent = Curve(LENGTHS, np.array([[5.0, 4.9, 4.89]]))
    between = math.log(1.08 / 1.05) / math.log(1.12 / 1.05)
    found = bent.difference(np.array([4.8]), 1.08, EXACT, 1).value
    assert found == pytest.approx(4.8 - (4.9 - 0.01 * between), abs=1e-12)


def test_faster_than_the_baseline_counts_as_equally_fast_and_beyond_it_nothing_is_said():
    line = curve([5.0, 5.1], [0.7, 0.7])
    assert line.difference(np.array([4.9, 5.0]), 0.98, EXACT, 1).value == pytest.approx(-0.1)
    assert line.difference(np.array([4.9, 5.0]), 1.12, EXACT, 1).num == 2
    assert line.difference(np.array([4.9, 5.0]), 1.13, EXACT, 1).num == 0


def test_the_error_of_the_price_is_added():
    prices = [1.05, 1.07, 1.06, 1.04]
    a_N, own = [5.0, 5.2, 5.1], np.array([4.9, 5.05, 5.04])
    found = curve(a_N, [0.7] * 3).difference(own, 1.055, mean_estimate(prices), 1)
    difference = own - (np.array(a_N) - 0.7 * math.log(1.055))
    of_seeds = difference.var(ddof=1) / 3
    of_price = (0.7 / 1.055) ** 2 * np.var(prices, ddof=1) / 4
    error = math.sqrt(of_seeds + of_price)
    low, high = reference.t.interval(0.95, 2, difference.mean(), error)
    assert (found.interval.low, found.interval.high) == pytest.approx((low, high), rel=1e-9)
    p = 2 * reference.t.sf(abs(difference.mean()) / error, 2)
    assert found.p_value == pytest.approx(p, rel=1e-9)


def test_the_error_of_the_price_is_along_the_part_of_the_curve_where_it_is():
    bent, prices = np.array([[5.0, 4.9, 4.83], [5.2, 5.1, 5.03]]), [1.09, 1.07]
    own = np.array([4.9, 5.05])
    found = Curve(LENGTHS, bent).difference(own, 1.08, mean_estimate(prices), 1).interval
    slope = 0.07 / math.log(1.12 / 1.05)
    loss_N = np.array([4.9, 5.1]) - slope * math.log(1.08 / 1.05)
    of_seeds, of_price = np.var(own - loss_N, ddof=1) / 2, (slope * 0.01 / 1.08) ** 2
    ends = reference.t.interval(0.95, 1, (own - loss_N).mean(), math.sqrt(of_seeds + of_price))
    assert (found.low, found.high) == pytest.approx(ends, rel=1e-9)


def test_the_error_of_a_price_below_1_is_along_the_curve_s_first_part():
    loss_NL = np.array([[5.0, 4.9, 4.89], [5.2, 5.1, 5.09]])
    own, price = np.array([4.9, 5.05]), mean_estimate([0.95, 1.01])
    found = Curve(LENGTHS, loss_NL).difference(own, 0.98, price, 1).interval
    of_seeds = np.var([4.9 - 5.0, 5.05 - 5.2], ddof=1) / 2
    of_price = (0.1 / math.log(1.05) * 0.03 / 0.98) ** 2  # 0.03: the standard error of the price
    low, high = reference.t.interval(0.95, 1, -0.125, math.sqrt(of_seeds + of_price))
    assert (found.low, found.high) == pytest.approx((low, high), rel=1e-9)


@pytest.mark.parametrize(
    ("spread", "least", "most"), [(0.0, 0.94, 0.96), (0.02, 0.95, 0.995)], ids=["exact", "noisy"]
)
def test_the_interval_holds_the_true_difference(spread, least, most):
    """In 95 % if the price is exact; more, not less, if its error is as large as that of seeds."""
    draw, inside, without, tables = np.random.default_rng(5), 0, 0, 3000
    truth = -0.02 + 0.7 * math.log(1.06)
    for _ in range(tables):
        noise = draw.normal(0, 0.01, (5, 1))
        losses = 5 + noise - 0.7 * np.log(LENGTHS) + draw.normal(0, 0.004, (5, 3))
        own = 5 + noise[:, 0] - 0.02 + draw.normal(0, 0.004, 5)
        price = mean_estimate(draw.normal(1.06, spread, 10))
        line = Curve(LENGTHS, losses)
        interval = line.difference(own, price.value, price, 1).interval
        inside += interval.low <= truth <= interval.high
        naive = line.difference(own, price.value, EXACT, 1).interval
        without += naive.low <= truth <= naive.high
    assert least < inside / tables < most
    assert without / tables < (0.85 if spread else most)


def test_a_shared_error_of_zero_changes_nothing():
    values = [0.1, 0.3, 0.2]
    assert stats.with_shared_error(values, 0.0, 3, 2) == mean_estimate(values, 2)


def test_a_shared_error_from_fewer_values_makes_the_interval_wider():
    values = [0.1, 0.3, 0.2, 0.15, 0.22]
    found = stats.with_shared_error(values, 0.04, 1, 3)
    error = math.hypot(np.std(values, ddof=1) / math.sqrt(5), 0.04)
    for interval, level in ((found.interval, 0.95), (found.simultaneous, 1 - 0.05 / 3)):
        ends = reference.t.interval(level, 1, np.mean(values), error)
        assert (interval.low, interval.high) == pytest.approx(ends, rel=1e-9)


def test_steps_that_the_weights_are_worth():
    line = curve([5.0, 5.2], [0.7, 0.7])
    assert line.length_of(5.1 - 0.7 * math.log(1.03)) == pytest.approx(1.03, abs=1e-4)
    assert line.length_of(5.2) == pytest.approx(1.0)
    assert line.length_of(4.0) == pytest.approx(1.12)
    assert Curve(LENGTHS, np.array([[5.0, 5.01, 4.9]])).length_of(4.95) is None
    assert line.length_of(math.nan) is None  # a run diverged


def test_rates_need_another_seed():
    assert parse_rates("1e-3, 5e-4", ["seed=7"], [0, 1]) == ((5e-4, 1e-3), {"seed": 7})
    assert parse_rates("", [], [0]) == ((), {})
    for rates, tune in (
        ("1e-3,x", ["seed=7"]),
        ("0", ["seed=7"]),
        ("1e-3", ["seed=0"]),
        ("1e-3", ["train.steps=4"]),
        ("1e-3", []),
        ("", ["seed=7"]),
    ):
        with pytest.raises(ConfigError, match=r"--rates|--tune"):
            parse_rates(rates, tune, [0])


@pytest.fixture(scope="module")
def asked(place):
    asked = ask(place, "dograph[num_domains=2]", out="time")
    train = asked.config.train.model_copy(update={"steps": 20})
    config = asked.config.model_copy(update={"train": train})
    own = {"config": config, "rates": (1e-4, 3e-3), "tune": {"seed": 9}}
    return replace(asked, budget="time", **own)


def tried(losses):
    """The findings of the runs that choose rates, as far as they are read."""
    spreads = {name: {"mean": SimpleNamespace(mean=loss)} for name, loss in losses.items()}
    return SimpleNamespace(
        methods=[SimpleNamespace(label=name, losses=own) for name, own in spreads.items()]
    )


def test_every_method_gets_its_own_best_rate(asked):
    label, said = "dograph-num_domains-2", []
    names = [f"{name}-lr{rate}" for name in ("natural", label) for rate in ("0.0001", "0.003")]
    trials = tuning(asked)
    assert [method.label for method in trials.methods] == names
    assert (trials.seeds, trials.out.name, trials.rates) == ((9,), "tuning", ())
    assert trials.config.seed == 9
    found = tried(dict(zip(names[:3], (5.0, 4.9, 4.7), strict=True)))  # the last one failed
    chosen = with_best_rates(asked, found, said.append)
    assert [method.own["optim"]["lr"] for method in chosen.methods] == [3e-3, 1e-4]
    assert "0.003, is at the end of --rates" in said[0]
    assert "0.0001, is at the end of --rates" in said[1]
    found = tried(dict(zip(names, (math.nan, 4.9, 4.7, 4.8), strict=True)))  # the first one
    chosen = with_best_rates(asked, found, said.append)
    assert [method.own["optim"]["lr"] for method in chosen.methods] == [3e-3, 1e-4]
    said.clear()
    one = replace(asked, rates=(1e-4,))  # has no end
    with_best_rates(one, tried({names[0]: 5.0, names[2]: 5.0}), said.append)
    assert said == []
    found = tried({names[0]: math.nan, names[1]: 6.0, names[2]: math.nan})
    with pytest.raises(RunError, match=f"{label} has no finite loss"):
        with_best_rates(asked, found, said.append)


def test_warm_up_keeps_its_share_of_other_steps(asked):
    assert tuning(replace(asked, tune={"seed": 9, "train": {"steps": 60}})).config.optim == (
        asked.config.optim.model_copy(update={"warmup_steps": 6})
    )
    given = {"seed": 9, "train": {"steps": 60}, "optim": {"warmup_steps": 5}}
    assert tuning(replace(asked, tune=given)).config.optim.warmup_steps == 5


def test_longer_runs_warm_up_longer(asked):
    longer = replace(asked.methods[0], length=1.5).config(asked.config)
    assert (longer.train.steps, longer.optim.warmup_steps) == (30, 3)


def test_a_timed_run_is_long_enough_for_all_that_are_timed_beside_it(asked, monkeypatch, tmp_path):
    monkeypatch.setattr(equal_time, "open_arm", lambda config, device: config)
    (cell, *_) = lay_out(replace(asked, rates=()), Corpus(asked.config.data.corpus), {})
    for times in (1, 4):
        opened = equal_time._opened(cell, str(tmp_path), torch.device("cpu"), times)
        steps, length = equal_time.segments(asked.config, 0.0)  # at most; and to where rows are due
        assert opened.train.steps >= 12 + 2 + times * (steps + length)
        assert not opened.log.sinks


def test_the_shape_of_the_schedule_is_kept(asked):
    config = asked.methods[0].at_rate(4e-3, asked.config).config(asked.config)
    old, new = asked.config.optim, config.optim
    assert new.lr == 4e-3
    assert new.lr_end / new.lr == pytest.approx(old.lr_end / old.lr)
    assert new.lr_start / new.lr == pytest.approx(old.lr_start / old.lr)


def test_a_comparison_at_equal_time(place, asked, monkeypatch):
    pool, said = Here(), []
    found = made(asked, pool, said.append)
    names = ["natural", "natural-x1.05", "natural-x1.12", "dograph-num_domains-2"]
    assert {label.rpartition("-s")[0] for label in pool.made if "-lr" not in label} == set(names)
    assert len([label for label in pool.made if "-lr" in label]) == 4
    lengths = [run_of(place, "time", f"{name}-s0").config().train.steps for name in names]
    assert lengths == [20, 21, 22, 20]
    prices = json.loads((asked.out / "prices.json").read_text())
    method = found["methods"][1]
    assert list(prices) == [method["label"]]
    at_time = method["equal_time"]
    assert at_time["ratio"]["value"] == pytest.approx(np.mean(prices[method["label"]]))
    assert not list(asked.out.glob(".prices*"))

    beyond = {label: [1.05] * 3 + [1.051] for label in prices}
    (asked.out / "prices.json").write_text(json.dumps(beyond))
    monkeypatch.setattr(equal_time, "run_segments", None)  # a price is not measured again
    pool = Here()
    found = made(asked, pool)
    assert pool.made == []
    at_time = found["methods"][1]["equal_time"]
    own, plain = (
        [cell["summaries"]["mean"] for cell in found["cells"] if cell["method"] == name]
        for name in (method["label"], "natural-x1.05")
    )
    difference = at_time["differences"]["mean"]["mean"]
    assert difference == pytest.approx(np.mean(own) - np.mean(plain), abs=1e-3)
    text = printed(found)
    assert "equal time [95 %]" in text
    assert "no claim" not in text
    assert f"{at_time['time']:.3f}" in text
    assert any("equal time: natural also trained" in note for note in found["notes"])
    lines = "\n".join(forecast_lines(asked, Corpus(asked.config.data.corpus)))
    assert "natural-x1.12: 22 steps" in lines
    assert "4 more runs choose the learning rates" in lines


def test_a_price_beyond_the_longest_run_makes_no_difference(asked):
    values = json.loads((asked.out / "compare.json").read_text())
    findings = replace(Findings.of_json(values), notes=[])
    label = "dograph-num_domains-2"
    found = equal_time.with_equal_time(findings, {label: [1.3, 1.31]})
    assert found.methods[1].equal_time.differences == {}
    assert "takes 1.3" in " ".join(found.notes)
    missing = equal_time.with_equal_time(findings, {})
    assert missing.methods[1].equal_time is None


def test_only_steps_that_need_nothing_are_known_to_cost_the_same(asked, monkeypatch):
    """Beside a baseline with sketches, a plain method's price is measured like any other."""
    uniform = replace(asked.methods[0], label="uniform", mixer={"name": "uniform"})
    monkeypatch.setattr(equal_time, "run_segments", lambda *given: {"ratios": [0.9, 0.91]})
    for baseline, expected in ((asked.methods[0], [1.0]), (asked.methods[1], [0.9, 0.91])):
        own = replace(asked, methods=(baseline, uniform), rates=(), seeds=(0,))
        own = replace(own, out=asked.out.with_name(f"beside-{baseline.label}"))
        own.out.mkdir()
        cells = lay_out(own, Corpus(own.config.data.corpus), {})
        assert equal_time.measure_prices(own, cells, print)["uniform"] == expected


class Opened:
    """An arm that trains nothing; remembers how many steps it was made for."""

    def __init__(self, cell, folder, device, times=1):
        self.cell, self.times = cell, times

    def segment(self, steps):
        return 5.0, []

    def close(self):
        pass


def test_each_price_is_measured_once_on_the_first_seed_with_the_methods_run_first(
    asked, monkeypatch
):
    pairs = []

    def timed(arm, other, *rest):
        pairs.append((arm.cell.label, other.cell.label, other.times))
        return {"ratios": [1.05, 1.06]}

    monkeypatch.setattr(equal_time, "_opened", Opened)
    monkeypatch.setattr(equal_time, "run_segments", timed)
    head = replace(asked.methods[1], label="head")
    own = replace(asked, methods=(*asked.methods, head), rates=(), seeds=(4, 5))
    own = replace(own, out=asked.out.with_name("once"))
    own.out.mkdir()
    cells, label = lay_out(own, Corpus(own.config.data.corpus), {}), asked.methods[1].label
    prices = equal_time.measure_prices(own, cells, print)
    assert prices == {"natural": [1.0], label: [1.05, 1.06], "head": [1.05, 1.06]}
    assert pairs == [(f"{name}-s4", "natural-s4", 2) for name in (label, "head")]
    assert json.loads((own.out / "prices.json").read_text()) == {
        name: prices[name] for name in (label, "head")
    }
    (own.out / "prices.json").write_text(json.dumps({label: [1.07, 1.08]}))
    prices = equal_time.measure_prices(own, cells, print)
    assert (prices[label], prices["head"]) == ([1.07, 1.08], [1.05, 1.06])
    assert pairs[2:] == [("head-s4", "natural-s4", 1)]  # the run beside it is as long as needed


BASELINE = {"natural": 1.0, "natural-x1.05": 1.05, "natural-x1.12": 1.12}
SLOPE = 0.7


def cell_of(name, seed, loss):
    """A run of 200 s for each length of the baseline, or of 250 s and 10 s for its plan."""
    length, is_baseline = BASELINE.get(name, 1.0), name in BASELINE
    plan, train = 10.0 * (name == "planned"), 200.0 * length if is_baseline else 250.0
    cost = RunCost(train, plan, train + plan)
    facts = {"label": f"{name}-s{seed}", "method": name, "seed": seed, "run": "", "command": ""}
    size = {"steps": round(100 * length), "tokens": round(1000 * length), "flops": cost}
    summaries = dict.fromkeys(stats.METRICS, loss)
    return CellFindings(**facts, **size, error=None, seconds=cost, summaries=summaries)


def findings_of(plain, own):
    """Losses of every seed of the baseline, and of each method."""
    cells, rows = [], []
    for name in (*BASELINE, *own):
        fall = SLOPE * math.log(BASELINE.get(name, 1.0))
        losses = [loss - fall for loss in own.get(name, plain)]
        cells += [cell_of(name, seed, loss) for seed, loss in enumerate(losses)]
        empty = {key: [] for key in ("cells", "failed", "plans", "steps", "tokens")}
        facts = {"label": name, "mixer": {}, "one_plan_for_all_seeds": True}
        rows.append(MethodFindings(**facts, **empty, flops=cells[-1].flops))
    names = ("format", "version", "command", "budget", "replan", "config", "proxy", "corpus")
    unused = dict.fromkeys((*names, "environment", "failures"))
    own = {"baseline": "natural", "seeds": [*range(len(plain))], "methods": rows, "cells": cells}
    return Findings(**unused, **own, notes=[])


def test_the_whole_run_with_its_plan_is_at_equal_time():
    """Two methods beside a baseline, by t statistics; each metric has a family of its own."""
    prices, draw = {"planned": [1.02, 1.04, 1.03], "uniform": [1.0]}, np.random.default_rng(1)
    plain = 5 + 0.01 * draw.normal(size=5)
    own = {name: plain - 0.03 + 0.01 * draw.normal(size=5) for name in prices}
    found = with_equal_time(findings_of(plain, own), prices)
    found = {row.label: row.equal_time for row in found.methods}
    assert [found[name] for name in BASELINE] == [None] * 3
    p_values = {}
    for name, time, freedom in (("planned", 1.03 + 10 / 200, 2), ("uniform", 1.0, 4)):
        assert found[name].time == pytest.approx(time)
        difference = own[name] - plain + SLOPE * math.log(time)
        of_price = SLOPE / time * 0.01 / math.sqrt(3) if freedom == 2 else 0.0
        error = math.hypot(np.std(difference, ddof=1) / math.sqrt(5), of_price)
        ends = reference.t.interval(1 - 0.05 / 2, freedom, difference.mean(), error)
        contrast = found[name].differences["natural"]
        assert contrast.mean == pytest.approx(difference.mean())
        both = contrast.simultaneous.low, contrast.simultaneous.high
        assert both == pytest.approx(ends, rel=1e-6)
        p_values[name] = 2 * reference.t.sf(abs(difference.mean()) / error, freedom)
    least, most = sorted(p_values, key=p_values.get)
    adjusted = {least: min(1, 2 * p_values[least])}  # Holm's, of two tests
    adjusted[most] = max(adjusted[least], p_values[most])
    for name in prices:
        assert found[name].differences["natural"].p_holm == pytest.approx(adjusted[name], rel=1e-6)


def test_too_few_steps_are_refused(place):
    with pytest.raises(ConfigError, match="at least 20"):
        ask(place, "uniform", out="few", budget="time")


def test_one_step_fewer_than_enough_is_refused(asked):
    train = asked.config.train.model_copy(update={"steps": 19})
    with pytest.raises(ConfigError, match=r"train\.steps=19"):
        replace(asked, config=asked.config.model_copy(update={"train": train}))


def test_wrong_settings_of_tune_leave_no_folder(asked):
    """Otherwise the corrected command would be refused as another comparison."""
    wrong = replace(asked, tune={"seed": 9, "train": {"stps": 4}}, out=asked.out.with_name("typo"))
    with pytest.raises(ConfigError, match="stps"):
        made(wrong)
    assert not wrong.out.exists()


def test_runs_at_a_rate_that_is_no_longer_the_best_are_not_mixed_in(asked):
    """A run of --rates that failed at first may be the best one when it is tried again."""
    asked = replace(asked, out=asked.out.with_name("tried-again"), seeds=(0,), budget="tokens")
    found = made(asked)
    trials = asked.out / "tuning" / "cells"
    best = found["methods"][0]["own"]["optim"]["lr"]
    (trials / f"natural-lr{best:g}-s9" / "result.json").unlink()  # as if it had failed
    (trials / f"natural-lr{best:g}-s9" / "config.yaml").write_text("broken")
    with pytest.raises(RunError, match="another learning rate"):
        made(asked)


def test_a_method_that_fails_has_no_price_and_others_are_measured(asked, monkeypatch):
    """Its cell names the failure, as without --match time."""

    def fails(*given):
        raise KeyError("oops")

    said, own = [], replace(asked, rates=(), seeds=(0,), out=asked.out.with_name("fails"))
    own.out.mkdir()
    cells = lay_out(own, Corpus(own.config.data.corpus), {})
    monkeypatch.setattr(equal_time, "run_segments", fails)
    assert list(equal_time.measure_prices(own, cells, said.append)) == ["natural"]
    assert "cannot be measured: KeyError: 'oops'" in said[-1]


def test_a_method_that_is_faster_is_noted(asked):
    """Beside a baseline with sketches: its difference is at equal steps."""
    values = json.loads((asked.out / "compare.json").read_text())
    findings = replace(Findings.of_json(values), notes=[])
    found = equal_time.with_equal_time(findings, {"dograph-num_domains-2": [0.8, 0.81]})
    assert "dograph-num_domains-2 takes 0.805 times as long, counted as 1" in found.notes[-1]


def test_the_label_of_a_longer_run_is_refused(asked):
    """Such a method would be trained in its place."""
    taken = replace(asked.methods[1], label=f"{asked.methods[0].label}-x1.05")
    wrong = replace(asked, methods=(*asked.methods, taken), out=asked.out.with_name("taken"))
    with pytest.raises(ConfigError, match="choose another label"):
        made(wrong)
    assert not wrong.out.exists()

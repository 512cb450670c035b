"""Differences to a baseline, by hand and by scipy."""

import numpy as np
import pytest
from scipy import stats

from dograph.compare import findings
from dograph.compare.findings import RunLosses
from dograph.files import plain
from dograph.stats import summaries

TOKENS = {"a": 600, "b": 200}


def contrasts(*given):
    """As compare.json has them."""
    return plain(findings.contrasts(*given))


def run(a, b, blocks=4):
    """A run whose blocks scatter around its losses by the same amounts in every run."""
    share = np.array([600.0, 200.0])
    found = summaries(np.array([a, b]), share)
    scatter = np.linspace(-1.0, 1.0, blocks)
    items = {name: (np.full(blocks, 31.0), loss + scatter) for name, loss in (("a", a), ("b", b))}
    return RunLosses({"a": a, "b": b}, {name: float(v) for name, v in found.items()}, items)


def table(seeds=5):
    rng = np.random.default_rng(0)
    loss = rng.normal(4.0, 0.1, (3, seeds, 2))
    loss[1] = loss[0] - 0.3 + rng.normal(0, 0.01, (seeds, 2))  # clearly better
    return loss, {
        name: {seed: run(*loss[i, seed]) for seed in range(seeds)}
        for i, name in enumerate(("base", "good", "noise"))
    }


def test_intervals_and_claims():
    loss, runs = table()
    found = contrasts(runs, "base", ["good", "noise"], TOKENS)
    mean = loss.mean(axis=-1)
    expected = stats.ttest_rel(mean[1], mean[0])
    got = found["good"]["mean"]
    assert got["p"] == pytest.approx(expected.pvalue)
    assert got["p_holm"] == pytest.approx(2 * expected.pvalue)  # the smaller of two
    assert tuple(got["interval"].values()) == pytest.approx(expected.confidence_interval(0.95))
    assert got["claim"] == "lower"
    natural = (3 * loss[..., 0] + loss[..., 1]) / 4
    assert found["noise"]["natural"]["mean"] == pytest.approx((natural[2] - natural[0]).mean())
    assert found["noise"]["mean"]["claim"] == "unclear"


def test_sources_are_one_family():
    loss, runs = table()
    found = contrasts(runs, "base", ["good", "noise"], TOKENS)
    p = {
        (m, s): stats.ttest_rel(loss[i, :, k], loss[0, :, k]).pvalue
        for i, m in ((1, "good"), (2, "noise"))
        for k, s in enumerate("ab")
    }
    smallest = min(p, key=lambda key: p[key])
    told = found[smallest[0]]["sources"][smallest[1]]
    assert told["p_holm"] == pytest.approx(4 * p[smallest])


def test_simultaneous_intervals_are_of_the_whole_table():
    """Bonferroni over two methods for a summary, over two methods of two sources for a cell."""
    loss, runs = table()
    found = contrasts(runs, "base", ["good", "noise"], TOKENS)
    mean = loss.mean(axis=-1)
    for told, pair, family in (
        (found["noise"]["mean"], (mean[2], mean[0]), 2),
        (found["noise"]["sources"]["b"], (loss[2, :, 1], loss[0, :, 1]), 4),
    ):
        wide = stats.ttest_rel(*pair).confidence_interval(1 - 0.05 / family)
        assert tuple(told["simultaneous"].values()) == pytest.approx(wide)


def test_pairs_go_by_seed_and_not_by_place():
    """Seeds of the method in another order, one missing, and one that the baseline lacks."""
    loss, runs = table()
    own = runs["good"]
    runs["good"] = {seed: own[seed] for seed in (4, 2, 0, 1)} | {9: run(1.0, 2.0)}
    found = contrasts(runs, "base", ["good"], TOKENS)["good"]["sources"]["a"]
    kept = [0, 1, 2, 4]
    expected = stats.ttest_rel(loss[1, kept, 0], loss[0, kept, 0])
    assert found["seeds"] == 4
    assert found["p"] == pytest.approx(expected.pvalue)
    assert found["mean"] == pytest.approx((loss[1, kept, 0] - loss[0, kept, 0]).mean())
    assert found["over_items"]["low"] == pytest.approx(found["mean"])


def test_few_seeds_make_no_claim_and_a_missing_cell_breaks_its_pair_alone():
    _, runs = table()
    del runs["good"][2]
    found = contrasts(runs, "base", ["good", "noise"], TOKENS)
    assert found["good"]["mean"]["seeds"] == 4
    assert found["good"]["mean"]["claim"] == "no claim: 4 of 5 seeds"
    assert found["noise"]["mean"]["seeds"] == 5
    runs["good"].clear()
    nothing = contrasts(runs, "base", ["good", "noise"], TOKENS)["good"]["mean"]
    assert (nothing["seeds"], nothing["interval"], nothing["over_items"]) == (0, None, None)


def test_over_items_the_shared_scatter_drops_out():
    _, runs = table()
    found = contrasts(runs, "base", ["good", "noise"], TOKENS)
    got = found["good"]["mean"]
    # Every block is better by the same amount here, so resampling blocks changes nothing.
    assert got["over_items"]["low"] == pytest.approx(got["mean"])
    assert got["over_items"]["high"] == pytest.approx(got["mean"])
    natural = found["noise"]["natural"]  # by tokens here too
    assert natural["over_items"]["low"] == pytest.approx(natural["mean"])
    lone = {
        name: {s: RunLosses(r.losses, r.summaries, {}) for s, r in own.items()}
        for name, own in runs.items()
    }
    assert contrasts(lone, "base", ["good"], TOKENS)["good"]["mean"]["over_items"] is None

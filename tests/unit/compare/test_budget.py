"""Equal compute, worked out by hand."""

from dograph.compare.cells import equal_compute, stretched
from dograph.config import parse_config


def test_natural_gets_the_steps_that_others_spend_on_proxies():
    prices = {  # FLOPs of a plan, and of a step
        "natural": (0.0, 3.0),
        "sketched": (0.0, 4.0),
        "planned": (250.0, 3.0),
    }
    # planned: 250 + 100 x 3 = 550 is the dearest; 550 / 3 = 183.3, 550 / 4 = 137.5
    assert equal_compute(prices, 100) == {"natural": 183, "sketched": 137, "planned": 100}


def test_the_dearest_keeps_its_steps_whatever_the_rounding():
    for step in (0.1, 1 / 3, 3.52e9 / 7):
        assert equal_compute({"a": (1e20 / 3, step), "b": (0.0, step)}, 77)["a"] == 77
        assert equal_compute({"a": (0.0, step), "b": (0.0, step)}, 77)["b"] == 77


def test_rounding_costs_no_run_a_step():
    """Equal totals worked out two ways: 0.3 / 0.1 is 2.9999999999999996 in binary."""
    assert 0.3 / 0.1 < 3
    prices = {"dear": (0.0, 0.3), "plain": (0.0, 0.1)}
    assert equal_compute(prices, 1) == {"dear": 1, "plain": 3}


def test_the_schedule_is_stretched():
    config = parse_config({"train": {"steps": 100}, "optim": {"warmup_steps": 10}}, "test")
    longer = stretched(config, 183)
    assert (longer.train.steps, longer.optim.warmup_steps) == (183, 18)
    assert stretched(config, 100) == config

"""Weights as they are printed, places, comments."""

from decimal import Decimal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dograph.errors import ConfigError
from dograph.mixtures.export import export_mixture, file_kind, printed
from dograph.mixtures.published import PRESETS, find_mixture

weights = st.lists(st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=30).filter(
    lambda values: sum(values) > 1e-3
)


@given(weights)
def test_printed_weights_sum_to_exactly_one(values):
    mixture = {f"s{i}": value for i, value in enumerate(values)}
    shown = printed(mixture)
    assert sum(Decimal(repr(weight)) for weight in shown.values()) == 1
    assert list(shown) == [name for name, value in mixture.items() if value > 0]
    total, positive = sum(values), [v for v in values if v > 0]
    digits = 6
    while digits < 12 and min(positive) / total * 10**digits < 100:
        digits += 1
    raised = sum(v / total < 10**-digits for v in positive)  # from below one unit to one
    for name, weight in shown.items():
        assert weight > 0
        assert abs(weight - mixture[name] / total) <= (1 + raised) * 10**-digits + 1e-15


def test_remainders_go_to_the_largest_then_to_the_first():
    assert printed({"a": 1, "b": 1, "c": 1}) == {"a": 0.333334, "b": 0.333333, "c": 0.333333}
    assert printed({"a": 1, "b": 4, "c": 2}) == {"a": 0.142857, "b": 0.571429, "c": 0.285714}
    assert printed({"a": 1 - 3e-8, "b": 3e-8}) == {"a": 0.99999997, "b": 3e-8}
    assert printed({"a": 1.0, "b": 1e-30}) == {"a": 1 - 1e-12, "b": 1e-12}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_keep_three_figures(name):
    exact = find_mixture(name)[0].weights
    for source, weight in printed(exact).items():
        assert weight == pytest.approx(exact[source], rel=5e-3)


def test_places_and_kinds():
    assert "'a': load_dataset('x/y', split=" in export_mixture("hf", {"a": 1.0}, {"a": "hf:x/y"})
    [source] = yaml.safe_load(export_mixture("olmo-core", {"Pile CC/1": 1.0}, {}))["sources"]
    assert source["paths"] == ["data/Pile_CC_1/*.npy"]
    with pytest.raises(ConfigError, match="not the Hugging Face hub"):
        export_mixture("olmo-core", {"a": 1.0}, {"a": "hf:x/y"})
    kinds = {
        "/x/*.jsonl.gz": "json",
        "/x/a.b/part.json.zst": "json",
        "a.parquet": "parquet",
        "/x/v1.0": None,
        "/x/y": None,
    }
    assert {place: file_kind(place) for place in kinds} == kinds


def test_comments_stay_comments():
    long = "x " * 200
    exported = export_mixture("olmo-core", {"a\nimport os": 0.0, "b": 0.5, long: 0.5}, {})
    text = exported[: exported.index("sources:\n")]
    assert all(line.startswith("# ") and len(line) <= 100 for line in text.splitlines())
    assert "left out, weight 0: a import os" in text
    assert "put the real places here: b" in text

"""Weights as they are printed, places, comments."""

import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dograph.errors import ConfigError
from dograph.mixtures.export import export_mixture, file_kind, printed
from dograph.mixtures.file import PRESETS, find_mixture

weights = st.lists(st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=30).filter(
    lambda values: sum(values) > 1e-3
)


@given(weights)
def test_printed_weights_sum_to_one_as_samplers_ask(values):
    """numpy's `choice`, which `interleave_datasets` draws with, allows 1.5e-8."""
    mixture = {f"s{i}": value for i, value in enumerate(values)}
    shown = printed(mixture)
    assert abs(math.fsum(shown.values()) - 1) < 1e-9
    assert list(shown) == [name for name, value in mixture.items() if value > 0]
    for name, weight in shown.items():
        assert weight > 0
        assert weight == pytest.approx(mixture[name] / sum(values), rel=1e-9)


def test_short_weights_stay_short():
    assert printed({"a": 7, "b": 3}) == {"a": 0.7, "b": 0.3}
    assert printed({"a": 1, "b": 2}) == {"a": 0.3333333333, "b": 0.6666666667}
    assert printed({"a": 1.0, "b": 1e-30}) == {"a": 1.0, "b": 1e-30}


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

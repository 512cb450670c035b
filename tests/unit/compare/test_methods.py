"""How methods and seeds are named."""

import pytest

from dograph.compare.arms import parse_methods, parse_seeds
from dograph.config import parse_config
from dograph.errors import ConfigError


def base(**mixer):
    return parse_config({"mixer": mixer or {"name": "natural"}}, "test")


def mixers(text, baseline="natural", config=None):
    return {m.label: dict(m.mixer) for m in parse_methods(text, config or base(), baseline)}


def test_names_options_and_labels():
    found = mixers(
        "uniform,dograph[recipe=paper],wide=dograph[num_domains=17,min_effective_fraction=null]"
    )
    assert found == {
        "natural": {"name": "natural"},
        "uniform": {"name": "uniform"},
        "dograph-recipe-paper": {"name": "dograph", "recipe": "paper"},
        "wide": {"name": "dograph", "num_domains": 17, "min_effective_fraction": None},
    }


def test_values_are_yaml_and_may_hold_commas_and_brackets():
    found = mixers(
        "a=static[weights={x: 0.5, y: 0.5}],b=dograph[objective.name=precision,objective.q=2]"
    )
    assert found["a"] == {"name": "static", "weights": {"x": 0.5, "y": 0.5}}
    assert found["b"] == {"name": "dograph", "objective": {"name": "precision", "q": 2}}


def test_a_class_of_ones_own_has_a_colon_and_options():
    methods = parse_methods("compare_mixers:Scout[steps=3]", base(), "natural")
    assert methods[1].mixer == {"name": "compare_mixers:Scout", "steps": 3}
    assert methods[1].label == "compare_mixers-Scout-steps-3"
    assert methods[1].is_planned
    assert not methods[0].is_planned


def test_the_baseline_comes_first_and_is_added_where_it_is_missing():
    assert list(mixers("dograph,uniform", "uniform")) == ["uniform", "dograph"]
    assert list(mixers("dograph", "unimax[max_epochs=2]")) == ["unimax-max_epochs-2", "dograph"]


def test_a_method_of_all_can_be_replaced_under_its_label():
    found = mixers("all,regmix=regmix[num_proxies=8]")
    assert found["regmix"] == {"name": "regmix", "num_proxies": 8}
    assert list(found).count("regmix") == 1
    first, *others = parse_methods("all", base(), "odm")
    assert first.label == "odm"
    assert not first.of_all  # it is never left out
    assert all(method.of_all for method in others)


def test_what_each_method_needs():
    methods = "uniform,unimax,dynamic-loss,group-dro,ado,odm,doremi,doge,regmix,mixing-law,dograph"
    text = methods + ",bare=dynamic-loss[sampling=natural],s=static[weights={a: 1}],d=doremi-proxy"
    needs = {m.label: m.built().inputs for m in parse_methods(text, base(), "natural")}
    assert needs["natural"] == needs["dograph"] == needs["bare"] == []
    for label in ("uniform", "unimax", "s", "dynamic-loss", "group-dro", "ado", "odm"):
        assert needs[label] == ["labels"], label
    assert needs["doremi"] == needs["doge"] == ["labels", "proxies"]
    assert needs["regmix"] == needs["mixing-law"] == ["labels", "proxies", "validation"]
    assert needs["d"] == ["labels", "a reference"]


def test_a_bare_name_takes_the_options_of_the_configuration():
    config = base(name="dograph", num_domains=4)
    assert mixers("dograph", config=config)["dograph"]["num_domains"] == 4
    found = mixers("dograph[recipe=paper]", config=config)
    assert "num_domains" not in found["dograph-recipe-paper"]


def test_a_method_may_also_set_its_sketch_and_its_optimizer():
    text = "unimax,head=dograph[num_domains=3,sketch.mode=head,sketch.dim=80,optim.lr=0.002]"
    methods = {m.label: m for m in parse_methods(text, base(), "natural")}
    assert list(methods) == ["natural", "unimax", "head"]
    assert methods["head"].mixer == {"name": "dograph", "num_domains": 3}
    config = methods["head"].config(base())
    assert (config.sketch.mode, config.sketch.dim, config.mixer.name) == ("head", 80, "dograph")
    assert (config.optim.lr, config.optim.betas) == (0.002, base().optim.betas)
    with pytest.raises(ConfigError, match="train is not an option"):
        parse_methods("cheat=dograph[train.steps=900]", base(), "natural")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("unifrom", 'did you mean "uniform"'),
        ("dograph[recipe=safest]", "safest"),
        ("dograph[num_domains]", "not an override"),
        ("dograph[num_domains=3", "not closed"),
        ("uniform,uniform", "twice"),
        ("a/b=uniform", "names a folder"),
        (",", "names no mixer"),
    ],
)
def test_what_is_wrong_is_told(text, reason):
    with pytest.raises(ConfigError, match=reason):
        mixers(text)


def test_which_cells_can_be_probed():
    """Those whose mixer needs sketches; what is planned trains on a mixture that is fixed."""
    text = "uniform,dynamic-loss,doge,regmix,dograph,mine=dograph[recipe=paper]"
    sketched = {m.label for m in parse_methods(text, base(), "natural") if m.is_sketched}
    assert sketched == {"dograph", "mine"}


def test_seeds():
    assert parse_seeds("3", 5) == [5, 6, 7]
    assert parse_seeds("10,12,11", 0) == [10, 12, 11]
    assert parse_seeds("7,", 0) == [7]
    for wrong in ("0", "a", "1,1", "", "-3"):
        with pytest.raises(ConfigError, match="--seeds"):
            parse_seeds(wrong, 0)

"""DoGraph's options: what is refused, the recipes, and how long the warm-up is."""

import pytest
import torch

from dograph.config import resolve_config
from dograph.errors import ConfigError
from dograph.mixers.dograph import DoGraph, DoGraphOptions
from dograph.types import Signals
from dograph_batches import SIZE, Lab, batch


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_domains": 0}, "mixer.num_domains=0"),
        ({"num_domains": 2.5}, "whole number"),
        ({"num_domains": True}, "mixer.num_domains=True: give a whole number of at least 1"),
        ({"scope": "all"}, "batch, period, stream"),
        ({"scope": "stram"}, 'mixer.scope=.stram.; did you mean "stream"'),
        ({"normalize_gradients": "unit"}, "mixer.normalize_gradients=.unit.: give true or false"),
        ({"half_life": float("nan")}, "mixer.half_life=nan: give a finite number of at least 1"),
        ({"warmup_steps": "many"}, "mixer.warmup_steps='many': give a whole number of at least 0"),
        ({"warmup_steps": -1}, "mixer.warmup_steps=-1"),
        ({"warmup_steps": 2.5}, "mixer.warmup_steps=2.5"),
        ({"warmup_step": 2}, 'did you mean "warmup_steps"'),
        ({"kmeans_restarts": 0}, "mixer.kmeans_restarts=0: give a whole number of at least 1"),
        ({"min_effective_fraction": 1.5}, "at most 1"),
        ({"min_effective_fraction": 0.0}, "mixer.min_effective_fraction=0.0: give a finite number"),
        ({"max_epochs": float("nan")}, "give a finite number of at least 0"),
        ({"weight_floor": 0.2}, r"mixer.weight_floor=0\.2: this option was removed; leave it out"),
        ({"objective": "varance"}, "variance"),
        ({"objective": {"name": "robust", "tau": 0}}, "tau"),
        ({"recipe": "papper"}, "paper"),
        ({"num_domain": 3}, "num_domains"),
        ({"scope": "batch", "apply_weights_to": "sampling"}, "identity over time"),
        (
            {"scope": "stream", "apply_weights_to": "both"},
            "mixer.apply_weights_to='both'; allowed: loss, sampling",
        ),
        ({"half_life": 0.5}, "mixer.half_life=0.5: give a finite number of at least 1"),
        (
            {"max_relative_weight": 2.0},
            r"mixer.max_relative_weight=2\.0: this option was removed; leave it out \(.*: null\)",
        ),
        ({"cap": 2.0}, r"mixer.cap=2\.0: this option was removed; leave it out"),
        ({"sampling": "mixture.json"}, "mixture file"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        DoGraph(**options)


def test_recipes_are_what_the_documents_say():
    """The paper's: each batch, plain K-means, 11 domains, nothing held back."""
    names = ("paper", "recommended", "safe")
    paper, ours, safe = (DoGraphOptions(recipe=name) for name in names)
    for recipe in (paper, ours):
        assert (recipe.scope, recipe.spherical_kmeans, recipe.num_domains) == ("batch", False, 11)
        assert (recipe.min_effective_fraction, recipe.warmup_ratio) == (None, 0)
        assert (recipe.normalize_gradients, recipe.apply_weights_to) == (False, "loss")
    assert (paper.objective, ours.objective) == ("uncertainty", "precision")
    alike = {"objective": "uncertainty", "recipe": "paper"}
    assert ours.model_copy(update=alike) == paper
    assert DoGraphOptions() == ours
    assert (safe.scope, safe.objective, safe.num_domains) == ("stream", "precision", 11)
    assert (safe.min_effective_fraction, safe.warmup_ratio) == (0.9, 0.05)
    assert (safe.normalize_gradients, safe.sampling) == (False, "natural")
    assert safe.apply_weights_to == "loss"
    assert DoGraphOptions(recipe="paper", period_steps=3) == paper.model_copy(
        update={"period_steps": 3}
    )


def test_a_run_of_before_may_name_a_gone_option_at_its_default():
    assert DoGraphOptions(weight_floor=0.0) == DoGraphOptions()
    assert DoGraphOptions(max_relative_weight=None) == DoGraphOptions(cap=None) == DoGraphOptions()


def test_domains_of_a_stream_are_of_directions_whatever_is_asked():
    for scope, spherical in (("stream", True), ("period", False), ("batch", False)):
        cluster = DoGraph("paper", scope=scope).scope.cluster
        assert cluster.normalise is spherical


def test_warm_up_is_a_share_of_the_run():
    mixer = DoGraph("paper", num_domains=4, warmup_ratio=0.05)
    mixer.plan(Lab({"a": 100, "b": 100}, steps=100))
    equal = torch.full((SIZE,), 1 / SIZE)
    torch.testing.assert_close(mixer.weigh(batch(4)), equal)
    assert not torch.allclose(mixer.weigh(batch(5)), equal)


@pytest.mark.parametrize("asked", [0, 7])
@pytest.mark.parametrize("recipe", ["paper", "safe"])
def test_a_warm_up_in_steps_is_kept(recipe, asked):
    """The share `warmup` is not asked then: 5 % in safe, none in paper."""
    mixer = DoGraph(recipe, num_domains=4, scope="batch", warmup_steps=asked)
    mixer.plan(Lab({"a": 100, "b": 100}, steps=100))
    assert mixer.warmup_steps == asked
    equal = torch.full((SIZE,), 1 / SIZE)
    for step in (0, 4, 6, 7):
        assert torch.allclose(mixer.weigh(batch(step)), equal) == (step < asked)


def test_a_resumed_run_has_the_warm_up_of_its_start():
    first, second = DoGraph("safe"), DoGraph("safe")
    first.plan(Lab({"a": 100}, steps=200))
    second.load_state_dict(first.state_dict())
    assert second.warmup_steps == 10


def num_domains(size: int, **options) -> int:
    """Domains that a batch of random sketches gets."""
    draw = torch.Generator().manual_seed(0)
    mixer, sketch_BK = DoGraph(**options), torch.randn(size, 32, generator=draw)
    mixer.weigh(Signals(step=0, num_samples=size, sketch_BK=sketch_BK))
    return int(mixer.domains.present_M.sum())


@pytest.mark.parametrize(("size", "domains"), [(3, 1), (4, 1), (16, 4), (43, 10), (48, 11)])
def test_a_number_of_domains_that_nobody_set_follows_the_batch(size, domains):
    assert num_domains(size) == domains
    assert num_domains(size, num_domains=11) == min(size, 11)
    assert num_domains(size, recipe="paper") == min(size, 11)


@pytest.mark.parametrize(("size", "warns"), [(7, True), (8, False), (16, False)])
def test_a_batch_of_one_domain_is_warned_about(size, warns):
    config = resolve_config("demo", [f"train.batch_size={size}"])
    said = DoGraph().cautions(config)
    assert ["holds one domain" in line and "all count alike" in line for line in said] == [True][
        :warns
    ]


def test_a_run_from_before_the_number_followed_the_batch_goes_on_as_it_began():
    state = DoGraph().state_dict()
    for old, each in ((state, 4), ({n: state[n] for n in state if n != "samples_per_domain"}, 1)):
        mixer = DoGraph()
        mixer.load_state_dict(old)
        assert mixer.scope.cluster.samples_per_domain == each

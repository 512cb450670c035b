"""Shards: what is refused, how micro-batches are shared out, and state that goes to files whole.

One process is a world of its own here, whose only shard is everything: what must be equal is equal
bit for bit. Several ranks: tests/integration/test_sharded_training.py.
"""

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.tensor import DTensor

from dograph.config import OptimConfig, resolve_config
from dograph.errors import ConfigError
from dograph.mixers.registry import build_mixer, require_compatible
from dograph.models.build import build_model
from dograph.sketch.gradients import WorldRows
from dograph.sketch.sketcher import Sketcher
from dograph.train.checkpoint import (
    optimizer_tensors,
    restore_model,
    restore_optimizer,
    save_model,
    whole,
)
from dograph.train.distributed import World, at_rest
from dograph.train.step import build_optimizer, clip_gradients

CPU = torch.device("cpu")


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def make(preset="tiny", *, shards):
    model = build_model(preset, vocab_size=100, seq_len=16, dropout=0.0, seed=0).train()
    if shards:
        World(rank=0, size=1, device=CPU, shards=True).place(model)
    return model


def tokens(seed=0):
    return torch.randint(1, 100, (5, 16), generator=torch.Generator().manual_seed(seed))


def trained(model, steps=2):
    """The optimizer, and the norm of every step, most of which are clipped."""
    optimizer, norms = build_optimizer(model, OptimConfig()), []
    parameters = list(model.parameters())
    for step in range(steps):
        model(tokens(step)).mean().backward()
        norms.append(clip_gradients(parameters, 0.5))
        optimizer.step()
        optimizer.zero_grad()
    return optimizer, torch.stack(norms)


def check(*settings, world_size=1):
    config = resolve_config(None, ["train.shard=true", *settings])
    mixer = build_mixer(config.mixer.name, config.mixer.options)
    require_compatible(config, mixer, world_size)


@pytest.mark.parametrize("mode", ["full", "topdown", "exact", "reference"])
@pytest.mark.parametrize("mixer", ["dograph", "doge-proxy"])
def test_modes_that_fill_gradients_are_refused_to_mixers_that_sketch(mode, mixer):
    said = f"{mixer} needs sketches.* sketch.mode={mode} .*train.shard=true.* twopass or head, "
    with pytest.raises(ConfigError, match=said):
        check(f"sketch.mode={mode}", f"mixer.name={mixer}")
    check(f"sketch.mode={mode}", "mixer.name=natural")
    check(f"sketch.mode={mode}", f"mixer.name={mixer}", "train.shard=false")


@pytest.mark.parametrize("mode", ["twopass", "head"])
def test_modes_with_a_stock_backward_are_taken(mode):
    check(f"sketch.mode={mode}", "mixer.name=dograph")


def test_ranks_that_could_not_make_equally_many_micro_batches_are_refused():
    single = ("mixer.name=natural", "train.micro_batch_size=1")
    with pytest.raises(ConfigError, match=r"batch_size=9 on 2 processes.* a multiple of"):
        check(*single, "train.batch_size=9", world_size=2)
    check(*single, "train.batch_size=9", world_size=3)
    check("mixer.name=natural", "train.micro_batch_size=2", "train.batch_size=9", world_size=2)


def test_micro_batches_are_equally_many_and_not_too_large():
    for most in range(1, 12):
        for at_once in range(1, 13):
            least = most if at_once == 1 else max(most - 1, 1)
            for share in (least, most):
                row_b1 = torch.arange(share).unsqueeze(1)
                pieces = WorldRows(share, CPU, [most, share]).split(row_b1, at_once, alike=True)
                assert len(pieces) == -(-most // at_once)
                assert all(1 <= len(piece) <= at_once for piece in pieces)
                assert torch.equal(torch.cat(pieces), row_b1)


def test_tied_tensors_are_gathered_once_and_kept_by_one_rank(group):
    model = make(shards=True)
    weights = model.model.state_dict(keep_vars=True)
    kept = whole(model, weights, keep=True)
    assert kept.keys() == weights.keys()
    assert kept["lm_head.weight"] is kept["transformer.wte.weight"]
    assert not any(isinstance(tensor, DTensor) or tensor.requires_grad for tensor in kept.values())
    assert not whole(model, weights, keep=False)


@pytest.mark.parametrize("preset", ["tiny", "llama-tiny"])
def test_state_is_that_of_a_whole_model_and_goes_to_files_and_back(group, tmp_path, preset):
    plain, sharded = make(preset, shards=False), make(preset, shards=True)
    assert all(isinstance(parameter, DTensor) for parameter in sharded.parameters())
    (optimizer, norms), (other, other_norms) = trained(plain), trained(sharded)
    assert norms.max() > 0.5  # or nothing was clipped
    assert torch.equal(norms, other_norms)
    save_model(plain, tmp_path / "plain", None)
    save_model(sharded, tmp_path / "sharded", None)
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "plain" / name).read_bytes() == (
            tmp_path / "sharded" / name
        ).read_bytes()
    moments = optimizer_tensors(optimizer, plain)
    others = optimizer_tensors(other, sharded)
    assert moments.keys() == others.keys()
    assert all(torch.equal(moments[name], others[name]) for name in moments)
    assert not optimizer_tensors(other, sharded, keep=False)

    again = make(preset, shards=True)
    resumed = build_optimizer(again, OptimConfig())
    restore_model(again, tmp_path / "plain")
    restore_optimizer(resumed, again, moments, 2)
    at = {name: parameter.full_tensor() for name, parameter in again.model.named_parameters()}
    stored = load_file(tmp_path / "plain" / "model.safetensors")
    assert all(torch.equal(at[name][: len(stored[name])], stored[name]) for name in at)
    for one, two in ((again, resumed), (sharded, other)):
        one(tokens(7)).mean().backward()
        two.step()
    for left, right in zip(again.parameters(), sharded.parameters(), strict=True):
        assert torch.equal(left.full_tensor(), right.full_tensor())


def test_a_forward_without_a_backward_leaves_no_weights_gathered(group):
    model = make(shards=True)
    with torch.no_grad():
        model(tokens())
    assert not all(isinstance(parameter, DTensor) for parameter in model.parameters())
    at_rest(model)
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())
    at_rest(make(shards=False))  # nothing to do


def test_head_sketches_shards_by_a_second_backward(group):
    """The same sketch and gradient as where the mode fills `.grad` itself."""
    found = []
    for shards in (False, True):
        model = make(shards=shards)
        sketcher = Sketcher(model, mode="head", dim=64, head=model.head)
        assert sketcher.reduces is not shards
        with sketcher.record(tokens()):
            sketch = sketcher.sketch(model(tokens()))
            sketch.backward(torch.tensor([0.5, 0.1, 0.0, 0.3, 0.1]))
        grads = whole(model, {n: p.grad for n, p in model.named_parameters()}, keep=True)
        found.append((sketch.sketch_BK, grads))
    (sketch_BK, grads), (other_BK, others) = found
    torch.testing.assert_close(sketch_BK, other_BK, rtol=1e-6, atol=1e-7)
    assert grads.keys() == others.keys()
    for name in grads:
        torch.testing.assert_close(grads[name], others[name], rtol=1e-5, atol=1e-7)

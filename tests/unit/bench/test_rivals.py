"""Rivals do the same work: the same sketch, the same gradients, the same weighted gradient."""

import pytest
import torch

from dograph.bench.arms import open_model
from dograph.bench.options import open_batches, resolve_options
from dograph.bench.rivals import (
    GradientSketcher,
    WeightedStep,
    acceptable,
    clipping_weights,
    hook,
    per_sample_gradients,
    project,
    sample_gradient,
    weighted_backward,
)
from dograph.sketch.projection import Projection
from dograph.sketch.sketcher import Sketcher

CPU = torch.device("cpu")


def opened(preset, dtype="float32"):
    options = resolve_options(
        CPU, [], model=preset, batch=3, seq_len=16, vocab_size=500, dim=80, dtype=dtype
    )
    work = WeightedStep(options, open_batches(options, CPU), CPU)
    work.use(open_model(options, CPU))
    return work


def relative(got, expected):
    return float((got - expected).norm() / expected.norm())


@pytest.mark.parametrize("preset", ["tiny", "llama-tiny"])
def test_the_loop_makes_the_very_sketch_of_the_modes(preset):
    work = opened(preset)
    sketcher = Sketcher(work.model, mode="reference", dim=80, refresh="step")
    token_BT = work.tokens()
    with sketcher.record(token_BT, 5):
        known = sketcher.sketch(work.model(token_BT))
    project_one = GradientSketcher(work.model, Projection(dim=80, refresh="step"))
    for i, token_1T in enumerate(token_BT.split(1)):
        sketch_1K, norm_1 = project_one(sample_gradient(work, token_1T), 5)
        assert relative(sketch_1K[0], known.sketch_BK[i]) < 1e-5
        assert float(norm_1[0]) == pytest.approx(float(known.block_norm_B[i]), rel=1e-5)


@pytest.mark.parametrize(
    ("preset", "dtype", "tolerance"),
    [("tiny", "float32", 1e-5), ("llama-tiny", "float32", 1e-5), ("tiny", "bfloat16", 0.03)],
)
def test_vmap_gives_the_gradient_of_every_sample(preset, dtype, tolerance):
    work = opened(preset, dtype)
    token_BT = work.tokens()
    gradients = per_sample_gradients(work, token_BT)
    alone = sample_gradient(work, token_BT[1:2])
    assert gradients.keys() == alone.keys()
    for name, gradient in alone.items():
        assert relative(gradients[name][1], gradient[0]) < tolerance, name


def test_the_dense_projection_keeps_norms_and_says_what_it_left_out(monkeypatch):
    options = resolve_options(CPU, [], dim=2048, batch=2)
    draw = torch.Generator().manual_seed(0)
    gradients = {
        "a": torch.randn(2, 40, 30, generator=draw),
        "b": torch.randn(2, 99, generator=draw),
    }
    sketch_BK, left_out, share = project(gradients, options, 0)
    assert (left_out, share) == (0.0, 1.0)
    norm_B = torch.cat([g.flatten(1) for g in gradients.values()], dim=1).norm(dim=1)
    assert torch.allclose(sketch_BK.norm(dim=1), norm_B, rtol=0.1)  # six standard deviations
    monkeypatch.setattr("dograph.bench.rivals.VMAP_SECONDS", 0.0)
    monkeypatch.setattr("dograph.bench.rivals.STRETCH", 600)
    _, left_out, share = project(gradients, options, 0)
    assert share == pytest.approx(600 / 1299)
    assert left_out > 0


@pytest.mark.parametrize("preset", ["tiny", "llama-tiny"])
def test_opacus_gives_the_weighted_gradient(preset):
    pytest.importorskip("opacus", reason="opacus is a development dependency")
    work = opened(preset)
    plain, token_BT = work.model, work.tokens()
    hooked = hook(acceptable(open_model(work.options, CPU)))
    weight_B, norm_B = weighted_backward(hooked, token_BT, clipping_weights)
    samples = [sample_gradient(work, token_1T) for token_1T in token_BT.split(1)]
    if preset == "llama-tiny":  # untied in both: norms of all parameters can be compared
        expected_B = [sum(float(g.square().sum()) for g in one.values()) ** 0.5 for one in samples]
        assert norm_B.tolist() == pytest.approx(expected_B, rel=1e-4)
    assert weight_B.tolist() == pytest.approx([min(1, 1 / float(n)) / 3 for n in norm_B], rel=1e-4)
    (weight_B * plain(token_BT)).sum().backward()
    got = {n.removeprefix("_module."): p.grad for n, p in hooked.named_parameters()}
    for name, parameter in plain.named_parameters():
        gradient = got[name]
        if preset == "tiny" and "wte" in name:  # tied there: both uses together
            gradient = gradient + got["model.lm_head.weight"]
        if gradient.shape != parameter.shape or ("c_" in name and name.endswith("weight")):
            gradient = gradient.T  # Linear for Conv1D
        assert relative(gradient, parameter.grad) < 1e-5, name

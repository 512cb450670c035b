"""Rivals do the same work: the same sketch, the same gradients, the same weighted gradient."""

import pytest
import torch
from benchmarks.rivals import Loop, Opacus, Rival, Vmap

from bench_batches import batches_of
from dograph.bench.arms import resolve_options
from dograph.sketch.sketcher import Sketcher

CPU = torch.device("cpu")


def opened(kind, preset, dtype="float32"):
    shape = [f"model.preset={preset}", "train.batch_size=3", "data.seq_len=16"]
    shape += ["sketch.dim=80", f"train.dtype={dtype}"]
    options = resolve_options(CPU, [], shape, vocab_size=500)
    return kind(options, batches_of(options), CPU)


def tokens(rival):
    return rival.batches(rival.done).token_BT[: rival.num_samples]


def sample_gradient(rival, token_1T):
    """The gradient of one sample's loss."""
    with rival.autocast():
        loss = rival.model(token_1T).sum()
    found = torch.autograd.grad(loss, list(rival.parameters.values()))
    return dict(zip(rival.parameters, found, strict=True))


def relative(got, expected):
    return float((got - expected).norm() / expected.norm())


@pytest.mark.parametrize("preset", ["tiny", "llama-tiny"])
def test_the_loop_makes_the_very_sketch_of_the_modes(preset):
    loop = opened(Loop, preset)
    sketcher = Sketcher(loop.model, mode="full", dim=80, refresh="step")
    token_BT, loop.done = tokens(loop), 5
    with sketcher.record(token_BT, 5):
        known = sketcher.sketch(loop.model(token_BT))
    for i, token_1T in enumerate(token_BT.split(1)):
        one = loop.sketched(token_1T)
        assert relative(one.sketch_BK[0], known.sketch_BK[i]) < 1e-5
        assert float(one.block_norm_B[0]) == pytest.approx(float(known.block_norm_B[i]), rel=1e-5)
        assert one.pending is None  # no gradient is kept


@pytest.mark.parametrize(
    ("preset", "dtype", "tolerance"),
    [("tiny", "float32", 1e-5), ("llama-tiny", "float32", 1e-5), ("tiny", "bfloat16", 0.03)],
)
def test_vmap_gives_the_gradient_of_every_sample(preset, dtype, tolerance):
    work = opened(Vmap, preset, dtype)
    token_BT = tokens(work)
    gradients, loss_B = work.per_sample_gradients(token_BT)
    alone = sample_gradient(work, token_BT[1:2])
    assert gradients.keys() == alone.keys()
    for name, gradient in alone.items():
        assert relative(gradients[name][1], gradient) < tolerance, name
    with work.autocast():
        assert relative(loss_B, work.model(token_BT)) < tolerance


def test_the_dense_projection_keeps_norms_and_says_what_it_left_out(monkeypatch):
    vmap = opened(Vmap, "tiny")
    vmap.options = resolve_options(CPU, [], ["sketch.dim=2048", "train.batch_size=2"])
    draw = torch.Generator().manual_seed(0)
    gradients = {
        "a": torch.randn(2, 40, 30, generator=draw),
        "b": torch.randn(2, 99, generator=draw),
    }
    sketch_BK, left_out, share = vmap.project(gradients)
    assert (left_out, share) == (0.0, 1.0)
    norm_B = torch.cat([g.flatten(1) for g in gradients.values()], dim=1).norm(dim=1)
    assert torch.allclose(sketch_BK.norm(dim=1), norm_B, rtol=0.1)  # six standard deviations
    monkeypatch.setattr(Vmap, "SECONDS", 0.0)
    monkeypatch.setattr(Vmap, "STRETCH", 600)
    _, left_out, share = vmap.project(gradients)
    assert share == pytest.approx(600 / 1299)
    assert left_out > 0


@pytest.mark.parametrize("preset", ["tiny", "llama-tiny"])
def test_opacus_gives_the_weighted_gradient(preset):
    pytest.importorskip("opacus", reason="opacus is a development dependency")
    work, opacus = opened(Rival, preset), opened(Opacus, preset)
    plain, token_BT, hooked = work.model, tokens(work), opacus.model
    opacus.backward(token_BT)
    weight_B, norm_B = hooked.get_clipping_coef().detach() / 3, hooked.get_norm_sample()
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

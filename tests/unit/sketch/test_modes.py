"""Modes agree with one another; samples do not see their neighbours.

Shapes: B samples, T tokens, K sketch.
"""

import pytest
import torch
import torch.nn.functional as F

from dograph.sketch.projection import Projection

MODES = ("full", "twopass", "exact")
# Every mode, and every kind of layer.
CASES = [*(("gpt2", mode) for mode in (*MODES, "topdown")), ("llama", "full"), ("plain", "full")]


@pytest.mark.parametrize("kind", ["rademacher", "hashed"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "plain"])
def test_same_sketch_and_gradient_in_every_mode(tiny, token_BT, weight_B, name, kind):
    model = tiny.build[name]()
    options = {"projection": kind, "seed": 3, "refresh": 4, "step": 9}
    expected, expected_gradients = tiny.run(model, token_BT, weight_B, mode="reference", **options)
    for mode in MODES:
        got, gradients = tiny.run(model, token_BT, weight_B, mode=mode, **options)
        assert tiny.error(got.sketch_BK, expected.sketch_BK) < 1e-10, mode
        assert tiny.error(got.block_norm_B, expected.block_norm_B) < 1e-10, mode
        assert tiny.gradient_error(gradients, expected_gradients) < 1e-10, mode


def test_same_sketch_with_a_dense_projection(tiny, token_BT, weight_B):
    model = tiny.gpt2()
    expected, _ = tiny.run(model, token_BT, weight_B, mode="reference", projection="gaussian")
    got, _ = tiny.run(model, token_BT, weight_B, mode="exact", projection="gaussian")
    assert tiny.error(got.sketch_BK, expected.sketch_BK) < 1e-10


def test_hugging_face_norms_in_double_precision(tiny, token_BT, weight_B):
    """They round to float32; the taps round in the same places."""
    model = tiny.llama(norms="hugging face")
    expected, expected_gradients = tiny.run(model, token_BT, weight_B, mode="reference")
    for mode in MODES:
        got, gradients = tiny.run(model, token_BT, weight_B, mode=mode)
        assert tiny.error(got.sketch_BK, expected.sketch_BK) < 1e-10, mode
        if mode != "twopass":  # its second backward sums float32 roundings in another order
            assert tiny.gradient_error(gradients, expected_gradients) < 1e-10, mode


@pytest.mark.parametrize("name", ["gpt2", "llama", "plain"])
@pytest.mark.parametrize("top_blocks", [1, 2, 3])
def test_topdown_at_every_cut(tiny, token_BT, weight_B, name, top_blocks):
    """The sketch is that of `full` restricted to layers above the cut; the gradient is whole."""
    model = tiny.build[name](layers=3)
    stack, bottom = {
        "gpt2": ("transformer.h.", ("transformer.wte", "transformer.wpe")),
        "llama": ("model.layers.", ("model.embed_tokens",)),
        "plain": ("blocks.", ("token", "position")),
    }[name]
    cut = tuple(f"{stack}{index}." for index in range(3 - top_blocks))
    every, gradients = tiny.run(
        model, token_BT, weight_B, mode="full", group_of=lambda rule: rule.path
    )
    below = (*cut, *bottom)
    above = [part for path, part in every.groups.items() if not path.startswith((*below, "rest"))]
    vectors = {
        parameter: gradient
        for parameter, gradient in tiny.per_sample_gradients(model, token_BT).items()
        if gradient.dim() == 2 and not parameter.startswith(below)
    }
    above.append(tiny.explicit_vectors(Projection(dim=80), model, vectors))
    got, got_gradients = tiny.run(model, token_BT, weight_B, mode="topdown", top_blocks=top_blocks)
    assert len(above) < len(every.groups)
    assert tiny.error(got.sketch_BK, torch.stack(above).sum(dim=0)) < 1e-10
    assert tiny.gradient_error(got_gradients, gradients) < 1e-10
    expected = tiny.autograd(model, token_BT, weight_B)
    assert tiny.gradient_error(got_gradients, expected) < 1e-10


def test_norms_and_biases_that_two_layers_share(tiny, token_BT, weight_B):
    """Their uses add up, cross term included."""
    model = tiny.gpt2(layers=2)
    first, second = model.transformer.h
    second.ln_1.weight, second.mlp.c_fc.bias = first.ln_1.weight, first.mlp.c_fc.bias
    expected, expected_gradients = tiny.run(model, token_BT, weight_B, mode="reference")
    for mode in MODES:
        got, gradients = tiny.run(model, token_BT, weight_B, mode=mode)
        assert tiny.error(got.sketch_BK, expected.sketch_BK) < 1e-10, mode
        assert tiny.gradient_error(gradients, expected_gradients) < 1e-10, mode


@pytest.mark.parametrize("name", ["gpt2", "llama", "plain"])
def test_head_is_the_output_layer_of_full(tiny, token_BT, weight_B, name):
    model = tiny.build[name](layers=2)
    path = "head" if name == "plain" else "lm_head"
    every, gradients = tiny.run(
        model, token_BT, weight_B, mode="full", group_of=lambda rule: rule.path
    )
    got, got_gradients = tiny.run(model, token_BT, weight_B, mode="head")
    assert tiny.gradient_error(got_gradients, gradients) < 1e-10
    if name != "plain":  # its head's bias is hashed among all vectors there, and alone here
        assert tiny.error(got.sketch_BK, every.groups[path]) < 1e-10


def ragged_nll(model, token_BT):
    """Mean over each sample's own tokens; -100 stands for padding."""
    output = model(token_BT.clamp_min(0))
    logits_BTV = output if isinstance(output, torch.Tensor) else output.logits
    target_BT = token_BT[:, 1:]
    loss_N = F.cross_entropy(
        logits_BTV[:, :-1].flatten(0, 1), target_BT.flatten(), ignore_index=-100, reduction="none"
    )
    return loss_N.view_as(target_BT).sum(dim=1) / (target_BT >= 0).sum(dim=1)


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_padding_changes_nothing(tiny, token_BT, weight_B, name, mode):
    """The oracle is every sample by itself at its own length, not padded."""
    model = tiny.build[name]()
    length_B = (12, 7, 3, 9, 5)
    options = {"mode": mode, "top_blocks": 1}
    alone_BK, total = [], {}
    for row_T, length, weight in zip(token_BT, length_B, weight_B, strict=True):
        sketch, gradients = tiny.run(model, row_T[None, :length], weight[None], **options)
        alone_BK.append(sketch.sketch_BK)
        total = {name: g + total.get(name, 0) for name, g in gradients.items()}
    for width in (12, 15):
        padded_BT = F.pad(token_BT, (0, 3), value=-100)[:, :width].clone()
        for row, length in enumerate(length_B):
            padded_BT[row, length:] = -100
        sketch, gradients = tiny.run(model, padded_BT, weight_B, loss=ragged_nll, **options)
        assert tiny.error(sketch.sketch_BK, torch.cat(alone_BK)) < 1e-10, width
        assert tiny.gradient_error(gradients, total) < 1e-10, width


@pytest.mark.parametrize("mode", [*MODES, "topdown"])
def test_permuted_samples_permute_their_sketches(tiny, token_BT, weight_B, mode):
    model = tiny.gpt2()
    order_B = torch.tensor([3, 0, 4, 1, 2])
    options = {"mode": mode, "top_blocks": 1}
    sketch, gradients = tiny.run(model, token_BT, weight_B, **options)
    moved, moved_gradients = tiny.run(model, token_BT[order_B], weight_B[order_B], **options)
    assert tiny.error(moved.sketch_BK, sketch.sketch_BK[order_B]) < 1e-10
    assert tiny.gradient_error(moved_gradients, gradients) < 1e-10


@pytest.mark.parametrize("mode", [*MODES, "topdown"])
def test_a_batch_twice_over_at_half_the_weight(tiny, token_BT, weight_B, mode):
    model = tiny.gpt2()
    options = {"mode": mode, "top_blocks": 1}
    sketch, gradients = tiny.run(model, token_BT, weight_B, **options)
    twice, twice_gradients = tiny.run(
        model, token_BT.repeat(2, 1), weight_B.repeat(2) / 2, **options
    )
    assert tiny.error(twice.sketch_BK, sketch.sketch_BK.repeat(2, 1)) < 1e-10
    assert tiny.gradient_error(twice_gradients, gradients) < 1e-10


@pytest.mark.parametrize(("name", "mode"), [*CASES, ("gpt2", "reference")])
def test_a_sketch_does_not_depend_on_the_other_samples(tiny, token_BT, weight_B, name, mode):
    model = tiny.build[name]()
    options = {"mode": mode, "top_blocks": 1}
    together, _ = tiny.run(model, token_BT, weight_B, **options)
    some, _ = tiny.run(model, token_BT[1:3], weight_B[1:3], **options)
    alone, _ = tiny.run(model, token_BT[4:], weight_B[4:], **options)
    assert tiny.error(some.sketch_BK, together.sketch_BK[1:3]) < 1e-10
    assert tiny.error(alone.sketch_BK, together.sketch_BK[4:]) < 1e-10


def seeded(tiny, seed):
    """Losses with dropout drawn from this seed, and no other draw disturbed."""

    def loss(model, token_BT):
        torch.manual_seed(seed)
        return tiny.nll(model, token_BT)

    return loss


@pytest.fixture
def own_random_state():
    with torch.random.fork_rng(devices=[]):
        yield


@pytest.mark.parametrize(
    ("mode", "top_blocks"), [*((mode, 2) for mode in (*MODES, "topdown")), ("topdown", 1)]
)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_activation_checkpointing(tiny, token_BT, weight_B, name, mode, top_blocks):
    model = tiny.build[name](layers=2).train()
    options = {"mode": mode, "top_blocks": top_blocks}
    expected, expected_gradients = tiny.run(model, token_BT, weight_B, **options)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    got, gradients = tiny.run(model, token_BT, weight_B, **options)
    assert model.is_gradient_checkpointing
    assert tiny.error(got.sketch_BK, expected.sketch_BK) < 1e-10
    assert tiny.gradient_error(gradients, expected_gradients) < 1e-10


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.usefixtures("own_random_state")
def test_dropout(tiny, token_BT, weight_B, mode, checkpointing):
    """The same seed drops the same: sketch and gradient are the reference's."""
    model = tiny.gpt2(dropout=0.3).train()
    loss = seeded(tiny, 11)
    expected, expected_gradients = tiny.run(model, token_BT, weight_B, loss=loss, mode="reference")
    other, _ = tiny.run(model, token_BT, weight_B, loss=seeded(tiny, 12), mode="reference")
    assert tiny.error(other.sketch_BK, expected.sketch_BK) > 1e-2
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    got, gradients = tiny.run(model, token_BT, weight_B, loss=loss, mode=mode)
    assert tiny.error(got.sketch_BK, expected.sketch_BK) < 1e-10
    assert tiny.gradient_error(gradients, expected_gradients) < 1e-10

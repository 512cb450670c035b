"""Linearised attention: closed forms against autograd, and what the linearisation is and is not."""

import math

import pytest
import torch
from torch.testing import assert_close

from dograph.errors import ConfigError
from dograph.rng import key64
from linear_attention import BLOCKS, LinearAttention
from mmd_oracles import mmd_squared

# (T, D, E, F, H, V): wide and narrow in every place, one token, one channel
SHAPES = [(5, 4, 3, 2, 6, 7), (1, 3, 2, 2, 2, 3), (8, 2, 5, 6, 3, 4), (3, 1, 1, 1, 1, 2)]


def generator(*name):
    return torch.Generator().manual_seed(key64(0, *name) >> 1)


def normal(draw, *shape):
    return torch.randn(*shape, dtype=torch.float64, generator=draw)


def example(shape, tau=0.7, name="model"):
    t, d, e, f, h, v = shape
    draw = generator(name, *shape)
    sizes = {"V": (d, f), "Q": (d, e), "K": (d, e), "O": (f, h), "W": (h, v)}
    weights = {f"weight_{block}": normal(draw, *size) for block, size in sizes.items()}
    label_T = torch.randint(v, (t,), generator=draw)
    return LinearAttention(**weights, tau=tau), normal(draw, t, d), label_T


def printed_logits(model, x_TD, weights):
    """The appendix, letter by letter."""
    n, d_k = len(x_TD), weights["K"].shape[1]
    average = torch.ones(n, n, dtype=x_TD.dtype) / n
    centring = torch.eye(n, dtype=x_TD.dtype) - average
    query, key, value = (x_TD @ weights[block] for block in "QKV")
    output = average @ value + centring / (model.tau * n * math.sqrt(d_k)) @ query @ key.T @ value
    return output @ weights["O"] @ weights["W"]


def weights_of(model):
    return {block: getattr(model, f"weight_{block}") for block in BLOCKS}


def autograd(model, x_TD, label_T):
    leaves = {block: w.clone().requires_grad_() for block, w in weights_of(model).items()}
    log_prob_TV = printed_logits(model, x_TD, leaves).log_softmax(-1)
    loss = -log_prob_TV[torch.arange(len(x_TD)), label_T].sum()
    grads = torch.autograd.grad(loss, list(leaves.values()))
    return loss.detach(), dict(zip(leaves, grads, strict=True))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tau", [0.3, 2.0])
def test_loss_and_gradients_equal_autograd(shape, tau):
    model, x_TD, label_T = example(shape, tau)
    loss, expected = autograd(model, x_TD, label_T)
    assert_close(model.loss(x_TD, label_T), loss, rtol=1e-12, atol=1e-12)
    assert_close(
        model.forward(x_TD),
        printed_logits(model, x_TD, weights_of(model)),
        rtol=1e-12,
        atol=1e-12,
    )
    got = model.gradients(x_TD, label_T)
    assert list(got) == list(BLOCKS)
    for block in BLOCKS:
        assert_close(got[block], expected[block], rtol=1e-12, atol=1e-12)
    for block in BLOCKS:  # far above the tolerance, except that one token has no scores to centre
        silent = len(x_TD) == 1 and block in "QK"
        assert (expected[block].abs().max() < 1e-6) == silent


def test_gradients_of_many_samples_at_once():
    model, x_TD, label_T = example(SHAPES[0])
    x_BTD, label_BT = torch.stack([x_TD, -x_TD]), torch.stack([label_T, label_T.flip(0)])
    got = torch.func.vmap(model.gradients)(x_BTD, label_BT)
    for sample in range(2):
        expected = autograd(model, x_BTD[sample], label_BT[sample])[1]
        for block in BLOCKS:
            assert_close(got[block][sample], expected[block], rtol=1e-12, atol=1e-12)


def mismatch_by_hand(model, x_TD, label_T):
    logit_TV = printed_logits(model, x_TD, weights_of(model))
    g_z = logit_TV.softmax(-1)
    g_z[torch.arange(len(label_T)), label_T] -= 1
    return g_z @ (model.weight_W.T @ model.weight_O.T)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("block", ["V", "Q", "K"])
def test_attention_gradients_are_a_linear_map_of_the_mismatch(shape, block):
    model, x_TD, label_T = example(shape)
    r_TF = mismatch_by_hand(model, x_TD, label_T)
    assert_close(model.mismatch(x_TD, label_T).output_TF, r_TF, rtol=1e-12, atol=1e-12)
    operator = model.gradient_operator(x_TD, block)
    expected = autograd(model, x_TD, label_T)[1][block]
    assert_close(operator(r_TF), expected, rtol=1e-12, atol=1e-12)
    other_TF = normal(generator("other"), *r_TF.shape)
    assert_close(operator(2 * r_TF - 3 * other_TF), 2 * expected - 3 * operator(other_TF))


@pytest.mark.parametrize("block", ["V", "Q", "K"])
def test_the_map_is_the_papers_kronecker_product(block):
    """vec(U G W) = (W' x U) vec(G), vec stacking columns; K maps G' and needs a commutation."""
    model, x_TD, _ = example(SHAPES[0])
    n, d_k = x_TD.shape[0], model.weight_K.shape[1]
    average = torch.ones(n, n, dtype=torch.float64) / n
    t_TT = (torch.eye(n, dtype=torch.float64) - average) / (model.tau * n * math.sqrt(d_k))
    query, key, value = x_TD @ model.weight_Q, x_TD @ model.weight_K, x_TD @ model.weight_V
    identity = torch.eye(value.shape[1], dtype=torch.float64)
    r_TF = normal(generator("r"), *value.shape)
    matrix, vec = {
        "V": (torch.kron(identity, x_TD.T @ (average + key @ query.T @ t_TT)), r_TF.T),
        "Q": (torch.kron((value.T @ key).T.contiguous(), x_TD.T @ t_TT), r_TF.T),
        "K": (torch.kron((t_TT @ query).T.contiguous(), x_TD.T @ value), r_TF),
    }[block]
    got = model.gradient_operator(x_TD, block)(r_TF)
    assert_close(got.T.reshape(-1), matrix @ vec.reshape(-1), rtol=1e-12, atol=1e-12)


def test_the_mismatch_does_not_fix_the_gradients_of_the_output_maps():
    """Two labels whose columns of W differ by a null vector of W_O: same R, other gradients."""
    model, x_TD, label_T = example((5, 4, 3, 2, 6, 7))
    null_H = torch.linalg.svd(model.weight_O).Vh[-1]
    model.weight_W[:, 1] = model.weight_W[:, 0] + null_H
    one_T, other_T = label_T.clone(), label_T.clone()
    one_T[2], other_T[2] = 0, 1
    one, other = model.mismatch(x_TD, one_T), model.mismatch(x_TD, other_T)
    assert_close(one.output_TF, other.output_TF, rtol=1e-12, atol=1e-12)
    one_grad, other_grad = (autograd(model, x_TD, label)[1] for label in (one_T, other_T))
    for block in "VQK":
        assert_close(one_grad[block], other_grad[block], rtol=1e-12, atol=1e-12)
    for block in "OW":
        assert (one_grad[block] - other_grad[block]).norm() > 1e-2


def test_where_the_maps_are_injective_the_mismatch_fixes_every_gradient():
    model, x_TD, label_T = example((5, 4, 3, 6, 4, 5))  # H <= F, and V - 1 <= rank of W_O W
    r_TF = mismatch_by_hand(model, x_TD, label_T)
    seen, expected = model.activations(x_TD), autograd(model, x_TD, label_T)[1]
    by_O = seen.output_TF.T @ r_TF @ torch.linalg.pinv(model.weight_O).T
    assert_close(by_O, expected["O"], rtol=1e-10, atol=1e-10)
    # pinv of W_O W alone loses its null vector; the zero-sum basis has none
    basis = torch.linalg.svd(torch.ones(1, 5, dtype=torch.float64)).Vh[1:].T
    recover = torch.linalg.pinv(model.weight_O @ model.weight_W @ basis)
    by_W = seen.hidden_TH.T @ r_TF @ recover.T @ basis.T
    assert_close(by_W, expected["W"], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("block", BLOCKS)
def test_theorem_1_for_every_block(block):
    """Gradient of the mean loss of each group, one backward pass, against the kernel's MMD."""
    model, _, _ = example((5, 4, 3, 2, 6, 7))
    draw = generator("groups")
    groups, means = [], []
    for num_samples in (4, 6):
        x_NTD = normal(draw, num_samples, 5, 4)
        label_NT = torch.randint(7, (num_samples, 5), generator=draw)
        samples = list(zip(x_NTD, label_NT, strict=True))
        groups.append(torch.stack([model.gradients(*s)[block].flatten() for s in samples]))
        leaf = {name: w.clone().requires_grad_() for name, w in weights_of(model).items()}
        losses = [
            torch.nn.functional.cross_entropy(
                printed_logits(model, x, leaf), label, reduction="sum"
            )
            for x, label in samples
        ]
        means.append(torch.autograd.grad(torch.stack(losses).mean(), leaf[block])[0])
    expected = (means[0] - means[1]).square().sum()
    assert_close(mmd_squared(*groups), expected, rtol=1e-10, atol=0)


# ---- the linearisation


def scores_and_centring(n=6):
    s = normal(generator("scores"), n, n)
    average = torch.ones(n, n, dtype=torch.float64) / n
    return s, average, torch.eye(n, dtype=torch.float64) - average


@pytest.mark.parametrize("tau", [0.5, 1.0, 3.0])
def test_the_row_softmax_is_centred_on_the_right(tau):
    s, average, c = scores_and_centring()
    zero = torch.zeros_like(s)
    at_zero, slope = torch.func.jvp(lambda z: (z / tau).softmax(-1), (zero,), (s,))
    assert_close(at_zero, average, rtol=1e-14, atol=1e-14)
    assert_close(slope, s @ c / (tau * len(s)), rtol=1e-13, atol=1e-14)
    column_slope = torch.func.jvp(lambda z: (z / tau).softmax(0), (zero,), (s,))[1]
    assert_close(column_slope, c @ s / (tau * len(s)), rtol=1e-13, atol=1e-14)
    assert (slope - column_slope).norm() > 0.3 * slope.norm()


def test_the_printed_form_errs_in_first_order():
    s, average, c = scores_and_centring()
    n = len(s)

    def errors(size):
        exact = (size * s).softmax(-1)
        return (
            (exact - average - c @ (size * s) / n).norm(),
            (exact - average - (size * s) @ c / n).norm(),
        )

    printed, right = zip(*(errors(size) for size in (1e-2, 1e-3)), strict=True)
    assert printed[0] / printed[1] == pytest.approx(10, rel=0.02)
    assert right[0] / right[1] == pytest.approx(100, rel=0.02)
    rows = (average + c @ s / n).sum(1)
    assert (rows - 1).abs().max() > 0.1


def test_both_forms_agree_where_tokens_sum_to_zero():
    model, x_TD, _ = example((6, 4, 3, 2, 6, 7), tau=1.0)
    x_TD = x_TD - x_TD.mean(0)
    s = (x_TD @ model.weight_Q) @ (x_TD @ model.weight_K).T / math.sqrt(3)
    _, average, c = scores_and_centring(6)
    assert_close(c @ s, s @ c, rtol=1e-12, atol=1e-12)
    small = 1e-4
    exact = (small * s).softmax(-1) - average
    error = (exact - c @ (small * s) / 6).norm()
    assert error < 1e-2 * exact.norm()


# ---- errors


def test_weights_that_do_not_fit_are_refused():
    good = weights_of(example(SHAPES[0])[0])
    weights = {f"weight_{block}": weight for block, weight in good.items()}
    for name in weights:
        with pytest.raises(ConfigError, match="do not fit together"):
            LinearAttention(**weights | {name: weights[name].new_zeros(9, 9)})
        with pytest.raises(ConfigError, match="must be a matrix"):
            LinearAttention(**weights | {name: weights[name].new_zeros(3)})
    for tau in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ConfigError, match="tau"):
            LinearAttention(**weights, tau=tau)


def test_bad_samples_and_blocks_are_refused():
    model, x_TD, _ = example(SHAPES[0])
    for x in (x_TD[:, :3], x_TD[0], x_TD[:0]):
        with pytest.raises(ConfigError, match=r"\(tokens, 4\)"):
            model.forward(x)
    with pytest.raises(ConfigError, match="allowed: K, O, Q, V, W"):
        model.gradient_operator(x_TD, "Z")

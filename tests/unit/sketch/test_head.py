"""The sketched cross entropy: the stock loss, its gradients, and the sketch of the output layer.

Shapes: B samples, T tokens, D width, V vocabulary, K sketch.
"""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.func import grad, vmap

from dograph.errors import ConfigError
from dograph.sketch import head
from dograph.sketch.head import head_projection, sketched_cross_entropy
from dograph.sketch.projection import MatrixProjection, Projection


@pytest.fixture
def inputs(tiny):
    """Hidden states, weight, and targets of which some are ignored, all of the last sample's."""
    draw = tiny.generator("head")
    hidden_BTD = torch.randn(4, 9, 12, dtype=torch.float64, generator=draw)
    weight_VD = torch.randn(30, 12, dtype=torch.float64, generator=draw)
    target_BT = torch.randint(27, (4, 9), generator=draw)
    target_BT[0, 5:] = target_BT[1, :3] = target_BT[3] = -100
    return hidden_BTD.requires_grad_(), weight_VD.requires_grad_(), target_BT


def stock_losses(hidden_BTD, weight_VD, target_BT, vocab_size=30, ignore_index=-100):
    logits_BTV = (hidden_BTD @ weight_VD.T)[..., :vocab_size]
    nll_N = F.cross_entropy(
        logits_BTV.flatten(0, 1), target_BT.flatten(), ignore_index=ignore_index, reduction="none"
    )
    count_B = (target_BT != ignore_index).sum(dim=1).clamp_min(1)
    return nll_N.view_as(target_BT).sum(dim=1) / count_B


@pytest.fixture(params=["one chunk", "a token at a time"])
def chunks(request, monkeypatch):
    if request.param == "a token at a time":
        monkeypatch.setattr(head, "_CHUNK", 1)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("vocab_size", [None, 27])
@pytest.mark.parametrize("kind", ["rademacher", "hashed"])
def test_loss_gradient_and_sketch(tiny, inputs, kind, vocab_size):
    hidden_BTD, weight_VD, target_BT = inputs
    projection = head_projection(weight_VD, Projection(dim=20, kind=kind, refresh=2), step=3)
    loss_B, sketch_BK = sketched_cross_entropy(*inputs, projection, vocab_size=vocab_size)
    size = vocab_size or 30
    expected_B = stock_losses(*inputs, size)
    assert tiny.error(loss_B, expected_B) < 1e-10
    assert loss_B[3].item() == 0

    def loss(weight_VD, hidden_TD, target_T):
        return stock_losses(hidden_TD[None], weight_VD, target_T[None], size).sum()

    explicit_BVD = vmap(grad(loss), in_dims=(None, 0, 0))(
        weight_VD.detach(), hidden_BTD.detach(), target_BT
    )
    row_Vq, col_Dp = projection.row_Rq, projection.col_Cp
    assert row_Vq.shape == (30, 8)
    assert col_Dp.shape == (12, 8)
    flat_BF = torch.einsum("vq,bvd,dp->bqp", row_Vq, explicit_BVD, col_Dp).flatten(1)
    assert tiny.error(sketch_BK, tiny.folded(projection.fold, flat_BF)) < 1e-10
    assert not sketch_BK.requires_grad

    weight_B = torch.tensor([0.5, -0.2, 0.0, 3.0], dtype=torch.float64)
    got = torch.autograd.grad((weight_B * loss_B).sum(), [hidden_BTD, weight_VD])
    wanted = torch.autograd.grad((weight_B * expected_B).sum(), [hidden_BTD, weight_VD])
    for gradient, expected in zip(got, wanted, strict=True):
        assert tiny.error(gradient, expected) < 1e-10


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("ignore_index", [-100, -1, 0, 29])
def test_targets_that_do_not_count(tiny, inputs, ignore_index):
    """As in F.cross_entropy, where the ignored value may be any, also a token of the vocabulary."""
    hidden_BTD, weight_VD, target_BT = inputs
    target_BT = target_BT.masked_fill(target_BT == -100, ignore_index)
    projection = head_projection(weight_VD, Projection(dim=20))
    loss_B, sketch_BK = sketched_cross_entropy(
        hidden_BTD, weight_VD, target_BT, projection, ignore_index=ignore_index
    )
    expected_B = stock_losses(hidden_BTD, weight_VD, target_BT, ignore_index=ignore_index)
    assert tiny.error(loss_B, expected_B) < 1e-10
    assert loss_B[3].item() == 0
    got = torch.autograd.grad(loss_B.sum(), [hidden_BTD, weight_VD])
    wanted = torch.autograd.grad(expected_B.sum(), [hidden_BTD, weight_VD], retain_graph=True)
    for gradient, expected in zip(got, wanted, strict=True):
        assert tiny.error(gradient, expected) < 1e-10
    for sketch_K, loss in zip(sketch_BK, expected_B, strict=True):
        (gradient_VD,) = torch.autograd.grad(loss, weight_VD, retain_graph=True)
        small_qp = projection.row_Rq.T @ gradient_VD @ projection.col_Cp
        expected_1K = tiny.folded(projection.fold, small_qp.flatten()[None])
        assert (sketch_K - expected_1K[0]).abs().max() < 1e-10


@pytest.mark.parametrize(
    ("wrong", "ignore_index", "vocab_size"),
    [(-1, -100, None), (-100, -1, None), (30, -100, None), (28, -100, 27), (-2, -1, 27)],
)
def test_targets_outside_the_vocabulary(inputs, wrong, ignore_index, vocab_size):
    hidden_BTD, weight_VD, target_BT = inputs
    target_BT = target_BT.masked_fill(target_BT == -100, ignore_index)
    target_BT[2, 4] = wrong
    said = rf"have \[{wrong}\].* 0\.\.{(vocab_size or 30) - 1} nor ignore_index={ignore_index};"
    with pytest.raises(ConfigError, match=said):
        sketched_cross_entropy(
            *(hidden_BTD, weight_VD, target_BT), vocab_size=vocab_size, ignore_index=ignore_index
        )


@pytest.mark.parametrize("vocab_size", [0, 31])
def test_a_vocabulary_that_the_weight_does_not_have(inputs, vocab_size):
    with pytest.raises(ConfigError, match=rf"vocab_size={vocab_size} .* 30 rows; it must be"):
        sketched_cross_entropy(*inputs, vocab_size=vocab_size)


def test_targets_are_checked_without_waiting_for_the_device(inputs):
    """Tensors without values take the path of a GPU: whoever reads a value here raises."""
    hidden_BTD, weight_VD, target_BT = (value.detach().to("meta") for value in inputs)
    hidden_BTD.requires_grad_()
    sides = (torch.ones(side, 8, dtype=torch.float64, device="meta") for side in (30, 12))
    projection = MatrixProjection(*sides, fold=None)
    loss_B, sketch_BK = sketched_cross_entropy(hidden_BTD, weight_VD, target_BT, projection)
    loss_B.sum().backward()
    assert loss_B.shape == (4,)
    assert sketch_BK.shape == (4, 64)


@pytest.mark.slow
def test_compiled_into_one_graph_that_checks_its_targets(tiny, inputs):
    hidden_BTD, weight_VD, target_BT = inputs
    projection = head_projection(weight_VD, Projection(dim=20))
    compiled = torch.compile(sketched_cross_entropy, fullgraph=True, backend="aot_eager")
    loss_B, _ = compiled(hidden_BTD, weight_VD, target_BT, projection)
    assert tiny.error(loss_B, stock_losses(*inputs)) < 1e-10
    target_BT[1, 1] = 30
    with pytest.raises(RuntimeError, match=r"a target is neither in 0\.\.29 nor ignore_index=-100"):
        compiled(hidden_BTD, weight_VD, target_BT, projection)


def test_a_hidden_state_without_gradient(tiny, inputs):
    """A frozen model below: the weight alone is trained."""
    hidden_BTD, weight_VD, target_BT = inputs
    loss_B, _ = sketched_cross_entropy(hidden_BTD.detach(), weight_VD, target_BT)
    (got,) = torch.autograd.grad(loss_B.mean(), weight_VD)
    (wanted,) = torch.autograd.grad(stock_losses(*inputs).mean(), weight_VD)
    assert tiny.error(got, wanted) < 1e-10


def test_the_projection_of_seed_0_by_default(inputs):
    _, sketch_BK = sketched_cross_entropy(*inputs)
    _, given_BK = sketched_cross_entropy(*inputs, head_projection(inputs[1], Projection()))
    assert sketch_BK.shape == (4, 5120)
    assert torch.equal(sketch_BK, given_BK)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda h, w, t: (h[:, 1:], w, t),
        lambda h, w, t: (h, w.T, t),
        lambda h, w, t: (h[:3], w, t),
    ],
)
def test_shapes_that_do_not_fit(inputs, spoil):
    with pytest.raises(ConfigError, match=r"shapes do not match: hidden .* \(B, T, D\)"):
        sketched_cross_entropy(*spoil(*inputs))


@pytest.fixture
def mesh(tmp_path):
    """One rank: enough for a tensor to be sharded."""
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1
    )
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("name", ["hidden", "weight"])
def test_a_sharded_tensor_is_refused(inputs, mesh, name):
    given = list(inputs)
    place = ["hidden", "weight"].index(name)
    given[place] = distribute_tensor(given[place].detach(), mesh, [Shard(0)])
    with pytest.raises(ConfigError, match=rf"{name} is a DTensor .*Shard.* {name}\.full_tensor"):
        sketched_cross_entropy(*given)
    given[place] = given[place].full_tensor()
    loss_B, _ = sketched_cross_entropy(*given)
    torch.testing.assert_close(loss_B, stock_losses(*inputs))

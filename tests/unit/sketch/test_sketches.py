"""A sketch is the projection of the sample's whole gradient, and of nothing else.

The oracle knows nothing of taps: gradients of each sample by torch.func, projected parameter by
parameter with the matrices written out.

Shapes: B samples, T tokens, K sketch.
"""

import pytest
import torch

from dograph.sketch.projection import Projection
from dograph.sketch.sketcher import Sketcher

UNIFORM_B = torch.full((5,), 0.2, dtype=torch.float64)


def by_parameter(rule):
    """Sketches of a matrix; both uses of a tied weight together."""
    return rule.names["weight"] if rule.matrix else "rest"


def expected_sketches(tiny, model, token_BT, **options):
    """By matrix, and of all vectors, from explicit gradients and explicit matrices."""
    projection = Projection(dim=80, **options)
    gradients = tiny.per_sample_gradients(model, token_BT)
    matrices = {name: gradient for name, gradient in gradients.items() if gradient.dim() > 2}
    sketches = {
        name: tiny.explicit_sketch(projection, model, name, gradient)
        for name, gradient in matrices.items()
    }
    vectors = {n: gradient for n, gradient in gradients.items() if n not in matrices}
    return sketches | {"rest": tiny.explicit_vectors(projection, model, vectors)}


@pytest.mark.parametrize("kind", ["rademacher", "hashed"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "plain"])
def test_every_layer_and_the_total(tiny, token_BT, name, kind):
    model = tiny.build[name](attention="eager")
    expected = expected_sketches(tiny, model, token_BT, kind=kind)
    for mode in ("full", "twopass"):
        sketch, _ = tiny.run(
            model, token_BT, UNIFORM_B, mode=mode, projection=kind, group_of=by_parameter
        )
        assert sketch.groups.keys() == expected.keys()
        for layer, expected_BK in expected.items():
            assert tiny.error(sketch.groups[layer], expected_BK) < 1e-10, (mode, layer)
    total_BK = torch.stack(list(expected.values())).sum(dim=0)
    for mode in ("full", "twopass", "exact", "reference"):
        sketch, _ = tiny.run(model, token_BT, UNIFORM_B, mode=mode, projection=kind)
        assert tiny.error(sketch.sketch_BK, total_BK) < 1e-10, mode


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_in_single_precision(tiny, token_BT, name):
    options = {"attention": "eager", "dtype": torch.float32}
    model = tiny.build[name](**options, **({"norms": "hugging face"} if name == "llama" else {}))
    expected = expected_sketches(tiny, model, token_BT)
    sketch, _ = tiny.run(model, token_BT, UNIFORM_B, mode="full", group_of=by_parameter)
    for layer, expected_BK in expected.items():
        assert tiny.error(sketch.groups[layer], expected_BK) < 1e-5, layer
    total_BK = torch.stack(list(expected.values())).sum(dim=0)
    assert tiny.error(sketch.sketch_BK, total_BK) < 1e-5


def test_a_sketch_of_some_layers_is_a_part_of_the_whole(tiny, token_BT):
    """However layers are grouped, their parts add up to the same sketch."""
    model = tiny.gpt2(attention="eager")
    whole, _ = tiny.run(model, token_BT, UNIFORM_B, mode="full")
    parts, _ = tiny.run(model, token_BT, UNIFORM_B, mode="full", group_of=by_parameter)
    total_BK = torch.stack(list(parts.groups.values())).sum(dim=0)
    assert tiny.error(total_BK, whole.sketch_BK) < 1e-10


def test_blocks_are_the_matrices_below_the_head(tiny, token_BT):
    model = tiny.llama(attention="eager")
    expected = expected_sketches(tiny, model, token_BT)
    blocks = [n for n in expected if n.endswith("proj.weight")]
    assert len(blocks) == 2 * 7
    expected_B = torch.stack([expected[n] for n in blocks]).sum(dim=0).norm(dim=1)
    for mode in ("full", "twopass", "exact", "reference"):
        sketch, _ = tiny.run(model, token_BT, UNIFORM_B, mode=mode)
        assert tiny.error(sketch.block_norm_B, expected_B) < 1e-10, mode


def test_projection_none_is_the_gradient_itself(tiny, token_BT):
    """Whatever the order of its numbers, inner products of samples are those of gradients."""
    model = tiny.gpt2(attention="eager")
    explicit = tiny.per_sample_gradients(model, token_BT)
    flat_BD = torch.cat([g.flatten(1) for g in explicit.values()], dim=1)
    for mode in ("exact", "reference"):
        sketch, _ = tiny.run(model, token_BT, UNIFORM_B, mode=mode, projection="none")
        assert sketch.sketch_BK.shape == flat_BD.shape
        got_BB = sketch.sketch_BK @ sketch.sketch_BK.T
        assert tiny.error(got_BB, flat_BD @ flat_BD.T) < 1e-10, mode


def test_positions_without_a_batch_axis_of_their_own(tiny, token_BT):
    """Positions are looked up once for all samples; each still has its own gradient."""
    model = tiny.plain()
    sketch, _ = tiny.run(model, token_BT, UNIFORM_B, mode="twopass", group_of=by_parameter)
    alone_BK = torch.cat(
        [
            tiny.run(model, row_1T, UNIFORM_B[:1], mode="full", group_of=by_parameter)[0].groups[
                "position.weight"
            ]
            for row_1T in token_BT.split(1)
        ]
    )
    assert tiny.error(sketch.groups["position.weight"], alone_BK) < 1e-10


def test_a_step_has_its_own_projection(tiny, token_BT):
    """Sketches of step 3 use the matrices of step 3, also where step 2 used others."""
    model = tiny.gpt2(attention="eager")
    sketcher = Sketcher(model, mode="full", dim=80, refresh="step")
    projection = Projection(dim=80, refresh="step")
    explicit = tiny.per_sample_gradients(model, token_BT)
    for step in (2, 3):
        with sketcher.record(token_BT, step):
            sketch = sketcher.sketch(tiny.nll(model, token_BT))
        expected_BK = tiny.explicit_total(projection, model, explicit, step=step)
        assert tiny.error(sketch.sketch_BK, expected_BK) < 1e-10, step

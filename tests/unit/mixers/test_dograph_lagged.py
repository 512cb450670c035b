"""DoGraph's weights of micro-batches: what `weigh` gives where it can be known, and the floor.

Shapes: B samples, b those of a micro-batch.
"""

import copy
from dataclasses import replace

import pytest
import torch

from dograph.mixers.dograph import DoGraph
from dograph_batches import SIZE, Lab, batch

FLOOR = 0.9
STRONG = {"name": "precision", "q": 3.0}


def warm(**options) -> DoGraph:
    """A mixer that has seen enough batches to know its domains, each a quarter of the samples."""
    given = {"num_domains": 4, "objective": STRONG, "warmup_steps": 0, **options}
    mixer = DoGraph("safe", **given)
    mixer.plan(Lab({name: 100 for name in "abcd"}))
    for step in range(15):
        mixer.weigh(batch(step))
    return mixer


def uneven_norms(signals):
    """Norms that have nothing to do with domains."""
    norm_B = torch.randn(len(signals.sketch_BK), generator=torch.Generator().manual_seed(4)).exp()
    return replace(signals, block_norm_B=norm_B)


def part(signals, first, last):
    return replace(
        signals,
        num_samples=last - first,
        source_B=signals.source_B[first:last],
        sketch_BK=signals.sketch_BK[first:last],
        block_norm_B=signals.block_norm_B[first:last],
    )


def in_pieces(mixer, signals, size):
    """Weights of every micro-batch of `size` samples, times the number of samples."""
    starts = range(0, SIZE, size)
    return [
        SIZE * mixer.weigh_lagged(part(signals, start, start + size), SIZE).double()
        for start in starts
    ]


@pytest.mark.parametrize("apply_weights_to", ["loss", "sampling"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("floor", [None, FLOOR])
def test_a_batch_in_one_piece_with_the_shares_expected_is_weighed_as_ever(
    floor, normalize, apply_weights_to
):
    options = {"normalize_gradients": normalize, "apply_weights_to": apply_weights_to}
    mixer = warm(min_effective_fraction=floor, **options)
    signals = uneven_norms(batch(15))
    lagged_B = mixer.weigh_lagged(signals, SIZE)
    weight_B = mixer.weigh(signals)
    torch.testing.assert_close(lagged_B, weight_B, rtol=2e-5, atol=0)
    alike = apply_weights_to == "sampling" and not normalize
    assert (float(SIZE * weight_B.max()) < 1.001) == alike


def test_the_floor_holds_where_samples_count_by_direction():
    """Without a floor it does not: a check that is met anyway would say nothing."""
    signals = uneven_norms(batch(15))
    free_B = SIZE * warm(normalize_gradients=True, min_effective_fraction=None).weigh_lagged(
        signals, SIZE
    )
    assert 1 / float(free_B.square().mean()) < FLOOR / 2
    mixer = warm(normalize_gradients=True, min_effective_fraction=FLOOR)
    times_B = SIZE * mixer.weigh_lagged(signals, SIZE)
    assert 1 / float(times_B.square().mean()) == pytest.approx(FLOOR, abs=1e-5)
    assert float(times_B.sum()) == pytest.approx(SIZE, rel=1e-4)


@pytest.mark.parametrize("size", [1, 3, 8])
def test_micro_batches_keep_their_weight_and_the_floor(size):
    """Directions move weight inside a micro-batch only, as far as the floor lets them."""
    # The first half of the batch is of two domains, so that micro-batches weigh differently.
    source_B = torch.cat([torch.arange(SIZE // 2) % 2, 2 + torch.arange(SIZE // 2) % 2])
    signals = uneven_norms(batch(15, source_B=source_B))
    floor = {"min_effective_fraction": FLOOR}
    unit = in_pieces(warm(normalize_gradients=True, **floor), signals, size)
    mean = in_pieces(warm(normalize_gradients=False, **floor), signals, size)
    weights = []
    for unit_b, mean_b in zip(unit, mean, strict=True):
        whole = float(mean_b.mean())
        assert float(unit_b.mean()) == pytest.approx(whole, rel=1e-5)
        assert float(unit_b.square().mean()) <= max(1 / FLOOR, whole**2) + 1e-5
        weights.append(whole)
    assert max(weights) - min(weights) > 0.1
    if size == 1:
        torch.testing.assert_close(torch.cat(unit), torch.cat(mean))
    else:
        assert (torch.cat(unit) - torch.cat(mean)).abs().max() > 0.05


def test_weights_of_micro_batches_change_nothing():
    mixer = warm(normalize_gradients=True)
    before = copy.deepcopy(mixer.state_dict())
    in_pieces(mixer, uneven_norms(batch(15)), 6)
    after = mixer.state_dict()
    assert before.keys() == after.keys()
    for name, value in before.items():
        assert torch.equal(value, after[name]) if torch.is_tensor(value) else value == after[name]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_norms_and_sketches_that_are_no_numbers(bad):
    """Norms alone: no direction to go by. A sketch: equal weights for the micro-batch."""
    mixer, signals = warm(normalize_gradients=True), part(uneven_norms(batch(15)), 0, 6)
    lost = replace(signals, block_norm_B=torch.full((6,), bad))
    plain_b = warm(normalize_gradients=False).weigh_lagged(signals, SIZE)
    torch.testing.assert_close(mixer.weigh_lagged(lost, SIZE).sum(), plain_b.sum())
    broken = replace(signals, sketch_BK=signals.sketch_BK.index_fill(0, torch.tensor([2]), bad))
    torch.testing.assert_close(mixer.weigh_lagged(broken, SIZE), torch.full((6,), 1 / SIZE))

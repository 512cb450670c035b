"""Contracts that anybody's plug-in can be checked against."""

import copy
from dataclasses import replace

import torch
from torch import Tensor

from dograph.domains.partition import Domains, partition
from dograph.mixers.base import SIGNALS, Mixer
from dograph.objectives import Objective
from dograph.types import Signals


def check_mixer(mixer: Mixer, *, num_sources: int = 3, sizes: tuple[int, ...] = (1, 2, 16)) -> None:
    """Assert what every mixer owes: weights on the simplex, repeatable, blind to sample order."""
    assert mixer.needs <= SIGNALS, f"needs {mixer.needs - SIGNALS}, which no step computes"
    for size in sizes:
        signals = random_signals(mixer, size, num_sources)
        weight_B = mixer.weigh(signals)
        assert weight_B.shape == (size,), (
            f"weights have shape {tuple(weight_B.shape)}, not ({size},)"
        )
        assert bool((weight_B >= 0).all()), f"weights must be >= 0, got {weight_B.tolist()}"
        total = float(weight_B.sum())
        assert abs(total - 1) < 1e-5, f"weights must sum to 1, got {total}"
        assert not weight_B.requires_grad, "no gradient may flow through the weights"
        again_B = copy.deepcopy(mixer).weigh(signals)
        assert torch.equal(again_B, copy.deepcopy(mixer).weigh(signals)), "weights must repeat"
        order_B = torch.randperm(size, generator=torch.Generator().manual_seed(0))
        moved_B = copy.deepcopy(mixer).weigh(permuted(signals, order_B))
        assert torch.allclose(moved_B, again_B[order_B], atol=1e-6), (
            "weights must follow their samples when these change places"
        )


def check_objective(objective: Objective, *, num_domains: int = 5, tolerance: float = 1e-4) -> None:
    """Assert what every objective owes: the simplex, no unit, no favourite label, no surprises."""
    for seed in range(3):
        sketch_BK, label_B = random_domains(seed, num_domains)
        domains = partition(sketch_BK, label_B, num_domains)
        weight_M = _weights(objective, domains)

        larger_M = _weights(objective, partition(10 * sketch_BK, label_B, num_domains))
        assert torch.allclose(larger_M, weight_M, atol=tolerance), (
            "weights must not change when all gradients are ten times as large: "
            f"{weight_M.tolist()} became {larger_M.tolist()}"
        )
        order_M = torch.randperm(num_domains, generator=torch.Generator().manual_seed(seed))
        moved_M = _weights(objective, partition(sketch_BK, order_M[label_B], num_domains))
        assert torch.allclose(moved_M[order_M], weight_M, atol=tolerance), (
            "weights must follow their domains when these change numbers: "
            f"{weight_M.tolist()} became {moved_M[order_M].tolist()}"
        )
        gappy_M = _weights(objective, partition(sketch_BK, 2 * label_B, 2 * num_domains))
        assert torch.allclose(gappy_M[::2], weight_M, atol=tolerance), (
            "empty domains must not change the weights of the others: "
            f"{weight_M.tolist()} became {gappy_M[::2].tolist()}"
        )
        twin_BK = torch.cat((sketch_BK, sketch_BK))
        twin_M = _weights(
            objective,
            partition(twin_BK, torch.cat((label_B, label_B + num_domains)), 2 * num_domains),
        )
        assert torch.allclose(twin_M[:num_domains], twin_M[num_domains:], atol=tolerance), (
            f"domains with the same samples must get the same weight, got {twin_M.tolist()}"
        )
        _weights(objective, partition(sketch_BK, torch.zeros_like(label_B), 1))
        _weights(objective, partition(0 * sketch_BK, label_B, num_domains))


def random_domains(seed: int, num_domains: int) -> tuple[Tensor, Tensor]:
    """Made-up sketches and labels: domains of several sizes, one of a single sample."""
    generator = torch.Generator().manual_seed(seed)
    label_B = torch.cat([torch.full((1 + 2 * j,), j) for j in range(num_domains)])
    centre_MK = torch.randn(num_domains, 32, generator=generator) + 0.5
    length_M = torch.rand(num_domains, generator=generator) + 0.5
    noise_BK = torch.randn(len(label_B), 32, generator=generator)
    return length_M[label_B, None] * (centre_MK[label_B] + noise_BK), label_B


def _weights(objective: Objective, domains: Domains) -> Tensor:
    """An objective's weights, if they are on the simplex and its residual is a number."""
    weight_M = objective(domains)
    assert weight_M.shape == domains.share_M.shape, (
        f"weights have shape {tuple(weight_M.shape)}, not {tuple(domains.share_M.shape)}"
    )
    assert bool(torch.isfinite(weight_M).all()), f"weights must be finite, got {weight_M.tolist()}"
    assert bool((weight_M >= 0).all()), f"weights must be >= 0, got {weight_M.tolist()}"
    total = float(weight_M.sum())
    assert abs(total - 1) < 1e-5, f"weights must sum to 1, got {total}"
    assert bool((weight_M[~domains.present_M] == 0).all()), (
        f"empty domains must get weight 0, got {weight_M.tolist()}"
    )
    assert not weight_M.requires_grad, "no gradient may flow through the weights"
    residual = objective.residual(domains, weight_M)
    assert residual.shape == (), f"the residual must be a scalar, got shape {residual.shape}"
    assert bool(torch.isfinite(residual) & (residual >= 0)), (
        f"the residual must be finite and >= 0, got {float(residual)}"
    )
    return weight_M


def permuted(signals: Signals, order_B: Tensor) -> Signals:
    """The same samples in another order."""
    losses = ("loss_B", "reference_loss_B", "excess_loss_B")
    fields = (*losses, "source_B", "stratum_B", "sketch_BK", "block_norm_B")
    moved = {name: getattr(signals, name) for name in fields}
    return replace(signals, **{k: v[order_B] for k, v in moved.items() if v is not None})


def random_signals(mixer: Mixer, size: int, num_sources: int) -> Signals:
    """Made-up signals of the kind that a mixer needs."""
    generator = torch.Generator().manual_seed(size)

    def fill(name: str, value: Tensor) -> Tensor | None:
        return value if name in mixer.needs else None

    loss_B = torch.rand(size, generator=generator) + 2
    reference_B = torch.rand(size, generator=generator) + 2
    return Signals(
        step=0,
        num_samples=size,
        loss_B=fill("loss", loss_B),
        reference_loss_B=fill("reference_loss", reference_B),
        # tokens differ from their mean, so clipped one by one they exceed by more
        excess_loss_B=fill("reference_loss", (loss_B - reference_B).clamp_min(0) + 0.1),
        source_B=fill("source", torch.randint(num_sources, (size,), generator=generator)),
        sketch_BK=fill("sketch", torch.randn(size, 32, generator=generator)),
        lr=1e-3,
        vocab_size=100,
    )

"""Contracts that anybody's plug-in can be checked against."""

import copy
from dataclasses import replace

import torch
from torch import Tensor

from dograph.mixers.base import SIGNALS, Mixer
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


def permuted(signals: Signals, order_B: Tensor) -> Signals:
    """The same samples in another order."""
    fields = ("loss_B", "reference_loss_B", "source_B", "sketch_BK")
    moved = {name: getattr(signals, name) for name in fields}
    return replace(signals, **{k: v[order_B] for k, v in moved.items() if v is not None})


def random_signals(mixer: Mixer, size: int, num_sources: int) -> Signals:
    """Made-up signals of the kind that a mixer needs."""
    generator = torch.Generator().manual_seed(size)

    def fill(name: str, value: Tensor) -> Tensor | None:
        return value if name in mixer.needs else None

    return Signals(
        step=0,
        num_samples=size,
        loss_B=fill("loss", torch.rand(size, generator=generator) + 2),
        reference_loss_B=fill("reference_loss", torch.rand(size, generator=generator) + 2),
        source_B=fill("source", torch.randint(num_sources, (size,), generator=generator)),
        sketch_BK=fill("sketch", torch.randn(size, 32, generator=generator)),
    )

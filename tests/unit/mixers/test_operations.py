"""How many operations a step hands to the device: each costs more than what it computes."""

from importlib import import_module

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from dograph import kernels
from dograph.domains.objectives import OBJECTIVES
from dograph.mixers.dograph import DoGraph
from dograph.types import Signals

KERNELS = (
    *("gram", "kmeans", "partition"),
    *("sample_weights", "simplex", "objectives"),
)
FREE = ("empty", "new_empty", "detach", "_unsafe_view", "promote_types", "reshape_alias")


class Count(TorchDispatchMode):
    """Counts what runs on the device: views and allocations do not."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if not func.is_view and not name.startswith(FREE):
            self.names.append(name)
        return func(*args, **(kwargs or {}))


def signals(step, size=48):
    generator = torch.Generator().manual_seed(step)
    return Signals(
        step=step,
        num_samples=size,
        source_B=torch.randint(7, (size,), generator=generator),
        sketch_BK=torch.randn(size, 64, generator=generator),
        block_norm_B=torch.ones(size),
    )


def counted(mixer, step, monkeypatch, size=48):
    """Operations until the weights are there, and in all."""
    until = []
    take_in = mixer._take_in
    with Count() as count:

        def note(*given):
            until.append(len(count.names))
            take_in(*given)

        monkeypatch.setattr(mixer, "_take_in", note)
        mixer.weigh(signals(step, size))
    return until[0], len(count.names)


@pytest.fixture
def counting_kernels(monkeypatch):
    """Kernels that are counted instead of run, one operation each."""
    pytest.importorskip("triton")

    def launch(kernel, programs, first, *args, **options):
        torch.zeros_like(first)  # an operation
        with _disable_current_modes():  # labels that no kernel writes must still be labels
            for given in args:
                if isinstance(given, torch.Tensor) and given.dtype == torch.int64:
                    given.zero_()

    for name in KERNELS:
        monkeypatch.setattr(import_module(f"dograph.kernels.{name}"), "launch", launch)
    with kernels.choose(True):
        yield


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_paper_stays_within_its_budget(objective, counting_kernels, monkeypatch):
    mixer = DoGraph("paper", objective=objective)
    critical, whole = counted(mixer, 0, monkeypatch)
    assert critical <= 40
    assert whole <= 45


@pytest.mark.parametrize(("size", "most"), [(192, 61), (256, 61), (257, 85), (1024, 85)])
def test_larger_batches_stay_within_their_budget(size, most, counting_kernels, monkeypatch):
    critical, _ = counted(DoGraph("paper"), 0, monkeypatch, size)
    assert critical <= most


def test_safe_stays_within_its_budget(counting_kernels, monkeypatch):
    mixer = DoGraph("safe")
    for step in range(11):
        mixer.weigh(signals(step))
    critical, whole = counted(mixer, 11, monkeypatch)
    assert critical <= 60
    assert whole <= 130


def test_the_count_sees(monkeypatch):
    """Without kernels the same step is hundreds of operations."""
    critical, whole = counted(DoGraph("paper"), 0, monkeypatch)
    assert 300 < critical < whole

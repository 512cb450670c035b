"""From sketch to sample weights without an operation that waits for the device."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dograph.domains import kmeans
from dograph.domains.kmeans import KMeans
from dograph.domains.objectives import OBJECTIVES
from dograph.domains.partition import (
    agreement,
    apply_limits,
    apply_limits_lagged,
    partition,
    sample_weights,
)

WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique")
REPEATS_NOT = ("cumsum", "scatter", "index_add", "bincount", "histc", "median", "index_put", "topk")


class Watch(TorchDispatchMode):
    """Refuses what waits for the device, and what CUDA cannot repeat bit for bit."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert not name.startswith(WAITS), f"{name} waits for the device"
        if name == "index":
            kinds = {index.dtype for index in args[1] if index is not None}
            assert torch.bool not in kinds, "indexing by a mask waits for the device"
        floats = any(isinstance(a, torch.Tensor) and a.is_floating_point() for a in args)
        assert not (floats and name.startswith(REPEATS_NOT)), f"{name} does not repeat on CUDA"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("normalise", [False, True])
def test_nothing_waits_for_the_device(normalise, monkeypatch):
    monkeypatch.setattr(kmeans, "_has_settled", lambda *_: False)  # as on a GPU
    generator = torch.Generator().manual_seed(0)
    sketch_BK = torch.randn(20, 30, generator=generator)
    source_B = torch.randint(3, (20,), generator=generator)
    with Watch():
        kmeans._sorted_space(torch.randn(130, 30, generator=generator), normalise)
        found = KMeans(5, normalise).cluster(sketch_BK, generator)
        domains = partition(sketch_BK, found.label_B, 5)
        agreement(found.label_B, source_B, 5, 3)
        for kind in OBJECTIVES.values():
            objective = kind()
            weight_M = objective(domains)
            objective.residual(domains, weight_M)
            weight_B = sample_weights(domains, weight_M)
            norm_B = sketch_BK.norm(dim=1)
            weight_B = apply_limits(weight_B, 0.9, norm_B, source_B)
            label_b, norm_b = found.label_B[:7], norm_B[:7]
            apply_limits_lagged(weight_M / 20, domains.share_M, label_b, 0.9, norm_b, size=20)
    assert float(weight_B.sum()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    "waits",
    [
        lambda x: x.sum().item(),
        lambda x: x[x > 0],
        lambda x: x[torch.tensor(0)],
        lambda x: x.cumsum(0),
        lambda x: bool(x.sum() > 0),
    ],
)
def test_the_watch_sees(waits):
    with pytest.raises(AssertionError), Watch():
        waits(torch.randn(4))

"""Kernels against their twins: in Triton's interpreter, and on a GPU where there is one.

The interpreter must be chosen before Triton is imported, so this file is also a program, which
runs a group of cases in a process of its own and stores what it finds for the tests.
"""

import sys
from functools import cache, partial

import pytest
import torch

pytest.importorskip("triton")

from dograph import kernels
from dograph.domains import kmeans as twin
from dograph.domains.kmeans import KMeans
from dograph.domains.partition import share_out
from dograph.types import Domains

pytestmark = pytest.mark.slow

STATISTICS = ("share_M", "gram_MM", "square_M", "spread_M", "spread_variance_M", "scale")


def points(size, dims, seed, *, copies=0, broken=0, tail=1.0):
    generator = torch.Generator().manual_seed(seed)
    point_BK = torch.randn(size, dims, generator=generator)
    point_BK = point_BK.sign() * point_BK.abs() ** tail + 0.3
    if copies:
        point_BK = point_BK[torch.randint(copies, (size,), generator=generator)]
    for k in range(broken):
        point_BK[3 * k] = (0.0, torch.nan, torch.inf)[k % 3]
    return point_BK, generator


def restarts(size, dims, num_domains, seed=0, *, normalise, count=2, iterations=20, **kind):
    """What `_restarted` is given."""
    point_BK, generator = points(size, dims, seed, **kind)
    _, point_BK, finite_B = twin._in_order_of_value(point_BK.double())
    space = twin._space(point_BK @ point_BK.T, finite_B, normalise)
    return space, twin.races(size, min(num_domains, size), count, generator), iterations


def refilled(size=24, num_domains=12):
    """Restarts in which a domain lost its samples and was given others."""
    space, race_MRLB, _ = restarts(size, 3, num_domains, 5, normalise=False, count=64, tail=3.0)
    race_MRLB = race_MRLB[:, :, :1] ** 8  # bad seeds
    changed_R, fill = torch.zeros(64, dtype=torch.bool), twin._fill_empty

    def watched(space, label_RB, score_RBM):
        filled_RB = fill(space, label_RB, score_RBM)
        changed_R.logical_or_((filled_RB != label_RB).any(dim=1))
        return filled_RB

    with pytest.MonkeyPatch.context() as patch, kernels.choose(False):
        patch.setattr(twin, "_fill_empty", watched)
        twin._restarted(space, race_MRLB, 11)
    some = changed_R.nonzero().squeeze(1)[:2]
    assert len(some) > 0
    return space, race_MRLB[:, some].contiguous(), 11


RESTARTS = {
    "plain": lambda: restarts(48, 64, 11, normalise=False),
    "spherical": lambda: restarts(48, 64, 11, 1, normalise=True),
    "two iterations": lambda: restarts(33, 8, 5, 2, normalise=False, iterations=2),
    "copies": lambda: restarts(20, 8, 5, 3, normalise=False, copies=9),
    "spherical copies": lambda: restarts(20, 8, 5, 4, normalise=True, copies=9),
    "fewer distinct than domains": lambda: restarts(
        20, 8, 7, 5, normalise=False, copies=4, iterations=6, count=1
    ),
    "weights of 0": lambda: restarts(20, 8, 5, 6, normalise=False, broken=4),
    "spherical weights of 0": lambda: restarts(20, 8, 5, 7, normalise=True, broken=4),
    "fewer samples than domains": lambda: restarts(3, 8, 11, 8, normalise=False, iterations=4),
    "one sample": lambda: restarts(1, 8, 11, normalise=False, iterations=3),
    "one domain": lambda: restarts(9, 8, 1, normalise=False, iterations=3),
    "all weights 0": lambda: restarts(4, 2, 2, normalise=True, copies=1, broken=2, iterations=3),
    "refilled": refilled,
    "large": lambda: restarts(100, 32, 20, normalise=False, count=1, iterations=4),
    "wide: 129 samples": lambda: restarts(129, 16, 11, normalise=False, iterations=3),
    "wide: 192, spherical": lambda: restarts(192, 16, 11, 1, normalise=True, iterations=3),
    "wide: 150, broken": lambda: restarts(150, 8, 6, 2, normalise=False, broken=9, iterations=3),
    "wide: 140, copies": lambda: restarts(140, 8, 8, 3, normalise=False, copies=9, iterations=6),
    "wide: 140, refilled": lambda: refilled(140, 30),
    # More than 256 samples or 32 domains: several programs of a restart, a launch for each step.
    "several: 40 samples, 33 domains": lambda: restarts(
        40, 8, 33, normalise=False, count=1, iterations=1
    ),
    "several: 129, 64 domains, spherical": lambda: restarts(
        129, 8, 64, normalise=True, count=1, iterations=1
    ),
    "several: 257, settled early": lambda: restarts(
        257, 4, 2, 2, normalise=False, tail=3.0, count=1, iterations=4
    ),
}

BATCHES = {  # size, dims, domains, options, kind of points
    "plain": (48, 200, 11, {"normalise": False}, {}),
    "spherical": (40, 37, 6, {"normalise": True}, {}),
    "copies": (24, 16, 5, {"normalise": False}, {"copies": 8}),
    "not finite": (20, 16, 5, {"normalise": False}, {"broken": 5}),
    "spherical not finite": (20, 16, 5, {"normalise": True}, {"broken": 5}),
    "fewer samples than domains": (5, 9, 11, {"normalise": False}, {}),
    "wide: 129 samples": (129, 40, 11, {"normalise": False, "iterations": 2}, {}),
    "wide: 192, spherical": (192, 24, 6, {"normalise": True, "iterations": 2}, {}),
    "wide: 140, not finite": (140, 16, 5, {"normalise": False, "iterations": 2}, {"broken": 5}),
    "wide: 192, spherical not finite": (
        192,
        16,
        3,
        {"normalise": True, "iterations": 1},
        {"broken": 9},
    ),
    "several: 257 samples": (257, 16, 11, {"normalise": False, "iterations": 1, "restarts": 1}, {}),
}

PRECISIONS = [
    *((name, torch.float64) for name in BATCHES),
    ("plain", torch.float32),
    ("copies", torch.float32),
]


def batch_domains(name, dtype, device="cpu"):
    size, dims, num_domains, options, kind = BATCHES[name]
    cluster = KMeans(num_domains, **{"restarts": 2, **options})
    point_BK = points(size, dims, 0, **kind)[0].to(dtype)
    if device != "cpu":
        own = cluster._generator  # draws of a GPU's generator are not those of a CPU's
        cluster._generator = lambda step, _: own(step, torch.device("cpu"))
    if "not finite" in name:  # as DoGraph gives them
        point_BK = point_BK.masked_fill(~torch.isfinite(point_BK).all(dim=1, keepdim=True), 0)
    return cluster.domains(point_BK.to(device), 0)


def sharing(name):
    share_M = torch.tensor([0.5, 0.25, 0.25, 0.0], dtype=torch.float64)
    label_B = torch.arange(24) % 3
    label_B[:3] = 0
    zero_M = torch.zeros(4, dtype=torch.float64)
    weight_M, finite, floor = {
        "plain": ([0.2, 0.5, 0.3, 0.0], True, None),
        "floor": ([0.0, 0.9, 0.1, 0.0], True, 0.9),
        "floor not reached": ([0.5, 0.26, 0.24, 0.0], True, 0.5),
        "weights of 0": ([0.0, 0.0, 0.0, 1.0], True, 0.9),
        "no finite weight": ([0.2, torch.nan, 0.3, 0.0], True, 0.9),
        "no finite gradient": ([0.2, 0.5, 0.3, 0.0], False, None),
        "equal": ([0.5, 0.25, 0.25, 0.0], True, 0.9),
    }[name]
    domains = Domains(label_B, share_M, torch.eye(4), zero_M, zero_M, zero_M, zero_M[0])
    given_M = torch.tensor(weight_M, dtype=torch.float64)
    return share_out(domains, given_M, torch.tensor(finite), floor)


SHARING = (
    *("plain", "floor", "floor not reached", "weights of 0", "no finite weight"),
    *("no finite gradient", "equal"),
)


def fields(domains):
    return {name: getattr(domains, name) for name in ("label_B", *STATISTICS)}


CASES = {
    **{
        f"restarts/{name}": partial(lambda name: twin._restarted(*RESTARTS[name]()), name)
        for name in RESTARTS
    },
    **{
        f"batch/{name}/{dtype}": partial(lambda *case: fields(batch_domains(*case)), name, dtype)
        for name, dtype in PRECISIONS
    },
    **{f"sharing/{name}": partial(sharing, name) for name in SHARING},
}


def group_of(case):
    """Cases that are run in one process: of one kind, with the same word before a colon."""
    kind, name = case.split("/")[:2]
    return f"{kind} {name.partition(':')[0]}" if ":" in name else kind


def main(file, group):
    """All cases of a group by kernels."""
    with kernels.choose(True):
        found = {case: run() for case, run in CASES.items() if group_of(case) == group}
    torch.save(found, file)


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    """A function that gives what the kernels found in a case."""
    if torch.cuda.is_available():
        pytest.skip("the interpreter is for machines without; the same cases run on the GPU")
    from interpreting import interpreted_results  # not where this file is the program

    @cache
    def results(group):
        return interpreted_results(__file__, tmp_path_factory.mktemp("interpreted"), group)

    return lambda case: results(group_of(case))[case]


def partition_of(label_RB):
    """Which samples are together, whatever the domains' numbers."""
    return label_RB[:, :, None] == label_RB[:, None]


def assert_same_restarts(name, label_RB, inertia_R):
    with kernels.choose(False):
        expected_RB, expected_R = twin._restarted(*RESTARTS[name]())
    if "copies" in name or "fewer" in name:  # seeds that are as good as each other
        assert torch.equal(partition_of(label_RB), partition_of(expected_RB))
    else:
        assert torch.equal(label_RB, expected_RB)
    torch.testing.assert_close(inertia_R, expected_R, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", RESTARTS)
def test_restarts_by_the_kernel_are_those_of_the_twin(interpreted, name):
    assert_same_restarts(name, *interpreted(f"restarts/{name}"))


def assert_same_domains(name, dtype, found):
    with kernels.choose(False):
        expected = fields(batch_domains(name, dtype))
    assert torch.equal(found["label_B"], expected["label_B"])
    for field in STATISTICS:
        assert found[field].dtype == expected[field].dtype, field
        tolerance = 1e-6 if dtype == torch.float32 else 1e-11
        torch.testing.assert_close(
            found[field], expected[field], rtol=tolerance, atol=tolerance, msg=field
        )


@pytest.mark.parametrize(("name", "dtype"), PRECISIONS)
def test_domains_by_kernels_are_those_of_the_twins(interpreted, name, dtype):
    assert_same_domains(name, dtype, interpreted(f"batch/{name}/{dtype}"))


@pytest.mark.parametrize("name", SHARING)
def test_sample_weights_by_the_kernel_are_those_of_the_twin(interpreted, name):
    weight_B, finite = interpreted(f"sharing/{name}")
    with kernels.choose(False):
        expected_B, expected = sharing(name)
    torch.testing.assert_close(weight_B, expected_B, rtol=1e-12, atol=1e-12)
    assert bool(finite) == bool(expected)
    assert float(weight_B.sum()) == pytest.approx(1)


def test_kernels_are_for_gpus_and_for_batches_that_fit():
    assert not kernels.usable(torch.zeros(2), 48, 11)
    with kernels.choose(True):
        assert kernels.usable(torch.zeros(2), 1024, 64)
        assert not kernels.usable(torch.zeros(2), 1025, 11)
        assert not kernels.usable(torch.zeros(2), 48, 65)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", RESTARTS)
def test_restarts_on_a_gpu(name):
    space, race_MRLB, iterations = RESTARTS[name]()
    moved = twin.Space(
        space.gram_BB.cuda(), space.weight_B.cuda(), space.rounding_B.cuda(), space.spherical
    )
    label_RB, inertia_R = twin._restarted(moved, race_MRLB.cuda(), iterations)
    assert_same_restarts(name, label_RB.cpu(), inertia_R.cpu())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("name", "dtype"), PRECISIONS)
def test_domains_on_a_gpu(name, dtype, monkeypatch):
    draw = twin.races
    with monkeypatch.context() as patched:  # the twin, which is asked afterwards, stays on the CPU
        patched.setattr(twin, "races", lambda *given: draw(*given).cuda())
        found = fields(batch_domains(name, dtype, "cuda"))
    assert_same_domains(name, dtype, {k: v.cpu() for k, v in found.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])

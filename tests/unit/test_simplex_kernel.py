"""The kernels of solver and alignment against their twins: in Triton's interpreter, and on a GPU.

The interpreter must be chosen before Triton is imported, so this file is also a program, which
solves all problems in a process of its own and stores the weights for the tests.
"""

import sys

import pytest
import torch

pytest.importorskip("triton")

from dograph import kernels
from dograph.domains.objectives import Alignment, relative_gap, solve_qp
from dograph.types import Domains

pytestmark = pytest.mark.slow


def problem(size, seed, *, rank=None, absent=0, slope=1.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, rank or size, generator=generator, dtype=torch.float64)
    linear_M = slope * torch.rand(size, generator=generator, dtype=torch.float64)
    present_M = torch.ones(size, dtype=torch.bool)
    present_M[torch.randperm(size, generator=generator)[:absent]] = False
    return (root @ root.T).to(dtype), linear_M.to(dtype), present_M


def changed(entries, value, *, seed=0):
    quadratic_MM, linear_M, present_M = problem(3, seed)
    present_M[2] = False
    if entries == "quadratic":
        quadratic_MM[0, 1] = value
    else:
        linear_M[1] = value
    return quadratic_MM, linear_M, present_M


PROBLEMS = {  # blocks have room for the domains and two more: 14 fit into 16, 17 do not; 64 have 64
    "one domain": lambda: problem(1, 0),
    "two": lambda: problem(2, 1),
    "three": lambda: problem(3, 5),
    "eleven": lambda: problem(11, 2),
    "some absent": lambda: problem(6, 9, absent=2),
    "many": lambda: problem(17, 6, rank=5),
    "sixty-two": lambda: problem(62, 13),
    "sixty-four": lambda: problem(64, 14, absent=3),
    "float32": lambda: problem(6, 3, dtype=torch.float32),
    "rank 1": lambda: problem(5, 7, rank=1),
    "rank 2, no slope": lambda: problem(6, 8, rank=2, slope=0.0),
    "all but one absent": lambda: problem(3, 10, absent=2),
    "all absent": lambda: problem(3, 11, absent=3),
    "steep": lambda: problem(5, 12, slope=1e9),
    "flat": lambda: (torch.zeros(3, 3), torch.zeros(3), torch.ones(3, dtype=torch.bool)),
    "no curvature": lambda: (torch.zeros(3, 3), torch.arange(3.0), torch.ones(3) > 0),
    "not symmetric": lambda: changed("quadratic", 3.0),
    "an outlier": lambda: changed("linear", 1e30),
    "curvature not a number": lambda: changed("quadratic", torch.nan),
    "curvature infinite": lambda: changed("quadratic", torch.inf),
    "slope not a number": lambda: changed("linear", torch.nan),
    "slope infinite": lambda: changed("linear", torch.inf),
    "slope minus infinite": lambda: changed("linear", -torch.inf),
}


ALIGNED = {
    "alike": lambda: problem(5, 20, rank=2)[0] + 1,
    "sixty-four": lambda: problem(64, 22)[0] + 3,
    "apart": lambda: torch.eye(4, dtype=torch.float64),
    "opposed": lambda: torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64),
    "zero": lambda: torch.zeros(3, 3),
    "float32": lambda: problem(11, 21, dtype=torch.float32)[0] + 3,
    "alignment not a number": lambda: torch.full((3, 3), torch.nan),
    "alignment infinite": lambda: torch.full((3, 3), torch.inf),
}


def aligned(name, device="cpu"):
    """Weights of domains with these inner products, the last one empty where there are many."""
    gram_MM = ALIGNED[name]().to(device)
    share_M = torch.full_like(gram_MM[0], 1 / len(gram_MM))
    share_M[4:5] = 0
    zero_M = torch.zeros_like(share_M)
    label_B = torch.zeros(1, dtype=torch.int64, device=device)
    domains = Domains(label_B, share_M, gram_MM, zero_M, zero_M, zero_M, share_M[0])
    return Alignment()(domains)


def main(file):
    """All of them by kernels."""
    with kernels.choose(True):
        found = {name: solve_qp(*given()) for name, given in PROBLEMS.items()}
        torch.save((found, {name: aligned(name) for name in ALIGNED}), file)


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory):
    from interpreting import interpreted_results  # not where this file is the program

    return interpreted_results(__file__, tmp_path_factory.mktemp("interpreted"))


def assert_same(name, weight_M):
    problem = PROBLEMS[name]()
    with kernels.choose(False):
        expected_M = solve_qp(*problem)
    assert weight_M.dtype == expected_M.dtype
    if "rank" in name:
        # Of many minima the ridge prefers one, and roundings that differ move it: all are minima.
        quadratic_MM, linear_M, present_M = problem
        assert relative_gap(quadratic_MM, linear_M, weight_M, present_M) < 1e-6
        assert float(weight_M.sum()) == pytest.approx(1, abs=1e-9)
        return
    tolerance = 1e-10 if weight_M.dtype == torch.float64 else 1e-6
    torch.testing.assert_close(weight_M, expected_M, rtol=0, atol=tolerance, equal_nan=True)
    assert torch.equal(weight_M == 0, expected_M == 0)


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_kernel_finds_what_the_twin_finds(interpreted, name):
    assert_same(name, interpreted[0][name])


def assert_same_alignment(name, weight_M):
    with kernels.choose(False):
        expected_M = aligned(name)
    tolerance = 1e-10 if weight_M.dtype == torch.float64 else 1e-6
    torch.testing.assert_close(weight_M, expected_M, rtol=0, atol=tolerance, equal_nan=True)
    assert bool(torch.isnan(weight_M).all()) == name.startswith("alignment")


@pytest.mark.parametrize("name", ALIGNED)
def test_alignment_by_the_kernel_is_that_of_the_twin(interpreted, name):
    assert_same_alignment(name, interpreted[1][name])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ALIGNED)
def test_alignment_on_a_gpu(name):
    assert_same_alignment(name, aligned(name, "cuda").cpu())


def test_the_problems_have_answers_or_none(interpreted):
    """So that agreement says something."""
    for name, weight_M in interpreted[0].items():
        if "not a number" in name or "infinite" in name:
            assert torch.isnan(weight_M).all(), name
        else:
            total = 0 if name == "all absent" else 1
            assert float(weight_M.sum()) == pytest.approx(total, abs=1e-6), name


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", PROBLEMS)
def test_on_a_gpu(name):
    assert_same(name, solve_qp(*(tensor.cuda() for tensor in PROBLEMS[name]())).cpu())


if __name__ == "__main__":
    main(sys.argv[1])

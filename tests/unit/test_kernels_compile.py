"""Every kernel is compiled to machine code for an H100 or H200; that needs no GPU.

Triton's interpreter, in which kernels are held against their twins on a CPU, accepts programs that
the compiler refuses, such as a variable whose type changes in a loop.
"""

import importlib

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler import compile as compile_kernel

from dograph import kernels
from dograph.domains.kmeans import KMeans
from dograph.domains.objectives import Alignment, solve_qp
from dograph.domains.partition import share_out
from dograph.kernels.cross_entropy import error_by_kernel, nll_by_kernel
from dograph.kernels.gradients import scaled_by_kernel
from dograph.kernels.projection import signs_by_kernel

HOPPER = GPUTarget("cuda", 90, 32)
LAUNCHING = (
    *("cross_entropy", "gradients", "gram", "kmeans", "objectives", "partition"),
    *("projection", "sample_weights", "simplex"),
)
POINTER = {torch.uint8: "u8", torch.int32: "i32", torch.int64: "i64", torch.bfloat16: "bf16"}
POINTER |= {torch.float16: "fp16", torch.float32: "fp32", torch.float64: "fp64"}


def type_of(argument):
    if isinstance(argument, Tensor):
        return f"*{POINTER[argument.dtype]}"
    if isinstance(argument, float):
        return "fp32"
    return "i32" if -(2**31) <= argument < 2**31 else "i64"


@pytest.fixture
def compiled(monkeypatch):
    """Launches compile instead of running; what they would write is 0."""
    names = []

    def launch(kernel, grid, *args, warps, **constants):
        positions = dict(zip(kernel.arg_names, args, strict=False))
        signature = {name: type_of(value) for name, value in positions.items()}
        signature |= dict.fromkeys(constants, "constexpr")
        signature = {name: signature[name] for name in kernel.arg_names}
        own = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        source = ASTSource(fn=kernel, signature=signature, constexprs=own)
        made = compile_kernel(source, target=HOPPER, options={"num_warps": warps})
        assert made.asm["cubin"]
        names.append(kernel.fn.__name__)
        for argument in args:
            if isinstance(argument, Tensor) and argument.numel():
                argument.zero_()  # uninitialised memory could be anything

    for name in LAUNCHING:
        monkeypatch.setattr(importlib.import_module(f"dograph.kernels.{name}"), "launch", launch)
    return names


@pytest.mark.parametrize("spherical", [False, True])
@pytest.mark.parametrize(
    ("size", "num_domains"),
    [(8, 3), (48, 11), (192, 11), (40, 33), pytest.param(1024, 64, marks=pytest.mark.slow)],
)
def test_domains_and_their_weights(compiled, size, num_domains, spherical):
    cluster = KMeans(num_domains, spherical, 3, 0)
    sketch_BK = torch.randn(size, 40, dtype=torch.float32)
    with kernels.choose(True):
        domains = cluster.domains(sketch_BK, 0)
        Alignment()(domains)
        weight_M, finite = torch.ones(num_domains) / num_domains, torch.tensor(True)
        share_out(domains, weight_M, finite, 0.9)
    assert {"_steps", "_describe", "_align", "_share_out"} <= set(compiled)


@pytest.mark.parametrize("size", [2, 11, 63, 64])
def test_the_quadratic(compiled, size):
    with kernels.choose(True):
        solve_qp(torch.eye(size), torch.ones(size), torch.ones(size, dtype=torch.bool))
    assert compiled == ["_solve"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_the_step_launches(compiled, dtype):
    logits_NV, target_N = torch.randn(6, 50304).to(dtype), torch.arange(6)
    _, norm_N = nll_by_kernel(logits_NV, target_N, 50257)
    error_by_kernel(logits_NV, target_N, norm_N, torch.ones(6), 50257)
    sign_V = torch.ones(50304, dtype=dtype)
    error_by_kernel(logits_NV, target_N, norm_N, torch.ones(6), 50257, (sign_V, 128))
    scaled_by_kernel(torch.randn(4, 8, 64).to(dtype), torch.ones(4))
    signs_by_kernel(torch.arange(8), 12345, 0.5, dtype)
    assert compiled == ["_nll", "_error", "_error", "_scale", "_draw"]

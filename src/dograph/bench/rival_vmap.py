"""The textbook way: torch.func's per-sample gradients and a dense Gaussian projection.

Shapes: B samples, T tokens, K sketch, F numbers of a parameter, f of a stretch of it.
"""

import math
import os
import time
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from dograph.bench.arms import open_model
from dograph.bench.batches import Batches
from dograph.bench.options import BenchOptions
from dograph.bench.rivals import Rival, WeightedStep
from dograph.errors import ConfigError
from dograph.rng import key64

STRETCH = 1 << 14  # rows of the projection that are made at once
VMAP_SECONDS = 2.0  # of projecting in a step, after which the rest is reckoned
AT_ONCE = 8  # samples of one vmap
TIMES = 2.5  # gradients that a step holds at once: what vmap made, its copy, a little more


def open_vmap(options: BenchOptions, batches: Batches, device: torch.device) -> Rival:
    """Every sample's gradient held in full, on as many samples as memory has room for."""
    work = WeightedStep(options, batches, device)
    work.use(open_model(options, device))
    numbers = sum(p.numel() for p in work.parameters.values())
    room = 0.7 * _free_bytes(device)
    fits = int(room / (TIMES * 4 * numbers))
    if fits < 1:
        raise ConfigError(
            f"one gradient of {numbers / 1e6:.0f} million numbers and its copies do not fit into "
            f"{room / 2**30:.1f} GiB"
        )
    work.num_samples = min(work.num_samples, fits)
    share = [1.0]

    def step() -> float:
        gradients = per_sample_gradients(work, work.tokens())
        sketch_BK, left_out, share[0] = project(gradients, options, work.done)
        weight_B = work.weigh(sketch_BK, sketch_BK.norm(dim=1))
        for name, gradient in gradients.items():
            work.parameters[name].grad = torch.tensordot(weight_B, gradient, dims=1)
        work.update()
        return left_out

    note = (
        f"torch.func.vmap(grad), dense Gaussian {numbers / 1e6:.1f}M x {options.dim}; eager, "
        "attention unfused"
    )

    def told() -> str:
        partly = f"; time of {1 - share[0]:.0%} of the projection reckoned by proportion"
        return note + work.counted() + (partly if share[0] < 1 else "")

    return Rival(step, work.num_samples, told)


def per_sample_gradients(work: WeightedStep, token_BT: Tensor) -> dict[str, Tensor]:
    """Gradients (B, ...) by parameter name."""
    fixed = {name: parameter.detach() for name, parameter in work.parameters.items()}

    def loss(values: dict[str, Tensor], token_T: Tensor) -> Tensor:
        loss_1: Tensor = functional_call(work.model, values, (token_T[None],))
        return loss_1[0]

    each = vmap(grad(loss), in_dims=(None, 0), chunk_size=AT_ONCE)
    # Attention's fused kernels have no rule for vmap and would run sample by sample.
    with work.autocast(), sdpa_kernel(SDPBackend.MATH):
        gradients: dict[str, Tensor] = each(fixed, token_BT)
    return gradients


def project(
    gradients: dict[str, Tensor], options: BenchOptions, step: int
) -> tuple[Tensor, float, float]:
    """R'g with R ~ N(0, 1/K), made anew in every step and never held.

    Returns also the seconds of what was left out once the time was up, by proportion, and the
    share that was not.
    """
    one = next(iter(gradients.values()))
    draw = torch.Generator(one.device).manual_seed(key64(options.seed, "dense", step) >> 1)
    sketch_BK = one.new_zeros(len(one), options.dim)
    total = sum(gradient[0].numel() for gradient in gradients.values())
    done, start = 0, _now(one)
    for part_Bf in _stretches(gradients):
        shape = (part_Bf.shape[1], options.dim)
        dense_fK = torch.randn(shape, generator=draw, device=one.device, dtype=one.dtype)
        sketch_BK += part_Bf @ dense_fK
        done += part_Bf.shape[1]
        if (spent := _now(one) - start) > VMAP_SECONDS:
            break
    left_out = spent * (total - done) / done
    return sketch_BK / math.sqrt(options.dim), left_out, done / total


def _stretches(gradients: dict[str, Tensor]) -> Iterator[Tensor]:
    for gradient in gradients.values():
        yield from gradient.flatten(1).split(STRETCH, dim=1)


def _now(on: Tensor) -> float:
    if on.is_cuda:
        torch.cuda.synchronize(on.device)
    return time.perf_counter()


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

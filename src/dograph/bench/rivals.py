"""What one would do without taps: the same weighted step by other means.

    loop     one backward a sample, each gradient sketched; then a weighted backward of the batch
    vmap     torch.func's per-sample gradients, a dense Gaussian projection, their weighted sum
    opacus   ghost clipping: a backward for the norms of all samples, a second one with weights

All run eagerly, in the precision of the other arms. What does not fit is measured on fewer samples
and counted by the sample.

Shapes: B samples, T tokens, K sketch, F numbers of a gradient.
"""

import math
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from dograph.bench.arms import Timer, open_model, release
from dograph.bench.options import Batches, BenchOptions
from dograph.errors import ConfigError, require
from dograph.mixers.registry import build_mixer
from dograph.models.loss import PerSampleLoss
from dograph.rng import key64
from dograph.sketch.assembly import Assembly, sketch_gradients
from dograph.sketch.coverage import cover
from dograph.sketch.projection import Projection
from dograph.train.optim import build_optimizer
from dograph.types import Signals

STEPS = 2
SECONDS = 8.0  # after which no further step is begun


@dataclass(frozen=True, slots=True)
class Rival:
    """A step by other means."""

    step: Callable[[], float]  # returns seconds that it left out and reckoned by proportion
    num_samples: int
    note: Callable[[], str]


Opener = Callable[[BenchOptions, Batches, torch.device], Rival]


def measure_rival(
    opener: Opener, options: BenchOptions, batches: Batches, timer: Timer
) -> dict[str, Any]:
    """Milliseconds of some steps of a rival, nothing else being on the device."""
    release(timer.device)
    if timer.on_gpu:
        torch.cuda.reset_peak_memory_stats(timer.device)
    held = timer.held()
    rival = opener(options, batches, timer.device)
    spent: list[float] = []
    begun = time.perf_counter()
    for turn in range(STEPS + 1):
        timer.wait()
        start = time.perf_counter()
        left_out = rival.step()
        timer.wait()
        spent.append(time.perf_counter() - start + left_out)
        if turn > 0 and time.perf_counter() - begun > SECONDS:
            break
    peak = torch.cuda.max_memory_allocated(timer.device) - held if timer.on_gpu else None
    return {
        "ms": 1e3 * statistics.median(spent[1:]),  # the first one warms up
        "steps": len(spent) - 1,
        "num_samples": rival.num_samples,
        "peak_bytes": peak,
        "note": rival.note(),
    }


class GradientSketcher:
    """The very sketch that taps make, of gradients that are there in full."""

    def __init__(self, model: nn.Module, projection: Projection) -> None:
        self.projection, self.rules = projection, cover(model)
        weight = next(model.parameters())
        self.assembly = Assembly(self.rules, projection, None, weight.dtype, weight.device)

    def __call__(self, gradients: dict[str, Tensor], step: int) -> tuple[Tensor, Tensor]:
        """Sketches (B, K), and the norms of their part from the blocks, of gradients (B, ...)."""
        self.assembly.draw(step)
        groups = sketch_gradients(self.rules, self.assembly.bank, gradients, step)
        return torch.stack(list(groups.values())).sum(dim=0), groups["blocks"].norm(dim=1)


class WeightedStep:
    """What rivals share: the batch, the mixer's weights, the update."""

    def __init__(self, options: BenchOptions, batches: Batches, device: torch.device) -> None:
        self.options, self.batches, self.device = options, batches, device
        self.config = options.config("reference")
        self.num_samples = min(options.micro_batch or options.batch, options.batch)
        self.mixer = build_mixer(self.config.mixer.name, self.config.mixer.options)
        self.done = 0

    def use(self, model: nn.Module) -> None:
        """Train this model."""
        self.model = model
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self.optimizer = build_optimizer(model, self.config.optim)

    def tokens(self) -> Tensor:
        token_BT = self.batches(self.done).token_BT[: self.num_samples]
        return token_BT.to(self.device, non_blocking=True)

    def autocast(self) -> torch.autocast:
        half = self.options.dtype == "bfloat16"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=half)

    def weigh(self, sketch_BK: Tensor, block_norm_B: Tensor) -> Tensor:
        zero_B = torch.zeros(len(sketch_BK), dtype=torch.int64, device=self.device)
        return self.mixer.weigh(
            Signals(
                step=self.done,
                num_samples=len(sketch_BK),
                device=self.device,
                source_B=zero_B,
                stratum_B=zero_B,
                sketch_BK=sketch_BK,
                block_norm_B=block_norm_B,
                projection=self.done if self.options.recipe == "paper" else 0,
            )
        )

    def update(self) -> None:
        """Clip and step; `.grad` holds the weighted gradient."""
        nn.utils.clip_grad_norm_(self.parameters.values(), self.config.optim.clip_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.done += 1

    def counted(self) -> str:
        """How many samples were measured, where not all were."""
        if self.num_samples == self.options.batch:
            return ""
        return f"; {self.num_samples} of {self.options.batch} samples, counted by the sample"


def open_loop(options: BenchOptions, batches: Batches, device: torch.device) -> Rival:
    """One backward a sample; no gradient is kept, so the weighted one takes another backward."""
    work = WeightedStep(options, batches, device)
    work.use(open_model(options, device))
    refresh = work.config.sketch.refresh or "never"
    project = GradientSketcher(
        work.model, Projection(dim=options.dim, seed=options.seed, refresh=refresh)
    )

    def step() -> float:
        token_BT, sketches, norms = work.tokens(), [], []
        for token_1T in token_BT.split(1):
            gradients = sample_gradient(work, token_1T)
            sketch_1K, norm_1 = project(gradients, work.done)
            sketches.append(sketch_1K)
            norms.append(norm_1)
        weight_B = work.weigh(torch.cat(sketches), torch.cat(norms))
        with work.autocast():
            loss_B = work.model(token_BT)
        (weight_B * loss_B).sum().backward()
        work.update()
        return 0.0

    note = "one backward a sample, the same sketch, then a weighted backward; eager"
    return Rival(step, work.num_samples, lambda: note + work.counted())


def sample_gradient(work: WeightedStep, token_1T: Tensor) -> dict[str, Tensor]:
    """The gradient of one sample's loss, with a sample axis."""
    with work.autocast():
        loss = work.model(token_1T).sum()
    found = torch.autograd.grad(loss, list(work.parameters.values()))
    return {name: grad[None] for name, grad in zip(work.parameters, found, strict=True)}


# Ghost clipping (Li et al. 2022) as Opacus has it: norms of all samples, then weights.
#
# It knows no sketch: its weights are clipping factors, so the comparison is of the machinery, two
# backwards and what the first one computes for each sample. Opacus has no rule for Hugging Face's
# Conv1D and refuses tied weights, and its rule for embeddings wants a batch axis: this arm's own
# copy of the model has Linear in place of Conv1D, an output layer of its own, and positions for
# every sample.


def open_opacus(options: BenchOptions, batches: Batches, device: torch.device) -> Rival:
    """Two backwards with Opacus' hooks in the first one."""
    work = WeightedStep(options, batches, device)
    model = acceptable(open_model(options, device))
    work.use(model)
    hooked = hook(model)

    def step() -> float:
        with work.autocast():
            weighted_backward(hooked, work.tokens(), clipping_weights)
        work.update()
        return 0.0

    note = "Opacus ghost clipping; Linear for Conv1D, untied, positions by sample; eager"
    return Rival(step, work.num_samples, lambda: note + work.counted())


def hook(model: nn.Module) -> Any:
    """The model with Opacus' hooks, which keep the norms of every sample's gradient."""
    return require("opacus.grad_sample", "dev").GradSampleModuleFastGradientClipping(
        model, batch_first=True, loss_reduction="sum", strict=False, max_grad_norm=1.0
    )


def weighted_backward(
    hooked: Any, token_BT: Tensor, weigh: Callable[[Any], Tensor]
) -> tuple[Tensor, Tensor]:
    """Fill `.grad` with the gradient of sum_i weight_i loss_i; the weights and the norms.

    Called inside autocast where that is on: the hooks multiply halves of either precision.
    """
    hooked.enable_hooks()
    loss_B = hooked(token_BT)
    with warnings.catch_warnings():
        # Of embeddings, whose inputs are not differentiable; their hooks want no more than outputs.
        warnings.filterwarnings("ignore", message="Full backward hook is firing")
        loss_B.sum().backward(retain_graph=True)
        hooked.zero_grad(set_to_none=True)
        weight_B = weigh(hooked).detach()
        hooked.disable_hooks()
        (weight_B * loss_B).sum().backward()
    return weight_B, hooked.get_norm_sample()


def clipping_weights(hooked: Any) -> Tensor:
    coefficient_B: Tensor = hooked.get_clipping_coef()
    return coefficient_B / len(coefficient_B)


def acceptable(model: PerSampleLoss) -> PerSampleLoss:
    """The same function of the same numbers, in layers that Opacus knows; changes the model."""
    inner = model.model
    for parent in list(inner.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__ == "Conv1D":
                setattr(parent, name, _as_linear(child))
    head = inner.get_output_embeddings()
    if head.weight is inner.get_input_embeddings().weight:
        head.weight = nn.Parameter(head.weight.detach().clone())
    for table in inner.modules():
        if isinstance(table, nn.Embedding) and table is not inner.get_input_embeddings():
            table.register_forward_pre_hook(_Spread(model))
    return model


class _Spread:
    """Gives positions, which come as one row for all, a row for every sample."""

    def __init__(self, model: PerSampleLoss) -> None:
        self.num_samples = 1
        model.register_forward_pre_hook(self.count)

    def count(self, _: nn.Module, arguments: tuple[Tensor, ...]) -> None:
        self.num_samples = len(arguments[0])

    def __call__(self, _: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        place_1T = arguments[0]
        return (place_1T.expand(self.num_samples, place_1T.shape[-1]).contiguous(),)


def _as_linear(layer: Any) -> nn.Linear:
    inputs, outputs = layer.weight.shape
    linear = nn.Linear(inputs, outputs, device=layer.weight.device, dtype=layer.weight.dtype)
    with torch.no_grad():
        linear.weight.copy_(layer.weight.T)
        linear.bias.copy_(layer.bias)
    return linear


# The textbook way: torch.func's per-sample gradients and a dense Gaussian projection.


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

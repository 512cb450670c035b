"""The results of a micro-batch: losses, sketches, and a backward that waits for the weights.

Results of all ranks are gathered into the signals of the world batch, and the weights are sliced
back to the ranks. Weighted gradients are added to the parameters' own `.grad` in as few passes
over memory as possible. Also here: full per-sample gradients (modes `exact` and `reference`).

Shapes: B samples, b those of this rank, K sketch, N rows (samples times tokens), x and y the two
axes of a weight.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dograph.errors import ConfigError
from dograph.kernels import usable
from dograph.types import Signals

if TYPE_CHECKING:
    from dograph.sketch.rules import Rule

Gradients = dict[str, Tensor]
Half = tuple["Rule", Tensor, Tensor]  # a layer, its input and the gradient of its output
Vector = tuple["Rule", Tensor]  # a layer and per-sample gradients of its vectors: (B, F)
HALF = (torch.bfloat16, torch.float16)
_BUCKET = 1 << 23  # numbers in one all-reduce
_HAS_ONEDNN = (
    hasattr(torch.ops.mkldnn, "_linear_pointwise") and torch.backends.mkldnn.is_available()
)
_LARGE = 1 << 22  # multiplications of a product that is worth a call of oneDNN
_GATHERED = ("loss_B", "reference_loss_B", "excess_loss_B", "source_B", "sketch_BK", "block_norm_B")


@dataclass(slots=True)
class MicroBatchResult:
    """Losses, sketches and a deferred weighted backward; what the mixer does not need is None."""

    loss_B: Tensor
    pending: Callable[[Tensor], None] | None = None  # the backward of modes without a whole graph
    sketch_BK: Tensor | None = None
    block_norm_B: Tensor | None = None  # of the sketch's part from the blocks' matrices
    reference_loss_B: Tensor | None = None
    excess_loss_B: Tensor | None = None
    source_B: Tensor | None = None
    groups: dict[str, Tensor] = field(default_factory=dict)  # parts that add up to the sketch

    def backward(self, weight_B: Tensor) -> None:
        """Add the gradient of sum_i weight_i loss_i to `.grad`."""
        if self.pending is not None:
            self.pending(weight_B)
        else:  # no mixer needs a sketch, or mode twopass: the graph of the loss is still there
            (weight_B.to(self.loss_B.dtype) * self.loss_B).sum().backward()

    def without_gradient(self) -> Self:
        """The same values without the activations that a backward would need."""
        return replace(self, loss_B=self.loss_B.detach(), pending=None)


def deferred_backward(halves: list[Half], vectors: list[Vector], weight_B: Tensor) -> None:
    """Mode `full`: each weight gradient from its layer's input and output gradient.

    Modes `topdown` and `head` have these for the layers above the cut only.
    """
    times_B = len(weight_B) * weight_B
    with torch.autocast(weight_B.device.type, enabled=False):
        while halves:  # each pair is freed as soon as it is used
            rule, left, right = halves.pop()
            rule.add_weighted(left, right, times_B)
        if vectors:  # all in one product: a model has hundreds of short ones
            vector_BF = torch.cat([vector for _, vector in vectors], dim=1)
            vector_F = weight_B.to(vector_BF.dtype) @ vector_BF
            parts = vector_F.split([vector.shape[1] for _, vector in vectors])
            for (rule, _), part in zip(vectors, parts, strict=True):
                for name, gradient in zip(rule.vectors, rule.split(part).values(), strict=True):
                    parameter = getattr(rule.module, name)
                    add_gradient(parameter, gradient.view_as(parameter))


def explicit_backward(
    gradients: Gradients, parameters: Mapping[str, nn.Parameter], weight_B: Tensor
) -> None:
    """Modes `exact` and `reference`: the weighted sum of full per-sample gradients."""
    for name, gradient in gradients.items():
        weighted = torch.tensordot(weight_B.to(gradient.dtype), gradient, dims=1)
        add_gradient(parameters[name], weighted.view_as(parameters[name]))


def add_gradient(parameter: nn.Parameter, gradient: Tensor) -> None:
    """Add to `.grad`, as a backward does."""
    gradient = gradient.to(parameter.dtype)
    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)


def add_product(parameter: nn.Parameter, first_Nx: Tensor, second_Ny: Tensor, times: float) -> None:
    """Add `times` the sum over rows of first second' to `.grad`, summed and stored in float32."""
    if not (first_Nx.is_cuda and first_Nx.dtype in HALF and parameter.dtype == torch.float32):
        product = summed_over_rows(first_Nx, second_Ny)
        wide = torch.promote_types(product.dtype, torch.float32)
        add_gradient(parameter, product.to(wide).mul_(times))
        return
    beta = int(parameter.grad is not None)
    grad = torch.empty_like(parameter) if parameter.grad is None else parameter.grad
    parameter.grad = grad
    # One product that writes float32 and adds in place: no rounding, no extra pass over memory.
    torch.addmm(
        grad, first_Nx.T, second_Ny, out_dtype=torch.float32, beta=beta, alpha=times, out=grad
    )


def suits_onednn(first: Tensor, second: Tensor) -> bool:
    """Whether to multiply by oneDNN: large products of float32 on a CPU.

    PyTorch's own product there is MKL's, which has no AVX-512 code for processors of other makers:
    on an AMD EPYC oneDNN is 2.3 times as fast (docs/log.md). Only the rounding differs.
    """
    single = first.dtype == second.dtype == torch.float32 and first.device.type == "cpu"
    large = single and first.numel() * second.shape[-1] >= _LARGE
    return large and _HAS_ONEDNN and not torch.compiler.is_compiling()


def multiplied(first: Tensor, second_xy: Tensor) -> Tensor:
    """First @ second."""
    if not suits_onednn(first, second_xy):
        return first @ second_xy
    product: Tensor = torch.ops.mkldnn._linear_pointwise(first, second_xy.T, None, "none", [], "")
    return product


def summed_over_rows(first_Nx: Tensor, second_Ny: Tensor) -> Tensor:
    """First' second."""
    if not suits_onednn(first_Nx, second_Ny):
        return first_Nx.T @ second_Ny
    if first_Nx.shape[1] > second_Ny.shape[1]:
        return summed_over_rows(second_Ny, first_Nx).T.contiguous()
    return multiplied(first_Nx.T.contiguous(), second_Ny)  # a transposed view is slow


def add_rows(parameter: nn.Parameter, index_N: Tensor, row_Ny: Tensor, times: float) -> None:
    """Add `times` each row to the row of `.grad` at its index."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    parameter.grad.index_add_(0, index_N, row_Ny.to(parameter.dtype), alpha=times)


def scaled(value: Tensor, times_B: Tensor) -> Tensor:
    """Scale each sample: value * times in float32 or better, rounded once to value's dtype.

    The one pass over memory that a weighted gradient costs more than a plain one. PyTorch's
    broadcast product of bfloat16 reaches a third of an H200's memory bandwidth
    (benchmarks/results), so on a GPU a Triton kernel replaces it.
    """
    narrow = value.dtype in (*HALF, torch.float32)
    if narrow and value.is_contiguous() and usable(value):
        from dograph.kernels.gradients import scaled_by_kernel

        return scaled_by_kernel(value, times_B)
    return scaled_plainly(value, times_B)


def scaled_plainly(value: Tensor, times_B: Tensor) -> Tensor:
    """The same in plain PyTorch."""
    wide = torch.promote_types(value.dtype, torch.float32)
    times = times_B.to(wide).view(-1, *[1] * (value.dim() - 1))
    return (value * times).to(value.dtype)


def one_backward_per_sample(loss_B: Tensor, parameters: Mapping[str, nn.Parameter]) -> Gradients:
    """Per-sample gradients the obvious way (mode `reference`); zeros where none reaches."""
    given = list(parameters.values())
    rows = [
        torch.autograd.grad(loss, given, retain_graph=True, materialize_grads=True)
        for loss in loss_B
    ]
    return dict(zip(parameters, map(torch.stack, zip(*rows, strict=True)), strict=True))


def materialised(halves: Sequence[Half], vectors: Sequence[Vector]) -> Gradients:
    """Per-sample gradients from the taps (mode `exact`); uses of a tied parameter are added."""
    total: Gradients = {}
    parts = [rule.per_sample(left, right) for rule, left, right in halves]
    for part in [*parts, *(rule.split(vector_BF) for rule, vector_BF in vectors)]:
        for name, gradient in part.items():
            total[name] = total[name] + gradient if name in total else gradient
    return total


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel and torch.compile."""
    while isinstance(model, DistributedDataParallel | torch._dynamo.OptimizedModule):
        model = model.module if isinstance(model, DistributedDataParallel) else model._orig_mod
    return model


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[Callable[[], None]]:
    """Leave no trace of what runs inside: random state, buffers, training and eval modes.

    Gives the function that restores random state and buffers between two runs.
    """
    modes = [(module, module.training) for module in model.modules()]
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    of_cpu, used = torch.get_rng_state(), {p.device for p in model.parameters() if p.is_cuda}
    of_gpus = {device: torch.cuda.get_rng_state(device) for device in used}

    def rewind() -> None:
        torch.set_rng_state(of_cpu)
        for device, state in of_gpus.items():
            torch.cuda.set_rng_state(state, device)
        with torch.no_grad():
            for module, name, buffer, before in buffers:  # a forward may put another in its place
                module._buffers[name] = buffer.copy_(before)

    try:
        yield rewind
    finally:
        rewind()
        for module, mode in modes:
            module.training = mode


class ModelTree:
    """The modules and parameters of a model, to see whether they are still the same."""

    def __init__(self, model: nn.Module) -> None:
        self.entries: list[tuple[dict[str, Any], str, Any, bool | None, str]] = []
        self.sizes: list[tuple[dict[str, Any], int, str]] = []
        for path, module in model.named_modules():
            held: dict[str, Any]
            for held in (module._parameters, module._modules):
                self.sizes.append((held, len(held), path or type(module).__name__))
                for key, value in held.items():
                    trained = value.requires_grad if isinstance(value, Tensor) else None
                    name = f"{path}.{key}" if path else key
                    self.entries.append((held, key, value, trained, name))

    def require_unchanged(self, *, fills_grad: bool) -> None:
        """Refuse to go on with parameters that are no longer the model's; some 30 us a step."""
        changed = [
            name
            for held, key, value, trained, name in self.entries
            if (trained is not None and value.requires_grad != trained)
            or held.get(key) is not value
        ]
        changed += [name for held, size, name in self.sizes if len(held) != size]
        if changed:
            raise ConfigError(
                f"{changed[:5]} of the model were replaced, added, frozen or unfrozen after the "
                "Sketcher was made; make a new Sketcher (and a new optimizer, if tensors changed)"
            )
        hooked = [
            name
            for *_, value, trained, name in self.entries
            if trained and (value._backward_hooks or value._post_accumulate_grad_hooks)
        ]
        if hooked and fills_grad:
            raise ConfigError(
                f"{hooked[:5]} have hooks on their gradients, which run in an ordinary backward "
                "only; use mode twopass, or remove the hooks"
            )


def world_size() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class WorldRows:
    """Which rows of the world batch belong to which rank.

    Without `sizes`, the rows of each rank, the constructor gathers them and the first use reads
    them. Build it before work is queued on the device: reading then waits for none of that work.
    Every rank must build one.
    """

    def __init__(self, num: int, device: torch.device, sizes: Sequence[int] | None = None) -> None:
        self.num_local = num
        self._sizes = [num] if sizes is None and world_size() == 1 else list(sizes or ())
        if self._sizes:
            return
        mine = torch.full((1,), num, device=device)
        every = mine.new_empty(world_size())
        dist.all_gather_into_tensor(every, mine)
        self._counts = every.to("cpu", non_blocking=True)
        self._gathered = torch.cuda.Event() if device.type == "cuda" else None
        if self._gathered is not None:
            self._gathered.record()

    @property
    def sizes(self) -> list[int]:
        """How many rows each rank has."""
        if not self._sizes:
            if self._gathered is not None:
                self._gathered.synchronize()
            self._sizes = [int(count) for count in self._counts.tolist()]
        return self._sizes

    def split(self, token_bT: Tensor, at_once: int | None, *, alike: bool) -> tuple[Tensor, ...]:
        """Micro-batches of at most `at_once` rows; `alike`: equally many on every rank."""
        if at_once is None:
            return (token_bT,)
        pieces = -(-max(self.sizes) // at_once)
        if not alike or pieces == -(-len(token_bT) // at_once):
            return tuple(token_bT.split(at_once))
        return tuple(token_bT.tensor_split(pieces))

    def gather(self, value_b: Tensor) -> Tensor:
        """The rows of every rank, in the order of ranks."""
        if len(self.sizes) == 1:
            return value_b
        most = max(self.sizes)
        padding_b = value_b.new_zeros(most - len(value_b), *value_b.shape[1:])
        value_B = value_b.new_empty(most * len(self.sizes), *value_b.shape[1:])
        dist.all_gather_into_tensor(value_B, torch.cat([value_b, padding_b]))
        if min(self.sizes) == most:
            return value_B
        parts = zip(value_B.split(most), self.sizes, strict=True)
        return torch.cat([part[:size] for part, size in parts])

    def local(self, weight_B: Tensor) -> Tensor:
        """This rank's weights, times the world size because wrappers average over ranks."""
        if len(self.sizes) == 1:
            return weight_B
        first = sum(self.sizes[: dist.get_rank()])
        return weight_B[first : first + self.num_local] * len(self.sizes)


def gather_signals(
    results: Sequence[MicroBatchResult],
    rows: Sequence[WorldRows],
    *,
    losses: bool = True,
    **known: Any,
) -> Signals:
    """The signals that a mixer weighs: these micro-batches on every rank, one after the other.

    `rows[i]` has the rows of `results[i]`; a single one has those of all results together.
    `losses=False` sends no losses. `known` are the signals that need no gathering.
    """
    gathered: dict[str, Tensor] = {}
    for name in _GATHERED if losses else _GATHERED[1:]:
        values = [value.detach() for r in results if (value := getattr(r, name)) is not None]
        if not values:
            continue
        if len(rows) == 1 < len(values):
            values = [torch.cat(values)]
        parts = [own.gather(value) for own, value in zip(rows, values, strict=True)]
        gathered[name] = parts[0] if len(parts) == 1 else torch.cat(parts)
    if results:
        known.setdefault("num_samples", sum(sum(own.sizes) for own in rows))
        known.setdefault("device", results[0].loss_B.device)
    return Signals(**{**gathered, **known})


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Average `.grad` over ranks, many parameters at a time."""
    if world_size() == 1:
        return
    buckets: list[list[Tensor]] = [[]]
    held = 0
    for parameter in parameters:
        if parameter.grad is None:  # unused on this rank, perhaps not on others
            parameter.grad = torch.zeros_like(parameter)
        if held > _BUCKET:
            buckets.append([])
            held = 0
        buckets[-1].append(parameter.grad)
        held += parameter.grad.numel()
    running = []
    for bucket in buckets:
        flat = torch.cat([grad.flatten() for grad in bucket])
        running.append((bucket, flat, dist.all_reduce(flat, async_op=True)))
    for bucket, flat, work in running:
        work.wait()
        flat /= world_size()
        for grad, part in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
            grad.copy_(part.view_as(grad))

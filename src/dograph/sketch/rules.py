"""One rule a layer type: what its per-sample gradient is made of, sketched and weighted.

    Linear, Conv1D   G_i = sum_t b_it a_it'           sketch: (b P_out)'(a P_in), summed over t
    Embedding        rows of b added up by token      P_row of the token takes the place of a P_in
    biases           sum_t b_it                       vectors: exact, hashed into the slot
    norms            sum_t b_it * xhat_it, sum_t b_it vectors

Attention, RoPE and gates have no parameters: b already holds their backward. A parameter used
twice (tied embeddings) has one projection, and its sketches add up, cross term included.

The tap is an identity on a layer's output whose backward sees both halves of a gradient, the input
a and the output gradient b. It returns, as the gradients of *slots*, what the mode wants: the
sketch of every sample, vectors such as a bias' gradient in full, and a and b themselves where the
weighted gradient is to be made later. A slot is a tensor of zeros with all strides 0, one number of
storage, whose value nobody reads. Nothing is stashed and no hook is used: slots go in and gradients
come out, which is what autograd, torch.compile, activation checkpointing and wrappers can carry.

Shapes: B samples, T tokens, N = B T, K sketch, F numbers of a vector.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dograph.sketch.gradients import Gradients, Grads, scaled

# How RMSNorms of Hugging Face scale: by their weight, or by 1 + weight.
RMS_NORM_OFFSETS = {
    **dict.fromkeys(("LlamaRMSNorm", "MistralRMSNorm", "MixtralRMSNorm", "Phi3RMSNorm"), 0),
    **dict.fromkeys(("Qwen2RMSNorm", "Qwen3RMSNorm", "SmolLM3RMSNorm", "T5LayerNorm"), 0),
    **dict.fromkeys(("GemmaRMSNorm", "Gemma2RMSNorm", "Gemma3RMSNorm"), 1),
}
HalfKind = tuple[tuple[int, ...], torch.dtype]  # shape and precision


def known_by_name(module: Any) -> str:
    """Conv1D or one of Hugging Face's norms, also where a wrapper made a class of its own of it."""
    for kind in type(module).__mro__:
        known = kind.__name__ == "Conv1D" or kind.__name__ in RMS_NORM_OFFSETS
        if known and type(module).forward is vars(kind).get("forward"):
            return str(kind.__name__)
    return ""


class Slots(NamedTuple):
    """Where a tap's findings go; None where nobody asks."""

    sketch: Tensor | None = None
    left: Tensor | None = None
    right: Tensor | None = None
    vector: Tensor | None = None


def make_slot(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros of any shape for the storage of one: a leaf, there to receive a gradient."""
    one = torch.zeros(1, dtype=dtype, device=device)
    return one.as_strided(shape, (0,) * len(shape)).requires_grad_()


class Tap(torch.autograd.Function):
    """y -> y; backward: b -> b, and (sketch, left, right, vector) for the slots."""

    @staticmethod
    def forward(
        ctx: Any,
        output: Tensor,
        seen: Tensor,
        rule: "Rule",
        sketch_slot: Tensor | None,
        left_slot: Tensor | None,
        right_slot: Tensor | None,
        vector_slot: Tensor | None,
        *projection: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(seen, *projection)
        ctx.rule = rule
        ctx.wants_sketch = sketch_slot is not None
        ctx.wants_halves = left_slot is not None
        ctx.wants_vector = vector_slot is not None
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        seen, *projection = ctx.saved_tensors
        rule = ctx.rule
        sketch = left = right = vector = None
        # The second of two backwards only needs b; a compiled one computes the sketch again.
        if rule.listening:
            with torch.autocast(grad.device.type, enabled=False):  # sums stay in float32
                if ctx.wants_sketch or ctx.wants_halves:
                    left, right = rule.halves(seen, grad)
                if ctx.wants_sketch:
                    sketch = rule.sketch(left, right, tuple(projection))
                if ctx.wants_vector:
                    vector = rule.vector(seen, grad)
        if not ctx.wants_halves:
            left = right = None
        return (grad, None, None, sketch, left, right, vector, *(None for _ in projection))


@contextmanager
def replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Inside it the module runs another forward."""
    # Through __dict__: a Module's own __setattr__ takes no heed of what was there.
    before = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        if before is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = before


class Rule:
    """A layer with input a and output gradient b, its canonical parameter names and its slots."""

    matrix: str | None = "weight"  # the parameter with halves and a sketch
    vectors: tuple[str, ...] = ()  # the parameters held as vectors, in their order
    group: Literal["blocks", "rest"] = "rest"  # part of the sketch: the blocks' matrices, all else

    def __init__(self, path: str, module: Any, names: dict[str, str], *, wide: bool) -> None:
        self.path, self.names, self.wide = path, names, wide
        self.module: Any = module
        self.vectors = tuple(own for own in type(self).vectors if own in names)
        # One object, so that a compiled graph knows it again; a layer compiled by itself stays so.
        compiled = hasattr(vars(module).get("forward"), "_torchdynamo_orig_callable")
        self.replacement: Callable[..., Any] = (
            torch.compile(self.forward, dynamic=False) if compiled else self.forward
        )
        self.taps = True  # else the layer runs as it always does
        self.defers = False  # whether its weight gradient is made later, from a and b
        self.listening = False  # whether the running backward is the one that asks the slots
        self.calls = 0  # tapped forwards since recording began
        self.num_samples = 0
        self.slots = Slots()
        self.projection: tuple[Tensor, ...] = ()  # of its matrix: rows, columns

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """What the layer does while it is recorded."""
        value = args[0] if args else next(iter(kwargs.values()))
        taps = self.taps and torch.is_grad_enabled()
        output: Tensor = (
            self.detached(value)
            if taps and self.defers
            else type(self.module).forward(self.module, *args, **kwargs)
        )
        if not taps:
            return output
        self.calls += 1
        output = self.spread(output)
        tapped: Tensor = Tap.apply(  # type: ignore[no-untyped-call]
            output, self.seen(value, output), self, *self.slots, *self.projection
        )
        return tapped

    def open_slots(
        self, shape: tuple[int, int], dtype: torch.dtype, sketch_slot: Tensor | None
    ) -> None:
        """Slots for what this many samples and tokens leave behind in this precision."""
        self.num_samples, weight = shape[0], self.module.weight
        left = right = vector = None
        if self.defers and self.matrix is not None:
            kinds = self.half_kinds(shape, dtype)
            left, right = (make_slot(*kind, weight.device) for kind in kinds)
        if self.vectors:
            wide = torch.promote_types(weight.dtype, torch.float32)
            vector = make_slot((shape[0], sum(self.vector_sizes().values())), wide, weight.device)
        self.slots = Slots(sketch_slot, left, right, vector)

    def vector_sizes(self) -> dict[str, int]:
        """Numbers of every parameter that is held as a vector, by its name."""
        return {self.names[own]: int(getattr(self.module, own).numel()) for own in self.vectors}

    def split(self, vector_BF: Tensor) -> Gradients:
        """Vectors by the names of their parameters; without a sample axis as well."""
        sizes = self.vector_sizes()
        parts = vector_BF.split(list(sizes.values()), dim=-1)
        return dict(zip(sizes, parts, strict=True))

    def detached(self, value: Tensor) -> Tensor:
        """The layer with its parameters out of the graph: no weight gradient is computed."""
        raise NotImplementedError

    def seen(self, value: Tensor, output: Tensor) -> Tensor:
        """What to keep of the input."""
        return value.detach()

    def spread(self, output: Tensor) -> Tensor:
        """The output with one row a sample."""
        return output

    def halves(self, seen: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        """What the matrix' gradient is made of: a, b."""
        return seen, grad

    def half_kinds(self, shape: tuple[int, int], dtype: torch.dtype) -> tuple[HalfKind, HalfKind]:
        """Shapes and precisions of the two halves."""
        raise NotImplementedError

    def sketch(self, left: Tensor, right: Tensor, projection: tuple[Tensor, ...]) -> Tensor:
        """The projected gradient of the matrix, sample by sample, before it is folded: (B, q p)."""
        raise NotImplementedError

    def vector(self, seen: Tensor, grad: Tensor) -> Tensor:
        """Per-sample gradients of `vectors`, short enough to hold, end to end: (B, F)."""
        raise NotImplementedError

    def add_weighted(self, left: Tensor, right: Tensor, times_B: Tensor, into: Grads) -> None:
        """Add the gradient of the mean of times_i loss_i to that of the matrix.

        times = n c is of order 1, and exactly 1 for equal weights, where scaling loses nothing.
        """
        raise NotImplementedError

    def per_sample(self, left: Tensor, right: Tensor) -> Gradients:
        """Each sample's gradient of the matrix."""
        raise NotImplementedError


def summed_products(first_BTq: Tensor, second_BTp: Tensor) -> Tensor:
    """Sum over tokens of first second' for each sample, in float32 or better: (B, q p)."""
    first_BqT = first_BTq.mT
    if first_BTq.is_cuda and first_BTq.dtype in (torch.bfloat16, torch.float16):
        product_Bqp = torch.bmm(first_BqT, second_BTp, out_dtype=torch.float32)
    else:
        product_Bqp = torch.bmm(widened(first_BqT), widened(second_BTp))
    return product_Bqp.flatten(1)


def over_tokens(value_BTF: Tensor) -> Tensor:
    """Sum over tokens in float32 or better: (B, F)."""
    return value_BTF.sum(dim=1, dtype=torch.promote_types(value_BTF.dtype, torch.float32))


def widened(value: Tensor) -> Tensor:
    """At least float32: sums over tokens must not be rounded to bfloat16."""
    return value if value.dtype == torch.float64 else value.float()


class MatrixRule(Rule):
    """Linear, and Hugging Face's Conv1D, whose weight is the transpose."""

    vectors = ("bias",)

    def __init__(self, path: str, module: Any, names: dict[str, str], *, wide: bool) -> None:
        super().__init__(path, module, names, wide=wide)
        self.inputs_on_rows = not isinstance(module, nn.Linear)
        weight = module.weight
        self.num_inputs, self.num_outputs = (
            weight.shape if self.inputs_on_rows else weight.shape[::-1]
        )
        self.group = "rest" if wide else "blocks"

    def detached(self, value: Tensor) -> Tensor:
        weight, bias = self.module.weight.detach(), self.module.bias
        bias = None if bias is None else bias.detach()
        return F.linear(value, weight.T if self.inputs_on_rows else weight, bias)

    def seen(self, value: Tensor, output: Tensor) -> Tensor:
        return value.detach().to(output.dtype)  # autocast multiplied it in this precision

    def half_kinds(self, shape: tuple[int, int], dtype: torch.dtype) -> tuple[HalfKind, HalfKind]:
        return ((*shape, self.num_inputs), dtype), ((*shape, self.num_outputs), dtype)

    def sketch(self, left: Tensor, right: Tensor, projection: tuple[Tensor, ...]) -> Tensor:
        rows, columns = (left, right) if self.inputs_on_rows else (right, left)
        row_Rq, col_Cp = (side.to(left.dtype) for side in projection)
        return summed_products(rows @ row_Rq, columns @ col_Cp)

    def vector(self, seen: Tensor, grad: Tensor) -> Tensor:
        return over_tokens(grad)

    def add_weighted(self, left: Tensor, right: Tensor, times_B: Tensor, into: Grads) -> None:
        if self.num_inputs <= self.num_outputs:
            left = scaled(left, times_B)
        else:
            right = scaled(right, times_B)
        pair = (left, right) if self.inputs_on_rows else (right, left)
        first_Nx, second_Ny = (half.flatten(0, 1) for half in pair)
        into.add_product(self.names["weight"], first_Nx, second_Ny, 1 / len(times_B))

    def per_sample(self, left: Tensor, right: Tensor) -> Gradients:
        pair = (left, right) if self.inputs_on_rows else (right, left)
        return {self.names["weight"]: torch.bmm(pair[0].mT, pair[1])}


class EmbeddingRule(Rule):
    """A table of tokens or positions; a position's index may come without a batch axis."""

    def detached(self, value: Tensor) -> Tensor:
        return F.embedding(value, self.module.weight.detach(), self.module.padding_idx)

    def seen(self, value: Tensor, output: Tensor) -> Tensor:
        return value

    def spread(self, output: Tensor) -> Tensor:
        # Positions are looked up once for the batch: without a batch axis of its own, the
        # gradient would arrive summed over the samples.
        return output.expand(self.num_samples, *output.shape[-2:])

    def halves(self, seen: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        padding = self.module.padding_idx
        if padding is not None:
            grad = grad * (seen != padding).unsqueeze(-1)
        return seen.expand(grad.shape[:-1]).double(), grad  # a slot takes a floating gradient

    def half_kinds(self, shape: tuple[int, int], dtype: torch.dtype) -> tuple[HalfKind, HalfKind]:
        weight: Tensor = self.module.weight
        return (shape, torch.float64), ((*shape, weight.shape[1]), weight.dtype)

    def sketch(self, left: Tensor, right: Tensor, projection: tuple[Tensor, ...]) -> Tensor:
        row_Rq, col_Cp = projection
        right = right.to(col_Cp.dtype)
        return summed_products(F.embedding(left.long(), row_Rq), right @ col_Cp)

    def add_weighted(self, left: Tensor, right: Tensor, times_B: Tensor, into: Grads) -> None:
        row_ND = scaled(right, times_B).flatten(0, 1)
        into.add_rows(self.names["weight"], left.long().flatten(), row_ND, 1 / len(times_B))

    def per_sample(self, left: Tensor, right: Tensor) -> Gradients:
        num_samples, rows = len(right), self.module.weight.shape[0]
        first = torch.arange(num_samples, device=right.device)[:, None] * rows
        gradient = right.new_zeros(num_samples * rows, right.shape[-1])
        gradient.index_add_(0, (left.long() + first).flatten(), right.flatten(0, 1))
        return {self.names["weight"]: gradient.view(num_samples, rows, -1)}


class NormRule(Rule):
    """LayerNorm and RMSNorm: the per-sample gradients are short enough to hold."""

    matrix = None
    vectors = ("weight", "bias")

    def normalised(self, value: Tensor) -> Tensor:
        module = self.module
        if isinstance(module, nn.LayerNorm):
            return F.layer_norm(widened(value), module.normalized_shape, eps=module.eps)
        if isinstance(module, nn.RMSNorm):
            return F.rms_norm(widened(value), tuple(module.normalized_shape), eps=module.eps)
        eps: float = module.variance_epsilon if "variance_epsilon" in vars(module) else module.eps
        wide = value.to(torch.float32)  # as Hugging Face does, whatever the model's precision
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(value.dtype)

    def detached(self, value: Tensor) -> Tensor:
        module = self.module
        weight: Tensor = module.weight.detach()
        if isinstance(module, nn.LayerNorm):
            bias = None if module.bias is None else module.bias.detach()
            return F.layer_norm(value, module.normalized_shape, weight, bias, module.eps)
        if isinstance(module, nn.RMSNorm):
            return F.rms_norm(value, tuple(module.normalized_shape), weight, module.eps)
        return (weight + RMS_NORM_OFFSETS[known_by_name(module)]) * self.normalised(value)

    def vector(self, seen: Tensor, grad: Tensor) -> Tensor:
        grad = widened(grad)
        # All axes but the sample's and the norm's own: tokens, and heads where it runs on each.
        weight_BF = over_tokens((grad * self.normalised(seen)).flatten(1, -2))
        if "bias" not in self.vectors:
            return weight_BF
        return torch.cat((weight_BF, over_tokens(grad.flatten(1, -2))), dim=1)

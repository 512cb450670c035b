"""One rule a layer type: what its per-sample gradient is made of, sketched and weighted.

    Linear, Conv1D   G_i = sum_t b_it a_it'           sketch: (b P_out)'(a P_in), summed over t
    Embedding        rows of b added up by token      P_row of the token takes the place of a P_in
    biases           sum_t b_it                       vectors: exact, hashed into the slot
    norms            sum_t b_it * xhat_it, sum_t b_it vectors

A rule answers for a layer with input a and output gradient b: `halves` (what to keep of a and b),
`sketch` (the projected per-sample gradient of its matrix), `vector` (the gradients that are short
enough to hold, end to end), `add_weighted` (the matrix' gradient of sum_i c_i loss_i) and
`per_sample` (each sample's gradient in full).

Attention, RoPE and gates have no parameters: b already holds their backward. A parameter used
twice (tied embeddings) has one projection, and its sketches add up, cross term included.

Shapes: B samples, T tokens, N = B T, K sketch, F numbers of a vector.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dograph.sketch.gradients import Gradients, Grads, scaled
from dograph.sketch.projection import Bank
from dograph.sketch.tap import Slots, Tap, make_slot

# How RMSNorms of Hugging Face scale: by their weight, or by 1 + weight.
RMS_NORM_OFFSETS = {
    "LlamaRMSNorm": 0,
    "MistralRMSNorm": 0,
    "MixtralRMSNorm": 0,
    "Phi3RMSNorm": 0,
    "Qwen2RMSNorm": 0,
    "Qwen3RMSNorm": 0,
    "SmolLM3RMSNorm": 0,
    "T5LayerNorm": 0,
    "GemmaRMSNorm": 1,
    "Gemma2RMSNorm": 1,
    "Gemma3RMSNorm": 1,
}


def known_by_name(module: Any) -> str:
    """Conv1D or one of Hugging Face's norms, also where a wrapper made a class of its own of it."""
    for kind in type(module).__mro__:
        known = kind.__name__ == "Conv1D" or kind.__name__ in RMS_NORM_OFFSETS
        if known and type(module).forward is vars(kind).get("forward"):
            return str(kind.__name__)
    return ""


class Rule:
    """A layer, its canonical parameter names and its slots."""

    matrix: str | None = "weight"  # the parameter with halves and a sketch
    vectors: tuple[str, ...] = ()  # the parameters held as vectors, in their order

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
        self.projection: tuple[Tensor, ...] = ()

    @property
    def group(self) -> Literal["blocks", "rest"]:
        """Which part of the sketch: the matrices of the blocks, or all else."""
        return "rest"

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
        self.num_samples = shape[0]
        left = right = vector = None
        if self.defers and self.matrix is not None:
            left_shape, right_shape = self.half_shapes(shape)
            left = make_slot(left_shape, self.left_dtype(dtype), self.device)
            right = make_slot(right_shape, self.right_dtype(dtype), self.device)
        if self.vectors:
            wide = torch.promote_types(self.module.weight.dtype, torch.float32)
            size = sum(self.vector_sizes().values())
            vector = make_slot((shape[0], size), wide, self.device)
        self.slots = Slots(sketch_slot, left, right, vector)

    def half_slots(self) -> tuple[Tensor, Tensor]:
        assert self.slots.left is not None
        assert self.slots.right is not None
        return self.slots.left, self.slots.right

    def vector_sizes(self) -> dict[str, int]:
        """Numbers of every parameter that is held as a vector, by its name."""
        return {self.names[own]: int(getattr(self.module, own).numel()) for own in self.vectors}

    @property
    def device(self) -> torch.device:
        place: torch.device = self.module.weight.device
        return place

    def left_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return dtype

    def right_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return dtype

    def detached(self, value: Tensor) -> Tensor:
        """The layer with its parameters out of the graph: no weight gradient is computed."""
        raise NotImplementedError

    def seen(self, value: Tensor, output: Tensor) -> Tensor:
        """What to keep of the input."""
        return value.detach()

    def spread(self, output: Tensor) -> Tensor:
        """The output with one row a sample."""
        return output

    def half_shapes(self, shape: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        raise NotImplementedError

    def request(self, bank: Bank) -> None:
        """Ask for the random matrices of this layer."""
        if self.matrix is not None:
            rows, columns = self.module.weight.shape
            bank.add_matrix(self.names["weight"], (rows, columns), wide=self.wide)

    def take(self, bank: Bank) -> None:
        """Keep this layer's random matrices, of its parameter's rows and columns."""
        if self.matrix is not None:
            drawn = bank.matrix(self.names["weight"])
            self.projection = (drawn.row_Rq, drawn.col_Cp)

    def halves(self, seen: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        return seen, grad

    def sketch(self, left: Tensor, right: Tensor, projection: tuple[Tensor, ...]) -> Tensor:
        """The matrix' sketch before it is folded: (B, q p)."""
        raise NotImplementedError

    def vector(self, seen: Tensor, grad: Tensor) -> Tensor:
        """Per-sample gradients of `vectors`, end to end: (B, F)."""
        raise NotImplementedError

    def add_weighted(self, left: Tensor, right: Tensor, times_B: Tensor, into: Grads) -> None:
        """Add the gradient of the mean of times_i loss_i to that of the matrix.

        times = n c is of order 1, and exactly 1 for equal weights, where scaling loses nothing.
        """
        raise NotImplementedError

    def per_sample(self, left: Tensor, right: Tensor) -> Gradients:
        """Each sample's gradient of the matrix."""
        raise NotImplementedError

    def split(self, vector_BF: Tensor) -> Gradients:
        """Vectors by the names of their parameters; without a sample axis as well."""
        sizes = self.vector_sizes()
        parts = vector_BF.split(list(sizes.values()), dim=-1)
        return dict(zip(sizes, parts, strict=True))


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


# The rule of weight matrices: Linear and Conv1D, with or without a bias.


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

    @property
    def group(self) -> Literal["blocks", "rest"]:
        return "rest" if self.wide else "blocks"

    def detached(self, value: Tensor) -> Tensor:
        weight, bias = self.module.weight.detach(), self.module.bias
        bias = None if bias is None else bias.detach()
        return F.linear(value, weight.T if self.inputs_on_rows else weight, bias)

    def seen(self, value: Tensor, output: Tensor) -> Tensor:
        return value.detach().to(output.dtype)  # autocast multiplied it in this precision

    def half_shapes(self, shape: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (*shape, self.num_inputs), (*shape, self.num_outputs)

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


# The rule of embedding tables, of tokens and of positions.


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

    def left_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return torch.float64

    def right_dtype(self, dtype: torch.dtype) -> torch.dtype:
        weight: Tensor = self.module.weight
        return weight.dtype

    def half_shapes(self, shape: tuple[int, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return shape, (*shape, self.module.weight.shape[1])

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


# The rule of norms: LayerNorm, RMSNorm, and Hugging Face's own RMSNorms.


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

"""One rule per kind of layer: how its per-sample gradient is sketched and weighted.

    linear           G_i = sum_t b_it a_it'           sketch: (b P_out)'(a P_in), summed over t
    embedding        rows of b added up by token      P_row of the token replaces a P_in
    biases           sum_t b_it                       vectors: exact, hashed into the slot
    norms            sum_t b_it * xhat_it, sum_t b_it vectors
    gains            sum_t b_it * dy_it / dw          vectors, for any layer that is affine in w

`dograph.sketch.cover` finds the rule of every layer, by what the layer computes. Attention, RoPE
and gates have no parameters: b already includes their backward. A parameter used twice (tied
embeddings, a layer that runs twice) has one projection, and its sketches add up, cross term
included.

The tap is an identity on a layer's output. Its backward sees both halves of a gradient, the input
a and the output gradient b, and returns what the mode needs as the gradients of *slots*: the sketch
of every sample, full gradients of vectors such as a bias, and a and b themselves where the weighted
gradient is computed later. A slot is a tensor of zeros with all strides 0, so it stores one number,
and nothing reads its value. There are no hooks and no state outside the graph: slots go in and
gradients come out, which autograd, torch.compile, activation checkpointing and wrappers support.

One contract for shapes: a layer's input is (B, ..., in) or (B T, ..., in), seen as (B, N, in).

Shapes: B samples, T tokens, N rows of a sample, K sketch, F numbers of a vector.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dograph.errors import ConfigError
from dograph.sketch.gradients import HALF, Gradients, add_product, add_rows, multiplied, scaled

NormKind = Literal["layer", "rms", "rms in float32"]


def make_slot(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros of any shape that store one number: a leaf that receives a gradient."""
    one = torch.zeros(1, dtype=dtype, device=device)
    return one.as_strided(shape, (0,) * len(shape)).requires_grad_()


class Tap(torch.autograd.Function):
    """y -> y; backward: b -> b, and (sketch, left, right, vector) for the slots."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, seen: Tensor, rule: "Rule", *given: Any) -> Tensor:
        sketch_slot, left_slot, _, vector_slot, *projection = given
        ctx.save_for_backward(seen, *projection)
        ctx.rule, ctx.wants_vector = rule, vector_slot is not None
        ctx.wants_sketch, ctx.wants_halves = sketch_slot is not None, left_slot is not None
        return output.detach()  # no view: the model may change it in place

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        seen, *projection = ctx.saved_tensors
        rule = ctx.rule
        sketch = left = right = vector = None
        # The second of two backwards needs b alone; a compiled one computes the sketch again.
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
    # Through __dict__: to restore it, we must know if the instance had a forward of its own.
    before = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        if before is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = before


@contextmanager
def swapped(module: nn.Module, values: Mapping[str, Tensor]) -> Iterator[None]:
    """Inside it the module's own parameters of these names are other tensors."""
    before = dict(module._parameters)
    module._parameters.update(values)  # type: ignore[arg-type]
    try:
        yield
    finally:
        module._parameters.update(before)


def tapped_rule(module: nn.Module) -> Any:
    """The rule whose tap a layer runs through while it is recorded, or None."""
    rule = getattr(vars(module).get("forward"), "__self__", None)
    return rule if isinstance(rule, MatrixRule) and rule.taps else None


def own_forward(module: nn.Module) -> Callable[..., Any] | None:
    """A forward that was set on the instance and is not only a compiled one of its class."""
    found: Callable[..., Any] | None = vars(module).get("forward")
    return None if hasattr(found, "_torchdynamo_orig_callable") else found


class Rule:
    """A layer with input a and output gradient b, its canonical parameter names and its slots.

    Subclasses implement, for the layer and its two halves, left (a) and right (b):

    formula(value)                  the forward, with the parameters that `parameter` returns
    vector(seen, grad)              per-sample gradients of `vectors`, concatenated: (B, F)
    empty_halves(shape, dtype)      slots of the shapes and dtypes of the halves
    sketch(left, right, projection) the projected gradient of the matrix, before folding: (B, q p)
    per_sample(left, right)         the gradient of the matrix for each sample, by name
    add_weighted(left, right, times_B)  adds the gradient of the mean of times_i loss_i to `.grad`;
                                    times = n c is exactly 1 for equal weights: no rounding
    """

    formula: Callable[[Tensor], Tensor]
    vector: Callable[[Tensor, Tensor], Tensor]
    empty_halves: Callable[[tuple[int, int], torch.dtype], tuple[Tensor, Tensor]]
    sketch: Callable[[Tensor, Tensor, tuple[Tensor, ...]], Tensor]
    per_sample: Callable[[Tensor, Tensor], Gradients]
    add_weighted: Callable[[Tensor, Tensor, Tensor], None]

    has_matrix = True  # a weight that has two halves and a sketch
    # Held as vectors, in this order; without a matrix: by default all.
    vectors: tuple[str, ...] = ()
    group: Literal["blocks", "rest"] = "rest"  # part of the sketch: the blocks' matrices, all else
    by_formula = True  # False: run the layer's own forward with detached parameters

    def __init__(self, path: str, module: Any, names: dict[str, str]) -> None:
        self.path, self.names, self.wide = path, names, False
        self.held = frozenset(names)  # alike in all blocks, so that they share a compiled graph
        self.module: Any = module
        self.matrix = "weight" if self.has_matrix and "weight" in names else None
        vectors = type(self).vectors or (() if self.has_matrix else names)
        self.vectors = tuple(own for own in vectors if own in names)
        self.given = vars(module).get("forward")  # set on the instance, perhaps compiled
        self.own = own_forward(module)
        # One object, so that a compiled graph recognises it; a compiled layer stays compiled.
        compiled = self.given is not None and self.own is None
        self.replacement = torch.compile(self.forward, dynamic=False) if compiled else self.forward
        self.taps = True  # False: the layer runs unchanged
        self.defers = False  # whether its weight gradient is computed later, from a and b
        self.listening = False  # whether the running backward is the one that fills the slots
        self.spreads = False  # whether its output has an axis of samples more than unrecorded
        self.calls = 0  # tapped forwards since recording began
        self.shape = (0, 0)  # samples and tokens of the recorded batch
        # Tensors whose gradients carry the tap's results; None for results that are not needed.
        self.sketch_slot: Tensor | None = None
        self.vector_slot: Tensor | None = None
        self.halves_of_calls: list[tuple[Tensor, Tensor]] = []  # slots: a layer may run again
        self.projection: tuple[Tensor, ...] = ()  # of its matrix: rows, columns

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's forward while it is recorded."""
        if not (self.taps and torch.is_grad_enabled()):
            return self.stock(*args, **kwargs)
        if len(args) + len(kwargs) != 1:
            raise ConfigError(
                f"{self.path} ({type(self.module).__name__}) was called with "
                f"{len(args) + len(kwargs)} arguments; its gradient is known for one input: leave "
                f"it out of the sketch with exclude=({self.path!r},)"
            )
        value: Tensor = args[0] if args else next(iter(kwargs.values()))
        self.require_samples(value)
        if not self.defers:
            output = self.stock(*args, **kwargs)
        elif self.by_formula and self.own is None:
            output = self.formula(value)
        else:
            with swapped(self.module, {name: self.parameter(name) for name in self.names}):
                output = self.stock(*args, **kwargs)
        output = self.spread(value, output)
        halves = self.open_halves(value, output) if self.halves_of_calls else (None, None)
        self.calls += 1
        tapped: Tensor = Tap.apply(  # type: ignore[no-untyped-call]
            *(output, self.seen(value, output), self),
            *(self.sketch_slot, *halves, self.vector_slot, *self.projection),
        )
        return tapped

    def stock(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's forward when it is not recorded."""
        if self.own is not None:
            return self.own(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)

    def parameter(self, own: str) -> Any:
        """A parameter without a graph, or None; one left out of the sketch keeps its graph."""
        value: Any = self.module._parameters.get(own)
        return value.detach() if own in self.held and value is not None else value

    def require_samples(self, value: Tensor) -> None:
        """Refuse an input whose rows cannot be told apart by sample."""
        (num_samples, num_tokens), first = self.shape, value.shape[0] if value.dim() else 0
        if first not in (num_samples, num_samples * num_tokens):
            raise ConfigError(
                f"{self.path} ({type(self.module).__name__}) got an input of shape "
                f"{tuple(value.shape)} in a batch of {num_samples} samples of {num_tokens} tokens; "
                f"its first axis must be {num_samples} or {num_samples * num_tokens}, to know the "
                f"sample of each row. Leave it out of the sketch with exclude=({self.path!r},)"
            )
        if self.projection and value.device != self.projection[0].device:
            raise ConfigError(
                f"{self.path} got an input on {value.device}, and record() tokens on "
                f"{self.projection[0].device}; both must be on one device: move the tokens to "
                f"{value.device} before record()"
            )

    def open_slots(self, shape: tuple[int, int], dtype: torch.dtype, sketch: Tensor | None) -> None:
        """Make the slots for (samples, tokens) in this precision."""
        self.shape, self.sketch_slot, self.halves_of_calls = shape, sketch, []
        if self.defers and self.matrix is not None:
            self.halves_of_calls = [self.empty_halves(shape, dtype)]
        if self.vectors:
            parameter = self.module._parameters[next(iter(self.names))]
            wide = torch.promote_types(parameter.dtype, torch.float32)
            size = sum(self.vector_sizes().values())
            self.vector_slot = make_slot((shape[0], size), wide, parameter.device)

    @property
    def slots(self) -> list[Tensor]:
        """Those that are open."""
        every = (self.sketch_slot, self.vector_slot, *chain(*self.halves_of_calls))
        return [slot for slot in every if slot is not None]

    def open_halves(self, value: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
        """The slots of this call: one pair for each time that the layer runs in a forward."""
        rows = output.numel() // output.shape[-1] // self.shape[0]
        held = self.halves_of_calls
        if self.calls < len(held) and held[self.calls][1].shape[1] == rows:
            return held[self.calls]
        if torch.compiler.is_compiling():
            raise ConfigError(
                f"{self.path} got an input of shape {tuple(value.shape)} under torch.compile, for "
                f"which there is no slot; leave it out with exclude=({self.path!r},), or run "
                "without torch.compile"
            )
        halves = self.empty_halves((self.shape[0], rows), held[0][1].dtype)
        held[self.calls : self.calls + 1] = [halves]
        return halves

    def by_sample(self, value: Tensor) -> Tensor:
        """(B, ..., F) or (B T, ..., F) as (B, N, F)."""
        return value.reshape(self.shape[0], -1, value.shape[-1])

    def vector_sizes(self) -> dict[str, int]:
        """Size of every parameter that is held as a vector, by its name."""
        return {self.names[own]: int(getattr(self.module, own).numel()) for own in self.vectors}

    def split(self, vector_BF: Tensor) -> Gradients:
        """Vectors by the names of their parameters, with or without a sample axis."""
        sizes = self.vector_sizes()
        parts = vector_BF.split(list(sizes.values()), dim=-1)
        return dict(zip(sizes, parts, strict=True))

    def seen(self, value: Tensor, output: Tensor) -> Tensor:
        """The part of the input that the tap saves."""
        return value.detach()

    def spread(self, value: Tensor, output: Tensor) -> Tensor:
        """The output with one row a sample."""
        return output

    def halves(self, seen: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        """The two factors of the matrix' gradient: a, b."""
        return self.by_sample(seen), self.by_sample(grad)


def summed_products(first_BTq: Tensor, second_BTp: Tensor) -> Tensor:
    """Sum over tokens of first second' for each sample, in float32 or better: (B, q p)."""
    first_BqT = first_BTq.mT
    if first_BTq.is_cuda and first_BTq.dtype in HALF:
        product_Bqp = torch.bmm(first_BqT, second_BTp, out_dtype=torch.float32)
    else:
        product_Bqp = torch.bmm(widened(first_BqT), widened(second_BTp))
    return product_Bqp.flatten(1)


def hashed(value_BTV: Tensor, sign_V: Tensor, columns: int) -> Tensor:
    """Number v of the last axis counts with its sign for column v mod `columns`."""
    signed_BTV = value_BTV * sign_V.to(value_BTV.dtype)
    padded_BTV = F.pad(signed_BTV, (0, -len(sign_V) % columns))
    rows = padded_BTV.view(*padded_BTV.shape[:-1], -1, columns)
    wide = torch.promote_types(rows.dtype, torch.float32)
    return rows.sum(dim=-2, dtype=wide).to(rows.dtype)


def over_tokens(value_BTF: Tensor) -> Tensor:
    """Sum over tokens in float32 or better: (B, F)."""
    return value_BTF.sum(dim=1, dtype=torch.promote_types(value_BTF.dtype, torch.float32))


def widened(value: Tensor) -> Tensor:
    """At least float32: sums over tokens must not be rounded to bfloat16."""
    return value if value.dtype == torch.float64 else value.float()


class MatrixRule(Rule):
    """x W' + b, or x W + b (`inputs_on_rows`: Hugging Face's Conv1D)."""

    vectors = ("bias",)

    def __init__(
        self, path: str, module: Any, names: dict[str, str], *, inputs_on_rows: bool = False
    ) -> None:
        super().__init__(path, module, names)
        self.inputs_on_rows = inputs_on_rows
        shape = module.weight.shape
        self.num_inputs, self.num_outputs = shape if inputs_on_rows else shape[::-1]
        self.group = "blocks"
        # Set by a loss that has hashed its gradient already: the gradient's address, and the hash.
        self.product: tuple[int, Tensor] | None = None

    @property
    def output_hash(self) -> tuple[Tensor, int] | None:
        """Signs and columns of the hash of the output gradient, if the layer is sketched by one."""
        if self.sketch_slot is None or len(self.projection) < 3 or self.inputs_on_rows:
            return None
        return self.projection[2], self.projection[0].shape[1]

    def formula(self, value: Tensor) -> Tensor:
        weight = self.parameter("weight")
        weight = weight.T if self.inputs_on_rows else weight
        return F.linear(value, weight, self.parameter("bias"))

    def seen(self, value: Tensor, output: Tensor) -> Tensor:
        return value.detach().to(output.dtype)  # autocast multiplied it in this precision

    def empty_halves(self, shape: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        device, sizes = self.module.weight.device, (self.num_inputs, self.num_outputs)
        left, right = (make_slot((*shape, size), dtype, device) for size in sizes)
        return left, right

    def by_axis(self, left: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
        """The halves in the order of the weight's axes: rows, columns."""
        return (left, right) if self.inputs_on_rows else (right, left)

    def sketch(self, left: Tensor, right: Tensor, projection: tuple[Tensor, ...]) -> Tensor:
        sides = [side.to(left.dtype) for side in projection[:2]]
        left_side, right_side = sides if self.inputs_on_rows else reversed(sides)
        if self.product is not None and self.product[0] == right.data_ptr():
            second, self.product = self.product[1].unflatten(0, right.shape[:2]), None
        elif len(projection) == 3 and not self.inputs_on_rows and right.device.type == "cpu":
            second = hashed(right, projection[2], right_side.shape[1])
        else:  # on a GPU the product reads the gradient once, a hash made of several kernels thrice
            second = multiplied(right, right_side)
        return summed_products(*self.by_axis(multiplied(left, left_side), second))

    def vector(self, seen: Tensor, grad: Tensor) -> Tensor:
        return over_tokens(self.by_sample(grad))

    def add_weighted(self, left: Tensor, right: Tensor, times_B: Tensor) -> None:
        if self.num_inputs <= self.num_outputs:
            left = scaled(left, times_B)
        else:
            right = scaled(right, times_B)
        first_Nx, second_Ny = (half.flatten(0, 1) for half in self.by_axis(left, right))
        add_product(self.module.weight, first_Nx, second_Ny, 1 / len(times_B))

    def per_sample(self, left: Tensor, right: Tensor) -> Gradients:
        rows, columns = self.by_axis(left, right)
        return {self.names["weight"]: torch.bmm(rows.mT, columns)}


class EmbeddingRule(Rule):
    """A table of tokens or positions, `scale` times its rows."""

    scale = 1.0

    def formula(self, value: Tensor) -> Tensor:
        padding = getattr(self.module, "padding_idx", None)
        return F.embedding(value, self.parameter("weight"), padding)

    def is_shared(self, value: Tensor) -> bool:
        """Whether these are positions, looked up once for all samples: (T) or (1, T)."""
        num_samples, num_tokens = self.shape
        if value.dim() == 1:
            return value.shape[0] == num_tokens and num_samples > 1
        return value.dim() > 1 and value.shape[0] == 1 < num_samples

    def require_samples(self, value: Tensor) -> None:
        if not self.is_shared(value):
            super().require_samples(value)

    def seen(self, value: Tensor, output: Tensor) -> Tensor:
        return value

    def spread(self, value: Tensor, output: Tensor) -> Tensor:
        if not self.is_shared(value):
            return output
        self.spreads = value.dim() == 1  # an axis more than the model expects
        # Without a sample axis the gradient would arrive summed over the samples.
        return output.expand(self.shape[0], *output.shape[value.dim() > 1 :])

    def halves(self, seen: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        if (padding := getattr(self.module, "padding_idx", None)) is not None:
            grad = grad * (seen != padding).unsqueeze(-1)
        if self.scale != 1.0:
            grad = grad * self.scale
        row_BN = seen.expand(grad.shape[:-1]).reshape(self.shape[0], -1)
        return row_BN.double(), self.by_sample(grad)  # a slot takes a floating gradient

    def empty_halves(self, shape: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        weight: Tensor = self.module.weight
        right = make_slot((*shape, weight.shape[1]), weight.dtype, weight.device)
        return make_slot(shape, torch.float64, weight.device), right

    def sketch(self, left: Tensor, right: Tensor, projection: tuple[Tensor, ...]) -> Tensor:
        row_Rq, col_Cp = projection[:2]
        right = right.to(col_Cp.dtype)
        return summed_products(F.embedding(left.long(), row_Rq), multiplied(right, col_Cp))

    def add_weighted(self, left: Tensor, right: Tensor, times_B: Tensor) -> None:
        row_ND = scaled(right, times_B).flatten(0, 1)
        add_rows(self.module.weight, left.long().flatten(), row_ND, 1 / len(times_B))

    def per_sample(self, left: Tensor, right: Tensor) -> Gradients:
        num_samples, rows = len(right), self.module.weight.shape[0]
        first = torch.arange(num_samples, device=right.device)[:, None] * rows
        gradient = right.new_zeros(num_samples * rows, right.shape[-1])
        gradient.index_add_(0, (left.long() + first).flatten(), right.flatten(0, 1))
        return {self.names["weight"]: gradient.view(num_samples, rows, -1)}


class NormRule(Rule):
    """LayerNorm and RMSNorm, (offset + w) xhat + b: per-sample gradients are short enough to hold.

    Hugging Face's RMSNorms compute xhat in float32, whatever the model's precision.
    """

    has_matrix = False
    vectors = ("weight", "bias")

    def __init__(
        self,
        path: str,
        module: Any,
        names: dict[str, str],
        *,
        kind: NormKind,
        eps: float | None,
        offset: int = 0,
    ) -> None:
        super().__init__(path, module, names)
        self.kind, self.eps, self.offset = kind, eps, offset
        self.size = tuple(module.weight.shape)

    def normalised(
        self, value: Tensor, weight: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """The norm with this weight and bias; without them, xhat."""
        if self.kind == "layer":
            return F.layer_norm(value, self.size, weight, bias, self.eps or 0.0)
        if self.kind == "rms":
            return F.rms_norm(value, self.size, weight, self.eps)
        wide = value.to(torch.float32)
        mean = wide.pow(2).mean(-1, keepdim=True)
        xhat = (wide * torch.rsqrt(mean + (self.eps or 0.0))).to(value.dtype)
        return xhat if weight is None else (weight + self.offset) * xhat

    def formula(self, value: Tensor) -> Tensor:
        return self.normalised(value, self.parameter("weight"), self.parameter("bias"))

    def vector(self, seen: Tensor, grad: Tensor) -> Tensor:
        parts = {"bias": widened(grad)}
        if "weight" in self.vectors:
            xhat = self.normalised(seen if self.kind == "rms in float32" else widened(seen))
            parts["weight"] = parts["bias"] * xhat
        # Over all axes but the sample's and the norm's own: tokens, heads of per-head norms.
        return torch.cat([over_tokens(self.by_sample(parts[own])) for own in self.vectors], dim=1)

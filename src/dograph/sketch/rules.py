"""One rule per layer type: how its per-sample gradient is sketched and weighted.

`cover` finds the rule of every layer of a model.

    Linear, Conv1D   G_i = sum_t b_it a_it'           sketch: (b P_out)'(a P_in), summed over t
    Embedding        rows of b added up by token      P_row of the token replaces a P_in
    biases           sum_t b_it                       vectors: exact, hashed into the slot
    norms            sum_t b_it * xhat_it, sum_t b_it vectors

Attention, RoPE and gates have no parameters: b already includes their backward. A parameter used
twice (tied embeddings) has one projection, and its sketches add up, cross term included.

The tap is an identity on a layer's output. Its backward sees both halves of a gradient, the input
a and the output gradient b, and returns what the mode needs as the gradients of *slots*: the sketch
of every sample, full gradients of vectors such as a bias, and a and b themselves where the weighted
gradient is computed later. A slot is a tensor of zeros with all strides 0, so it stores one number,
and nothing reads its value. There are no hooks and no state outside the graph: slots go in and
gradients come out, which autograd, torch.compile, activation checkpointing and wrappers support.

Shapes: B samples, T tokens, N = B T, K sketch, F numbers of a vector.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dograph.errors import ConfigError, did_you_mean
from dograph.sketch.gradients import Gradients, add_product, add_rows, scaled

_KNOWN = (nn.Embedding, nn.Linear, nn.LayerNorm, nn.RMSNorm)
# Hugging Face's RMSNorms scale by their weight (0) or by 1 + weight (1).
RMS_NORM_OFFSETS = {
    **dict.fromkeys(("LlamaRMSNorm", "MistralRMSNorm", "MixtralRMSNorm", "Phi3RMSNorm"), 0),
    **dict.fromkeys(("Qwen2RMSNorm", "Qwen3RMSNorm", "SmolLM3RMSNorm", "T5LayerNorm"), 0),
    **dict.fromkeys(("GemmaRMSNorm", "Gemma2RMSNorm", "Gemma3RMSNorm"), 1),
}


def known_by_name(module: Any) -> str:
    """Conv1D or one of Hugging Face's norms by name, also as a subclass that a wrapper made."""
    for kind in type(module).__mro__:
        known = kind.__name__ == "Conv1D" or kind.__name__ in RMS_NORM_OFFSETS
        if known and type(module).forward is vars(kind).get("forward"):
            return str(kind.__name__)
    return ""


class Slots(NamedTuple):
    """Tensors whose gradients carry a tap's results; None for results that are not needed."""

    sketch: Tensor | None = None
    left: Tensor | None = None
    right: Tensor | None = None
    vector: Tensor | None = None


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
        return output.view_as(output)

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


class Rule:
    """A layer with input a and output gradient b, its canonical parameter names and its slots.

    Subclasses implement, for the layer and its two halves, left (a) and right (b):

    detached(value)                 the forward without a graph to the parameters
    vector(seen, grad)              per-sample gradients of `vectors`, concatenated: (B, F)
    empty_halves(shape, dtype)      slots of the shapes and dtypes of the halves
    sketch(left, right, projection) the projected gradient of the matrix, before folding: (B, q p)
    per_sample(left, right)         the gradient of the matrix for each sample, by name
    add_weighted(left, right, times_B)  adds the gradient of the mean of times_i loss_i to `.grad`;
                                    times = n c is exactly 1 for equal weights: no rounding
    """

    detached: Callable[[Tensor], Tensor]
    vector: Callable[[Tensor, Tensor], Tensor]
    empty_halves: Callable[[tuple[int, int], torch.dtype], tuple[Tensor, Tensor]]
    sketch: Callable[[Tensor, Tensor, tuple[Tensor, ...]], Tensor]
    per_sample: Callable[[Tensor, Tensor], Gradients]
    add_weighted: Callable[[Tensor, Tensor, Tensor], None]

    matrix: str | None = "weight"  # the parameter that has two halves and a sketch
    vectors: tuple[str, ...] = ()  # the parameters held as vectors, in this order
    group: Literal["blocks", "rest"] = "rest"  # part of the sketch: the blocks' matrices, all else

    def __init__(self, path: str, module: Any, names: dict[str, str], *, wide: bool) -> None:
        self.path, self.names, self.wide = path, names, wide
        self.module: Any = module
        self.vectors = tuple(own for own in type(self).vectors if own in names)
        # One object, so that a compiled graph recognises it; a compiled layer stays compiled.
        compiled = hasattr(vars(module).get("forward"), "_torchdynamo_orig_callable")
        self.replacement: Callable[..., Any] = (
            torch.compile(self.forward, dynamic=False) if compiled else self.forward
        )
        self.taps = True  # False: the layer runs unchanged
        self.defers = False  # whether its weight gradient is computed later, from a and b
        self.listening = False  # whether the running backward is the one that fills the slots
        self.calls = 0  # tapped forwards since recording began
        self.num_samples = 0
        self.slots = Slots()
        self.projection: tuple[Tensor, ...] = ()  # of its matrix: rows, columns

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """The layer's forward while it is recorded."""
        value = args[0] if args else next(iter(kwargs.values()))
        taps = self.taps and torch.is_grad_enabled()
        if taps and self.defers:
            output = self.detached(value)
        else:
            output = type(self.module).forward(self.module, *args, **kwargs)
        if not taps:
            return output
        self.calls += 1
        output = self.spread(output)
        tapped: Tensor = Tap.apply(  # type: ignore[no-untyped-call]
            output, self.seen(value, output), self, *self.slots, *self.projection
        )
        return tapped

    def open_slots(self, shape: tuple[int, int], dtype: torch.dtype, sketch: Tensor | None) -> None:
        """Make the slots for (samples, tokens) in this precision."""
        self.num_samples, weight = shape[0], self.module.weight
        left = right = vector = None
        if self.defers and self.matrix is not None:
            left, right = self.empty_halves(shape, dtype)
        if self.vectors:
            wide = torch.promote_types(weight.dtype, torch.float32)
            vector = make_slot((shape[0], sum(self.vector_sizes().values())), wide, weight.device)
        self.slots = Slots(sketch, left, right, vector)

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

    def spread(self, output: Tensor) -> Tensor:
        """The output with one row a sample."""
        return output

    def halves(self, seen: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        """The two factors of the matrix' gradient: a, b."""
        return seen, grad


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
        shape = module.weight.shape
        self.num_inputs, self.num_outputs = shape if self.inputs_on_rows else shape[::-1]
        self.group = "rest" if wide else "blocks"

    def detached(self, value: Tensor) -> Tensor:
        weight, bias = self.module.weight.detach(), self.module.bias
        bias = None if bias is None else bias.detach()
        return F.linear(value, weight.T if self.inputs_on_rows else weight, bias)

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
        rows, columns = self.by_axis(left, right)
        row_Rq, col_Cp = (side.to(left.dtype) for side in projection)
        return summed_products(rows @ row_Rq, columns @ col_Cp)

    def vector(self, seen: Tensor, grad: Tensor) -> Tensor:
        return over_tokens(grad)

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
    """A table of tokens or positions; position indices may have no batch axis."""

    def detached(self, value: Tensor) -> Tensor:
        return F.embedding(value, self.module.weight.detach(), self.module.padding_idx)

    def seen(self, value: Tensor, output: Tensor) -> Tensor:
        return value

    def spread(self, output: Tensor) -> Tensor:
        # Positions are looked up once for the batch: without a batch axis the gradient would
        # arrive summed over the samples.
        return output.expand(self.num_samples, *output.shape[-2:])

    def halves(self, seen: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        padding = self.module.padding_idx
        if padding is not None:
            grad = grad * (seen != padding).unsqueeze(-1)
        return seen.expand(grad.shape[:-1]).double(), grad  # a slot takes a floating gradient

    def empty_halves(self, shape: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        weight: Tensor = self.module.weight
        right = make_slot((*shape, weight.shape[1]), weight.dtype, weight.device)
        return make_slot(shape, torch.float64, weight.device), right

    def sketch(self, left: Tensor, right: Tensor, projection: tuple[Tensor, ...]) -> Tensor:
        row_Rq, col_Cp = projection
        right = right.to(col_Cp.dtype)
        return summed_products(F.embedding(left.long(), row_Rq), right @ col_Cp)

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
    """LayerNorm and RMSNorm: the per-sample gradients are short enough to hold."""

    matrix = None
    vectors = ("weight", "bias")

    def normalised(
        self, value: Tensor, weight: Tensor | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """The norm with this weight and bias; without them, xhat."""
        module = self.module
        if isinstance(module, nn.LayerNorm):
            return F.layer_norm(value, module.normalized_shape, weight, bias, module.eps)
        if isinstance(module, nn.RMSNorm):
            return F.rms_norm(value, tuple(module.normalized_shape), weight, module.eps)
        eps: float = module.variance_epsilon if "variance_epsilon" in vars(module) else module.eps
        wide = value.to(torch.float32)  # as Hugging Face does, whatever the model's precision
        xhat = (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(value.dtype)
        return xhat if weight is None else (weight + RMS_NORM_OFFSETS[known_by_name(module)]) * xhat

    def detached(self, value: Tensor) -> Tensor:
        bias = getattr(self.module, "bias", None)
        bias = None if bias is None else bias.detach()
        return self.normalised(value, self.module.weight.detach(), bias)

    def vector(self, seen: Tensor, grad: Tensor) -> Tensor:
        grad = widened(grad)
        of_torch = isinstance(self.module, nn.LayerNorm | nn.RMSNorm)
        xhat = self.normalised(widened(seen) if of_torch else seen)
        # Over all axes but the sample's and the norm's own: tokens, and heads for per-head norms.
        weight_BF = over_tokens((grad * xhat).flatten(1, -2))
        if "bias" not in self.vectors:
            return weight_BF
        return torch.cat((weight_BF, over_tokens(grad.flatten(1, -2))), dim=1)


def cover(
    model: nn.Module, exclude: tuple[str, ...] = (), *, only: nn.Module | None = None
) -> list[Rule]:
    """A rule for every layer with trainable parameters; raises if a layer has none.

    `exclude` names parameters, or modules with all of theirs, to leave out of the sketch; `only`
    is the one layer to cover.
    """
    # One name for each trainable parameter, also if it is tied.
    canonical = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    if not canonical:
        raise ConfigError("the model has no trainable parameter: nothing has a gradient to sketch")
    names = {  # a tied parameter has several
        name: canonical[id(parameter)]
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if parameter.requires_grad
    }
    left_out = set()
    for entry in exclude:
        named = [n for n in names if n == entry or n.startswith(f"{entry}.")]
        if not named:
            raise ConfigError(
                f'exclude names "{entry}", which is no trainable parameter or module; '
                f"{did_you_mean(entry, names)}"
            )
        left_out |= {names[name] for name in named}
    # Embeddings and heads with as many rows as the largest embedding have wider projections.
    tables = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    rows = max(tables, default=None)
    rules: list[Rule] = []
    unknown = []
    for path, module in model.named_modules():
        own = {
            name: canonical[id(parameter)]
            for name, parameter in module.named_parameters(recurse=False)
            if parameter.requires_grad and canonical[id(parameter)] not in left_out
        }
        if not own or (only is not None and module is not only):
            continue
        if problem := _problem(module, own):
            unknown.append(f"{path or type(model).__name__} ({problem}): {', '.join(own.values())}")
        elif isinstance(module, nn.Embedding):
            rules.append(EmbeddingRule(path, module, own, wide=module.num_embeddings == rows))
        elif isinstance(module, nn.Linear) or known_by_name(module) == "Conv1D":
            wide = rows is not None and module.get_parameter("weight").shape[0] == rows
            rules.append(MatrixRule(path, module, own, wide=wide))
        else:
            rules.append(NormRule(path, module, own, wide=False))
    if unknown:
        raise ConfigError(
            "no rule to sketch these layers:\n  "
            + "\n  ".join(unknown)
            + "\nLeave their parameters out of the sketch with exclude=[...] (mode twopass still "
            "trains them), freeze them, or sketch from the output layer alone (mode head)."
        )
    if not rules:
        raise ConfigError("every trainable parameter is excluded: nothing is left to sketch")
    return rules


def output_layer(model: nn.Module, head: nn.Module | None) -> nn.Module:
    """The layer that mode head sketches: `head`, or its `layer`, or the last Linear layer."""
    if head is not None:
        layer: nn.Module = getattr(head, "layer", head)  # a module with the loss names its layer
        return layer
    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    if not layers:
        raise ConfigError(
            "the model has no Linear layer to use as its output layer; name it: Sketcher(head=...)"
        )
    return layers[-1]


def blocks_of(model: nn.Module) -> tuple[str, nn.ModuleList]:
    """The model's stack of blocks: the ModuleList with the most parameters."""
    stacks = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.ModuleList)]
    if not stacks:
        raise ConfigError(
            "the model has no ModuleList of blocks to cut, to compile or to shard; mode "
            "topdown, train.compile and train.shard need one, mode full does not"
        )
    return max(stacks, key=lambda stack: sum(p.numel() for p in stack[1].parameters()))


def _problem(module: nn.Module, own: dict[str, str]) -> str | None:
    kind = type(module).__name__
    if not set(own) <= {"weight", "bias"}:
        return f"{kind} with bare parameters"
    known = next((base for base in _KNOWN if isinstance(module, base)), None)
    if known is not None and type(module).forward is not known.forward:
        return f"{kind}, which does not compute what {known.__name__} does"
    if isinstance(module, nn.Embedding):
        strange = module.max_norm is not None or module.scale_grad_by_freq or module.sparse
        return "Embedding with max_norm, scale_grad_by_freq or sparse" if strange else None
    if "weight" not in own:
        return f"{kind} with a trained bias, but a frozen, excluded or missing weight"
    if isinstance(module, nn.LayerNorm | nn.RMSNorm) and len(module.normalized_shape) > 1:
        return f"{kind} over several axes"
    return None if known is not None or known_by_name(module) else kind

"""Finds the rule of every layer of a model, by what the layer computes and not by its name.

A layer of PyTorch that runs its own class's forward is known. Any other layer without children is
tried out: it runs with random parameters on random inputs, and a rule is accepted if output and
per-sample gradients are those of autograd. A parameter without a rule stays out of the sketch and
gets its gradient from an ordinary backward (`Sketcher.outside`).

Also here: rules for layers of any form (gains, and those that a user gives), and where modes
topdown and head cut the model.

Shapes: B samples, N rows of a sample, F numbers of a vector.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from dograph.errors import ConfigError, require_known
from dograph.sketch.gradients import HALF, undisturbed
from dograph.sketch.rules import (
    EmbeddingRule,
    MatrixRule,
    NormKind,
    NormRule,
    Rule,
    over_tokens,
    own_forward,
    swapped,
    widened,
)

_TORCH = (nn.Embedding, nn.Linear, nn.LayerNorm, nn.RMSNorm)
_USUAL_EPS = (1e-5, 1e-6, 1e-8, 1e-12)
_NORMS: list[tuple[NormKind, int]] = [("rms in float32", 0), ("rms in float32", 1), ("layer", 0)]
_SAMPLES, _TOKENS = 2, 3  # of the inputs that a layer is tried out with


class GainRule(Rule):
    """A layer whose output is affine in its own parameters, element by element: y = C + sum w A.

    Gains, biases and norms of any form, under any names. C and A come from the layer itself, which
    runs with parameters of zeros and ones.
    """

    has_matrix = by_formula = False

    def vector(self, seen: Tensor, grad: Tensor) -> Tensor:
        own = {name: getattr(self.module, name) for name in self.vectors}
        zero = {name: torch.zeros_like(value) for name, value in own.items()}
        parts = []
        with torch.no_grad():
            constant = self.run(seen, zero)
            for name, value in own.items():
                slope = self.run(seen, zero | {name: torch.ones_like(value)}) - constant
                product_BNF = (widened(grad) * slope).reshape(self.shape[0], -1, value.numel())
                parts.append(over_tokens(product_BNF))
        return torch.cat(parts, dim=1)

    def run(self, value: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        with swapped(self.module, parameters):
            output: Tensor = self.stock(value)
        return output


class LayerRule:
    """Base of a rule of your own, for `Sketcher(rules={MyLayer: MyRule()})`.

    `dograph.testing.check_rule` holds it against autograd. Gradients of every sample are held at
    once: meant for layers with few parameters.
    """

    def per_sample(self, module: nn.Module, value: Tensor, grad: Tensor) -> dict[str, Tensor]:
        """Gradients of the module's own parameters for each sample: (B, *shape), by name.

        `value` is the layer's input and `grad` the gradient of its output, samples on axis 0.
        """
        raise NotImplementedError


class GivenRule(Rule):
    """A user's LayerRule in the place of ours."""

    has_matrix = by_formula = False

    def __init__(self, path: str, module: Any, names: dict[str, str], *, rule: LayerRule) -> None:
        super().__init__(path, module, names)
        self.rule = rule

    def vector(self, seen: Tensor, grad: Tensor) -> Tensor:
        with torch.no_grad():
            gradients = self.rule.per_sample(self.module, seen, grad)
        return widened(torch.cat([gradients[own].flatten(1) for own in self.vectors], dim=1))


Given = Mapping[type[nn.Module], LayerRule]


def cover(
    model: nn.Module,
    exclude: tuple[str, ...] = (),
    *,
    only: nn.Module | None = None,
    given: Given | None = None,
) -> list[Rule]:
    """A rule for every layer with trainable parameters that has one.

    `exclude` names parameters, or modules with all of theirs, to leave out of the sketch; `only`
    is the one layer to cover; `given` are the user's own rules by class.
    """
    # One name for each trainable parameter, also if it is tied.
    canonical = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    if not canonical:
        raise ConfigError("the model has no trainable parameter: nothing has a gradient to sketch")
    left_out = _excluded(model, exclude, canonical)
    rules: list[Rule] = []
    for path, module in model.named_modules():
        own = {
            name: canonical[id(parameter)]
            for name, parameter in module.named_parameters(recurse=False)
            if parameter.requires_grad and canonical[id(parameter)] not in left_out
        }
        if own and (only is None or module is only):
            rule = rule_of(path, module, own, given or {})
            rules += [] if rule is None else [rule]
    if not rules:
        raise ConfigError(
            "no layer is left to sketch: every trainable parameter is excluded or belongs to a "
            "layer without a rule; give it one with Sketcher(rules={MyLayer: MyRule()})"
        )
    # Embeddings and heads with as many rows as the largest embedding have wider projections.
    tables = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    tables += [rule.module.weight.shape[0] for rule in rules if isinstance(rule, EmbeddingRule)]
    for rule in rules:
        if rule.matrix is not None and rule.module.weight.shape[0] == max(tables, default=None):
            rule.wide, rule.group = True, "rest"
    return rules


def _excluded(model: nn.Module, exclude: tuple[str, ...], canonical: Mapping[int, str]) -> set[str]:
    """The canonical names of the parameters that `exclude` names."""
    names = {  # a tied parameter has several
        name: canonical[id(parameter)]
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if parameter.requires_grad
    }
    left_out = set()
    for entry in exclude:
        named = [n for n in names if n == entry or n.startswith(f"{entry}.")]
        if not named:
            what = f'exclude names "{entry}", which is no trainable parameter or module'
            require_known(entry, names, what)  # raises: it is no name
        left_out |= {names[name] for name in named}
    return left_out


def rule_of(path: str, module: Any, own: dict[str, str], given: Given) -> Rule | None:
    for kind in type(module).__mro__:
        if kind in given:
            return GivenRule(path, module, own, rule=given[kind])
    known = next((base for base in _TORCH if isinstance(module, base)), None)
    if known is not None and type(module).forward is known.forward and own_forward(module) is None:
        rule = _of_torch(path, module, own)
        if rule is not None:
            return rule
    if next(module.children(), None) is not None:  # its forward runs other layers
        return None
    with undisturbed(module):
        return next((rule for rule, fits in _candidates(path, module, own) if fits()), None)


def _of_torch(path: str, module: Any, own: dict[str, str]) -> Rule | None:
    """The rule of a layer that computes what torch.nn says, unless its options are unusual."""
    if not set(own) <= {"weight", "bias"} or module._parameters.get("weight") is None:
        return None  # a parametrization (weight_norm) computes the weight
    if isinstance(module, nn.Linear):
        return MatrixRule(path, module, own)
    if isinstance(module, nn.Embedding):
        strange = module.max_norm is not None or module.scale_grad_by_freq or module.sparse
        return None if strange else EmbeddingRule(path, module, own)
    if len(module.normalized_shape) > 1:
        return None
    kind: NormKind = "layer" if isinstance(module, nn.LayerNorm) else "rms"
    return NormRule(path, module, own, kind=kind, eps=module.eps)


def _candidates(
    path: str, module: Any, own: dict[str, str]
) -> Iterator[tuple[Rule, Callable[[], bool]]]:
    """Rules that may fit the layer, each with the test that decides it."""
    draw = torch.Generator().manual_seed(0)
    like = module._parameters[next(iter(own))]
    weight = module._parameters.get("weight")

    def numbers(size: int, scale: float = 1.0) -> Tensor:
        value = scale * torch.randn(_SAMPLES, _TOKENS, size, generator=draw)
        return value.to(like.device, like.dtype)

    if weight is not None and weight.dim() == 2 and set(own) <= {"weight", "bias"}:
        for on_rows in (False, True):
            linear = MatrixRule(path, module, own, inputs_on_rows=on_rows)
            yield linear, partial(_is_linear, linear, numbers(linear.num_inputs))
        if set(own) == {"weight"} and getattr(module, "max_norm", None) is None:
            table = EmbeddingRule(path, module, own)
            index = torch.randint(len(weight), (_SAMPLES, _TOKENS), generator=draw)
            yield table, partial(_is_lookup, table, index.to(like.device))
    elif all(p.numel() in (1, p.shape[-1]) for p in map(module._parameters.__getitem__, own)):
        if weight is not None and set(own) <= {"weight", "bias"} and weight.dim() == 1:
            # eps is any number that the layer holds, or a usual one.
            held = [v for v in vars(module).values() if isinstance(v, float) and 0 < v < 0.1]
            for eps, (kind, offset) in product(dict.fromkeys([*held, *_USUAL_EPS]), _NORMS):
                norm = NormRule(path, module, own, kind=kind, eps=eps, offset=offset)
                yield norm, partial(_is_norm, norm, numbers(len(weight), 1e-3))  # small: eps counts
        gain = GainRule(path, module, own)
        width = max(p.numel() for p in module._parameters.values() if p is not None)
        yield gain, partial(agrees, gain, numbers(width if width > 1 else 4))


def _fits(rule: Rule, value: Tensor, *, exactly: bool) -> tuple[bool, bool]:
    """Whether the formula gives the layer's output, and whether it does in bfloat16 too."""
    with _with_weights(rule, random=exactly):
        fits = half = _same_output(rule, value, exactly=exactly)
        if fits and not value.is_meta:
            with torch.autocast(value.device.type, torch.bfloat16):
                half = _same_output(rule, value.to(torch.bfloat16), exactly=exactly)
    return fits, half


def _is_linear(rule: MatrixRule, value: Tensor) -> bool:
    # Its own forward runs if it treats bfloat16 in another way than F.linear.
    fits, rule.by_formula = _fits(rule, value, exactly=False)
    return fits


def _is_lookup(rule: EmbeddingRule, index: Tensor) -> bool:
    """Whether the layer looks up s W[index]; s is learned here."""
    with _with_weights(rule), torch.no_grad():
        rows = rule.module.weight[index]
        output = _output(rule.stock, index)
        if output is None or output.shape != rows.shape or rows.is_meta or not rows.any():
            return output is not None and rows.is_meta
        wide = rows.double()
        scale = float((output * wide).sum() / wide.square().sum())
        rule.scale = 1.0 if abs(scale - 1) < 1e-6 else scale
        rule.by_formula = rule.scale == 1.0
        return _close(output, rule.scale * rows)


def _is_norm(rule: NormRule, value: Tensor) -> bool:
    """Bit by bit, in float32 and in bfloat16: otherwise a GainRule runs the layer itself."""
    return _fits(rule, value, exactly=True)[1] and agrees(rule, value)


@contextmanager
def _with_weights(rule: Rule, *, random: bool = False) -> Iterator[dict[str, Tensor]]:
    """The layer with parameters that show what it does: not all zeros, not sharded."""
    values, draw = {}, torch.Generator().manual_seed(1)
    for own in rule.names:
        held: Tensor = rule.module._parameters[own]
        if random or isinstance(held, DTensor) or held.is_meta or not held.any():
            held = torch.randn(held.shape, generator=draw).to(held.device, held.dtype)
        values[own] = held.detach().requires_grad_()
    with swapped(rule.module, values):
        yield values


def _output(function: Callable[[Tensor], Any], value: Tensor) -> Tensor | None:
    """None where the layer raises, whatever it raises: it was written for other inputs."""
    try:
        output = function(value)
    except Exception:
        return None
    return output.detach() if isinstance(output, Tensor) else None


def _same_output(rule: Rule, value: Tensor, *, exactly: bool) -> bool:
    expected, got = _output(rule.stock, value), _output(rule.formula, value)
    if expected is None or got is None:
        return False
    if (got.shape, got.dtype) != (expected.shape, expected.dtype):
        return False
    if got.is_meta:  # shapes without numbers, for forecasts
        return True
    return torch.equal(got, expected) if exactly else _close(got, expected)


def _close(got: Tensor, expected: Tensor) -> bool:
    room = 1e-2 if expected.dtype in HALF else 1e-5
    error = (got.double() - expected.double()).norm()
    return bool(error <= room * expected.double().norm())


def agrees(rule: Rule, value: Tensor) -> bool:
    """Whether the rule's per-sample gradients of vectors are autograd's, on random parameters."""
    try:
        gradients = compare_with_autograd(rule, value)
    except Exception:  # see _output
        return False
    return all(got.is_meta or _close(got, expected) for got, expected in gradients.values())


def compare_with_autograd(rule: Rule, value: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Per-sample gradients of the parameters held as vectors: the rule's and autograd's."""
    rule.shape = (value.shape[0], value.shape[1] if value.dim() > 1 else 1)
    with _with_weights(rule, random=True) as values, torch.enable_grad():
        output = rule.stock(value)
        draw = torch.Generator().manual_seed(2)
        grad = torch.randn(output.shape, generator=draw).to(output.device, output.dtype)
        rows = zip(output.reshape(len(value), -1), grad.reshape(len(value), -1), strict=True)
        wanted = [values[own] for own in rule.vectors]
        each = [torch.autograd.grad(y @ g, wanted, retain_graph=True) for y, g in rows]
        got = rule.split(rule.vector(rule.seen(value, output), grad))
    expected = (torch.stack(of_samples).flatten(1) for of_samples in zip(*each, strict=True))
    return dict(zip(got, zip(got.values(), expected, strict=True), strict=True))


def output_layer(model: nn.Module, head: nn.Module | None) -> nn.Module | None:
    """The layer that mode head sketches: `head`, its `layer`, or what the model names as such."""
    if head is not None:
        layer: nn.Module = getattr(head, "layer", head)  # a module with the loss names its layer
        return layer
    for module in model.modules():
        get = getattr(module, "get_output_embeddings", None)
        if callable(get) and isinstance(named := get(), nn.Module):
            return named
    return None


def last_linear(model: nn.Module, run: Callable[[], Any]) -> nn.Module:
    """The last layer with a matrix that `run` executes: the output layer of most models.

    Only a proposal: where others reach the loss beside it, mode head gives them an ordinary
    backward, and the first record checks the gradient.
    """
    order: list[nn.Module] = []
    with ExitStack() as hooks:
        for module in model.modules():
            weight = module._parameters.get("weight")
            if weight is not None and weight.dim() == 2 and not isinstance(module, nn.Embedding):
                hook = module.register_forward_hook(lambda m, *_: order.append(m))
                hooks.enter_context(hook)
        run()
    if not order:
        raise ConfigError(
            "the model runs no linear layer that could be its output layer; name the layer: "
            "Sketcher(head=...), or use mode full"
        )
    return order[-1]


def blocks_of(model: nn.Module) -> tuple[str, nn.ModuleList]:
    """The model's stack of blocks: the ModuleList with the most parameters."""
    stacks = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.ModuleList)]
    if not stacks:
        raise ConfigError(
            "the model has no ModuleList of blocks to cut, to compile or to shard; mode "
            "topdown, train.compile and train.shard need one, mode full does not"
        )
    return max(stacks, key=lambda stack: sum(p.numel() for p in stack[1].parameters()))

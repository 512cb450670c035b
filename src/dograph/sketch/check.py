"""The self-check: a record's gradient against the model's own backward, before the first update.

A record keeps the arguments and outputs of the model's forward and the gradient of the loss with
respect to those outputs. After it, a few rows run twice, recorded and unrecorded, with the same
random numbers, and the kept gradients are pulled back with unequal weights. Outputs and gradients
must agree; in mode twopass, whose gradient is autograd's own, the sketches must. Random state,
buffers and `.grad` are restored, nothing is compiled and nothing is sent to other ranks. Sharded
parameters (FSDP2) are not checked: their forward needs every rank.

In float32 the two agree to 1e-4. In bfloat16, or with TF32, an error counts if it is five times
what two ordinary backwards of different scale differ by, and above 1 %: smaller ones are hidden by
rounding.
"""

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from dograph.errors import ConfigError
from dograph.sketch.gradients import HALF, Gradients, undisturbed
from dograph.sketch.rules import EmbeddingRule, Rule

if TYPE_CHECKING:
    from dograph.sketch.sketcher import Sketcher

ROWS = 4  # that run again; fewer in mode twopass, where each has a backward of its own
_CLOSE, _CLOSE_HALF = 1e-4, 1e-2  # relative error of a parameter's gradient
_SCALE = 1.37  # no power of two, so that scaling rounds differently
logger = logging.getLogger("dograph.sketch")
_WHAT_TO_DO = (
    'Use mode twopass, leave the layer out with exclude=(...), or, if you know why, check="never"'
)


def graph_nodes(loss_B: Tensor, ends: Callable[[Any], bool] = lambda node: False) -> Iterator[Any]:
    """The nodes of the graph of the loss, each once; those behind an end are left out."""
    visited: set[Any] = {None}
    nodes: set[Any] = {loss_B.grad_fn}
    while nodes := nodes - visited:
        yield from nodes
        visited |= nodes
        nodes = {after for node in nodes if not ends(node) for after, _ in node.next_functions}


def reached_parameters(
    loss_B: Tensor, parameters: Mapping[str, nn.Parameter], covered: set[str]
) -> list[str]:
    """Names of the parameters that the graph of the loss leads to.

    A compiled region leads to all its parameters, tapped or not: of these only those that are not
    `covered` count.
    """
    names, reached = {id(p): name for name, p in parameters.items()}, set()
    for node in graph_nodes(loss_B):
        leaves = (getattr(following, "variable", None) for following, _ in node.next_functions)
        own = {names[id(leaf)] for leaf in leaves if id(leaf) in names}
        reached |= own - covered if "CompiledFunction" in type(node).__name__ else own
    return [name for name in parameters if name in reached]


def _is_tap(node: Any) -> bool:
    return type(node).__name__ == "TapBackward"


class CheckedRecord:
    """One record: what the model was called with, what it returned, the gradient of that."""

    def __init__(self, sketcher: "Sketcher", token_BT: Tensor) -> None:
        self.sketcher, self.token_BT = sketcher, token_BT
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}
        self.outputs: list[Tensor] | None = None  # with a graph, of the model's last call
        self.gradients: list[Tensor | None] = []  # of the outputs, for the rows that run again
        self.half: torch.dtype | None = None  # of autocast, if it is on
        self.weight_B = torch.ones(())  # of the losses for `weighted_gradients`
        self.weighted_gradients: list[Tensor | None] = []
        self.done = False
        self.traced = False  # the call is inside a compiled graph, where it cannot be seen

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside it the outermost call of the model is remembered."""

        def note(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            if torch.compiler.is_compiling():
                self.traced = True
                return
            if self.done:
                return
            self.args, self.kwargs = args, kwargs
            self.outputs = tensors_of(output)
            kind = self.token_BT.device.type
            self.half = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None

        wrapper = self.sketcher.wrapper
        with ExitStack() as hooks:
            for module in {wrapper, getattr(wrapper, "module", wrapper)}:
                hooks.enter_context(module.register_forward_hook(note, with_kwargs=True))
            yield

    @contextmanager
    def before_forward(self, act: "Callable[[CheckedRecord], None]") -> Iterator[None]:
        """Inside it the model's first call is preceded by `act`."""

        def note(_: nn.Module, args: Any, kwargs: Any) -> None:
            if not torch.compiler.is_compiling():
                handle.remove()
                self.args, self.kwargs, self.done = args, kwargs, True
                act(self)
                self.done = False

        with self.sketcher.model.register_forward_pre_hook(note, with_kwargs=True) as handle:
            yield

    def run_unrecorded(self) -> None:
        with self.undisturbed(), torch.no_grad():
            try:
                self.call(self.num_rows())
            except (ValueError, RuntimeError, IndexError):  # arguments that do not come in samples
                self.call(len(self.token_BT))

    def spoilt_by_positions(self) -> list[Rule]:
        """Tables without an axis of samples, if the forward fails when they have one.

        Their rows get that axis while they are recorded, (T, D) becomes (B, T, D), which most
        models add to (B, T, D), but not all.
        """
        num, rules = self.num_rows(), self.sketcher.rules
        if not any(isinstance(rule, EmbeddingRule) for rule in rules):
            return []
        for rule in rules:
            rule.shape = (num, rule.shape[1])
        shapes: dict[bool, list[torch.Size]] = {False: [], True: []}
        with self.undisturbed() as rewind, suppress(ValueError, RuntimeError, IndexError):
            for recorded in shapes:  # layers are tapped where gradients are enabled
                with torch.set_grad_enabled(recorded):
                    shapes[recorded] = [output.shape for output in self.call(num)]
                rewind()
        return [rule for rule in rules if rule.spreads] if shapes[True] != shapes[False] else []

    def outputs_of(self, loss_B: Tensor) -> list[Tensor]:
        """The model's outputs; refuses a loss that reaches into the model in another way."""
        if self.outputs is None and self.traced:
            logger.warning(
                "the gradient is not checked against the model's own: the model was compiled as a "
                "whole; give the compiled model to Sketcher"
            )
            return []
        if self.outputs is None:
            raise ConfigError(
                f"the forward of {type(self.sketcher.model).__name__} did not run inside "
                "sketcher.record, only layers of it: the gradient cannot be checked. Call the "
                'model itself, give the module that you call to Sketcher, or set check="never"'
            )
        if any(output is loss_B for output in self.outputs):
            return self.outputs
        ends = {output.grad_fn for output in self.outputs}
        names = {id(p): name for name, p in self.sketcher.parameters.items()}
        inside = set()
        for node in graph_nodes(loss_B, lambda node: node in ends or _is_tap(node)):
            if _is_tap(node) and node not in ends:
                inside.add(node.rule.path)
            elif (leaf := id(getattr(node, "variable", None))) in names:
                inside.add(names[leaf])
        if inside:
            raise ConfigError(
                f"the loss uses {sorted(inside)[:5]} in another way than through the outputs of "
                "the model's forward, which alone can be checked; compute it inside the forward, "
                'or set check="never"'
            )
        return self.outputs

    def weighted(self, loss_B: Tensor, outputs: list[Tensor]) -> None:
        """Keep the gradients of unequally weighted losses, to see whether samples are coupled."""
        if outputs and not any(output is loss_B for output in outputs):
            self.weight_B = torch.linspace(0.4, 1.0, len(loss_B), device=loss_B.device)
            total = (self.weight_B.to(loss_B.dtype) * loss_B).sum()
            with suppress(RuntimeError):  # a compiled loss may allow a single backward only
                grads = torch.autograd.grad(total, outputs, retain_graph=True, allow_unused=True)
                self.weighted_gradients = list(map(self.first_rows, outputs, grads))

    def keep(self, gradients: list[Tensor | None], dtype: torch.dtype) -> bool:
        """Keep the gradients of the outputs for the rows that run again; False: not finite.

        `dtype` is that of the slots.
        """
        self.gradients = list(map(self.first_rows, self.outputs or [], gradients))
        if dtype in HALF:
            self.half = dtype  # autocast that began before the model's call, or inside it
        self.outputs, self.done = [], True
        if not all(bool(g.isfinite().all()) for g in self.gradients if g is not None):
            self.gradients = []
            return False
        for weighted, plain in zip(self.weighted_gradients, self.gradients, strict=False):
            if weighted is None or plain is None:
                continue
            times_B = self.weight_B[: self.num_rows()].to(plain.dtype)
            scaled = plain.reshape(len(times_B), -1) * times_B[:, None]
            if error := self.error(weighted.reshape_as(scaled), scaled):
                raise ConfigError(
                    f"the loss of a sample depends on other samples of the batch (by {error:.2g} "
                    "of its gradient), so there is no gradient of a sample; compute loss_B[i] from "
                    "the outputs of sample i alone"
                )
        self.weighted_gradients = []
        return True

    def first_rows(self, output: Tensor, gradient: Tensor | None) -> Tensor | None:
        """The part of the gradient of an output that belongs to the rows that run again."""
        if gradient is None:
            return None
        num, num_samples = self.num_rows(), len(self.token_BT)
        if output.dim() == 0 or output.shape[0] % num_samples:
            raise ConfigError(
                f"the loss uses an output of the model of shape {tuple(output.shape)}, which has "
                f"no axis for the {num_samples} samples: what it adds to a sample's loss is not "
                "known. Return it for each sample, or leave it out"
            )
        rows = num * (output.shape[0] // num_samples)  # T times as many for (B T, ...)
        return gradient[:rows].detach().clone()

    def num_rows(self) -> int:
        """How many rows run again: all, where an axis of B elements may not be that of samples."""
        num_samples = len(self.token_BT)
        given = tensors_of((self.args, self.kwargs), graph=False)
        unclear = any(num_samples in tensor.shape[1:] for tensor in given)
        most = ROWS if self.sketcher.reduces else ROWS - 1
        if most == self.token_BT.shape[1]:  # nor tokens be taken for samples
            most += 1
        return num_samples if unclear else min(most, num_samples)

    def call(self, num: int) -> list[Tensor]:
        """Run the model on the first `num` rows."""
        num_samples, num_tokens = self.token_BT.shape[:2]

        def few(value: Tensor) -> Tensor:
            first = len(value) if value.dim() else 0
            if first == num_samples * num_tokens:
                return value[: num * num_tokens]
            return value[:num] if first == num_samples else value

        args, kwargs = pytree.tree_map_only(Tensor, few, (self.args, self.kwargs))
        with self.autocast():
            return tensors_of(self.sketcher.model(*args, **kwargs), graph=torch.is_grad_enabled())

    def autocast(self) -> torch.autocast:
        kind, half = self.token_BT.device.type, self.half
        return torch.autocast(kind, half or torch.bfloat16, enabled=half is not None)

    def pull(self, outputs: list[Tensor], num: int) -> Tensor:
        """A loss for each row whose gradient with respect to the outputs is the kept one."""
        total = torch.zeros(num, device=self.token_BT.device)
        for output, gradient in zip(outputs, self.gradients, strict=True):
            if gradient is not None:
                product = (output * gradient).reshape(num, -1)
                wide = torch.promote_types(product.dtype, total.dtype)
                total = total + product.sum(dim=1, dtype=wide)
        return total

    @contextmanager
    def undisturbed(self) -> Iterator[Callable[[], None]]:
        """The model undisturbed, its `.grad` too; compiled regions run uncompiled."""
        grads = {name: p.grad for name, p in self.sketcher.parameters.items()}
        try:
            with torch.compiler.set_stance("force_eager"), undisturbed(self.sketcher.model) as back:
                yield back
        finally:
            for name, gradient in grads.items():
                self.sketcher.parameters[name].grad = gradient

    def compare(self) -> None:
        """Run a few rows again, recorded and unrecorded; raise if they disagree."""
        num = self.num_rows()
        compare = self.compare_gradients if self.sketcher.reduces else self.compare_sketches
        try:
            with self.undisturbed() as rewind, torch.enable_grad():
                compare(num, rewind)
        except (ValueError, RuntimeError, IndexError) as error:
            if isinstance(error, ConfigError | torch.OutOfMemoryError):
                raise
            raise ConfigError(
                f"the model ran on {len(self.token_BT)} samples but not on the first {num} of "
                f"them, to check the gradient: {error!r}; if it keeps something from call to call, "
                'set check="never"'
            ) from error
        finally:
            self.args, self.kwargs = (), {}

    def recorded(self, num: int, use: Callable[[Tensor], Any]) -> tuple[list[Tensor], Any]:
        """The outputs of a recorded run, and what `use` makes of its losses."""
        sketcher = self.sketcher
        with ExitStack() as stack:
            with self.autocast():
                stack.enter_context(sketcher.unchecked_record(self.token_BT[:num], sketcher.step))
            outputs = self.call(num)
            return outputs, use(self.pull(outputs, num))

    def compare_gradients(self, num: int, rewind: Callable[[], None]) -> None:
        sketcher = self.sketcher
        weight_b = torch.linspace(0.4, 1.0, num, device=self.token_BT.device)
        for parameter in sketcher.parameters.values():
            parameter.grad = None
        outputs, _ = self.recorded(num, lambda loss_b: sketcher.sketch(loss_b).backward(weight_b))
        ours = {n: p.grad for n, p in sketcher.parameters.items() if p.grad is not None}
        rewind()
        stock = self.call(num)
        self.require_outputs(outputs, stock)
        loss = (weight_b * self.pull(stock, num)).sum()
        theirs, noise = self.gradients_of(loss), None
        if self.rounds():
            again = self.gradients_of(_SCALE * loss)
            noise = {name: (again[name] / _SCALE - own).norm() for name, own in theirs.items()}
        if wrong := differences(ours, theirs, noise):
            figures = ", ".join(f"{name} ({100 * error:.2g} %)" for name, error in wrong[:5])
            raise ConfigError(
                f"the gradient of mode {sketcher.mode} is not that of the model's own backward for "
                f"{len(wrong)} of {len(sketcher.parameters)} parameters: {figures}; no update was "
                f"made. {_WHAT_TO_DO}"
            )

    def gradients_of(self, loss: Tensor) -> Gradients:
        """Autograd's gradients of a loss, by name; its graph is kept."""
        names, given = zip(*self.sketcher.parameters.items(), strict=True)
        grads = torch.autograd.grad(loss, given, retain_graph=True, allow_unused=True)
        return {name: g for name, g in zip(names, grads, strict=True) if g is not None}

    def rounds(self) -> bool:
        """Whether products are rounded to less than float32."""
        dtypes = {parameter.dtype for parameter in self.sketcher.parameters.values()}
        tf32 = self.token_BT.is_cuda and torch.get_float32_matmul_precision() != "highest"
        return self.half is not None or bool(dtypes.intersection(HALF)) or tf32

    def error(self, got: Tensor, expected: Tensor, half: float = _CLOSE_HALF) -> float | None:
        """The relative error, if it is more than rounding (`half`: to half precision) explains."""
        error, size = (got - expected).norm(), expected.norm()
        room = half if self.rounds() else _CLOSE
        return None if error <= room * size else float(error / size)

    def require_outputs(self, ours: list[Tensor], stock: list[Tensor]) -> None:
        """Taps are identities: a layer that computes something else under them changes outputs."""
        for mine, own in zip(ours, stock, strict=True):
            if error := self.error(mine.detach().double(), own.detach().double()):
                raise ConfigError(
                    f"the model's output of shape {tuple(own.shape)} is another one while it is "
                    f"recorded, by {error:.2g} of its norm: a layer does more than its rule knows, "
                    f"or is not deterministic. {_WHAT_TO_DO}"
                )

    def compare_sketches(self, num: int, rewind: Callable[[], None]) -> None:
        sketcher = self.sketcher
        _, result = self.recorded(num, partial(sketcher.sketch, keep=False))
        rewind()
        loss_b = self.pull(self.call(num), num)
        expected = []
        for loss in loss_b[:2]:  # of more rows, so that a permutation of them is seen
            one = {name: g.unsqueeze(0) for name, g in self.gradients_of(loss).items()}
            parts = [part.double() for part in sketcher.sketch_gradients(one).values()]
            expected.append(torch.stack(parts).sum(dim=0))
        sketch_bK = result.sketch_BK[: len(expected)].double()
        if error := self.error(sketch_bK, torch.cat(expected), half=5 * _CLOSE_HALF):
            warnings.warn(
                f"the sketches of mode twopass miss a part of the samples' gradients "
                f"({100 * error:.2g} % of their norm): {self.used_elsewhere(num)} are used outside "
                "their layers. The gradient is exact; weights are computed from these sketches",
                stacklevel=2,
            )

    def used_elsewhere(self, num: int) -> list[str]:
        """Parameters with a rule that the loss reaches in another way than through their layer."""
        sketcher = self.sketcher
        covered = {name for rule in sketcher.rules for name in rule.names.values()}
        with sketcher.unchecked_record(self.token_BT[:num], sketcher.step):
            for rule in sketcher.rules:
                rule.defers = True  # its parameters are detached
            loss_b = self.pull(self.call(num), num)
            reached = reached_parameters(loss_b, sketcher.parameters, covered)
            for rule in sketcher.rules:
                rule.defers = False
        return [name for name in reached if name in covered][:5]


def differences(
    ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor], noise: Mapping[str, Tensor] | None
) -> list[tuple[str, float]]:
    """Parameters whose gradients differ by more than rounding, with the relative error."""
    total = float(torch.stack([g.double().norm() for g in theirs.values()]).norm())
    wrong, zero = [], torch.zeros(())  # of a parameter without a gradient
    for name in dict.fromkeys([*theirs, *ours]):
        mine, own = ours.get(name, zero), theirs.get(name, zero)
        error, size = float((mine.double() - own.double()).norm()), float(own.double().norm())
        if noise is None:
            room = _CLOSE * size + 1e-6 * total
        else:
            room = max(5 * float(noise.get(name, 0.0)), _CLOSE_HALF * size) + 1e-3 * total
        if not error <= room:
            wrong.append((name, error / size if size else 1.0))
    return sorted(wrong, key=lambda entry: -entry[1])


def tensors_of(value: Any, *, graph: bool = True) -> list[Tensor]:
    """The tensors inside a value, those with a graph alone; also in an object's attributes."""
    found = []
    for leaf in pytree.tree_leaves(value):
        inside = pytree.tree_leaves(getattr(leaf, "__dict__", ()))
        parts = [leaf] if isinstance(leaf, Tensor) else inside
        found += [part for part in parts if isinstance(part, Tensor)]
    return [tensor for tensor in found if tensor.grad_fn is not None or not graph]

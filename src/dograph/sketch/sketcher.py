"""Sketcher: the projected gradient of every sample from one backward.

    sketcher = Sketcher(model)
    with sketcher.record(token_BT, step):
        loss_B = per_sample_losses(model(token_BT))
        weight_B = sketcher.backward(loss_B, mixer)      # replaces loss.backward()

All modes (described in dograph.choices) give the same gradient for the same weights, that of one
backward per sample. `topdown` and `head` cut the model: above the cut layers are tapped, below it
autograd runs as usual. A parameter that reaches the loss outside a tapped layer or around the cut
gets its gradient from a second, weighted backward (`outside`). The first record is checked against
the model's own backward (dograph.sketch.check).

Shapes: B samples, T tokens, K sketch, F numbers in all vectors (norms, biases).
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Literal, Protocol, get_args

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from dograph.choices import CUTTING, MODES, Kind, Mode, mode_conflicts
from dograph.config import DEFAULT_DIM, Refresh
from dograph.errors import ConfigError, listed, require_known
from dograph.sketch import gradients
from dograph.sketch.check import CheckedRecord, reached_parameters
from dograph.sketch.cover import LayerRule, blocks_of, cover, last_linear, output_layer
from dograph.sketch.gradients import Gradients, MicroBatchResult, WorldRows, gather_signals
from dograph.sketch.projection import Projection, SketchBuilder
from dograph.sketch.rules import Rule, replaced_forward
from dograph.types import Signals

Check = Literal["first", "always", "never"]
Below = list[tuple[Tensor, Tensor | None]]  # the residual stream at the cut and its gradient

logger = logging.getLogger("dograph.sketch")


class Weighs(Protocol):
    """The one method of a mixer that `Sketcher.backward` calls."""

    def weigh(self, signals: Signals) -> Tensor: ...


class Sketcher:
    """Records forwards of a model and sketches the gradient of each of their samples."""

    def __init__(
        self,
        model: nn.Module,
        *,
        mode: Mode = "full",
        dim: int = DEFAULT_DIM,
        projection: Kind = "hashed",
        seed: int = 0,
        refresh: Refresh = "never",
        exclude: str | tuple[str, ...] = (),
        top_blocks: int = 4,
        head: nn.Module | None = None,
        rules: Mapping[type[nn.Module], LayerRule] | None = None,
        check: Check = "first",
    ) -> None:
        """`head` is the layer where mode head cuts the model; by default its output layer.

        `rules` are rules of your own, by class of layer. `check` says which records are compared
        with the model's own backward.
        """
        require_known(mode, MODES, f"mode={mode!r} is not known")
        if check not in get_args(Check):
            raise ConfigError(f"check={check!r}: give {', '.join(get_args(Check))}")
        if not isinstance(head, nn.Module | None):
            raise ConfigError(f"head={head!r}: give a layer of the model, such as model.lm_head")
        self.wrapper, self.model = model, gradients.unwrapped(model)
        self.mode, self.top_blocks, self.check = mode, top_blocks, check
        self.projection = Projection(dim=dim, kind=projection, seed=seed, refresh=refresh)
        self.parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self.sharded = any(isinstance(p, DTensor) for p in self.parameters.values())
        # Whether the mode fills `.grad` itself; for shards only FSDP2 can, in a second backward.
        self.reduces = mode != "twopass" and not (mode == "head" and self.sharded)
        self._cuts = mode in CUTTING and self.reduces
        self._exclude, self._given = (exclude,) if isinstance(exclude, str) else exclude, rules
        self._builder: SketchBuilder
        self._builder_for: tuple[Any, ...] = ()  # dtype, device and number of rules
        self._slots_for: tuple[Any, ...] = ()  # sizes, dtype and device of the open slots
        self.rules: list[Rule] = []
        self.head, output = head, output_layer(self.model, head) if mode == "head" else None
        if mode != "head" or output is not None:  # otherwise found in the first forward
            self._cover(output)
        self._require_fitting()
        self.step = self._num_samples = 0
        self._last_step: int | None = None  # of the last call of `backward`
        self._rows: WorldRows  # of the last recorded batch
        self.last_signals: Signals | None = None  # of the last batch that was weighed
        # Parameters, by their share of all; None until a record shows them.
        self.outside: dict[str, float] | None = None if self.reduces else {}
        self._tree = gradients.ModelTree(self.model)
        self._running = self._sketched = False
        self._num_checked = 0  # samples of the largest batch that was checked
        self._checked_layers: set[str] = set()
        self._seen: CheckedRecord | None = None  # of the record that is open, if it is checked
        # The residual stream at the cut, and its copy, the input of the layers above.
        self._at_cut: tuple[Tensor, Tensor] | None = None
        self._above: Callable[..., Any] = self.model.forward  # the forward above the cut

    def _cover(self, output: nn.Module | None) -> None:
        """Find the layers' rules; in mode head only that of the `output` layer."""
        self.head = self.head or output
        own = [] if output is None else [p for p in output._parameters.values() if p is not None]
        if output is not None and not any(parameter.requires_grad for parameter in own):
            raise ConfigError(
                f"mode head sketches the output layer, but {type(output).__name__} has no "
                "trainable parameter of its own (frozen, or an adapter around it); use mode full "
                "or twopass, or name another layer: Sketcher(head=...)"
            )
        self.rules = cover(self.model, self._exclude, only=output, given=self._given)

    def _require_fitting(self) -> None:
        """Refuse a model, mode and projection that do not fit together."""
        for refusal in mode_conflicts(self.mode, self.projection.kind, shards=self.sharded):
            raise ConfigError(refusal)
        if self.mode == "topdown":
            name, blocks = blocks_of(self.model)
            if not 1 <= self.top_blocks <= len(blocks):
                raise ConfigError(
                    f"top_blocks={self.top_blocks}, but {name} has {len(blocks)} blocks; "
                    f"give 1 to {len(blocks)}"
                )

    def prepare(self, step: int) -> None:
        """What a replayed record (a CUDA graph) leaves out: check the parameters, draw."""
        self._tree.require_unchanged(fills_grad=self.reduces)
        self.step = step
        if self._builder_for:
            self._builder.draw(step)

    @contextmanager
    def record(self, token_BT: Tensor, step: int = 0) -> Iterator[None]:
        """Inside it layers are tapped; call backward inside too: it reruns checkpointed layers."""
        is_tensor = isinstance(token_BT, Tensor)
        if not is_tensor or token_BT.dim() < 2:
            given = tuple(token_BT.shape) if is_tensor else type(token_BT).__name__
            raise ConfigError(f"record needs a batch of shape (samples, tokens), got {given}")
        self.prepare(step)
        # A batch of one sample says little: any order of axes is right for it.
        due = self._num_checked < min(len(token_BT), 2)
        checks = self.check == "always" or (self.check == "first" and due)
        checks = checks and self.mode != "reference" and not self.sharded
        seen = CheckedRecord(self, token_BT) if checks else None
        with self.unchecked_record(token_BT, step, seen):
            yield
        if seen is not None and seen.gradients:
            seen.compare()

    @contextmanager
    def unchecked_record(
        self, token_BT: Tensor, step: int, seen: CheckedRecord | None = None
    ) -> Iterator[None]:
        """A record that `seen` follows, without its comparison at the end."""
        self.step, self._sketched, self._seen = step, False, seen
        with ExitStack() as stack:
            if self.reduces and isinstance(self.wrapper, DistributedDataParallel):
                stack.enter_context(self.wrapper.no_sync())  # its reducer would wait forever
            if seen is not None:
                stack.enter_context(seen.watching())
            if self.rules:
                self._start(token_BT, stack)
                if seen is not None and not self._cuts:
                    stack.enter_context(seen.before_forward(self._leave_out_positions))
            else:
                find = partial(self._find_head, stack)
                stack.enter_context(CheckedRecord(self, token_BT).before_forward(find))
            yield
        if not self._sketched and self.reduces:
            self._require_no_other_backward()

    def _start(self, token_BT: Tensor, stack: ExitStack) -> None:
        """Open the slots and tap the layers until `stack` is closed."""
        self._open(token_BT).draw(self.step)
        if self.mode == "reference":
            return
        if not self.reduces or self.outside:
            # The first of two compiled backwards must not overwrite saved activations.
            stack.enter_context(functorch.patch(donated_buffer=False))
        self._running, self._at_cut = True, None
        for rule in self.rules:
            known = rule.given, rule.replacement, self._above_cut
            if rule.module.__dict__.get("forward") not in known:
                raise ConfigError(
                    f"the forward of {rule.path} was replaced after the Sketcher was made; make a "
                    "new Sketcher"
                )
            rule.calls, rule.listening, rule.taps = 0, True, not self._cuts
            stack.enter_context(replaced_forward(rule.module, rule.replacement))
        if self._cuts:
            self._cut(stack)

    def _require_no_other_backward(self) -> None:
        """Refuse loss.backward(): taps detach the parameters, and it would fill the slots alone."""
        slots = [slot for rule in self.rules for slot in rule.slots]
        if any(slot.grad is not None for slot in slots):
            for slot in slots:
                slot.grad = None
            raise ConfigError(
                f"loss.backward() ran inside sketcher.record, where mode {self.mode} keeps "
                "gradients from the parameters; call sketcher.backward(loss_B, mixer) instead, or "
                "use mode twopass"
            )

    def _find_head(self, stack: ExitStack, first: CheckedRecord) -> None:
        """Mode head for a model that names no output layer: watch a forward."""
        self._cover(last_linear(self.model, first.run_unrecorded))
        self._start(first.token_BT, stack)

    def _leave_out_positions(self, first: CheckedRecord) -> None:
        """Leave positions out that cannot have an axis of samples (`position(index)[None]`)."""
        left_out = first.spoilt_by_positions()
        self.rules = [rule for rule in self.rules if rule not in left_out]
        for rule in [*self.rules, *left_out]:
            rule.calls, rule.taps = 0, rule not in left_out
        dtype, self._slots_for = self._slots_for[2], ()
        self._open(first.token_BT, dtype).draw(self.step)

    def _open(self, token_BT: Tensor, dtype: torch.dtype | None = None) -> SketchBuilder:
        """The builder with slots for this shape and dtype; both are reused while they fit."""
        device, shape = token_BT.device, (token_BT.shape[0], token_BT.shape[1])
        self._num_samples = shape[0]
        if dtype is None and torch.is_autocast_enabled(device.type):
            dtype = torch.get_autocast_dtype(device.type)
        dtype = dtype or next(iter(self.parameters.values())).dtype
        if self._builder_for != (made_for := (dtype, device, len(self.rules))):
            self._builder_for = made_for
            self._builder = SketchBuilder(self.rules, self.projection, dtype, device)
        if self._slots_for != (fits := (*shape, dtype, device)):
            self._slots_for = fits
            for rule in self.rules:
                rule.defers = self.reduces
            self._builder.open_slots(shape, sketches=self.mode != "exact")
        return self._builder

    def _cut(self, stack: ExitStack) -> None:
        """Until `stack` is closed layers run unchanged below the cut; above it they are tapped."""
        place = self.head
        if self.mode == "topdown":
            place = blocks_of(self.model)[1][-self.top_blocks]
        assert place is not None
        current = place.__dict__.get("forward")  # perhaps compiled or tapped
        if current != self._above_cut:  # else the record of an earlier micro-batch is still open
            self._above = current or place.forward
            stack.enter_context(replaced_forward(place, self._above_cut))

    def _above_cut(self, *args: Any, **kwargs: Any) -> Any:
        if self._running and self._at_cut is not None:  # runs again, above its first run
            return self._above(*args, **kwargs)
        values = [*args, *kwargs.values()]
        tensors = [i for i, value in enumerate(values) if isinstance(value, Tensor)]
        first = next((i for i in tensors if values[i].is_floating_point()), None)
        if first is None:
            raise ConfigError(
                f"mode {self.mode} cuts the model at the input of a layer, but it got no tensor of "
                "floating numbers; use mode full"
            )
        hidden_BTD: Tensor = values[first]
        num_samples, num_tokens = self._slots_for[:2]
        if hidden_BTD.shape[:1] not in ((num_samples,), (num_samples * num_tokens,)):
            raise ConfigError(
                f"mode {self.mode} cuts the model at an input of shape {tuple(hidden_BTD.shape)}, "
                f"which has no axis for the {num_samples} samples; use mode full"
            )
        leaf_BTD = hidden_BTD.detach().requires_grad_(torch.is_grad_enabled())
        if self._running:
            self._at_cut = hidden_BTD, leaf_BTD
            for rule in self.rules:
                rule.taps = True
        values[first] = leaf_BTD
        named = dict(zip(kwargs, values[len(args) :], strict=True))
        return self._above(*values[: len(args)], **named)

    def sketch(self, loss_B: Tensor, *, keep: bool = True) -> MicroBatchResult:
        """Sketch the samples of the recorded forward; `keep` its graph for the backward."""
        self._require_losses(loss_B)
        self._sketched = True
        if self.mode == "reference":
            per_sample = gradients.one_backward_per_sample(loss_B, self.parameters)
            return self._explicit(loss_B, per_sample)
        outputs = [] if self._seen is None else self._seen.outputs_of(loss_B)
        self._note_layers()
        self._running = False
        slots = list(self._builder.slots.values())
        with_vector = [rule for rule in self.rules if rule.calls and rule.vector_slot is not None]
        halves_of = [(r, pair) for r in self.rules for pair in r.halves_of_calls[: r.calls]]
        for rule in self.rules:  # checkpointed layers run again in the same way: tapped or not
            rule.taps, rule.calls = rule.calls > 0, 0
        cut = [] if self._at_cut is None else [self._at_cut]
        if self.outside is None:
            self._find_outside(loss_B)
        others = [n for n in self.parameters if n not in (self.outside or {})]
        strays = {n: self.parameters[n] for n in others} if self.reduces else {}
        wanted: list[Any] = [
            *slots,
            *(rule.vector_slot for rule in with_vector),
            *(slot for _, pair in halves_of for slot in pair),
            *(leaf_BTD for _, leaf_BTD in cut),
            *outputs,
            *strays.values(),
        ]
        if self._seen is not None:
            self._seen.weighted(loss_B, outputs)
        retain = keep and (not self.reduces or bool(self.outside))
        grads: Iterator[Any] = iter(
            torch.autograd.grad(loss_B.sum(), wanted, retain_graph=retain, allow_unused=True)
        )
        for rule in self.rules:
            rule.listening = False
        sketches = [next(grads) for _ in slots]
        vectors = [(rule, next(grads)) for rule in with_vector]
        halves = [(rule, next(grads), next(grads)) for rule, _ in halves_of]
        below = [(hidden_BTD, next(grads)) for hidden_BTD, _ in cut]
        if self._seen is not None:
            finite = self._seen.keep([next(grads) for _ in outputs], self._slots_for[2])
            self._num_checked = self._num_checked if finite else 0  # if not: the next record
        self._require_no_strays(dict(zip(strays, grads, strict=True)))
        # Without the layers whose output does not reach the loss.
        vectors = [entry for entry in vectors if entry[-1] is not None]
        halves = [entry for entry in halves if entry[-1] is not None]
        if self.mode == "exact":
            return self._explicit(loss_B, gradients.materialised(halves, vectors))
        pending = None
        if self.reduces:
            fill = partial(gradients.deferred_backward, halves, vectors)
            pending = partial(self._backward, fill, loss_B, below)
        self._at_cut = None
        return self._builder.result(loss_B, self._builder.groups(sketches, vectors), pending)

    def _require_losses(self, loss_B: Tensor) -> None:
        """Refuse losses that are not those of the recorded samples."""
        if self.mode != "reference" and not any(rule.calls for rule in self.rules):
            raise ConfigError(
                "no layer was recorded; run the model's forward inside sketcher.record(token_BT) "
                "with gradients enabled" + (", through the layer of the cut" if self._cuts else "")
            )
        if loss_B.dim() != 1 or len(loss_B) != self._num_samples:
            raise ConfigError(
                f"loss_B must have one loss for each of the {self._num_samples} recorded samples, "
                f'got shape {tuple(loss_B.shape)}; use reduction="none" and average over tokens'
            )

    def _note_layers(self) -> None:
        """Layers that run for the first time make the next record a checked one."""
        used = {rule.path for rule in self.rules if rule.calls}
        if self._seen is not None:
            self._num_checked = max(self._num_checked, self._num_samples)
            self._checked_layers |= used
        elif not used <= self._checked_layers:
            self._num_checked = 0

    def _find_outside(self, loss_B: Tensor) -> None:
        """Parameters that the loss reaches without a tap: left out, or used elsewhere too."""
        covered = {name for rule in self.rules for name in rule.names.values()}
        reached = reached_parameters(loss_B, self.parameters, covered)
        size = sum(parameter.numel() for parameter in self.parameters.values())
        self.outside = {name: self.parameters[name].numel() / size for name in reached}
        if self.outside:
            logger.warning(
                "%s: not sketched where used outside a layer that has a rule, %.2g %% of the "
                "parameters; their gradient is exact, from a second backward, which takes up to a "
                "third of a step. %s",
                listed(list(self.outside), 10),
                100 * sum(self.outside.values()),
                f"Mode head sketches {self.rules[0].path}; Sketcher(head=LAYER) names another layer"
                if self.mode == "head"
                else "Sketcher(rules=...) adds rules",
            )

    def _backward(
        self, fill: Callable[[Tensor], None], loss_B: Tensor, below: Below, weight_B: Tensor
    ) -> None:
        """`fill` from taps; then an ordinary backward below the cut and of parameters outside.

        At the cut we have the residual stream and its gradient, which is scaled by the weights.
        Both start at once, because they may meet in the layers below.
        """
        fill(weight_B)
        roots, grads = [], []
        for hidden_BTD, grad_BTD in below:
            if hidden_BTD.requires_grad and grad_BTD is not None:  # a layer below is trained
                by_sample = grad_BTD.reshape(len(weight_B), -1, grad_BTD.shape[-1])
                roots.append(hidden_BTD)
                grads.append(gradients.scaled(by_sample, weight_B).view_as(hidden_BTD))
        if self.outside:
            roots.append((weight_B.to(loss_B.dtype) * loss_B).sum())
            grads.append(torch.ones_like(roots[-1]))
        inputs = list(self.parameters.values()) if self.outside else None
        if roots:
            torch.autograd.backward(roots, grads, inputs=inputs)

    def _require_no_strays(self, grads: Mapping[str, Tensor | None]) -> None:
        """Taps detach parameters: one that still gets a gradient is used outside its layer."""
        names = [name for name, gradient in grads.items() if gradient is not None]
        if names:
            raise ConfigError(
                f"{names} reach the loss outside the layers that are tapped, or around the cut of "
                "mode topdown or head, and did not in the first record; make a new Sketcher, whose "
                "first record sees this use, or use mode twopass"
            )

    def _explicit(self, loss_B: Tensor, per_sample: Gradients) -> MicroBatchResult:
        fill = partial(gradients.explicit_backward, per_sample, self.parameters)
        pending = partial(self._backward, fill, loss_B, [])
        return self._builder.result(loss_B, self.sketch_gradients(per_sample), pending)

    def sketch_gradients(self, per_sample: Gradients) -> dict[str, Tensor]:
        """The parts of the sketch of full gradients (B, *shape), by group."""
        return self._builder.groups_of_gradients(per_sample, self.step)

    def signals(self, loss_B: Tensor, source_B: Tensor | None = None) -> Signals:
        """What a mixer weighs: the samples of every rank. Mode twopass keeps the graph for you."""
        self._rows = WorldRows(loss_B.numel(), loss_B.device)  # before work is queued on the device
        signals = self._gathered([self.sketch(loss_B)], source_B)
        if self.reduces and self.mode != "reference":
            loss_B.register_hook(self._refuse_backward)
        return signals

    def _refuse_backward(self, grad_B: Tensor) -> None:
        raise ConfigError(
            f"mode {self.mode} fills .grad itself and leaves no graph for a backward of your own; "
            "call sketcher.backward(loss_B, mixer), or use mode twopass"
        )

    def backward(self, loss_B: Tensor, mixer: Weighs, source_B: Tensor | None = None) -> Tensor:
        """Fill `.grad` with the gradient of sum_i weight_i loss_i; return this rank's weights."""
        if self._last_step == self.step and next(iter(self.parameters.values())).grad is not None:
            logger.warning(
                "backward adds to the gradient of an earlier backward at step %d: each micro-batch "
                "was clustered and weighted alone. To weigh the whole batch, collect "
                "sketcher.sketch(loss_b) of every micro-batch and call sketcher.weigh(results, "
                "mixer)",
                self.step,
            )
        self._last_step = self.step
        self._rows = WorldRows(loss_B.numel(), loss_B.device)
        result = self.sketch(loss_B)
        weight_B = self._weighed([result], mixer, source_B)
        result.backward(weight_B)
        self.average_gradients()
        return weight_B

    def weigh(
        self, results: Sequence[MicroBatchResult], mixer: Weighs, source_B: Tensor | None = None
    ) -> list[Tensor]:
        """The weights of several micro-batches, which the mixer weighs as one batch of all ranks.

        Then `result.backward(weight_b)` for each, and `average_gradients()`. `source_B` has the
        sources of this rank's samples in the same order.
        """
        sizes = [len(result.loss_B) for result in results]
        self._rows = WorldRows(sum(sizes), results[0].loss_B.device)
        return list(self._weighed(results, mixer, source_B).split(sizes))

    def _weighed(
        self, results: Sequence[MicroBatchResult], mixer: Weighs, source_B: Tensor | None
    ) -> Tensor:
        """This rank's weights; distances of sketches need float32 where the caller has autocast."""
        if isinstance(mixer, type) or not hasattr(mixer, "weigh"):
            raise ConfigError(f"give a mixer, such as DoGraph(), not {mixer!r}")
        is_first, signals = self.last_signals is None, self._gathered(results, source_B)
        with torch.autocast(results[0].loss_B.device.type, enabled=False):
            weight_B = mixer.weigh(signals)
        if is_first and abs((total := float(weight_B.sum())) - 1) > 1e-3:  # once, since it waits
            name = type(mixer).__name__
            logger.warning(
                "the weights of %s sum to %.4g, not to 1, so the gradient is no mean", name, total
            )
        return self.local(weight_B)

    def local(self, weight_B: Tensor) -> Tensor:
        """This rank's weights, times the world size because wrappers average over ranks."""
        return self._rows.local(weight_B)

    def average_gradients(self) -> None:
        """Average `.grad` over the ranks, where no wrapper has done so."""
        wrapped = isinstance(self.wrapper, DistributedDataParallel)
        if self.reduces or not (wrapped or self.sharded):
            gradients.average_gradients(self.parameters.values())

    def _gathered(self, results: Sequence[MicroBatchResult], source_B: Tensor | None) -> Signals:
        known: dict[str, Any] = {"step": self.step, "projection": self.projection.epoch(self.step)}
        known["source_B"] = None if source_B is None else self._rows.gather(source_B)
        self.last_signals = gather_signals(results, [self._rows], **known)
        return self.last_signals

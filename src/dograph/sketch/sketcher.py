"""Sketcher: the projected gradient of every sample from one backward.

    sketcher = Sketcher(model)
    with sketcher.record(token_BT, step):
        loss_B = per_sample_losses(model(token_BT))
        weight_B = sketcher.backward(loss_B, mixer)      # replaces loss.backward()

All modes (described in dograph.choices) give the same gradient for the same weights. `topdown` and
`head` cut the model: above the cut layers are tapped, below it autograd runs as usual.

Shapes: B samples, T tokens, K sketch, F numbers in all vectors (norms, biases).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch
from torch.nn.parallel import DistributedDataParallel

from dograph.choices import CUTTING, DETACHING, EXPLICIT, MODES, SPARING, TWO_SIDED, Kind, Mode
from dograph.config import DEFAULT_DIM, Refresh
from dograph.errors import ConfigError, did_you_mean
from dograph.sketch import gradients
from dograph.sketch.gradients import Gradients, MicroBatchResult, Vector, WorldRows, gather_signals
from dograph.sketch.projection import Bank, Projection
from dograph.sketch.rules import Rule, blocks_of, cover, make_slot, output_layer, replaced_forward
from dograph.types import Signals

VECTORS = "vectors"  # the name of their hash's random stream


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
        projection: Kind = "rademacher",
        seed: int = 0,
        refresh: Refresh = "never",
        exclude: tuple[str, ...] = (),
        top_blocks: int = 4,
        head: nn.Module | None = None,
        group_of: Callable[[Rule], str] | None = None,
    ) -> None:
        """`head` is the layer where mode head cuts the model; by default its last Linear layer.

        `group_of` names the part of the sketch that a layer contributes to, for analyses.
        """
        if mode not in MODES:
            raise ConfigError(f"mode={mode!r} is not known; {did_you_mean(mode, MODES)}")
        self.wrapper, self.model = model, gradients.unwrapped(model)
        self.mode, self.top_blocks = mode, top_blocks
        self.projection = Projection(dim=dim, kind=projection, seed=seed, refresh=refresh)
        output = output_layer(self.model, head) if mode == "head" else None
        self.head = head or output
        self.rules = cover(self.model, exclude, only=output)
        self.parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self.sharded = any(map(gradients.is_sharded, self.parameters.values()))
        # Whether the mode fills `.grad` itself; for shards only FSDP2 can, in a second backward.
        self.reduces = mode != "twopass" and not (mode == "head" and self.sharded)
        self._cuts = mode in CUTTING and self.reduces
        self._require_fitting()
        self.step = self._num_samples = 0
        self._rows: WorldRows  # of the last recorded batch
        self._running = self._checked_strays = False
        self._group_of = group_of
        self._slots_for: tuple[object, ...] = ()  # sizes, dtype and device of the open slots
        self._builder: SketchBuilder | None = None
        self._cut_hidden: Tensor | None = None  # the residual stream at the cut,
        self._cut_leaf: Tensor | None = None  # and its copy, the input of the layers above
        self._above: Callable[..., Any] = self.model.forward  # the forward above the cut

    def _require_fitting(self) -> None:
        """Refuse a model, mode and projection that do not fit together."""
        mode, kind = self.mode, self.projection.kind
        covered = {name for rule in self.rules for name in rule.names.values()}
        left_out = [name for name in self.parameters if name not in covered]
        if left_out and mode not in SPARING:
            raise ConfigError(
                f"mode {mode} computes every gradient itself, but {left_out} are excluded from "
                "the sketch; use mode twopass, or freeze them"
            )
        if self.reduces and self.sharded:
            raise ConfigError(
                f"mode {mode} cannot fill the gradients of sharded parameters (FSDP2); "
                "use mode twopass, or head"
            )
        if kind not in TWO_SIDED and mode not in EXPLICIT:
            raise ConfigError(
                f"projection={kind} needs full gradients, but mode={mode} has none; use mode "
                "exact or reference, or projection rademacher or two-sided"
            )
        if mode == "topdown":
            name, blocks = blocks_of(self.model)
            if not 1 <= self.top_blocks <= len(blocks):
                raise ConfigError(
                    f"top_blocks={self.top_blocks}, but {name} has {len(blocks)} blocks; "
                    f"give 1 to {len(blocks)}"
                )

    @contextmanager
    def record(self, token_BT: Tensor, step: int = 0) -> Iterator[None]:
        """Inside it layers are tapped; call backward inside too: it reruns checkpointed layers."""
        self.step = step
        self._open(token_BT).draw(step)
        with ExitStack() as stack:
            if self.reduces and isinstance(self.wrapper, DistributedDataParallel):
                stack.enter_context(self.wrapper.no_sync())  # its reducer would wait forever
            if self.mode == "reference":
                yield
                return
            if not self.reduces:
                # The first of two compiled backwards must not overwrite saved activations.
                stack.enter_context(functorch.patch(donated_buffer=False))
            self._running, self._cut_hidden, self._cut_leaf = True, None, None
            for rule in self.rules:
                rule.calls, rule.listening, rule.taps = 0, True, not self._cuts
                stack.enter_context(replaced_forward(rule.module, rule.replacement))
            if self._cuts:
                stack.enter_context(self._cut())
            yield

    def _open(self, token_BT: Tensor) -> "SketchBuilder":
        """The builder with slots for this shape and dtype; both are reused while they fit."""
        device, shape = token_BT.device, (token_BT.shape[0], token_BT.shape[1])
        self._num_samples = shape[0]
        dtype = next(iter(self.parameters.values())).dtype
        if torch.is_autocast_enabled(device.type):
            dtype = torch.get_autocast_dtype(device.type)
        if self._builder is None or self._builder.made_for != (dtype, device):
            groups = self._group_of
            self._builder = SketchBuilder(self.rules, self.projection, groups, dtype, device)
        if self._slots_for != (fits := (*shape, dtype, device)):
            self._slots_for = fits
            for rule in self.rules:
                rule.defers = self.reduces
            self._builder.open_slots(shape, sketches=self.mode != "exact")
        return self._builder

    @contextmanager
    def _cut(self) -> Iterator[None]:
        """Layers run unchanged below the cut; above it they are tapped."""
        place = self.head
        if self.mode == "topdown":
            place = blocks_of(self.model)[1][-self.top_blocks]
        assert place is not None
        current = place.__dict__.get("forward")  # perhaps compiled or tapped
        if current == self._above_cut:  # the record of an earlier micro-batch is still open
            yield
            return
        self._above = current or place.forward
        with replaced_forward(place, self._above_cut):
            yield

    def _above_cut(self, hidden_BTD: Tensor, *args: Any, **kwargs: Any) -> Any:
        leaf_BTD = hidden_BTD.detach().requires_grad_(torch.is_grad_enabled())
        if self._running:
            self._cut_hidden, self._cut_leaf = hidden_BTD, leaf_BTD
            for rule in self.rules:
                rule.taps = True
        return self._above(leaf_BTD, *args, **kwargs)

    def sketch(self, loss_B: Tensor, *, keep: bool = True) -> MicroBatchResult:
        """Sketch the samples of the recorded forward; `keep` its graph for the backward."""
        if loss_B.dim() != 1 or len(loss_B) != self._num_samples:
            raise ConfigError(
                f"loss_B must have one loss for each of the {self._num_samples} recorded samples, "
                f'got shape {tuple(loss_B.shape)}; use reduction="none" and average over tokens'
            )
        if self.mode == "reference":
            per_sample = gradients.one_backward_per_sample(loss_B, self.parameters)
            return self._explicit(loss_B, per_sample)
        used = [rule for rule in self.rules if rule.calls]
        if not used:
            raise ConfigError(
                "no layer was recorded; run the model's forward inside sketcher.record(token_BT) "
                "with gradients enabled"
            )
        twice = [rule.path for rule in used if rule.calls > 1]
        if twice and self.reduces:
            raise ConfigError(
                f"{twice} ran more than once in one forward; mode {self.mode} keeps one input per "
                "layer: use mode twopass"
            )
        self._running = False
        for rule in self.rules:  # checkpointed layers run again in the same way: tapped or not
            rule.taps, rule.calls = rule.calls > 0, 0
        assert self._builder is not None
        slots = list(self._builder.slots.values())
        with_vector = [rule for rule in used if rule.slots.vector is not None]
        with_halves = [rule for rule in used if rule.slots.left is not None]
        cut = [] if self._cut_leaf is None else [self._cut_leaf]
        strays = self.parameters if self.mode in DETACHING and not self._checked_strays else {}
        wanted: list[Any] = [
            *slots,
            *(rule.slots.vector for rule in with_vector),
            *(slot for rule in with_halves for slot in (rule.slots.left, rule.slots.right)),
            *cut,
            *strays.values(),
        ]
        retain = keep and not self.reduces
        grads: Iterator[Any] = iter(
            torch.autograd.grad(loss_B.sum(), wanted, retain_graph=retain, allow_unused=True)
        )
        for rule in self.rules:
            rule.listening = False
        sketches = [next(grads) for _ in slots]
        vectors = [(rule, next(grads)) for rule in with_vector]
        halves = [(rule, next(grads), next(grads)) for rule in with_halves]
        grad_BTD: Any = next(grads) if cut else None
        self._require_no_strays(dict(zip(strays, grads, strict=True)))
        # Without the layers whose output does not reach the loss.
        vectors = [entry for entry in vectors if entry[-1] is not None]
        halves = [entry for entry in halves if entry[-1] is not None]
        if self.mode == "exact":
            return self._explicit(loss_B, gradients.materialised(halves, vectors))
        pending = None
        if self.reduces:
            at_cut = None if self._cut_hidden is None else (self._cut_hidden, grad_BTD)
            pending = partial(gradients.deferred_backward, halves, vectors, at_cut)
        self._cut_hidden = self._cut_leaf = None
        return self._builder.result(loss_B, self._builder.groups(sketches, vectors), pending)

    def _require_no_strays(self, grads: Mapping[str, Tensor | None]) -> None:
        """Taps detach parameters: one that still gets a gradient is used outside its layer."""
        self._checked_strays = True  # the first backward is enough
        names = [name for name, gradient in grads.items() if gradient is not None]
        if names:
            raise ConfigError(
                f"{names} are used outside the layer that owns them, where there is no tap; "
                "use mode twopass, whose gradient is right (its sketch misses that use)"
            )

    def _explicit(self, loss_B: Tensor, per_sample: Gradients) -> MicroBatchResult:
        assert self._builder is not None
        groups = self._builder.groups_of_gradients(per_sample, self.step)
        pending = partial(gradients.explicit_backward, per_sample, self.parameters)
        return self._builder.result(loss_B, groups, pending)

    def signals(self, loss_B: Tensor, source_B: Tensor | None = None) -> Signals:
        """What a mixer weighs: the samples of every rank. The graph stays for your backward."""
        self._rows = WorldRows(loss_B.numel(), loss_B.device)  # before work is queued on the device
        return self._gathered(self.sketch(loss_B), source_B)

    def backward(self, loss_B: Tensor, mixer: Weighs, source_B: Tensor | None = None) -> Tensor:
        """Fill `.grad` with the gradient of sum_i weight_i loss_i; return this rank's weights."""
        self._rows = WorldRows(loss_B.numel(), loss_B.device)
        result = self.sketch(loss_B)
        weight_B = self.local(mixer.weigh(self._gathered(result, source_B)))
        result.backward(weight_B)
        self.average_gradients()
        return weight_B

    def local(self, weight_B: Tensor) -> Tensor:
        """This rank's weights, times the world size because wrappers average over ranks."""
        return self._rows.local(weight_B)

    def average_gradients(self) -> None:
        """Average `.grad` over the ranks, where no wrapper has done so."""
        wrapped = isinstance(self.wrapper, DistributedDataParallel)
        if self.reduces or not (wrapped or self.sharded):
            gradients.average_gradients(self.parameters.values())

    def _gathered(self, result: MicroBatchResult, source_B: Tensor | None) -> Signals:
        epoch = self.projection.epoch(self.step)
        known = replace(result, source_B=source_B)
        return gather_signals([known], [self._rows], step=self.step, projection=epoch)


class SketchBuilder:
    """Builds one sketch per sample from the taps' results: slots, random matrices, hashes.

    Matrices of one width add up in one slot during the backward. Wide ones (embeddings, heads) and
    vectors (norms, biases) are hashed into K numbers after it, all vectors at once.
    """

    def __init__(
        self,
        rules: list[Rule],
        projection: Projection,
        group_of: Callable[[Rule], str] | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.rules, self.projection, self.made_for = rules, projection, (dtype, device)
        self.matrix_group = {r.path: group_of(r) if group_of else r.group for r in rules}
        self.vector_group = {r.path: group_of(r) if group_of else "rest" for r in rules}
        self.bank = Bank(projection, dtype, device)
        # By group; a wide matrix, which has a hash of its own, also by parameter.
        self.slots: dict[tuple[str, str | None], Tensor] = {}
        self.first_of: dict[str, int] = {}  # where a parameter begins in the model's vectors
        self.size = 0  # F
        if projection.kind not in TWO_SIDED:
            return
        for rule in rules:
            if rule.matrix is not None:
                shape = rule.module.weight.shape
                self.bank.add_matrix(rule.names["weight"], (shape[0], shape[1]), wide=rule.wide)
            for name, size in rule.vector_sizes().items():
                if name not in self.first_of:  # a tied parameter is there already: its uses add up
                    self.first_of[name] = self.size
                    self.size += size
        if self.size:
            self.bank.add_fold(VECTORS, self.size)

    def open_slots(self, shape: tuple[int, int], *, sketches: bool) -> None:
        """Give every rule its slots for (samples, tokens); with `sketches`, one for its matrix."""
        self.slots, (dtype, device) = {}, self.made_for
        for rule in self.rules:
            slot = None
            if rule.matrix is not None and sketches:
                key = self.matrix_group[rule.path], rule.names["weight"] if rule.wide else None
                if key not in self.slots:
                    q, p = self.projection.sides(wide=rule.wide)
                    wide = torch.promote_types(rule.module.weight.dtype, torch.float32)
                    self.slots[key] = make_slot((shape[0], q * p), wide, device)
                slot = self.slots[key]
            rule.open_slots(shape, dtype, slot)

    def draw(self, step: int) -> None:
        """Draw the random matrices of this step, unless those of the last step still hold."""
        before = self.bank.epoch
        self.bank.draw(step)
        if before != self.bank.epoch:
            for rule in self.rules:
                if rule.matrix is not None:
                    drawn = self.bank.matrix(rule.names["weight"])
                    rule.projection = (drawn.row_Rq, drawn.col_Cp)

    def groups(self, sketches: list[Tensor | None], vectors: list[Vector]) -> dict[str, Tensor]:
        """The parts of the sketch by group: (B, K) each."""
        names = dict.fromkeys([*self.matrix_group.values(), *self.vector_group.values()])
        parts: dict[str, list[Tensor]] = {name: [] for name in names}
        for (group, name), sketch_BF in zip(self.slots, sketches, strict=True):
            if sketch_BF is not None:
                if name is not None and sketch_BF.shape[1] != self.projection.dim:
                    sketch_BF = self.bank.folds[name](sketch_BF)
                parts[group].append(sketch_BF)
        for group in dict.fromkeys(self.vector_group[rule.path] for rule, _ in vectors):
            own = [entry for entry in vectors if self.vector_group[entry[0].path] == group]
            parts[group].append(self.bank.folds[VECTORS](self._laid_out(own)))
        empty = next(part[0] for part in parts.values() if part)
        return {
            group: sum(part[1:], start=part[0]) if part else torch.zeros_like(empty)
            for group, part in parts.items()
            if part or group in self.matrix_group.values()
        }

    def _laid_out(self, vectors: list[Vector]) -> Tensor:
        """The model's vectors end to end: (B, F), zeros for layers that are not given."""
        tensors = [vector for _, vector in vectors]
        names = [name for rule, _ in vectors for name in rule.vector_sizes()]
        if names == list(self.first_of):
            return torch.cat(tensors, dim=1)
        vector_BF = tensors[0].new_zeros(len(tensors[0]), self.size)
        for rule, vector in vectors:
            for name, part in rule.split(vector).items():
                first = self.first_of[name]
                vector_BF[:, first : first + part.shape[1]] += part
        return vector_BF

    def groups_of_gradients(self, per_sample: Gradients, step: int) -> dict[str, Tensor]:
        """The same from full gradients (B, *shape), without taps: tests compare the two."""
        kind, done = self.projection.kind, set()
        groups: dict[str, list[Tensor]] = {}
        vectors: list[Tensor] = []
        some = next(iter(per_sample.values()))
        for rule in self.rules:
            for own, name in sorted(rule.names.items(), key=lambda item: item[0] != "weight"):
                if name in done:  # a tied parameter's gradient already holds both of its uses
                    continue
                done.add(name)
                gradient = per_sample.get(name)
                if own in rule.vectors and kind in TWO_SIDED:
                    if gradient is None:  # its layer does not reach the loss: zeros
                        size = int(getattr(rule.module, own).numel())
                        gradient = some.new_zeros(len(some), size)
                    vectors.append(gradient)
                elif gradient is not None:
                    if kind == "none":
                        part_BK = gradient.flatten(1)
                    elif kind == "gaussian":
                        part_BK = self.projection.dense(name, gradient.flatten(1), step=step)
                    else:
                        part_BK = self.bank.matrix(name).of_gradient(gradient)
                    groups.setdefault(rule.group, []).append(part_BK)
        if vectors:
            vector_BF = torch.cat(vectors, dim=1)
            groups.setdefault("rest", []).append(self.bank.folds[VECTORS](vector_BF))
        if kind == "none":
            return {group: torch.cat(parts, dim=1) for group, parts in groups.items()}
        return {group: torch.stack(parts).sum(dim=0) for group, parts in groups.items()}

    def result(
        self, loss_B: Tensor, groups: dict[str, Tensor], pending: Callable[[Tensor], None] | None
    ) -> MicroBatchResult:
        """The parts joined to one sketch."""
        parts = list(groups.values())
        concatenates = self.projection.kind == "none"
        whole = torch.cat(parts, dim=1) if concatenates else sum(parts[1:], start=parts[0])
        norm_B = groups.get("blocks", whole).norm(dim=1)
        return MicroBatchResult(loss_B, pending, whole, norm_B, groups=groups)


def sketch_rows(
    sketcher: Sketcher, token_NT: Tensor, *, at_once: int, step: int = 0, half: bool = False
) -> Iterator[tuple[Tensor, Tensor, dict[str, Tensor]]]:
    """Loss, sketch and its parts, `at_once` rows at a time; `half` runs the model in bfloat16.

    The model maps tokens to one loss per row. It is left unchanged: no gradients, no random numbers
    (dropout is off), and every layer back in its training or eval mode.
    """
    model, device = sketcher.model, next(iter(sketcher.parameters.values())).device
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.enable_grad():
            for token_bT in token_NT.split(at_once):
                token_bT = token_bT.to(device)
                with ExitStack() as taps:
                    with torch.autocast(device.type, torch.bfloat16, enabled=half):
                        taps.enter_context(sketcher.record(token_bT, step))
                        loss_b = model(token_bT)
                    result = sketcher.sketch(loss_b, keep=False)
                assert result.sketch_BK is not None
                yield loss_b.detach(), result.sketch_BK, result.groups
    finally:
        for module, mode in modes:
            module.training = mode

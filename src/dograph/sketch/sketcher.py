"""Sketcher: every sample's gradient, projected, from one backward.

    sketcher = Sketcher(model)
    with sketcher.record(token_BT, step):
        loss_B = per_sample_losses(model(token_BT))
        weight_B = sketcher.backward(loss_B, mixer)      # in place of loss.backward()

Modes, all with the same gradient for the same weights:

    full       one backward to the layers' outputs, then each weight gradient, weighted
    twopass    a backward for the sketches, a second one for the gradient; any wrapper
    topdown    sketches from the top blocks, then the residual gradient is scaled once
    head       the same from the output layer alone; sharded: a second backward, as in twopass
    exact      per-sample gradients in full: small models, and LLaMA with long samples
    reference  one backward a sample: the check of all others

Shapes: B samples, T tokens, K sketch.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch
from torch.nn.parallel import DistributedDataParallel

from dograph.choices import CUTTING, DETACHING, EXPLICIT, MODES, SPARING, TWO_SIDED, Kind, Mode
from dograph.config import DEFAULT_DIM, Refresh
from dograph.errors import ConfigError, did_you_mean
from dograph.sketch.coverage import blocks_of, cover, output_layer, unwrapped
from dograph.sketch.gradients import (
    Deferred,
    Gradients,
    Materialised,
    MicroBatchResult,
    Pending,
    RetainedGraph,
    WorldRows,
    average_gradients,
    gather_signals,
    is_sharded,
    materialised,
    one_backward_per_sample,
)
from dograph.sketch.projection import Bank, Projection
from dograph.sketch.rules import Rule, make_slot, replaced_forward
from dograph.types import Signals

VECTORS = "vectors"  # the name by which their hash is drawn


class Weighs(Protocol):
    """A mixer, as far as this file is concerned."""

    def weigh(self, signals: Signals) -> Tensor: ...


class Sketcher:
    """Records a model's forwards and sketches the gradients of their samples."""

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
        """`head` is where mode head cuts the model; by default at its last Linear layer.

        `group_of` names the part of the sketch that a layer adds to, to look at parts of it.
        """
        if mode not in MODES:
            raise ConfigError(f"mode={mode!r} is not known; {did_you_mean(mode, MODES)}")
        self.wrapper, self.model = model, unwrapped(model)
        self.mode, self.top_blocks = mode, top_blocks
        self.projection = Projection(dim=dim, kind=projection, seed=seed, refresh=refresh)
        output = output_layer(self.model, head) if mode == "head" else None
        self.head = head or output
        self.rules = cover(self.model, exclude, only=output)
        self.parameters = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        self.sharded = any(is_sharded(parameter) for parameter in self.parameters.values())
        # Only its wrapper can fill the gradient of a shard: by a second backward, the stock one.
        self.reduces = mode != "twopass" and not (mode == "head" and self.sharded)
        self._cuts = mode in CUTTING and self.reduces
        self._require_fitting()
        self.step = self._num_samples = 0
        self._rows: WorldRows  # of what was recorded last
        self._running = self._looked_for_strays = False
        self._group_of = group_of
        self._opened: tuple[object, ...] = ()
        self._assembly: Assembly | None = None
        self._cut_hidden: Tensor | None = None  # the residual stream at the cut,
        self._cut_leaf: Tensor | None = None  # and where the layers above it begin
        self._above: Callable[..., Any] = self.model.forward  # what runs there, once there is a cut

    def _require_fitting(self) -> None:
        """Refuse a model, a mode and a projection that could only go wrong later."""
        mode, kind = self.mode, self.projection.kind
        covered = {name for rule in self.rules for name in rule.names.values()}
        left_out = [name for name in self.parameters if name not in covered]
        if left_out and mode not in SPARING:
            raise ConfigError(
                f"mode {mode} makes every gradient itself, but {left_out} are excluded from "
                "the sketch; use mode twopass, or freeze them"
            )
        if self.reduces and self.sharded:
            raise ConfigError(
                f"mode {mode} cannot fill the gradients of sharded parameters (FSDP2); "
                "use mode twopass, or head"
            )
        if kind not in TWO_SIDED and mode not in EXPLICIT:
            raise ConfigError(
                f"projection={kind} needs the gradients in full: mode exact or "
                f"reference, got {mode}; taps project with rademacher or two-sided"
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
        """Inside it the model's layers are tapped.

        Activation checkpointing runs layers again in the backward: keep that inside as well.
        """
        self.step = step
        self._open(token_BT).draw(step)
        with ExitStack() as stack:
            if self.reduces and isinstance(self.wrapper, DistributedDataParallel):
                stack.enter_context(self.wrapper.no_sync())  # its reducer would wait for ever
            if self.mode == "reference":
                yield
                return
            if not self.reduces:
                # Compiled, the first of two backwards must not overwrite what the forward kept.
                stack.enter_context(functorch.patch(donated_buffer=False))
            self._running, self._cut_hidden, self._cut_leaf = True, None, None
            for rule in self.rules:
                rule.calls, rule.listening, rule.taps = 0, True, not self._cuts
                stack.enter_context(replaced_forward(rule.module, rule.replacement))
            if self._cuts:
                stack.enter_context(self._cut())
            yield

    def _open(self, token_BT: Tensor) -> "Assembly":
        """Slots for this shape and precision; kept as long as they fit."""
        device, (num_samples, num_tokens) = token_BT.device, token_BT.shape[:2]
        self._num_samples = num_samples
        own = next(iter(self.parameters.values())).dtype
        autocasts = torch.is_autocast_enabled(device.type)
        dtype = torch.get_autocast_dtype(device.type) if autocasts else own
        if self._assembly is None or self._assembly.made_for != (dtype, device):
            self._assembly = Assembly(self.rules, self.projection, self._group_of, dtype, device)
        if self._opened == (key := (num_samples, num_tokens, dtype, device)):
            return self._assembly
        self._opened = key
        self._assembly.open_slots(num_samples, torch.promote_types(own, torch.float32))
        for rule in self.rules:
            rule.defers = self.reduces
            slot = None if self.mode == "exact" else self._assembly.slot_of(rule)
            rule.open_slots((num_samples, num_tokens), dtype, slot)
        return self._assembly

    @contextmanager
    def _cut(self) -> Iterator[None]:
        """Layers run as ever until the cut; from there on they are tapped."""
        place = self.head
        if self.mode == "topdown":
            place = blocks_of(self.model)[1][-self.top_blocks]
        assert place is not None
        current = place.__dict__.get("forward")  # compiled or tapped, it may be
        if current == self._above_cut:  # an earlier micro-batch still waits for its weights
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
        """Sketch the samples of the recorded forward; `keep` its graph for the gradient."""
        if loss_B.dim() != 1 or len(loss_B) != self._num_samples:
            raise ConfigError(
                f"loss_B must hold one loss for each of the {self._num_samples} recorded samples, "
                f'got shape {tuple(loss_B.shape)}; use reduction="none" and average over tokens'
            )
        if self.mode == "reference":
            return self._explicit(loss_B, one_backward_per_sample(loss_B, self.parameters))
        used = [rule for rule in self.rules if rule.calls]
        self._require_single_use(used)
        self._running = False
        for rule in self.rules:  # checkpointed layers run again: as they did, above or below a cut
            rule.taps = rule.calls > 0
            rule.calls = 0
        assert self._assembly is not None
        slots = [] if self.mode == "exact" else list(self._assembly.slots.values())
        with_vector = [rule for rule in used if rule.slots.vector is not None]
        with_halves = [rule for rule in used if rule.slots.left is not None]
        cut = [] if self._cut_leaf is None else [self._cut_leaf]
        looks = self.mode in DETACHING and not self._looked_for_strays
        strays = self.parameters if looks else {}
        wanted: list[Any] = [
            *slots,
            *(rule.slots.vector for rule in with_vector),
            *(slot for rule in with_halves for slot in (rule.slots.left, rule.slots.right)),
            *cut,
            *strays.values(),
        ]
        retain = keep and not self.reduces
        found: Iterator[Any] = iter(
            torch.autograd.grad(loss_B.sum(), wanted, retain_graph=retain, allow_unused=True)
        )
        for rule in self.rules:
            rule.listening = False
        sketches = [next(found) for _ in slots]
        vectors = [(rule, next(found)) for rule in with_vector]
        halves = [(rule, next(found), next(found)) for rule in with_halves]
        grad_BTD: Any = next(found) if cut else None
        self._require_no_strays(dict(zip(strays, found, strict=True)))
        # Without the layers whose output reached no loss.
        vectors = [entry for entry in vectors if entry[-1] is not None]
        halves = [entry for entry in halves if entry[-1] is not None]
        if self.mode == "exact":
            return self._explicit(loss_B, materialised(halves, vectors))
        pending: Pending = RetainedGraph(loss_B)
        if self.reduces:
            at_cut = None if self._cut_hidden is None else (self._cut_hidden, grad_BTD)
            pending = Deferred(halves, vectors, self.parameters, at_cut)
        self._cut_hidden = self._cut_leaf = None
        return self._assembly.joined(loss_B, self._assembly.groups(sketches, vectors), pending)

    def _require_single_use(self, used: list[Rule]) -> None:
        if not used:
            raise ConfigError(
                "no layer was recorded; run the model's forward inside sketcher.record(token_BT) "
                "with gradients enabled"
            )
        twice = [rule.path for rule in used if rule.calls > 1]
        if twice and self.reduces:
            raise ConfigError(
                f"{twice} ran more than once in one forward; mode {self.mode} keeps one input a "
                "layer: use mode twopass"
            )

    def _require_no_strays(self, found: Mapping[str, Tensor | None]) -> None:
        """Taps detach parameters from the graph: one that still gets a gradient is used elsewhere.

        Looked for once, in the first backward.
        """
        self._looked_for_strays = True
        names = [name for name, gradient in found.items() if gradient is not None]
        if names:
            raise ConfigError(
                f"{names} are used outside the layer that holds them, where no tap sees it; "
                "use mode twopass, whose gradient is right (its sketch misses that use)"
            )

    def _explicit(self, loss_B: Tensor, gradients: Gradients) -> MicroBatchResult:
        assert self._assembly is not None
        groups = self._assembly.groups_of_gradients(gradients, self.step)
        return self._assembly.joined(loss_B, groups, Materialised(gradients, self.parameters))

    def signals(self, loss_B: Tensor, source_B: Tensor | None = None) -> Signals:
        """What a mixer weighs: the samples of every rank. The graph stays for your backward."""
        self._rows = WorldRows(len(loss_B), loss_B.device)  # before the device has work to do
        return self._gathered(self.sketch(loss_B), source_B)

    def backward(self, loss_B: Tensor, mixer: Weighs, source_B: Tensor | None = None) -> Tensor:
        """Fill `.grad` with the gradient of sum_i weight_i loss_i; return this rank's weights."""
        self._rows = WorldRows(len(loss_B), loss_B.device)
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
            average_gradients(self.parameters.values())

    def _gathered(self, result: MicroBatchResult, source_B: Tensor | None) -> Signals:
        epoch = self.projection.epoch(self.step)
        known = replace(result, source_B=source_B)
        return gather_signals([known], [self._rows], step=self.step, projection=epoch)


class Assembly:
    """From what the taps leave to one sketch a sample: slots, random matrices, hashes.

    Matrices of one width add up in a slot of their own as the backward goes. Wide ones (embeddings,
    heads) and vectors (norms, biases) are hashed into K numbers once it is over, all vectors at
    once. F: numbers of vectors.
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
        # By group, and by parameter where that is hashed by itself.
        self.slots: dict[tuple[str, str | None], Tensor] = {}
        self.first_of: dict[str, int] = {}  # where a parameter begins in the model's vectors
        self.size = 0  # numbers in all vectors
        if projection.kind not in TWO_SIDED:
            return
        for rule in rules:
            if rule.matrix is not None:
                shape = rule.module.weight.shape
                self.bank.add_matrix(rule.names["weight"], (shape[0], shape[1]), wide=rule.wide)
            for name, size in rule.vector_sizes().items():
                if name not in self.first_of:  # else it is tied, and its uses add up
                    self.first_of[name] = self.size
                    self.size += size
        if self.size:
            self.bank.add_fold(VECTORS, self.size)

    def open_slots(self, num_samples: int, dtype: torch.dtype) -> None:
        """Slots for so many samples."""
        self.slots = {}
        for rule in self.rules:
            key = self._key(rule)
            if rule.matrix is not None and key not in self.slots:
                q, p = self.projection.sides(wide=rule.wide)
                self.slots[key] = make_slot((num_samples, q * p), dtype, self.made_for[1])

    def slot_of(self, rule: Rule) -> Tensor | None:
        """Where a layer's matrix is sketched."""
        return None if rule.matrix is None else self.slots[self._key(rule)]

    def _key(self, rule: Rule) -> tuple[str, str | None]:
        return self.matrix_group[rule.path], rule.names["weight"] if rule.wide else None

    def draw(self, step: int) -> None:
        """Random matrices for this step; nothing happens where they hold on."""
        before = self.bank.epoch
        self.bank.draw(step)
        if before != self.bank.epoch:
            for rule in self.rules:
                if rule.matrix is not None:
                    drawn = self.bank.matrix(rule.names["weight"])
                    rule.projection = (drawn.row_Rq, drawn.col_Cp)

    def groups(
        self, sketches: list[Tensor | None], vectors: list[tuple[Rule, Tensor]]
    ) -> dict[str, Tensor]:
        """The sketch's parts by group: (B, K) each."""
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

    def _laid_out(self, vectors: list[tuple[Rule, Tensor]]) -> Tensor:
        """The model's vectors end to end, those of other layers left at 0."""
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

    def groups_of_gradients(self, gradients: Gradients, step: int) -> dict[str, Tensor]:
        """The same from gradients (B, *shape) that are there in full (`exact`, `reference`).

        Slower than taps and independent of them, so each checks the other.
        """
        kind, done = self.projection.kind, set()
        groups: dict[str, list[Tensor]] = {}
        vectors: list[Tensor] = []
        some = next(iter(gradients.values()))
        for rule in self.rules:
            for own, name in sorted(rule.names.items(), key=lambda item: item[0] != "weight"):
                if name in done:  # a tied parameter's gradient already holds both of its uses
                    continue
                done.add(name)
                gradient = gradients.get(name)
                if own in rule.vectors and kind in TWO_SIDED:
                    if gradient is None:  # its layer reached no loss, but has its place
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

    def joined(
        self, loss_B: Tensor, groups: dict[str, Tensor], pending: Pending
    ) -> MicroBatchResult:
        """The parts as one sketch."""
        parts = list(groups.values())
        concatenates = self.projection.kind == "none"
        whole = torch.cat(parts, dim=1) if concatenates else sum(parts[1:], start=parts[0])
        norm_B = groups.get("blocks", whole).norm(dim=1)
        return MicroBatchResult(loss_B, pending, whole, norm_B, groups=groups)


def sketch_rows(
    sketcher: Sketcher,
    token_NT: Tensor,
    *,
    at_once: int,
    step: int = 0,
    half: bool = False,
) -> Iterator[tuple[Tensor, Tensor, dict[str, Tensor]]]:
    """Loss, sketch and its parts, `at_once` rows at a time; `half` runs the model in bfloat16.

    The model maps tokens to one loss a row. Nothing of it changes: no gradient is left behind, no
    random number is drawn (dropout is off), every layer's mode is as before.
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

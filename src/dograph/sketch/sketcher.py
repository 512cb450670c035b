"""Sketcher: every sample's gradient, projected, from one backward.

    sketcher = Sketcher(model)
    with sketcher.record(token_BT, step):
        loss_B = per_sample_losses(model(token_BT))
        weight_B = sketcher.backward(loss_B, mixer)      # in place of loss.backward()

Modes, all with the same gradient for the same weights:

    full       one backward to the layers' outputs, then each weight gradient, weighted
    twopass    a backward for the sketches, a second one for the gradient; any wrapper
    topdown    sketches from the top blocks, then the residual gradient is scaled once
    exact      per-sample gradients in full: small models, and LLaMA with long samples
    reference  one backward a sample: the check of all others

Shapes: B samples, T tokens, K sketch.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dograph.errors import ConfigError, did_you_mean
from dograph.sketch.coverage import blocks_of, cover
from dograph.sketch.explicit import materialised, one_backward_per_sample, sketch_gradients
from dograph.sketch.fitting import EXPLICIT, require_fitting, require_no_strays
from dograph.sketch.pending import Deferred, Materialised, Pending, RetainedGraph, TopDown
from dograph.sketch.projection import DEFAULT_DIM, Kind, Projection
from dograph.sketch.ranks import average_gradients, gather_rows, is_sharded, local_rows
from dograph.sketch.recording import replaced_forward, unwrapped
from dograph.sketch.rule import Gradients, Rule
from dograph.sketch.tap import Cut, make_slot
from dograph.types import Signals

Mode = Literal["full", "twopass", "topdown", "exact", "reference"]
MODES: tuple[Mode, ...] = ("full", "twopass", "topdown", "exact", "reference")


class Weighs(Protocol):
    """A mixer, as far as this file is concerned."""

    def weigh(self, signals: Signals) -> Tensor: ...


@dataclass(slots=True)
class Sketch:
    """What one backward knows of its samples, and the gradient that waits for weights."""

    sketch_BK: Tensor
    block_norm_B: Tensor  # of the part that comes from the blocks' matrices
    pending: Pending
    groups: dict[str, Tensor]  # the sketch's parts, which add up to it


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
        refresh: int | Literal["never", "step"] = "never",
        exclude: tuple[str, ...] = (),
        top_blocks: int = 4,
    ) -> None:
        if mode not in MODES:
            raise ConfigError(f"mode={mode!r} is not known; {did_you_mean(mode, MODES)}")
        self.wrapper, self.model = model, unwrapped(model)
        self.mode, self.top_blocks = mode, top_blocks
        self.projection = Projection(dim=dim, kind=projection, seed=seed, refresh=refresh)
        self.rules = cover(self.model, exclude)
        self.parameters = {
            name: parameter
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        }
        require_fitting(self)
        self.step = self._num_samples = 0
        self._running = self._looked_for_strays = False
        self.group_of: Callable[[Rule], str] = lambda rule: rule.group
        self._opened: tuple[object, ...] = ()
        self._projected: tuple[object, ...] = ()
        self._slots: dict[str, Tensor] = {}
        self._cut_slot: Tensor | None = None
        self._cut_hidden: Tensor | None = None

    @property
    def reduces(self) -> bool:
        """Whether this mode fills `.grad` itself, so that it must be averaged over ranks here."""
        return self.mode != "twopass"

    @contextmanager
    def record(self, token_BT: Tensor, step: int = 0) -> Iterator[None]:
        """Inside it the model's layers are tapped.

        Activation checkpointing runs layers again in the backward: keep that inside as well.
        """
        self._open(token_BT)
        self._project(step)
        with ExitStack() as stack:
            if self.reduces and isinstance(self.wrapper, DistributedDataParallel):
                stack.enter_context(self.wrapper.no_sync())  # its reducer would wait for ever
            if self.mode == "reference":
                yield
                return
            self._running, self._cut_hidden = True, None
            for rule in self.rules:
                rule.calls, rule.listening, rule.taps = 0, True, self.mode != "topdown"
                stack.enter_context(replaced_forward(rule.module, rule.forward))
            if self.mode == "topdown":
                stack.enter_context(self._cut())
            yield

    def sketch(self, loss_B: Tensor, *, keep: bool = True) -> Sketch:
        """Sketch the samples of the recorded forward; `keep` its graph for the gradient."""
        if loss_B.dim() != 1 or len(loss_B) != self._num_samples:
            raise ConfigError(
                f"loss_B must hold one loss for each of the {self._num_samples} recorded samples, "
                f'got shape {tuple(loss_B.shape)}; use reduction="none" and average over tokens'
            )
        if self.mode == "reference":
            return self._explicit(one_backward_per_sample(loss_B, self.parameters))
        used = [rule for rule in self.rules if rule.calls]
        self._require_single_use(used)
        self._running = False
        for rule in self.rules:  # checkpointed layers run again: as they did, above or below a cut
            rule.taps = rule.calls > 0
            rule.calls = 0
        slots = [] if self.mode == "exact" else list(self._slots.values())
        halves = [] if self.mode == "twopass" else [h for rule in used for h in rule.half_slots()]
        cut = [] if self._cut_slot is None else [self._cut_slot]
        strays = self._strays()
        found = torch.autograd.grad(
            loss_B.sum(),
            [*slots, *halves, *cut, *strays.values()],
            retain_graph=keep and self.mode == "twopass",
            allow_unused=True,
        )
        for rule in self.rules:
            rule.listening = False
        require_no_strays(strays, found[len(found) - len(strays) :])
        pairs = iter(found[len(slots) : len(slots) + len(halves)])
        kept = list(zip(used, pairs, pairs, strict=True)) if halves else []
        kept = [entry for entry in kept if entry[2] is not None]  # its output reached no loss
        if self.mode == "exact":
            return self._explicit(materialised(kept))
        groups = {
            name: torch.zeros_like(slot) if value is None else value
            for (name, slot), value in zip(self._slots.items(), found, strict=False)
        }
        if self.mode == "twopass":
            return self._sketch(groups, RetainedGraph(loss_B))
        deferred = Deferred(kept, self.parameters)
        if self._cut_hidden is None:
            return self._sketch(groups, deferred)
        hidden_BTD, self._cut_hidden = self._cut_hidden, None
        return self._sketch(groups, TopDown(deferred, hidden_BTD, found[len(slots) + len(halves)]))

    def signals(self, loss_B: Tensor, source_B: Tensor | None = None) -> Signals:
        """What a mixer weighs: the samples of every rank. The graph stays for your backward."""
        self._last = self.sketch(loss_B)
        return self.world_signals(loss_B.detach(), self._last, source_B)

    def backward(self, loss_B: Tensor, mixer: Weighs, source_B: Tensor | None = None) -> Tensor:
        """Fill `.grad` with the gradient of sum_i weight_i loss_i; return this rank's weights."""
        weight_B = self.local(mixer.weigh(self.signals(loss_B, source_B)))
        self._last.pending.backward(weight_B)
        wrapped = isinstance(self.wrapper, DistributedDataParallel)
        sharded = any(is_sharded(parameter) for parameter in self.parameters.values())
        if self.reduces or not (wrapped or sharded):  # no wrapper has averaged over the ranks
            average_gradients(self.parameters.values())
        return weight_B

    def local(self, weight_B: Tensor) -> Tensor:
        """This rank's weights, times the world size because wrappers average over ranks."""
        return local_rows(weight_B, self._num_samples)

    def world_signals(self, loss_b: Tensor, sketch: Sketch, source_b: Tensor | None) -> Signals:
        """The signals of all ranks, in their order."""
        loss_B = gather_rows(loss_b)
        return Signals(
            step=self.step,
            num_samples=len(loss_B),
            device=loss_B.device,
            loss_B=loss_B,
            source_B=None if source_b is None else gather_rows(source_b),
            sketch_BK=gather_rows(sketch.sketch_BK),
            block_norm_B=gather_rows(sketch.block_norm_B),
            projection=self.projection.epoch(self.step),
        )

    def _open(self, token_BT: Tensor) -> None:
        """Slots for this shape and precision; kept as long as they fit."""
        device, (num_samples, num_tokens) = token_BT.device, token_BT.shape[:2]
        self._num_samples = num_samples
        own = next(iter(self.parameters.values())).dtype
        autocasts = torch.is_autocast_enabled(device.type)
        dtype = torch.get_autocast_dtype(device.type) if autocasts else own
        if self._opened == (key := (num_samples, num_tokens, dtype, device)):
            return
        self._opened = key
        wide = torch.promote_types(own, torch.float32)
        names = dict.fromkeys(self.group_of(rule) for rule in self.rules)
        shape = (num_samples, self.projection.dim)
        self._slots = {name: make_slot(shape, wide, device) for name in names}
        for rule in self.rules:
            rule.num_samples = num_samples
            rule.defers = self.mode != "twopass"
            if self.mode != "exact":
                rule.sketch_slot = self._slots[self.group_of(rule)]
            if rule.defers:
                rule.open_slots((num_samples, num_tokens), dtype)

    def _project(self, step: int) -> None:
        """Projections for this step; made anew only where they change."""
        self.step = step
        key = (self.projection.epoch(step), self._opened[2:])
        if self.mode in EXPLICIT or self._projected == key:
            return
        self._projected = key
        dtype = self._opened[2]
        assert isinstance(dtype, torch.dtype)
        for rule in self.rules:
            rule.projection = rule.project(self.projection, step, dtype)

    @contextmanager
    def _cut(self) -> Iterator[None]:
        """Layers run as ever until the cut; from there on they are tapped."""
        block = blocks_of(self.model)[1][-self.top_blocks]

        def forward(hidden_BTD: Tensor, *args: Any, **kwargs: Any) -> Any:
            if self._running:
                self._cut_hidden = hidden_BTD
                shape = tuple(hidden_BTD.shape)
                self._cut_slot = make_slot(shape, hidden_BTD.dtype, hidden_BTD.device)
                for rule in self.rules:
                    rule.taps = True
            above = Cut.apply(hidden_BTD, self._cut_slot)  # type: ignore[no-untyped-call]
            return type(block).forward(block, above, *args, **kwargs)

        with replaced_forward(block, forward):
            yield

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

    def _strays(self) -> dict[str, nn.Parameter]:
        """Parameters to look for outside their layers, once: their taps have detached them."""
        if self._looked_for_strays or self.mode not in ("full", "exact"):
            return {}
        self._looked_for_strays = True
        return self.parameters

    def _explicit(self, gradients: Gradients) -> Sketch:
        groups = sketch_gradients(self.rules, self.projection, gradients, self.step)
        return self._sketch(groups, Materialised(gradients, self.parameters))

    def _sketch(self, groups: dict[str, Tensor], pending: Pending) -> Sketch:
        parts = list(groups.values())
        joined = (
            torch.cat(parts, 1) if self.projection.kind == "none" else torch.stack(parts).sum(0)
        )
        blocks = groups.get("blocks", joined)
        return Sketch(joined, blocks.norm(dim=1), pending, groups)

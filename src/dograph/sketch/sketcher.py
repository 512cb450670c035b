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

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch
from torch.nn.parallel import DistributedDataParallel

from dograph.config import (
    CUTTING,
    DEFAULT_DIM,
    DETACHING,
    EXPLICIT,
    MODES,
    SPARING,
    TWO_SIDED,
    Kind,
    Mode,
    Refresh,
)
from dograph.errors import ConfigError, did_you_mean
from dograph.sketch.assembly import (
    Assembly,
    Deferred,
    Half,
    Materialised,
    RetainedGraph,
    Sketch,
    TopDown,
    materialised,
    one_backward_per_sample,
    sketch_gradients,
)
from dograph.sketch.coverage import blocks_of, cover, output_layer
from dograph.sketch.gradients import Gradients
from dograph.sketch.projection import Projection
from dograph.sketch.ranks import WorldRows, average_gradients, is_sharded
from dograph.sketch.rules import Rule
from dograph.sketch.tap import replaced_forward, unwrapped
from dograph.types import Signals

# Whether a model, a mode and a projection go together; what to do where they do not.


def require_fitting(sketcher: "Sketcher") -> None:
    """Refuse what could only go wrong later."""
    mode, kind = sketcher.mode, sketcher.projection.kind
    covered = {name for rule in sketcher.rules for name in rule.names.values()}
    left_out = [name for name in sketcher.parameters if name not in covered]
    if left_out and mode not in SPARING:
        raise ConfigError(
            f"mode {mode} makes every gradient itself, but {left_out} are excluded from "
            "the sketch; use mode twopass, or freeze them"
        )
    if sketcher.reduces and sketcher.sharded:
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
        name, blocks = blocks_of(sketcher.model)
        if not 1 <= sketcher.top_blocks <= len(blocks):
            raise ConfigError(
                f"top_blocks={sketcher.top_blocks}, but {name} has {len(blocks)} blocks; "
                f"give 1 to {len(blocks)}"
            )


def require_no_strays(
    parameters: dict[str, nn.Parameter], found: tuple[Tensor | None, ...]
) -> None:
    """Taps detach parameters from the graph: one that still gets a gradient is used elsewhere."""
    names = [n for n, grad in zip(parameters, found, strict=True) if grad is not None]
    if names:
        raise ConfigError(
            f"{names} are used outside the layer that holds them, where no tap sees it; "
            "use mode twopass, whose gradient is right (its sketch misses that use)"
        )


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
        require_fitting(self)
        self.step = self._num_samples = 0
        self._rows: WorldRows  # of what was recorded last
        self._running = self._looked_for_strays = False
        self._group_of = group_of
        self._opened: tuple[object, ...] = ()
        self._assembly: Assembly | None = None
        self._cut_hidden: Tensor | None = None  # the residual stream at the cut,
        self._cut_leaf: Tensor | None = None  # and where the layers above it begin
        self._above: Callable[..., Any] = self.model.forward  # what runs there, once there is a cut

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
        assert self._assembly is not None
        slots = [] if self.mode == "exact" else list(self._assembly.slots.values())
        vectors = [(rule, slot) for rule in used if (slot := rule.slots.vector) is not None]
        halves = [rule for rule in used if rule.slots.left is not None]
        cut = [] if self._cut_leaf is None else [self._cut_leaf]
        strays = self._strays()
        wanted = [
            *slots,
            *(slot for _, slot in vectors),
            *(slot for rule in halves for slot in rule.half_slots()),
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
        vector_of = [(rule, next(found)) for rule, _ in vectors]
        kept = [(rule, next(found), next(found)) for rule in halves]
        grad_BTD = next(found) if cut else None
        require_no_strays(strays, tuple(found))
        return self._finished(loss_B, sketches, _reached(vector_of), _reached(kept), grad_BTD)

    def _finished(
        self,
        loss_B: Tensor,
        sketches: list[Tensor | None],
        vectors: list[tuple[Rule, Tensor]],
        halves: list[Half],
        grad_BTD: Tensor | None,
    ) -> Sketch:
        """What the backward found, as a sketch and a gradient that waits for its weights."""
        assert self._assembly is not None
        if self.mode == "exact":
            return self._explicit(materialised(halves, vectors))
        groups = self._assembly.groups(sketches, vectors)
        if not self.reduces:
            return self._assembly.joined(groups, RetainedGraph(loss_B))
        deferred = Deferred(halves, vectors, self.parameters)
        if grad_BTD is None:
            return self._assembly.joined(groups, deferred)
        assert self._cut_hidden is not None
        hidden_BTD, self._cut_hidden, self._cut_leaf = self._cut_hidden, None, None
        return self._assembly.joined(groups, TopDown(deferred, hidden_BTD, grad_BTD))

    def signals(self, loss_B: Tensor, source_B: Tensor | None = None) -> Signals:
        """What a mixer weighs: the samples of every rank. The graph stays for your backward."""
        self._rows = WorldRows(len(loss_B), loss_B.device)
        return self.world_signals(loss_B.detach(), self.sketch(loss_B), source_B)

    def backward(self, loss_B: Tensor, mixer: Weighs, source_B: Tensor | None = None) -> Tensor:
        """Fill `.grad` with the gradient of sum_i weight_i loss_i; return this rank's weights."""
        self._rows = WorldRows(len(loss_B), loss_B.device)  # before the device has work to do
        sketch = self.sketch(loss_B)
        signals = self.world_signals(loss_B.detach(), sketch, source_B)
        weight_B = self.local(mixer.weigh(signals))
        sketch.pending.backward(weight_B)
        wrapped = isinstance(self.wrapper, DistributedDataParallel)
        if self.reduces or not (wrapped or self.sharded):  # no wrapper has averaged over the ranks
            average_gradients(self.parameters.values())
        return weight_B

    def local(self, weight_B: Tensor) -> Tensor:
        """This rank's weights, times the world size because wrappers average over ranks."""
        return self._rows.local(weight_B)

    def world_signals(self, loss_b: Tensor, sketch: Sketch, source_b: Tensor | None) -> Signals:
        """The signals of all ranks, in their order."""
        loss_B = self._rows.gather(loss_b)
        return Signals(
            step=self.step,
            num_samples=len(loss_B),
            device=loss_B.device,
            loss_B=loss_B,
            source_B=None if source_b is None else self._rows.gather(source_b),
            sketch_BK=self._rows.gather(sketch.sketch_BK),
            block_norm_B=self._rows.gather(sketch.block_norm_B),
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
        if self._assembly is None or self._assembly.made_for != (dtype, device):
            self._assembly = Assembly(self.rules, self.projection, self._group_of, dtype, device)
        self._assembly.open_slots(num_samples, wide)
        for rule in self.rules:
            rule.defers = self.reduces
            slot = None if self.mode == "exact" else self._assembly.slot_of(rule)
            rule.open_slots((num_samples, num_tokens), dtype, slot)

    def _project(self, step: int) -> None:
        """Projections for this step; made anew only where they change."""
        self.step = step
        assert self._assembly is not None
        self._assembly.draw(step)

    def _place_of_cut(self) -> nn.Module:
        if self.mode == "topdown":
            return blocks_of(self.model)[1][-self.top_blocks]
        assert self.head is not None
        return self.head

    @contextmanager
    def _cut(self) -> Iterator[None]:
        """Layers run as ever until the cut; from there on they are tapped."""
        place = self._place_of_cut()
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
        if self._looked_for_strays or self.mode not in DETACHING:
            return {}
        self._looked_for_strays = True
        return self.parameters

    def _explicit(self, gradients: Gradients) -> Sketch:
        assert self._assembly is not None
        groups = sketch_gradients(self.rules, self._assembly.bank, gradients, self.step)
        return self._assembly.joined(groups, Materialised(gradients, self.parameters))


def _reached(found: list[Any]) -> list[Any]:
    """Without the layers whose output reached no loss."""
    return [entry for entry in found if entry[-1] is not None]


# Sketches of given rows, for looking at a model rather than training it.


def sketch_rows(
    sketcher: Sketcher,
    token_NT: Tensor,
    *,
    at_once: int,
    step: int = 0,
    half: bool = False,
) -> Iterator[tuple[Tensor, Sketch]]:
    """Loss and sketch of each row, `at_once` rows at a time; `half` runs the model in bfloat16.

    The model maps tokens to one loss a row. Nothing of it changes: no gradient is left behind, no
    random number is drawn (dropout is off), every layer's mode is as before.
    """
    device = next(iter(sketcher.parameters.values())).device
    with resting(sketcher.model), torch.enable_grad():
        for token_bT in token_NT.split(at_once):
            token_bT = token_bT.to(device)
            with ExitStack() as taps:
                with torch.autocast(device.type, torch.bfloat16, enabled=half):
                    taps.enter_context(sketcher.record(token_bT, step))
                    loss_b = sketcher.model(token_bT)
                sketch = sketcher.sketch(loss_b, keep=False)
            yield loss_b.detach(), sketch


@contextmanager
def resting(model: nn.Module) -> Iterator[None]:
    """Inside it the model is in evaluation mode; afterwards every layer is as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode

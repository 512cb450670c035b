"""From what the taps leave to one sketch a sample: slots, random matrices, hashes.

Matrices of one width add up in a slot of their own as the backward goes. Wide ones (embeddings,
heads) and vectors (norms, biases) are hashed into K numbers once it is over, all vectors at once.

Shapes: B samples, K sketch, F numbers of vectors.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from dograph.config import TWO_SIDED
from dograph.sketch.gradients import Gradients, Grads, scaled
from dograph.sketch.projection import Bank, Projection
from dograph.sketch.rules import Rule
from dograph.sketch.tap import make_slot

# Weighted gradients that wait for their weights: what a sketched micro-batch leaves behind.


Half = tuple[Rule, Tensor, Tensor]  # a layer, its input and the gradient of its output


class Pending(Protocol):
    """Something that can fill `.grad` once the weights are known."""

    def backward(self, weight_B: Tensor) -> None:
        """Add the gradient of sum_i weight_i loss_i to `.grad`."""


@dataclass(slots=True)
class RetainedGraph:
    """`twopass`: the graph is still there, and a second backward runs through it."""

    loss_B: Tensor

    def backward(self, weight_B: Tensor) -> None:
        (weight_B.to(self.loss_B.dtype) * self.loss_B).sum().backward()


@dataclass(slots=True)
class Deferred:
    """`full`: every layer's input and output gradient; the weight gradients are made now."""

    halves: list[Half]
    vectors: list[tuple[Rule, Tensor]]
    parameters: Mapping[str, nn.Parameter]

    def backward(self, weight_B: Tensor) -> None:
        grads = Grads(self.parameters)
        times_B = len(weight_B) * weight_B
        with torch.autocast(weight_B.device.type, enabled=False):
            while self.halves:  # each pair is freed as soon as it is used
                rule, left, right = self.halves.pop()
                rule.add_weighted(left, right, times_B, grads)
            if self.vectors:
                self._add_vectors(weight_B, grads)

    def _add_vectors(self, weight_B: Tensor, grads: Grads) -> None:
        """All at once: a model has hundreds, each of them short."""
        rules, vectors = zip(*self.vectors, strict=True)
        vector_BF = torch.cat(vectors, dim=1)
        vector_F = weight_B.to(vector_BF.dtype) @ vector_BF
        parts = vector_F.split([vector.shape[1] for vector in vectors])
        for rule, part in zip(rules, parts, strict=True):
            for name, gradient in rule.split(part).items():
                grads.add(name, gradient)


@dataclass(slots=True)
class Materialised:
    """`exact` and `reference`: every sample's gradient in full."""

    gradients: Gradients
    parameters: Mapping[str, nn.Parameter]

    def backward(self, weight_B: Tensor) -> None:
        grads = Grads(self.parameters)
        for name, gradient in self.gradients.items():
            grads.add(name, torch.tensordot(weight_B.to(gradient.dtype), gradient, dims=1))


@dataclass(slots=True)
class TopDown:
    """`topdown`, `head`: deferred above the cut; the scaled residual gradient does the rest."""

    above: Deferred
    hidden_BTD: Tensor
    grad_BTD: Tensor

    def backward(self, weight_B: Tensor) -> None:
        self.above.backward(weight_B)
        torch.autograd.backward([self.hidden_BTD], [scaled(self.grad_BTD, weight_B)])


Slot = tuple[str, str | None]  # the group, and the parameter where that is hashed by itself


@dataclass(slots=True)
class Sketch:
    """What one backward knows of its samples, and the gradient that waits for weights."""

    sketch_BK: Tensor
    block_norm_B: Tensor  # of the part that comes from the blocks' matrices
    pending: Pending
    groups: dict[str, Tensor]  # the sketch's parts, which add up to it


VECTORS = "vectors"  # the name by which their hash is drawn


class Assembly:
    """Puts the sketches of a model's layers together."""

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
        self.slots: dict[Slot, Tensor] = {}
        self.first_of: dict[str, int] = {}  # where a parameter begins in the model's vectors
        self.size = 0  # numbers in all vectors
        if projection.kind not in TWO_SIDED:
            return
        for rule in rules:
            rule.request(self.bank)
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
            if (key := self._key(rule)) is not None and key not in self.slots:
                q, p = self.projection.sides(wide=rule.wide)
                self.slots[key] = make_slot((num_samples, q * p), dtype, self.made_for[1])

    def slot_of(self, rule: Rule) -> Tensor | None:
        """Where a layer's matrix is sketched."""
        key = self._key(rule)
        return None if key is None else self.slots[key]

    def _key(self, rule: Rule) -> Slot | None:
        if rule.matrix is None:
            return None
        return self.matrix_group[rule.path], rule.names["weight"] if rule.wide else None

    def draw(self, step: int) -> None:
        """Random matrices for this step; nothing happens where they hold on."""
        before = self.bank.epoch
        self.bank.draw(step)
        if before != self.bank.epoch:
            for rule in self.rules:
                rule.take(self.bank)

    def groups(
        self, sketches: list[Tensor | None], vectors: list[tuple[Rule, Tensor]]
    ) -> dict[str, Tensor]:
        """The sketch's parts by group: (B, K) each."""
        names = dict.fromkeys([*self.matrix_group.values(), *self.vector_group.values()])
        parts: dict[str, list[Tensor]] = {name: [] for name in names}
        for (group, name), sketch_BF in zip(self.slots, sketches, strict=True):
            if sketch_BF is not None:
                parts[group].append(sketch_BF if name is None else self._folded(name, sketch_BF))
        for group in dict.fromkeys(self.vector_group[rule.path] for rule, _ in vectors):
            own = [entry for entry in vectors if self.vector_group[entry[0].path] == group]
            parts[group].append(self.bank.fold(VECTORS)(self._laid_out(own)))
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

    def _folded(self, name: str, value_BF: Tensor) -> Tensor:
        fits = value_BF.shape[1] == self.projection.dim
        return value_BF if fits else self.bank.fold(name)(value_BF)

    def joined(self, groups: dict[str, Tensor], pending: Pending) -> Sketch:
        """The parts as one sketch."""
        parts = list(groups.values())
        whole = (
            torch.cat(parts, dim=1)
            if self.projection.kind == "none"
            else sum(parts[1:], start=parts[0])
        )
        blocks = groups.get("blocks", whole)
        return Sketch(whole, blocks.norm(dim=1), pending, groups)


# The same sketch from gradients that are there in full: what `exact` and `reference` use.
#
# Slower than taps and independent of them, so each checks the other.


def sketch_gradients(
    rules: Iterable[Rule], bank: Bank, gradients: Gradients, step: int
) -> dict[str, Tensor]:
    """Sketches (B, K) by group from per-sample gradients (B, *shape) by parameter name."""
    projection = bank.projection
    groups: dict[str, list[Tensor]] = {}
    vectors: list[Tensor] = []
    done = set()
    some = next(iter(gradients.values()))
    for rule in rules:
        for own, name in sorted(rule.names.items(), key=lambda item: item[0] != "weight"):
            if name in done:  # a tied parameter's gradient already holds both of its uses
                continue
            done.add(name)
            gradient = gradients.get(name)
            if own in rule.vectors and projection.kind in TWO_SIDED:
                if gradient is None:  # its layer reached no loss, but has its place
                    size = int(getattr(rule.module, own).numel())
                    gradient = some.new_zeros(len(some), size)
                vectors.append(gradient)
            elif gradient is not None:
                part = _sketch(bank, name, gradient, step)
                groups.setdefault(rule.group, []).append(part)
    if vectors:
        vector_BF = torch.cat(vectors, dim=1)
        groups.setdefault("rest", []).append(bank.fold(VECTORS)(vector_BF))
    if projection.kind == "none":
        return {group: torch.cat(parts, dim=1) for group, parts in groups.items()}
    return {group: torch.stack(parts).sum(dim=0) for group, parts in groups.items()}


def _sketch(bank: Bank, name: str, gradient: Tensor, step: int) -> Tensor:
    kind = bank.projection.kind
    if kind == "none":
        return gradient.flatten(1)
    if kind == "gaussian":
        return bank.projection.dense(name, gradient.flatten(1), step=step)
    return bank.matrix(name).of_gradient(gradient)


def one_backward_per_sample(loss_B: Tensor, parameters: dict[str, nn.Parameter]) -> Gradients:
    """Per-sample gradients the obvious way."""
    rows = [
        torch.autograd.grad(loss, list(parameters.values()), retain_graph=True, allow_unused=True)
        for loss in loss_B
    ]
    return {
        name: torch.stack(
            [torch.zeros_like(parameter) if row[i] is None else row[i] for row in rows]
        )
        for i, (name, parameter) in enumerate(parameters.items())
    }


def materialised(halves: list[Half], vectors: list[tuple[Rule, Tensor]]) -> Gradients:
    """Per-sample gradients from what layers left; the uses of a tied parameter are added."""
    total: Gradients = {}
    found = [rule.per_sample(left, right) for rule, left, right in halves]
    for part in [*found, *(rule.split(vector_BF) for rule, vector_BF in vectors)]:
        for name, gradient in part.items():
            total[name] = total[name] + gradient if name in total else gradient
    return total

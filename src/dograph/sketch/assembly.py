"""From what the taps leave to one sketch a sample: slots, random matrices, hashes.

Matrices of one width add up in a slot of their own as the backward goes. Wide ones (embeddings,
heads) and vectors (norms, biases) are hashed into K numbers once it is over, all vectors at once.

Shapes: B samples, K sketch, F numbers of vectors.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dograph.modes import TWO_SIDED
from dograph.sketch.bank import Bank
from dograph.sketch.pending import Pending
from dograph.sketch.projection import Projection
from dograph.sketch.rules import Rule
from dograph.sketch.tap import make_slot

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

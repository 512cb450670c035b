"""All random matrices of a model, drawn together.

Each is a function of (seed, parameter name, epoch) alone, whatever else is drawn beside it. They
lie in a few flat tensors that are filled anew when the projection is, a dozen operations in all:
a projection drawn afresh in every step costs next to nothing.

Shapes: R x C a parameter, q x p its sketch, K the slot, W words, N places of a fold.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dograph.rng import key64
from dograph.sketch.projection import Fold, MatrixProjection, Projection
from dograph.sketch.signs import BITS, normals, signs, start_words, words


@dataclass(frozen=True, slots=True)
class Request:
    """Random entries that are wanted: a side of a matrix, the signs or the turns of a fold."""

    name: str
    part: str
    shape: tuple[int, ...]
    columns: int  # entries have variance 1 / columns
    kind: str  # "entry", "sign" or "turn"


@dataclass(slots=True)
class Bank:
    """Random matrices and folds by name, filled by `draw`."""

    projection: Projection
    dtype: torch.dtype  # of the matrices
    device: torch.device
    requests: list[Request] = field(default_factory=list)
    epoch: int | None = None
    _start_W: Tensor | None = None
    _drawn: dict[tuple[str, str], Tensor] = field(default_factory=dict)
    folds: dict[str, Fold] = field(default_factory=dict)

    def add_matrix(self, name: str, shape: tuple[int, int], *, wide: bool) -> None:
        """Both sides of a weight, once however often it is used."""
        if any(request.name == name for request in self.requests):
            return
        q, p = self.projection.sides(wide=wide)
        self.requests += [
            Request(name, "row", (shape[0], q), q, "entry"),
            Request(name, "col", (shape[1], p), p, "entry"),
        ]
        if q * p != self.projection.dim:
            self.add_fold(name, q * p)

    def add_fold(self, name: str, size: int) -> None:
        """A signed hash of `size` numbers."""
        stretches = math.ceil(size / self.projection.dim)
        self.requests += [
            Request(name, "sign", (stretches, self.projection.dim), 1, "sign"),
            Request(name, "turn", (stretches, size), 1, "turn"),
        ]

    def draw(self, step: int) -> None:
        """Fill the bank for this step; nothing happens where the projection has not changed."""
        if self.epoch == (epoch := self.projection.epoch(step)) or not self.requests:
            return
        if self._start_W is None:
            self._start()
        assert self._start_W is not None
        self._drawn = {}
        done = 0
        for columns, kind, group in self._groups():
            count = sum(self._num_words(request) for request in group)
            self._fill(group, columns, kind, self._start_W[done : done + count], epoch)
            done += count
        self.folds = {r.name: self._fold(r) for r in self.requests if r.kind == "turn"}
        self.epoch = epoch

    def matrix(self, name: str) -> MatrixProjection:
        return MatrixProjection(
            self._drawn[name, "row"], self._drawn[name, "col"], self.folds.get(name)
        )

    def fold(self, name: str) -> Fold:
        return self.folds[name]

    def _start(self) -> None:
        ordered = [request for *_, group in self._groups() for request in group]
        seed = self.projection.seed
        self._start_W = start_words(
            [key64(seed, "projection", request.name, request.part) for request in ordered],
            [self._num_words(request) for request in ordered],
            self.device,
        )

    def _groups(self) -> Iterator[tuple[int, str, list[Request]]]:
        """Requests of one kind and scale, which are filled together."""
        for columns, kind in dict.fromkeys((r.columns, r.kind) for r in self.requests):
            yield (
                columns,
                kind,
                [r for r in self.requests if (r.columns, r.kind) == (columns, kind)],
            )

    def _num_words(self, request: Request) -> int:
        if request.kind == "turn":
            return request.shape[0]
        gaussian = request.kind == "entry" and self.projection.kind == "two-sided"
        return math.ceil(math.prod(request.shape) / (2 if gaussian else BITS))

    def _fill(
        self, group: list[Request], columns: int, kind: str, start_W: Tensor, epoch: int
    ) -> None:
        seed, wide = self.projection.seed, torch.promote_types(self.dtype, torch.float32)
        if kind == "turn":
            flat_N, each = words(start_W, seed, epoch), 1
        elif kind == "entry" and self.projection.kind == "two-sided":
            normal_N = normals(words(start_W, seed, epoch))
            flat_N, each = (normal_N / math.sqrt(columns)).to(self.dtype), 2
        else:
            dtype = self.dtype if kind == "entry" else wide
            flat_N, each = signs(start_W, seed, epoch, columns**-0.5, dtype), BITS
        done = 0
        for request in group:
            size = request.shape[0] if kind == "turn" else math.prod(request.shape)
            part = flat_N[done : done + size]
            self._drawn[request.name, request.part] = (
                part if kind == "turn" else part.view(request.shape)
            )
            done += self._num_words(request) * each

    def _fold(self, request: Request) -> Fold:
        (stretches, size), dim = request.shape, self.projection.dim
        turn_S1 = (self._drawn[request.name, "turn"] & ((1 << 62) - 1))[:, None] % dim
        place_K = torch.arange(dim, device=self.device)
        first_S1 = torch.arange(stretches, device=self.device)[:, None] * dim
        index_N = (first_S1 + (place_K + turn_S1) % dim).flatten().clamp_max(size)
        return Fold(index_N, self._drawn[request.name, "sign"].flatten(), dim)


def matrix_of(
    projection: Projection,
    name: str,
    shape: tuple[int, int],
    *,
    wide: bool,
    step: int,
    like: Tensor,
) -> MatrixProjection:
    """The two sides of one weight, drawn alone."""
    bank = Bank(projection, like.dtype, like.device)
    bank.add_matrix(name, shape, wide=wide)
    bank.draw(step)
    return bank.matrix(name)


def fold_of(projection: Projection, name: str, size: int, *, step: int, like: Tensor) -> Fold:
    """One signed hash, drawn alone."""
    bank = Bank(projection, like.dtype, like.device)
    bank.add_fold(name, size)
    bank.draw(step)
    return bank.fold(name)

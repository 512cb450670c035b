"""Random projections of parameters' gradients into one slot of K numbers a sample.

A weight matrix W (R x C) is projected from both sides: S = P_row' G P_col, with P_row (R x q),
P_col (C x p), K = q p, entries of variance 1/q and 1/p, so E|S|^2 = |G|^2 whatever the layer's
shape. Vectors (norms) are hashed into the slot with random signs; a bias rides along with its
weight as the gradient of one more input that is always 1. All parameters are summed into the same
slot: their projections are independent, so the cross terms vanish in the mean.

The number of columns rules the error, not K alone: for a matrix of effective rank r the relative
variance of |S|^2 is 2/(pq) + (2/r)(1/p + 1/q + 1/(pq)), and per-sample gradients have low rank.

Shapes: B samples, R x C a parameter, q x p its sketch before flattening, K = q p the slot.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dograph.errors import ConfigError
from dograph.rng import key64

Kind = Literal["rademacher", "two-sided", "gaussian", "none"]
KINDS: tuple[Kind, ...] = ("rademacher", "two-sided", "gaussian", "none")
DEFAULT_DIM = 5120
_BLOCK = 1 << 16  # rows of a dense Gaussian matrix made at once


@dataclass(frozen=True, slots=True, eq=False)  # torch.compile hashes it before it is complete
class Fold:
    """A signed hash of F numbers into K: each lands in one place, places are shared evenly.

    E<fold(x), fold(y)> = <x, y>, and the variance of |fold(x)|^2 is at most 2 |x|^4 / K, that of
    a dense Gaussian projection, without its F x K entries.
    """

    index_N: Tensor  # which number goes to each place, K places after K places; F stands for none
    sign_N: Tensor
    dim: int

    def __call__(self, value_BF: Tensor) -> Tensor:
        padded_BF = torch.nn.functional.pad(value_BF, (0, 1))
        spread_BN = padded_BF.index_select(1, self.index_N) * self.sign_N
        return spread_BN.view(len(value_BF), -1, self.dim).sum(dim=1)


@dataclass(frozen=True, slots=True, eq=False)
class MatrixProjection:
    """Both sides of one weight matrix, in the order of the parameter's own axes."""

    row_Rq: Tensor
    col_Cp: Tensor
    one_row_q: Tensor  # row of the constant input, where inputs are the parameter's rows
    one_col_p: Tensor  # the same where inputs are its columns
    fold: Fold | None  # only where q p is not K

    def slot(self, sketch_Bqp: Tensor) -> Tensor:
        """Flattened into the slot: (B, K) float32 or better."""
        flat_BF = sketch_Bqp.flatten(1)
        return flat_BF if self.fold is None else self.fold(flat_BF)

    def of_gradient(self, gradient_BRC: Tensor) -> Tensor:
        """The sketch of gradients that are there in full."""
        return self.slot(self.row_Rq.T @ gradient_BRC @ self.col_Cp)

    def of_bias(self, gradient_BN: Tensor, *, bias_on: Literal["row", "col"]) -> Tensor:
        """The sketch of a bias' gradients, on the axis where the layer's outputs are."""
        if bias_on == "row":
            return self.slot((gradient_BN @ self.row_Rq)[:, :, None] * self.one_col_p)
        return self.slot(self.one_row_q[:, None] * (gradient_BN @ self.col_Cp)[:, None, :])

    def tensors(self) -> tuple[Tensor, ...]:
        fold = () if self.fold is None else (self.fold.index_N, self.fold.sign_N)
        return (self.row_Rq, self.col_Cp, self.one_row_q, self.one_col_p, *fold)

    @classmethod
    def from_tensors(cls, tensors: tuple[Tensor, ...], dim: int) -> "MatrixProjection":
        row_Rq, col_Cp, one_row_q, one_col_p, *hash_N = tensors
        fold = Fold(hash_N[0], hash_N[1], dim) if hash_N else None
        return cls(row_Rq, col_Cp, one_row_q, one_col_p, fold)


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """How gradients are projected. Matrices are functions of (seed, parameter name, step)."""

    dim: int = DEFAULT_DIM  # K
    kind: Kind = "rademacher"
    seed: int = 0
    # The same matrices always, new ones every step, or new ones every so many steps.
    refresh: int | Literal["never", "step"] = "never"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"projection={self.kind!r} is not known; it is one of {KINDS}")
        if self.dim < 1:
            raise ConfigError(f"a sketch needs at least 1 dimension, got dim={self.dim}")
        rows, cols = self.columns
        if self.kind in ("rademacher", "two-sided") and rows > 4 * cols:
            sides = ((d, *_sides(d)) for d in range(self.dim, 2 * self.dim))
            near = next(d for d, larger, smaller in sides if larger <= 2 * smaller)
            raise ConfigError(
                f"dim={self.dim} splits into {rows} x {cols} columns, too narrow on one side for a "
                f"two-sided projection; take {near}, or projection=gaussian"
            )
        if isinstance(self.refresh, str):
            bad = self.refresh not in ("never", "step")
        else:
            bad = isinstance(self.refresh, bool) or self.refresh < 1
        if bad:
            raise ConfigError(
                f"refresh={self.refresh!r}: give never, step, or a number of steps > 0"
            )

    @property
    def columns(self) -> tuple[int, int]:
        """Columns of a weight matrix' two sides (q, p), q p = K."""
        return _sides(self.dim)

    def epoch(self, step: int) -> int:
        """The step from which the projection of `step` has held."""
        if self.refresh == "never":
            return 0
        return step if self.refresh == "step" else step - step % self.refresh

    def matrix(
        self, name: str, shape: tuple[int, int], *, wide: bool, step: int, like: Tensor
    ) -> MatrixProjection:
        """The two sides for a weight; `wide` doubles their columns (embeddings, heads)."""
        q, p = self.columns
        if wide:
            q = p = 2 * p
        wide_fold = None if q * p == self.dim else self.fold(name, q * p, step=step, like=like)
        return MatrixProjection(
            row_Rq=self._entries(name, "row", (shape[0], q), q, step, like),
            col_Cp=self._entries(name, "col", (shape[1], p), p, step, like),
            one_row_q=self._entries(name, "one_row", (q,), q, step, like),
            one_col_p=self._entries(name, "one_col", (p,), p, step, like),
            fold=wide_fold,
        )

    def fold(self, name: str, size: int, *, step: int, like: Tensor) -> Fold:
        """A signed hash of `size` numbers."""
        generator = self._generator(name, "fold", step, like)
        places = math.ceil(size / self.dim) * self.dim
        index_N = torch.randperm(places, generator=generator, device=like.device).clamp_(max=size)
        sign_N = torch.empty(places, device=like.device, dtype=_wide_dtype(like))
        sign_N.bernoulli_(0.5, generator=generator).mul_(2).sub_(1)
        return Fold(index_N, sign_N, self.dim)

    def dense(self, name: str, gradient_BD: Tensor, *, step: int) -> Tensor:
        """R'g with R ~ N(0, 1/K), as the paper prints it; R is made in blocks, never held."""
        sketch_BK = gradient_BD.new_zeros(len(gradient_BD), self.dim)
        for block, start in enumerate(range(0, gradient_BD.shape[1], _BLOCK)):
            part_Bd = gradient_BD[:, start : start + _BLOCK]
            shape = (part_Bd.shape[1], self.dim)
            generator = self._generator(name, f"block {block}", step, gradient_BD)
            dense_dK = torch.randn(
                shape, generator=generator, device=gradient_BD.device, dtype=gradient_BD.dtype
            )
            sketch_BK += part_Bd @ dense_dK
        return sketch_BK / math.sqrt(self.dim)

    def _entries(
        self, name: str, side: str, shape: tuple[int, ...], columns: int, step: int, like: Tensor
    ) -> Tensor:
        generator = self._generator(name, side, step, like)
        entries = torch.empty(shape, device=like.device, dtype=torch.float32)
        if self.kind == "rademacher":
            entries.bernoulli_(0.5, generator=generator).mul_(2).sub_(1)
        else:
            entries.normal_(generator=generator)
        return entries.div_(math.sqrt(columns)).to(like.dtype)

    def _generator(self, name: str, side: str, step: int, like: Tensor) -> torch.Generator:
        key = key64(self.seed, "projection", name, side, self.epoch(step))
        return torch.Generator(like.device).manual_seed(key >> 1)


def _sides(dim: int) -> tuple[int, int]:
    """The factors of `dim` nearest to its square root, the larger first."""
    small = next(f for f in range(math.isqrt(dim), 0, -1) if dim % f == 0)
    return dim // small, small


def _wide_dtype(like: Tensor) -> torch.dtype:
    return torch.float64 if like.dtype == torch.float64 else torch.float32

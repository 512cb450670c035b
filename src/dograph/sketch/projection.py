"""Random projections of parameters' gradients into one slot of K numbers a sample.

A weight matrix W (R x C) is projected from both sides: S = P_row' G P_col, with P_row (R x q),
P_col (C x p), K = q p, entries of variance 1/q and 1/p, so E|S|^2 = |G|^2 whatever the layer's
shape. Vectors (norms and biases) are laid end to end and hashed into the slot with random signs.
All parameters are summed into the same slot: their projections are independent, so the cross
terms vanish in the mean.

The number of columns rules the error, not K alone: for a matrix of effective rank r the relative
variance of |S|^2 is 2/(pq) + (2/r)(1/p + 1/q + 1/(pq)), and per-sample gradients have low rank.

Shapes: B samples, R x C a parameter, q x p its sketch before flattening, K = q p the slot.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dograph.errors import ConfigError
from dograph.modes import DEFAULT_DIM, KINDS, TWO_SIDED, Kind, Refresh
from dograph.rng import key64

_BLOCK = 1 << 16  # rows of a dense Gaussian matrix made at once


@dataclass(frozen=True, slots=True, eq=False)  # torch.compile hashes it before it is complete
class Fold:
    """A signed hash of F numbers into K: each lands in one place, places are shared evenly.

    Stretches of K numbers are turned by random amounts, given random signs and added up. Two
    numbers of different stretches meet with odds of 1 in K, those of one stretch never, so
    E<fold(x), fold(y)> = <x, y>, and the variance of |fold(x)|^2 is below 2 |x|^4 / K, that of a
    dense Gaussian projection, without its F x K entries.
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
    fold: Fold | None  # only where q p is not K

    def slot(self, sketch_Bqp: Tensor) -> Tensor:
        """Flattened into the slot: (B, K) float32 or better."""
        flat_BF = sketch_Bqp.flatten(1)
        return flat_BF if self.fold is None else self.fold(flat_BF)

    def of_gradient(self, gradient_BRC: Tensor) -> Tensor:
        """The sketch of gradients that are there in full."""
        row_Rq, col_Cp = (side.to(gradient_BRC.dtype) for side in (self.row_Rq, self.col_Cp))
        sketch_Bqp = row_Rq.T @ gradient_BRC @ col_Cp
        return self.slot(sketch_Bqp.to(torch.promote_types(sketch_Bqp.dtype, torch.float32)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """How gradients are projected. Matrices are functions of (seed, parameter name, step)."""

    dim: int = DEFAULT_DIM  # K
    kind: Kind = "rademacher"
    seed: int = 0
    refresh: Refresh = "never"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"projection={self.kind!r} is not known; it is one of {KINDS}")
        if self.dim < 1:
            raise ConfigError(f"a sketch needs at least 1 dimension, got dim={self.dim}")
        rows, cols = self.columns
        if self.kind in TWO_SIDED and rows > 4 * cols:
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

    def sides(self, *, wide: bool) -> tuple[int, int]:
        """Columns of a matrix (q, p); `wide` ones have more (embeddings, heads)."""
        q, p = self.columns
        return (2 * p, 2 * p) if wide else (q, p)

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

    def _generator(self, name: str, side: str, step: int, like: Tensor) -> torch.Generator:
        key = key64(self.seed, "projection", name, side, self.epoch(step))
        return torch.Generator(like.device).manual_seed(key >> 1)


def _sides(dim: int) -> tuple[int, int]:
    """The factors of `dim` nearest to its square root, the larger first."""
    small = next(f for f in range(math.isqrt(dim), 0, -1) if dim % f == 0)
    return dim // small, small

"""Random projections of per-sample gradients into K numbers per sample.

A weight matrix W (R x C) is projected from both sides: S = P_row' G P_col, with P_row (R x q),
P_col (C x p), K = q p, entries of variance 1/q and 1/p, so E|S|^2 = |G|^2 for any layer shape.
Vectors (norms and biases) are concatenated and hashed into the K numbers with random signs. The
sketch is the sum over all parameters: their projections are independent, so the cross terms vanish
in expectation. Kind `hashed`: for the vocabulary's side of embeddings and output layers P_row is a
signed hash, whose row r has one entry, +-1 in column r mod q. On average over rows its error is
that of dense signs, and P_row' G takes one addition for each number of G.

The error depends on q and p, not on K alone: for a matrix of effective rank r the relative
variance of |S|^2 is 2/(pq) + (2/r)(1/p + 1/q + 1/(pq)), and per-sample gradients have low rank.

Shapes: B samples, R x C a parameter, q x p its sketch before flattening, K = q p.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dograph.choices import KINDS, TWO_SIDED, Kind
from dograph.config import DEFAULT_DIM, Refresh
from dograph.errors import ConfigError
from dograph.kernels import usable
from dograph.rng import key64
from dograph.sketch.gradients import Gradients, MicroBatchResult, Vector, materialised
from dograph.sketch.rules import Rule, make_slot

VECTORS = "vectors"  # the name of their hash's random stream
_BLOCK = 1 << 16  # rows of a dense Gaussian matrix drawn at once


@dataclass(frozen=True, slots=True, eq=False)  # torch.compile hashes it before it is complete
class Fold:
    """A signed hash of F numbers into K buckets of equal size.

    Chunks of K numbers are rotated by random amounts, given random signs and added up. Two numbers
    of different chunks share a bucket with probability 1/K, those of one chunk never, so
    E<fold(x), fold(y)> = <x, y>, and the variance of |fold(x)|^2 is below 2 |x|^4 / K, that of a
    dense Gaussian projection, without its F x K entries.
    """

    index_N: Tensor  # the number in each bucket, chunk after chunk; F means none
    sign_N: Tensor
    dim: int

    def __call__(self, value_BF: Tensor) -> Tensor:
        padded_BF = torch.nn.functional.pad(value_BF, (0, 1))
        spread_BN = padded_BF.index_select(1, self.index_N) * self.sign_N
        return spread_BN.view(len(value_BF), -1, self.dim).sum(dim=1)


@dataclass(frozen=True, slots=True, eq=False)
class MatrixProjection:
    """The projections of both sides of a weight matrix, in the order of its axes."""

    row_Rq: Tensor
    col_Cp: Tensor
    fold: Fold | None  # only if q p is not K
    sign_R: Tensor | None = None  # if the rows are hashed: those of row_Rq, one of each row

    def slot(self, sketch_Bqp: Tensor) -> Tensor:
        """Flattened, and folded if needed: (B, K) float32 or better."""
        flat_BF = sketch_Bqp.flatten(1)
        return flat_BF if self.fold is None else self.fold(flat_BF)

    def of_gradient(self, gradient_BRC: Tensor) -> Tensor:
        """The sketch of full gradients."""
        row_Rq, col_Cp = (side.to(gradient_BRC.dtype) for side in (self.row_Rq, self.col_Cp))
        sketch_Bqp = row_Rq.T @ gradient_BRC @ col_Cp
        return self.slot(sketch_Bqp.to(torch.promote_types(sketch_Bqp.dtype, torch.float32)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """How gradients are projected; matrices are functions of (seed, parameter name, step)."""

    dim: int = DEFAULT_DIM  # K
    kind: Kind = "hashed"
    seed: int = 0
    refresh: Refresh = "never"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError(f"projection={self.kind!r} is not known; give one of {KINDS}")
        if self.dim < 1:
            raise ConfigError(f"a sketch needs at least 1 dimension, got dim={self.dim}")
        rows, cols = self.sides()
        if self.kind in TWO_SIDED and rows > 4 * cols:
            sides = ((d, *_sides(d)) for d in range(self.dim, 2 * self.dim))
            near = next(d for d, larger, smaller in sides if larger <= 2 * smaller)
            raise ConfigError(
                f"dim={self.dim} splits into {rows} x {cols} columns, too narrow on one side for a "
                f"two-sided projection; take {near}, or projection=gaussian"
            )
        refresh: object = self.refresh
        number = isinstance(refresh, int) and not isinstance(refresh, bool) and refresh > 0
        if not number and refresh not in ("never", "step"):
            raise ConfigError(f"refresh={refresh!r}: give never, step, or a number of steps > 0")

    def epoch(self, step: int) -> int:
        """The step at which the projection of `step` was drawn."""
        if self.refresh == "never":
            return 0
        return step if self.refresh == "step" else step - step % self.refresh

    def sides(self, *, wide: bool = False) -> tuple[int, int]:
        """Columns of a matrix (q, p), q p = K; `wide` ones (embeddings, heads) have more."""
        q, p = _sides(self.dim)
        return (2 * p, 2 * p) if wide else (q, p)

    def dense(self, name: str, gradient_BD: Tensor, *, step: int) -> Tensor:
        """R'g with R ~ N(0, 1/K), as in the paper; R is drawn in blocks and never held whole."""
        sketch_BK = gradient_BD.new_zeros(len(gradient_BD), self.dim)
        for block, start in enumerate(range(0, gradient_BD.shape[1], _BLOCK)):
            part_Bd = gradient_BD[:, start : start + _BLOCK]
            key = key64(self.seed, "projection", name, f"block {block}", self.epoch(step))
            generator = torch.Generator(gradient_BD.device).manual_seed(key >> 1)
            dense_dK = gradient_BD.new_empty(part_Bd.shape[1], self.dim)
            sketch_BK += part_Bd @ dense_dK.normal_(generator=generator)
        return sketch_BK / math.sqrt(self.dim)


def _sides(dim: int) -> tuple[int, int]:
    """The factors of `dim` nearest to its square root, the larger first."""
    small = next(f for f in range(math.isqrt(dim), 0, -1) if dim % f == 0)
    return dim // small, small


# Random words and signs as functions of a key: the same on every device, for many keys at once.
#
# A stream is SplitMix64 (Steele, Lea and Flood 2014): word w of key k is mix(k + w * GOLDEN). The
# words of all streams take a dozen operations, however many streams there are, and each word gives
# 64 signs: drawing the projections of a whole model costs a few small kernels.


GOLDEN = 0x9E3779B97F4A7C15
BITS = 64  # of a word


def signed(key: int) -> int:
    """An unsigned 64-bit number as torch.int64 holds it."""
    return key - (1 << BITS) if key >> (BITS - 1) else key


def start_words(keys: list[int], counts: list[int], device: torch.device) -> Tensor:
    """The counters of all keys, one key after the other, that `words` draws from."""
    count_S = torch.tensor(counts)
    key_W = torch.tensor([signed(k) for k in keys]).repeat_interleave(count_S)
    first_W = (count_S.cumsum(0) - count_S).repeat_interleave(count_S)
    index_W = torch.arange(1, len(key_W) + 1) - first_W
    return mixed(key_W + index_W * signed(GOLDEN)).to(device)


def words(start_W: Tensor, seed: int, epoch: int) -> Tensor:
    """64 random bits for each counter, different in every epoch."""
    return mixed(start_W ^ epoch_key(seed, epoch))


def epoch_key(seed: int, epoch: int) -> int:
    """A key that differs between epochs."""
    return signed(key64(seed, "projection epoch", epoch))


def mixed(value: Tensor) -> Tensor:
    """SplitMix64's finaliser: each input bit flips half of the output bits."""
    value = (value ^ _shifted(value, 30)) * signed(0xBF58476D1CE4E5B9)
    value = (value ^ _shifted(value, 27)) * signed(0x94D049BB133111EB)
    return value ^ _shifted(value, 31)


def signs(start_W: Tensor, seed: int, epoch: int, scale: float, dtype: torch.dtype) -> Tensor:
    """64 entries of +-scale for each counter, one per bit of its word: (64 W,)."""
    if usable(start_W):
        from dograph.kernels.projection import signs_by_kernel

        return signs_by_kernel(start_W, epoch_key(seed, epoch), scale, dtype)
    return signs_plainly(words(start_W, seed, epoch), scale, dtype)


def signs_plainly(word_W: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
    """The same in plain PyTorch, byte by byte: row b of a table has the eight entries of byte b."""
    device = word_W.device
    bit_256x8 = torch.arange(256, device=device)[:, None] >> torch.arange(8, device=device) & 1
    table_256x8 = (bit_256x8 * (2 * scale) - scale).to(dtype)
    return table_256x8.index_select(0, word_W.view(torch.uint8).int()).flatten()


def _shifted(value: Tensor, places: int) -> Tensor:
    """A logical right shift: torch's own copies the sign bit."""
    return (value >> places) & ((1 << (BITS - places)) - 1)


# All random matrices of a model, drawn together.
#
# Each is a function of (seed, parameter name, epoch) alone, whatever else is drawn with it. They
# are slices of a few flat tensors that are filled anew when the projection is redrawn, a dozen
# operations in all: redrawing in every step costs next to nothing.


class Bank:
    """Random matrices of one `dtype` and folds, by name; filled by `draw`."""

    def __init__(self, projection: Projection, dtype: torch.dtype, device: torch.device) -> None:
        self.projection, self.dtype, self.device = projection, dtype, device
        # Shapes of what is drawn, a side of a matrix or the signs or rotations of a fold, by name
        # and part; drawn together by kind ("entry", "hash", "sign", "turn") and columns: entries
        # have variance 1 / columns.
        self.wanted = defaultdict[tuple[str, int], dict[tuple[str, str], tuple[int, ...]]](dict)
        self.epoch: int | None = None
        self.folds: dict[str, Fold] = {}
        self._fold_sizes: dict[str, int] = {}
        self._starts: dict[tuple[str, int], Tensor] = {}  # by kind and columns
        self._spread: dict[str, Tensor] = {}  # hashes as matrices, by name
        self._flat: dict[tuple[str, int], Tensor] = {}  # all of a kind
        self._drawn: dict[tuple[str, str], Tensor] = {}  # views, by name and part

    def add_matrix(self, name: str, shape: tuple[int, int], *, wide: bool) -> None:
        """Request both sides of a weight; a tied weight is requested once."""
        if any((name, "row") in shapes for shapes in self.wanted.values()):
            return
        q, p = self.projection.sides(wide=wide)
        if wide and self.projection.kind == "hashed":
            self.wanted["hash", q][name, "row"] = (shape[0],)
        else:
            self.wanted["entry", q][name, "row"] = (shape[0], q)
        self.wanted["entry", p][name, "col"] = (shape[1], p)
        if q * p != self.projection.dim:
            self.add_fold(name, q * p)

    def add_fold(self, name: str, size: int) -> None:
        """Request a signed hash of `size` numbers."""
        chunks = math.ceil(size / self.projection.dim)
        self.wanted["sign", 1][name, "sign"] = (chunks, self.projection.dim)
        self.wanted["turn", 1][name, "turn"] = (chunks,)
        self._fold_sizes[name] = size

    def matrix(self, name: str) -> MatrixProjection:
        row, col_Cp = self._drawn[name, "row"], self._drawn[name, "col"]
        fold, spread_Rq = self.folds.get(name), self._spread.get(name)
        if spread_Rq is None:
            return MatrixProjection(row, col_Cp, fold)
        return MatrixProjection(spread_Rq, col_Cp, fold, sign_R=row)

    def draw(self, step: int) -> bool:
        """Fill the bank for this step, unless the last projection still holds: False.

        Drawn in place: a CUDA graph that reads the matrices knows them by their addresses.
        """
        if self.epoch == (epoch := self.projection.epoch(step)) or not self.wanted:
            return False
        seed = self.projection.seed
        for (kind, columns), shapes in self.wanted.items():
            per_word = 1 if kind == "turn" else BITS
            counts = [math.ceil(math.prod(shape) / per_word) for shape in shapes.values()]
            if (kind, columns) not in self._starts:
                keys = [key64(seed, "projection", name, part) for name, part in shapes]
                self._starts[kind, columns] = start_words(keys, counts, self.device)
            start_W = self._starts[kind, columns]
            if kind == "turn":
                flat_N = words(start_W, seed, epoch)
            else:
                wide = torch.promote_types(self.dtype, torch.float32)
                dtype = {"entry": self.dtype, "hash": torch.int8}.get(kind, wide)
                scale = 1.0 if kind == "hash" else columns**-0.5
                flat_N = signs(start_W, seed, epoch, scale, dtype)
            held_N = self._flat.setdefault((kind, columns), flat_N).copy_(flat_N)
            parts = held_N.split([per_word * count for count in counts])
            for (key, shape), part_N in zip(shapes.items(), parts, strict=True):
                self._drawn[key] = part_N[: math.prod(shape)].view(shape)
                if kind == "hash":
                    self._as_matrix(key[0], self._drawn[key], columns)
        for name, size in self._fold_sizes.items():
            drawn = self._fold(name, size)
            self.folds.setdefault(name, drawn).index_N.copy_(drawn.index_N)
        self.epoch = epoch
        return True

    def _as_matrix(self, name: str, sign_R: Tensor, columns: int) -> None:
        """Row r of a hash has its sign in column r mod `columns`."""
        empty_Rq = torch.zeros(len(sign_R), columns, dtype=self.dtype, device=self.device)
        place_R = torch.arange(len(sign_R), device=self.device)
        spread_Rq = self._spread.setdefault(name, empty_Rq)
        spread_Rq[place_R, place_R % columns] = sign_R.to(self.dtype)

    def _fold(self, name: str, size: int) -> Fold:
        turn_S, dim = self._drawn[name, "turn"], self.projection.dim
        turn_S1 = (turn_S & ((1 << 62) - 1))[:, None] % dim
        place_K = torch.arange(dim, device=self.device)
        first_S1 = torch.arange(len(turn_S), device=self.device)[:, None] * dim
        index_N = (first_S1 + (place_K + turn_S1) % dim).flatten().clamp_max(size)
        return Fold(index_N, self._drawn[name, "sign"].flatten(), dim)


class SketchBuilder:
    """Builds one sketch per sample from the taps' results: slots, random matrices, hashes.

    Matrices of one width add up in one slot during the backward. Wide ones (embeddings, heads) and
    vectors (norms, biases) are hashed into K numbers after it, all vectors at once.
    """

    def __init__(
        self,
        rules: list[Rule],
        projection: Projection,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.rules, self.projection, self.made_for = rules, projection, (dtype, device)
        self.bank = Bank(projection, dtype, device)
        # By group; a wide matrix, which has a hash of its own, also by parameter.
        self.slots: dict[tuple[str, str | None], Tensor] = {}
        self.sizes: dict[str, int] = {}  # of the model's vectors, by parameter, in their order
        if projection.kind not in TWO_SIDED:
            return
        for rule in rules:
            if rule.matrix is not None:
                shape = rule.module.weight.shape
                self.bank.add_matrix(rule.names["weight"], (shape[0], shape[1]), wide=rule.wide)
            self.sizes |= rule.vector_sizes()  # a tied parameter is there once: its uses add up
        if self.sizes:
            self.bank.add_fold(VECTORS, sum(self.sizes.values()))

    def open_slots(self, shape: tuple[int, int], *, sketches: bool) -> None:
        """Give every rule its slots for (samples, tokens); with `sketches`, one for its matrix."""
        self.slots, (dtype, device) = {}, self.made_for
        for rule in self.rules:
            slot = None
            if rule.matrix is not None and sketches:
                key = rule.group, rule.names["weight"] if rule.wide else None
                if key not in self.slots:
                    q, p = self.projection.sides(wide=rule.wide)
                    wide = torch.promote_types(rule.module.weight.dtype, torch.float32)
                    self.slots[key] = make_slot((shape[0], q * p), wide, device)
                slot = self.slots[key]
            rule.open_slots(shape, dtype, slot)

    def draw(self, step: int) -> None:
        """Draw the random matrices of this step, unless those of the last step still hold."""
        if self.bank.draw(step):
            for rule in self.rules:
                if rule.matrix is not None:
                    drawn = self.bank.matrix(rule.names["weight"])
                    signs_R = () if drawn.sign_R is None else (drawn.sign_R,)
                    rule.projection = (drawn.row_Rq, drawn.col_Cp, *signs_R)

    def groups(self, sketches: list[Tensor | None], vectors: list[Vector]) -> dict[str, Tensor]:
        """The parts of the sketch by group: (B, K) each."""
        parts: dict[str, list[Tensor]] = {rule.group: [] for rule in self.rules}
        for (group, name), sketch_BF in zip(self.slots, sketches, strict=True):
            if sketch_BF is not None:
                if name is not None and sketch_BF.shape[1] != self.projection.dim:
                    sketch_BF = self.bank.folds[name](sketch_BF)
                parts[group].append(sketch_BF)
        if vectors:
            names = [name for rule, _ in vectors for name in rule.vector_sizes()]
            if names == list(self.sizes):
                vector_BF = torch.cat([vector for _, vector in vectors], dim=1)
            else:
                vector_BF = self._laid_out(materialised([], vectors))
            parts.setdefault("rest", []).append(self.bank.folds[VECTORS](vector_BF))
        empty = next(part[0] for part in parts.values() if part)
        return {
            group: sum(part[1:], start=part[0]) if part else torch.zeros_like(empty)
            for group, part in parts.items()
        }

    def _laid_out(self, per_sample: Gradients) -> Tensor:
        """The model's vectors end to end: (B, F), zeros for layers that do not reach the loss."""
        some = next(iter(per_sample.values()))
        parts = []
        for name, size in self.sizes.items():
            part = per_sample.get(name)
            parts.append(some.new_zeros(len(some), size) if part is None else part.flatten(1))
        return torch.cat(parts, dim=1)

    def groups_of_gradients(self, per_sample: Gradients, step: int) -> dict[str, Tensor]:
        """The same from full gradients (B, *shape), without taps: tests compare the two."""
        kind, done = self.projection.kind, set(self.sizes)  # vectors are hashed all at once
        groups: dict[str, list[Tensor]] = {}
        for rule in self.rules:
            for _, name in sorted(rule.names.items(), key=lambda item: item[0] != "weight"):
                if name in done or name not in per_sample:
                    continue
                done.add(name)  # a tied parameter's gradient already holds both of its uses
                if kind == "none":
                    part_BK = per_sample[name].flatten(1)
                elif kind == "gaussian":
                    part_BK = self.projection.dense(name, per_sample[name].flatten(1), step=step)
                else:
                    part_BK = self.bank.matrix(name).of_gradient(per_sample[name])
                groups.setdefault(rule.group, []).append(part_BK)
        if self.sizes:
            vector_BF = self._laid_out(per_sample)
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

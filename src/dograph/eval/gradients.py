"""Separation of sources in gradient space with a standard error; probes; principal components.

The separation of two sources is that of inspect.pairwise_mmd: unbiased MMD^2 over the mean of
their spreads (tr cov). Here it is the average over all pairs, computed from a Gram matrix together
with its value without each row, which gives the interval.

A bootstrap of it would be biased upwards: rows drawn with replacement occur twice, and the product
of a row with its copy is a square, which the unbiased estimate excludes. So rows are left out one
at a time, within their source (jackknife):
    V = sum over sources of (n - 1) / n  sum_i (T(-i) - mean_i T(-i))^2.
T is a smooth function of U-statistics of order two. By Hoeffding's decomposition it is, to leading
order, linear terms in single rows plus sum_{i<j} w_ij h_ij over pairs of rows, where h is the Gram
about the sources' true means, with E h_ij^2 = tr(cov_g cov_h). V is right for the linear terms but
counts each pair about twice, once for either row (Efron and Stein 1981). With
Q = sum_{i<j} w_ij^2 E h_ij^2, the pairs' share of the variance,
    E V = linear + 2 Q between sources + 2 (n - 1) / (n - 2) Q within a source,
and Q can be estimated without bias from the Gram: between sources by centred products, within a
source by U-centred ones (Szekely and Rizzo 2014). So the variance is V minus the second count of
Q, and at least Q. With wide sketches and few rows Q is most of it: without this, intervals are
up to sqrt(2) too wide.

Shapes: N rows, S sources.
"""

from dataclasses import dataclass, field, replace
from itertools import compress
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from dograph.errors import ConfigError, RunError
from dograph.records import DAMAGE, Skipped, read_record
from dograph.train.run_dir import RunDirectory

# Spreads below this share of the mean square of a row count as zero, and so do components with
# less than this share of the variance.
ROUNDING = 1e-12
LEAST_ROWS = 4  # of a source: U-centred squares are divided by n - 3


@dataclass(frozen=True, slots=True)
class Separation:
    """A mean separation and the parts of its standard error; two of them subtract row by row."""

    value: float
    without_N: Tensor  # the value without each row
    pair_NN: Tensor  # w_ij h_ij, scaled so that squares are unbiased; zero on the diagonal
    source_N: Tensor

    def __sub__(self, other: "Separation") -> "Separation":
        """The change between two probes of the same rows, whose errors are correlated."""
        without_N, pair_NN = self.without_N - other.without_N, self.pair_NN - other.pair_NN
        return Separation(self.value - other.value, without_N, pair_NN, self.source_N)

    def standard_error(self) -> float:
        """Over other samples of as many rows from the same sources; derived above."""
        origin_NS = F.one_hot(self.source_N).double()
        pairs_SS = origin_NS.T @ self.pair_NN.square() @ origin_NS / 2
        pairs = pairs_SS.sum()
        again = pairs + (pairs_SS.diagonal() * 2 / (origin_NS.sum(dim=0) - 2)).sum()
        variance = jackknife_variance(self.without_N, self.source_N) - again
        return float(torch.maximum(variance, pairs).sqrt())


def jackknife_variance(without_N: Tensor, source_N: Tensor) -> Tensor:
    """Variance of a figure from its values without each row, rows being sampled within sources.

    On average too large rather than too small, for any figure (Efron and Stein 1981).
    """
    origin_NS = F.one_hot(source_N).double()
    count_S = origin_NS.sum(dim=0)
    mean_S = origin_NS.T @ without_N / count_S
    away_N = (without_N - mean_S[source_N]).square()
    return (away_N * ((count_S - 1) / count_S)[source_N]).sum()


def separation(gram_NN: Tensor, source_N: Tensor) -> Separation:
    """Mean over pairs of sources of unbiased MMD^2 / spread, from the Gram of the sketches.

    MMD^2 = A_gg + A_hh - 2 A_gh with A the mean inner product of different rows; the spread is
    (D_g - A_gg + D_h - A_hh) / 2 with D the mean square of a row. Sources are numbered from 0,
    each with at least LEAST_ROWS rows. NaN if a source has no spread at all.
    """
    origin_NS = F.one_hot(source_N).double()
    count_S = origin_NS.sum(dim=0)
    assert len(count_S) > 1, "separation needs two sources"
    assert count_S.min() >= LEAST_ROWS, "smaller sources are left out before"
    rounding = ROUNDING * gram_NN.diagonal().mean()
    # Centred on the mean of all rows: the same separations with less rounding error.
    gram_NN = gram_NN.double()
    mean_N = gram_NN.mean(dim=1)
    gram_NN = gram_NN - mean_N[:, None] - mean_N + mean_N.mean()
    square_N, to_NS = gram_NN.diagonal(), gram_NN @ origin_NS
    others_N = to_NS.gather(1, source_N[:, None])[:, 0] - square_N
    within_S = origin_NS.T @ others_N / (count_S * (count_S - 1))
    square_S = origin_NS.T @ square_N / count_S
    across_SS = origin_NS.T @ to_NS / (count_S[:, None] * count_S)
    spread_S = square_S - within_S
    spread_S = spread_S.masked_fill(spread_S <= rounding, torch.nan)
    apart_SS = within_S[:, None] + within_S - 2 * across_SS
    spread_SS = (spread_S[:, None] + spread_S) / 2
    ratio_SS = (apart_SS / spread_SS).fill_diagonal_(0)
    num_pairs = len(count_S) * (len(count_S) - 1) / 2

    # The same without row i, which changes the terms of its own source only.
    count_N = count_S[source_N]
    all_N = count_N * (count_N - 1) * within_S[source_N]
    within_N = (all_N - 2 * others_N) / ((count_N - 1) * (count_N - 2))
    spread_N = (count_N * square_S[source_N] - square_N) / (count_N - 1) - within_N
    across_NS = (count_N[:, None] * across_SS[source_N] - to_NS / count_S) / (count_N[:, None] - 1)
    apart_NS = within_N[:, None] + within_S - 2 * across_NS
    spread_NS = (spread_N[:, None] + spread_S) / 2
    change_NS = (apart_NS / spread_NS - ratio_SS[source_N]).masked_fill(origin_NS > 0, 0)

    value = ratio_SS.sum() / 2 / num_pairs
    per_within_SS = (1 / spread_SS + apart_SS / (2 * spread_SS.square())).fill_diagonal_(0)
    slope_SS = -2 / spread_SS / num_pairs  # derivative of the value by A_gh
    slope_SS.diagonal().copy_(per_within_SS.sum(dim=1) / num_pairs)  # and by A_gg
    pair_NN = slope_SS[source_N][:, source_N] * _pair_terms(gram_NN, origin_NS, source_N)
    without_N = value + change_NS.sum(dim=1) / num_pairs
    return Separation(float(value), without_N, pair_NN, source_N)


def _pair_terms(gram_NN: Tensor, origin_NS: Tensor, source_N: Tensor) -> Tensor:
    """Each pair's term in A_gg or A_gh beyond those of its rows, so that squares are unbiased.

    Between sources h_ij = <x_i - mean_g, x_j - mean_h>, and E sum h^2 = (n_g - 1)(n_h - 1)
    tr(cov_g cov_h). Within a source off the diagonal, with r_i the sum of k_ij over j != i:
    h_ij = k_ij - (r_i + r_j) / (n - 2) + r / ((n - 1)(n - 2)), and E sum h^2 = n (n - 3) tr cov^2.
    """
    count_S = origin_NS.sum(dim=0)
    count_N = count_S[source_N]
    mean_NS = gram_NN @ (origin_NS / count_S)
    mean_SS = (origin_NS / count_S).T @ mean_NS
    mean_NN = mean_NS[:, source_N]
    between_NN = gram_NN - mean_NN - mean_NN.T + mean_SS[source_N][:, source_N]
    scale_N = 1 / (count_N * (count_N - 1)).sqrt()
    between_NN = between_NN * scale_N[:, None] * scale_N
    row_N = (mean_NS.gather(1, source_N[:, None])[:, 0] * count_N) - gram_NN.diagonal()
    all_N = (origin_NS.T @ row_N)[source_N]
    inside_NN = gram_NN - (row_N[:, None] + row_N) / (count_N - 2)
    inside_NN = inside_NN + all_N / ((count_N - 1) * (count_N - 2))
    factor_N = 2 / (count_N * (count_N - 1)) * ((count_N - 1) / (count_N - 3)).sqrt()
    same_NN = source_N[:, None] == source_N
    return torch.where(same_NN, inside_NN * factor_N, between_NN).fill_diagonal_(0)


@dataclass(frozen=True, slots=True)
class Probe:
    """Sketches of a run's probe rows after `step` steps."""

    step: int
    sources: list[str]
    rows: list[dict[str, Any]]  # where each row is in the corpus
    sketch_NK: Tensor  # float32, all finite
    source_N: Tensor  # int64, index into sources
    label_N: Tensor  # int64: the mixer's domains, -1 before it has any
    loss_N: Tensor  # nats
    nearest: dict[int, list[int]] = field(default_factory=dict)  # rows nearest each centroid

    def keeping(self, least: int) -> tuple["Probe", list[str]]:
        """The rows of sources with at least `least` of them, and the names of the other sources."""
        kept_S = torch.bincount(self.source_N, minlength=len(self.sources)) >= least
        row_N = kept_S[self.source_N]
        kept = replace(
            self,
            sources=list(compress(self.sources, kept_S)),
            rows=list(compress(self.rows, row_N)),
            sketch_NK=self.sketch_NK[row_N],
            source_N=(kept_S.cumsum(dim=0) - 1)[self.source_N[row_N]],
            label_N=self.label_N[row_N],
            loss_N=self.loss_N[row_N],
            nearest={},  # by the numbers of all rows
        )
        return kept, list(compress(self.sources, ~kept_S))


def probed_steps(run: Path) -> list[int]:
    """The steps after which a run has a complete probe, ascending; an error if it has none."""
    directory = RunDirectory.open(run)
    names = (path.stem for path in directory.probes.glob("step-*.json"))
    steps = sorted(int(name[5:]) for name in names if name[5:].isdecimal())
    if not steps:
        config = directory.config()
        raise RunError(
            f"{run} has no probes (mixer.name={config.mixer.name}, probe.rows={config.probe.rows}, "
            f"probe.at={list(config.probe.at)}). Train a run with probes: its mixer needs sketches "
            "(as dograph does), probe.rows is above 0, and the corpus has validation text"
        )
    return steps


def read_probe(run: Path, step: int) -> Probe:
    """The probe that a run made after `step` steps."""
    steps, file = probed_steps(run), RunDirectory(run).probe(step)
    if step not in steps:
        raise RunError(f"{run} has no probe of step {step}; it has those of {steps}")
    tensor_file, skipped = file.with_suffix(".safetensors"), Skipped()
    remedy = f"to continue without this probe, remove {file}"
    about = read_record(file, _probed_rows, skipped)
    if about is None:
        raise RunError(f"{'; '.join(skipped.warnings())}; {remedy}")
    sources, rows, nearest = about
    try:
        tensors = load_file(tensor_file)
        sketch_NK, source_N = tensors["sketch"].float(), tensors["source"].long()
        label_N, loss_N = tensors["label"].long(), tensors["loss"]
        sizes = {len(tensor) for tensor in (sketch_NK, source_N, label_N, loss_N)}
        if sizes != {len(rows)} or sketch_NK.ndim != 2 or not 0 <= source_N.min() <= source_N.max():
            raise ValueError("its tensors do not have the rows of its .json file")
        sources[int(source_N.max())]
    except (OSError, SafetensorError, *DAMAGE) as error:
        raise RunError(f"{tensor_file} cannot be read ({error}); {remedy}") from error
    if num_bad := int((~sketch_NK.isfinite().all(dim=1)).sum()):
        raise RunError(
            f"{num_bad} of {len(sketch_NK)} sketches in {tensor_file} are not finite: the run had "
            f"diverged by then; {remedy}"
        )
    return Probe(step, sources, rows, sketch_NK, source_N, label_N, loss_N, nearest)


def _probed_rows(
    values: dict[str, Any],
) -> tuple[list[str], list[dict[str, Any]], dict[int, list[int]]]:
    """Of a probe's .json file: sources, the place of each row, the rows nearest each centroid."""
    sources, rows = values["sources"], [dict(row) for row in values["rows"]]
    if not rows or not all(isinstance(name, str) for name in sources):
        raise ValueError("it does not name its sources and rows")
    nearest, keys = dict[int, list[int]](), ("source", "row", "document")
    number = {tuple(map(row.get, keys)): n for n, row in enumerate(rows)}
    for own in values.get("domains") or []:
        nearest[int(own["domain"])] = [number[tuple(map(row.get, keys))] for row in own["nearest"]]
    return list(sources), rows, nearest


@dataclass(frozen=True, slots=True)
class Principal:
    """Rows on a few principal axes."""

    coordinate_NC: Tensor  # float64
    explained_C: Tensor  # share of the rows' variance along each axis; 0 if they have none


def principal(sketch_NK: Tensor, num: int = 2, like_NK: Tensor | None = None) -> Principal:
    """Directions of sketches on the first `num` principal axes, their own or those of `like_NK`.

    With X the directions (sketches over their norms) centred on their mean, as in the paper's
    Figure 1, and X X' = U L U', coordinates are U sqrt(L). The sign of an axis makes its coordinate
    of largest absolute value (the first of equals) positive. An axis beyond the rank of the rows is
    zero. A random projection preserves inner products, so these components are close to those of
    the gradients themselves. On its own axes only the shape of a probe can be compared with others;
    on those of another probe its place can, and a drift of all rows is visible.
    """
    if sketch_NK.ndim != 2 or not bool(sketch_NK.isfinite().all()):
        raise ConfigError(
            f"sketches must be finite and (rows, K), got {tuple(sketch_NK.shape)} with "
            f"{int((~sketch_NK.isfinite()).sum())} values that are not"
        )
    most = min(sketch_NK.shape)
    if not 1 <= num <= most:
        raise ConfigError(
            f"num={num}: sketches of shape {tuple(sketch_NK.shape)} have 1 to {most} components"
        )
    like_NK = F.normalize((sketch_NK if like_NK is None else like_NK).double())
    origin_K = like_NK.mean(dim=0)
    centred_NK = like_NK - origin_K
    value_N, vector_NN = torch.linalg.eigh(centred_NK @ centred_NK.T)
    value_C, vector_NC = value_N.flip(0)[:num], vector_NN.flip(1)[:, :num]
    largest_1C = vector_NC.abs().argmax(dim=0, keepdim=True)
    vector_NC = vector_NC * vector_NC.gather(0, largest_1C).sign()
    flat_C = value_C <= ROUNDING * len(like_NK)  # directions have length 1
    axis_KC = centred_NK.T @ vector_NC / value_C.masked_fill(flat_C, 1).sqrt()

    direction_NK = F.normalize(sketch_NK.double())
    coordinate_NC = (direction_NK - origin_K) @ axis_KC.masked_fill(flat_C, 0)
    total = direction_NK.var(dim=0, correction=0).sum()
    along_C = coordinate_NC.var(dim=0, correction=0)
    return Principal(coordinate_NC, torch.where(total > ROUNDING, along_C / total, 0.0))

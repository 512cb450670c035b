"""How far apart sources are in gradient space, in units of their own spread, and how surely.

The separation of two sources is that of theory.mmd.pairwise_mmd: unbiased MMD^2 over the mean of
their spreads (tr cov). Here it is averaged over all pairs and taken from a Gram, together with
its value without each row, which the interval is made of.

Rows drawn with replacement would come twice, and the product of a row with its copy is a square,
just what the unbiased estimate leaves out: a bootstrap of it lies too high. So rows are left out,
one at a time and inside their source (jackknife):
    V = sum over sources of (n - 1) / n  sum_i (T(-i) - mean_i T(-i))^2.
T is a smooth function of U-statistics of order two. By Hoeffding's decomposition it is, to the
order that counts, linear terms in single rows plus sum_{i<j} w_ij h_ij over pairs of rows, where
h is the Gram about the sources' true means, with E h_ij^2 = tr(cov_g cov_h). V is right for the
linear terms but counts each pair about twice, once for either row (Efron and Stein 1981). With
Q = sum_{i<j} w_ij^2 E h_ij^2, which is the pairs' share of the variance,
    E V = linear + 2 Q between sources + 2 (n - 1) / (n - 2) Q inside a source,
and Q can be estimated without bias from the Gram: between sources by centred products, inside a
source by U-centred ones (Szekely and Rizzo 2014). So the variance is V less the second count of
Q, and at least Q. With wide sketches and few rows Q is most of it: without this, intervals are
up to sqrt(2) too wide.

Shapes: N rows, S sources.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

ROUNDING = 1e-12  # spreads below this part of the mean square of a row are none
LEAST_ROWS = 4  # of a source: U-centred squares are divided by n - 3


@dataclass(frozen=True, slots=True)
class Separation:
    """A mean separation, and what its standard error is made of; they subtract, row by row."""

    value: float
    without_N: Tensor  # the value without each row
    pair_NN: Tensor  # w_ij h_ij, scaled so that squares are unbiased; zero on the diagonal

    def __sub__(self, other: "Separation") -> "Separation":
        """The change between two probes of the same rows, whose errors go together."""
        return Separation(
            self.value - other.value,
            self.without_N - other.without_N,
            self.pair_NN - other.pair_NN,
        )

    def standard_error(self, source_N: Tensor) -> float:
        """Over other rows of the same sources, as many; see the module's first lines."""
        origin_NS = membership(source_N)
        pairs_SS = origin_NS.T @ self.pair_NN.square() @ origin_NS / 2
        pairs = pairs_SS.sum()
        again = pairs + (pairs_SS.diagonal() * 2 / (origin_NS.sum(dim=0) - 2)).sum()
        variance = jackknife_variance(self.without_N, source_N) - again
        return float(torch.maximum(variance, pairs).sqrt())


def membership(source_N: Tensor) -> Tensor:
    """1 where a row is of a source, else 0; float64, (N, S)."""
    return (source_N[:, None] == torch.arange(int(source_N.max()) + 1)).double()


def jackknife_variance(without_N: Tensor, source_N: Tensor) -> Tensor:
    """Variance of a figure from its values without each row, rows being drawn inside sources.

    Too large on average rather than too small, whatever the figure (Efron and Stein 1981).
    """
    origin_NS = membership(source_N)
    count_S = origin_NS.sum(dim=0)
    mean_S = origin_NS.T @ without_N / count_S
    away_N = (without_N - mean_S[source_N]).square()
    return (away_N * ((count_S - 1) / count_S)[source_N]).sum()


def separation(gram_NN: Tensor, source_N: Tensor) -> Separation:
    """Mean over pairs of sources of unbiased MMD^2 / spread, from the Gram of the sketches.

    MMD^2 = A_gg + A_hh - 2 A_gh with A the mean inner product of different rows; the spread is
    (D_g - A_gg + D_h - A_hh) / 2 with D the mean square of a row. Sources are numbered from 0,
    each with at least LEAST_ROWS rows. Not a number where a source has no spread at all.
    """
    origin_NS = membership(source_N)
    count_S = origin_NS.sum(dim=0)
    assert len(count_S) > 1, "one source has nothing to be apart from"
    assert count_S.min() >= LEAST_ROWS, "rows of smaller sources are left out before"
    rounding = ROUNDING * gram_NN.diagonal().mean()
    gram_NN = _centred(gram_NN.double())
    square_N, to_NS = gram_NN.diagonal(), gram_NN @ origin_NS
    others_N = to_NS.gather(1, source_N[:, None])[:, 0] - square_N
    within_S = origin_NS.T @ others_N / (count_S * (count_S - 1))
    square_S = origin_NS.T @ square_N / count_S
    across_SS = origin_NS.T @ to_NS / (count_S[:, None] * count_S)
    spread_S = square_S - within_S
    spread_S = spread_S.masked_fill(spread_S <= rounding, torch.nan)
    apart_SS, spread_SS = _pairs(
        within_S[:, None], within_S, across_SS, spread_S[:, None], spread_S
    )
    ratio_SS = (apart_SS / spread_SS).fill_diagonal_(0)
    num_pairs = len(count_S) * (len(count_S) - 1) / 2

    # The same without row i, which changes the terms of its own source alone.
    count_N = count_S[source_N]
    all_N = count_N * (count_N - 1) * within_S[source_N]
    within_N = (all_N - 2 * others_N) / ((count_N - 1) * (count_N - 2))
    spread_N = (count_N * square_S[source_N] - square_N) / (count_N - 1) - within_N
    across_NS = (count_N[:, None] * across_SS[source_N] - to_NS / count_S) / (count_N[:, None] - 1)
    apart_NS, spread_NS = _pairs(
        within_N[:, None], within_S, across_NS, spread_N[:, None], spread_S
    )
    change_NS = (apart_NS / spread_NS - ratio_SS[source_N]).masked_fill(origin_NS > 0, 0)

    value = ratio_SS.sum() / 2 / num_pairs
    per_within_SS = (1 / spread_SS + apart_SS / (2 * spread_SS.square())).fill_diagonal_(0)
    slope_SS = -2 / spread_SS / num_pairs  # of the value in A_gh
    slope_SS.diagonal().copy_(per_within_SS.sum(dim=1) / num_pairs)  # in A_gg
    pair_NN = slope_SS[source_N][:, source_N] * _pair_terms(gram_NN, origin_NS, source_N)
    return Separation(float(value), value + change_NS.sum(dim=1) / num_pairs, pair_NN)


def _pairs(
    within: Tensor, within_S: Tensor, across: Tensor, spread: Tensor, spread_S: Tensor
) -> tuple[Tensor, Tensor]:
    """MMD^2 and mean spread of pairs."""
    return within + within_S - 2 * across, (spread + spread_S) / 2


def _centred(gram_NN: Tensor) -> Tensor:
    """About the mean of all rows: no separation changes, but less is lost to rounding."""
    mean_N = gram_NN.mean(dim=1)
    return gram_NN - mean_N[:, None] - mean_N + mean_N.mean()


def _pair_terms(gram_NN: Tensor, origin_NS: Tensor, source_N: Tensor) -> Tensor:
    """Each pair's part in A_gg or A_gh beyond its rows' own, so that squares are unbiased.

    Between sources h_ij = <x_i - mean_g, x_j - mean_h>, and E sum h^2 = (n_g - 1)(n_h - 1)
    tr(cov_g cov_h). Inside a source off the diagonal, with r_i the sum of k_ij over j != i:
    h_ij = k_ij - (r_i + r_j) / (n - 2) + r / ((n - 1)(n - 2)), and E sum h^2 = n (n - 3) tr cov^2.
    """
    count_S = origin_NS.sum(dim=0)
    same_NN = source_N[:, None] == source_N
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
    return torch.where(same_NN, inside_NN * factor_N, between_NN).fill_diagonal_(0)

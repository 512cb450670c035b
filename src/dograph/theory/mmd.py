"""Theorem 1: the distance of groups of samples in gradient space, with permutation tests.

Shapes: N samples (of the first group, or of all groups), M samples of the second group, P = N + M
pooled samples, K gradient or sketch, G groups (sources or domains), R relabellings.
"""

from collections.abc import Mapping
from itertools import combinations
from typing import Literal, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from dograph.errors import ConfigError, did_you_mean
from dograph.rng import stream
from dograph.stats import holm

Estimator = Literal["biased", "unbiased"]

# Sums of kernel values that differ by less than this, relative to the kernel's diagonal, are
# equal: the same relabelling summed in another order must count as a tie, not as smaller.
ROUNDING = 1e-12


class PairwiseMMD(NamedTuple):
    """Every group against every other; all symmetric, float64."""

    mmd_squared_GG: Tensor  # zero on the diagonal
    p_value_GG: Tensor  # Holm-corrected over the pairs, one on the diagonal
    separation_GG: Tensor  # unbiased MMD^2 over mean spread; NaN if a group has one sample


def gradient_kernel(x_NK: Tensor, y_MK: Tensor) -> Tensor:
    """The kernel k(s, s') = <g(s), g(s')> of Theorem 1 between two sets of gradients, (N, M).

    In float64: the MMD is a small difference of large sums.
    """
    return x_NK.double() @ y_MK.double().T


def mmd_squared(x_NK: Tensor, y_MK: Tensor, estimator: Estimator = "biased") -> Tensor:
    """Squared maximum mean discrepancy of two groups under the gradient kernel, ().

    E_xx[k] + E_yy[k] - 2 E_xy[k] (Theorem 1). The biased estimator averages over all pairs of
    samples and equals ||mean x - mean y||^2; its bias is tr cov(x) / N + tr cov(y) / M. The
    unbiased one excludes every sample's product with itself; it may be negative.
    """
    if x_NK.ndim != 2 or y_MK.ndim != 2 or x_NK.shape[1] != y_MK.shape[1]:
        raise ConfigError(
            "both groups must be (samples, K) with the same K, got "
            f"{tuple(x_NK.shape)} and {tuple(y_MK.shape)}; flatten each sample's gradient"
        )
    both_PK = torch.cat([x_NK, y_MK])
    _check_samples(both_PK, {"first": len(x_NK), "second": len(y_MK)}, estimator)
    kernel_PP = _centred_kernel(both_PK)
    first_P = torch.arange(len(kernel_PP), device=kernel_PP.device) < len(x_NK)
    return _statistics(kernel_PP, first_P[None], estimator)[0]


def pairwise_mmd(
    feature_NK: Tensor,
    group_N: Tensor,
    num_groups: int,
    *,
    num_permutations: int = 999,
    seed: int,
    estimator: Estimator,
) -> PairwiseMMD:
    """MMD^2, corrected p-value and separation of every pair of groups.

    Under the null the samples of two groups are exchangeable, so the observed MMD^2 is one of the
    values that random relabellings give: p = (1 + #{null >= observed}) / (1 + num_permutations),
    valid at any sample size. The linear kernel compares only means. For groups of equal size both
    estimators give the same p-value. Corrected p-values are at least num_pairs /
    (1 + num_permutations); with G groups, use num_permutations >= 10 G^2 to reach 0.05.

    The separation is the unbiased MMD^2 over the mean of tr cov of the two groups: the squared
    distance of the means in units of the spread of single samples, so it does not depend on the
    gradient's scale. If neither group has a spread it is infinite, or zero if their means agree.
    """
    if num_permutations < 1:
        raise ConfigError(f"num_permutations must be at least 1, got {num_permutations}; try 999")
    _check_groups(feature_NK, group_N, num_groups, estimator)
    kernel_NN = _centred_kernel(feature_NK)
    group_N = group_N.to(kernel_NN.device)
    rows = [torch.nonzero(group_N == group)[:, 0] for group in range(num_groups)]
    spread_G = [_spread(kernel_NN[row][:, row]) for row in rows]

    mmd_GG = torch.zeros(num_groups, num_groups, dtype=torch.float64)
    separation_GG = torch.zeros_like(mmd_GG)
    p_value_GG = torch.ones_like(mmd_GG)
    pairs = list(combinations(range(num_groups), 2))
    p_values = []
    for g, h in pairs:
        pooled_P = torch.cat([rows[g], rows[h]])
        kernel_PP = kernel_NN[pooled_P][:, pooled_P]
        own_P = np.arange(len(pooled_P)) < len(rows[g])
        labelling_RP = np.tile(own_P, (1 + num_permutations, 1))  # the first one is the observed
        generator = stream(seed, "theory", "mmd", g, h)
        generator.permuted(labelling_RP[1:], axis=1, out=labelling_RP[1:])
        first_RP = torch.from_numpy(labelling_RP).to(kernel_PP.device)
        value_R = _statistics(kernel_PP, first_RP, estimator)
        as_large = int((value_R[1:] >= value_R[0] - _rounding(kernel_PP)).sum())
        p_values.append((1 + as_large) / (1 + num_permutations))
        mmd_GG[g, h] = mmd_GG[h, g] = value_R[0]
        distance = float(_statistics(kernel_PP, first_RP[:1], "unbiased")[0])
        spread, rounding = (spread_G[g] + spread_G[h]) / 2, _rounding(kernel_NN)
        separation = float("inf") if distance > rounding else 0.0
        if np.isnan(spread) or spread > rounding:
            separation = distance / spread
        separation_GG[g, h] = separation_GG[h, g] = separation
    for (g, h), p_value in zip(pairs, holm(p_values), strict=True):
        assert p_value is not None
        p_value_GG[g, h] = p_value_GG[h, g] = p_value
    return PairwiseMMD(mmd_GG, p_value_GG, separation_GG)


def _centred_kernel(feature_PK: Tensor) -> Tensor:
    """The kernel of the features centred on their mean.

    This changes no MMD, but a mean much larger than the differences between groups would lose them
    to rounding.
    """
    feature_PK = feature_PK.detach().double()
    centred_PK = feature_PK - feature_PK.mean(0)
    return gradient_kernel(centred_PK, centred_PK)


def _statistics(kernel_PP: Tensor, first_RP: Tensor, estimator: Estimator) -> Tensor:
    """MMD^2 for every labelling of the pooled samples; first groups all have the same size."""
    first_RP = first_RP.to(kernel_PP)
    second_RP = 1 - first_RP
    n, m = float(first_RP[0].sum()), float(second_RP[0].sum())
    pairs_xx, pairs_yy = n * n, m * m
    if estimator == "unbiased":
        kernel_PP = kernel_PP - torch.diag(kernel_PP.diagonal())
        pairs_xx, pairs_yy = n * (n - 1), m * (m - 1)
    to_first_RP = first_RP @ kernel_PP
    to_second_RP = second_RP @ kernel_PP
    xx_R = (to_first_RP * first_RP).sum(1)
    xy_R = (to_first_RP * second_RP).sum(1)
    yy_R = (to_second_RP * second_RP).sum(1)
    return xx_R / pairs_xx + yy_R / pairs_yy - 2 * xy_R / (n * m)


def _rounding(kernel_PP: Tensor) -> float:
    return ROUNDING * float(kernel_PP.diagonal().mean())


def _spread(kernel_PP: Tensor) -> float:
    """Trace of the unbiased covariance of one group; NaN for one sample."""
    if len(kernel_PP) < 2:
        return float("nan")
    scatter = kernel_PP.trace() - kernel_PP.mean() * len(kernel_PP)
    return float(scatter / (len(kernel_PP) - 1))


def _check_groups(
    feature_NK: Tensor, group_N: Tensor, num_groups: int, estimator: Estimator
) -> None:
    if feature_NK.ndim != 2 or group_N.shape != feature_NK.shape[:1]:
        raise ConfigError(
            "features must be (samples, K) with one group per sample, got "
            f"{tuple(feature_NK.shape)} and {tuple(group_N.shape)}"
        )
    if group_N.is_floating_point() or bool(((group_N < 0) | (group_N >= num_groups)).any()):
        raise ConfigError(
            f"groups must be whole numbers from 0 to {num_groups - 1}, got "
            f"{group_N.unique().tolist()}; set num_groups to the largest plus one"
        )
    size_G = torch.bincount(group_N.long(), minlength=num_groups).tolist()
    _check_samples(feature_NK, {str(group): n for group, n in enumerate(size_G)}, estimator)


def _check_samples(feature_NK: Tensor, sizes: Mapping[str, int], estimator: Estimator) -> None:
    known = get_args(Estimator)
    if estimator not in known:
        raise ConfigError(f'estimator="{estimator}" is not known; {did_you_mean(estimator, known)}')
    if not bool(feature_NK.isfinite().all()):
        raise ConfigError("some gradients are not finite, so there is no MMD; remove those samples")
    least = 2 if estimator == "unbiased" else 1
    if small := {group: size for group, size in sizes.items() if size < least}:
        raise ConfigError(
            f"the {estimator} estimator needs at least {least} sample(s) in every group, got "
            f"(group: samples) {small}; add samples or leave these groups out"
        )

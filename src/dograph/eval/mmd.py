"""Theorem 1: the distance of groups of samples in gradient space, with permutation tests.

Shapes: N samples of all groups, P pooled samples of two groups, K gradient or sketch, G groups
(sources), R relabellings.
"""

from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dograph.errors import ConfigError
from dograph.rng import stream
from dograph.stats import holm

# Sums of kernel values that differ by less than this, relative to the kernel's diagonal, are
# equal: the same relabelling summed in another order must count as a tie, not as smaller.
ROUNDING = 1e-12


class PairMMD(NamedTuple):
    mmd_squared: float
    separation: float  # MMD^2 over mean spread
    p_value: float  # Holm-corrected over all pairs


def pairwise_mmd(
    feature_NK: Tensor, group_N: Tensor, num_groups: int, *, num_permutations: int = 999, seed: int
) -> dict[tuple[int, int], PairMMD]:
    """Squared maximum mean discrepancy, separation and corrected p-value of every pair of groups.

    With the gradient kernel k(s, s') = <g(s), g(s')>, MMD^2 = E_xx[k] + E_yy[k] - 2 E_xy[k]
    (Theorem 1). This is the unbiased estimator: it excludes every sample's product with itself, and
    may be negative.

    Under the null the samples of two groups are exchangeable, so the observed MMD^2 is one of the
    values that random relabellings give: p = (1 + #{null >= observed}) / (1 + num_permutations),
    valid at any sample size. The linear kernel compares only means. Corrected p-values are at least
    num_pairs / (1 + num_permutations); with G groups, use num_permutations >= 10 G^2 to reach 0.05.

    The separation is MMD^2 over the mean of tr cov of the two groups: the squared distance of the
    means in units of the spread of single samples, so it does not depend on the gradient's scale.
    If neither group has a spread it is infinite, or zero if their means agree.
    """
    if num_permutations < 1:
        raise ConfigError(f"num_permutations must be at least 1, got {num_permutations}; try 999")
    _check_groups(feature_NK, group_N, num_groups)
    kernel_NN = _centred_kernel(feature_NK)
    group_N = group_N.to(kernel_NN.device)
    rows = [torch.nonzero(group_N == group)[:, 0] for group in range(num_groups)]
    spread_G = [_spread(kernel_NN[row][:, row]) for row in rows]
    pairs: dict[tuple[int, int], PairMMD] = {}
    for g, h in combinations(range(num_groups), 2):
        pooled_P = torch.cat([rows[g], rows[h]])
        kernel_PP = kernel_NN[pooled_P][:, pooled_P]
        own_P = np.arange(len(pooled_P)) < len(rows[g])
        labelling_RP = np.tile(own_P, (1 + num_permutations, 1))  # the first one is the observed
        generator = stream(seed, "theory", "mmd", g, h)
        generator.permuted(labelling_RP[1:], axis=1, out=labelling_RP[1:])
        first_RP = torch.from_numpy(labelling_RP).to(kernel_PP.device)
        value_R = _statistics(kernel_PP, first_RP)
        as_large = int((value_R[1:] >= value_R[0] - _rounding(kernel_PP)).sum())
        distance = float(_statistics(kernel_PP, first_RP[:1])[0])
        spread, rounding = (spread_G[g] + spread_G[h]) / 2, _rounding(kernel_NN)
        separation = float("inf") if distance > rounding else 0.0
        if spread > rounding:
            separation = distance / spread
        p_value = (1 + as_large) / (1 + num_permutations)
        pairs[g, h] = PairMMD(float(value_R[0]), separation, p_value)
    corrected = holm([pair.p_value for pair in pairs.values()])
    for key, p_corrected in zip(pairs, corrected, strict=True):
        assert p_corrected is not None
        pairs[key] = pairs[key]._replace(p_value=p_corrected)
    return pairs


def _centred_kernel(feature_NK: Tensor) -> Tensor:
    """The kernel of the features centred on their mean, in float64.

    Centring changes no MMD, but a mean much larger than the differences between groups would lose
    them to rounding.
    """
    feature_NK = feature_NK.detach().double()
    centred_NK = feature_NK - feature_NK.mean(0)
    return centred_NK @ centred_NK.T


def _statistics(kernel_PP: Tensor, first_RP: Tensor) -> Tensor:
    """MMD^2 for every labelling of the pooled samples; first groups all have the same size."""
    first_RP = first_RP.to(kernel_PP)
    second_RP = 1 - first_RP
    n, m = float(first_RP[0].sum()), float(second_RP[0].sum())
    kernel_PP = kernel_PP - torch.diag(kernel_PP.diagonal())
    to_first_RP = first_RP @ kernel_PP
    to_second_RP = second_RP @ kernel_PP
    xx_R = (to_first_RP * first_RP).sum(1)
    xy_R = (to_first_RP * second_RP).sum(1)
    yy_R = (to_second_RP * second_RP).sum(1)
    return xx_R / (n * (n - 1)) + yy_R / (m * (m - 1)) - 2 * xy_R / (n * m)


def _rounding(kernel_PP: Tensor) -> float:
    return ROUNDING * float(kernel_PP.diagonal().mean())


def _spread(kernel_PP: Tensor) -> float:
    """Trace of the unbiased covariance of one group."""
    scatter = kernel_PP.trace() - kernel_PP.mean() * len(kernel_PP)
    return float(scatter / (len(kernel_PP) - 1))


def _check_groups(feature_NK: Tensor, group_N: Tensor, num_groups: int) -> None:
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
    if not bool(feature_NK.isfinite().all()):
        raise ConfigError("some gradients are not finite, so there is no MMD; remove those samples")
    size_G = torch.bincount(group_N.long(), minlength=num_groups).tolist()
    if small := {group: size for group, size in enumerate(size_G) if size < 2}:
        raise ConfigError(
            "MMD needs at least 2 samples in every group, got (group: samples) "
            f"{small}; add samples or leave these groups out"
        )

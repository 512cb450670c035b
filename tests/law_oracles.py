"""The mixing law written out: slopes, gauges, the best mixture by a long search and on a grid.

Shapes: N runs, S sources, V laws, P parameters of a fit, G mixtures of the grid, C values of c.
"""

from dataclasses import replace

import numpy as np
from scipy.optimize import minimize

from dograph.mixtures import convex
from dograph.mixtures.mixing_laws import ExponentialLaw


def gradient(law, weight_S):
    """dL/dr_j: t_j exp(log_k + t . r)."""
    return law.t_S * np.exp(law.log_k + weight_S @ law.t_S)


def shifted(law, by):
    """The same exponential law with t + by and log_k - by."""
    return replace(law, log_k=law.log_k - by, t_S=law.t_S + by)


def weighted_value(laws, share_V, weight_S):
    """What a mixture comes to over all laws."""
    return sum(s * law.predict(weight_S[None])[0] for s, law in zip(share_V, laws, strict=True))


def weighted_slope(laws, share_V, weight_S):
    return sum(s * gradient(law, weight_S) for s, law in zip(share_V, laws, strict=True))


def long_run(laws, share_V, cap_S):
    """The best mixture by scipy's SLSQP with the tightest tolerances."""
    return minimize(
        lambda r: weighted_value(laws, share_V, np.maximum(r, 0)),
        cap_S / cap_S.sum(),
        jac=lambda r: weighted_slope(laws, share_V, np.maximum(r, 0)),
        method="SLSQP",
        bounds=[(0, cap) for cap in cap_S],
        constraints={"type": "eq", "fun": lambda r: r.sum() - 1, "jac": np.ones_like},
        options={"maxiter": 5000, "ftol": 1e-16},
    ).x


def kkt_residual(laws, share_V, weight_S, cap_S):
    """How much steeper the worst source to lower is than the best to raise, relative to the laws'.

    Exact bounds: a weight is at one only if it is equal to it.
    """
    slope_S = weighted_slope(laws, share_V, weight_S)
    up_S, down_S = weight_S < cap_S, weight_S > 0
    best_to_raise = slope_S[up_S].min() if up_S.any() else np.inf
    each_V = [s * np.ptp(gradient(law, weight_S)) for s, law in zip(share_V, laws, strict=True)]
    return max(slope_S[down_S].max() - best_to_raise, 0) / max(each_V)


def check_derivatives(fit, point_P):
    """A fit's own Jacobian at a point, against finite differences."""
    step = 1e-6
    jacobian_RP = np.stack(
        [
            (fit.residual(point_P + step * unit_P) - fit.residual(point_P - step * unit_P))
            / (2 * step)
            for unit_P in np.eye(len(point_P))
        ],
        axis=1,
    )
    np.testing.assert_allclose(fit.jacobian(point_P), jacobian_RP, rtol=1e-4, atol=1e-5)


def is_unique(laws, share_V, weight_S, cap_S=None):
    """Of a mixture that need not be the optimum."""
    share_V = np.array(share_V, dtype=float) / np.sum(share_V)
    total = convex.Total(laws, share_V)
    return convex.is_unique(total, weight_S, np.ones(len(weight_S)) if cap_S is None else cap_S)


def grid_optimum(laws, share_V, cap_S):
    """The best mixture on the authors' grid."""
    mixture_GS = grid_mixtures(cap_S)
    used = [(share, law) for share, law in zip(share_V, laws, strict=True) if share > 0]
    return mixture_GS[np.argmin(sum(share * law.predict(mixture_GS) for share, law in used))]


def grid_mixtures(cap_S, steps=16):
    """All mixtures of the authors' grid, (G, S), those with most of the first sources first.

    Each source but the last takes its cap, rounded down to a multiple of 1/16, times 2^-s, and 0
    in place of anything below 1/16; the last takes the remainder where its cap allows.
    """
    mixture_GS = np.zeros((1, 0))
    for cap in cap_S[:-1]:
        largest = int(cap * steps) / steps
        halvings = [largest / 2**s for s in range(steps) if largest / 2**s >= 1 / steps]
        choice = np.array([*halvings, 0.0])
        row_G, choice_G = np.nonzero(mixture_GS.sum(axis=1)[:, None] + choice <= 1)
        mixture_GS = np.hstack([mixture_GS[row_G], choice[choice_G, None]])
    rest_G = 1 - mixture_GS.sum(axis=1)
    return np.hstack([mixture_GS, rest_G[:, None]])[rest_G <= cap_S[-1]]


def two_source_law(weight_NS, loss_N):
    """The law with the c for which log(L - c) is most nearly linear in the share (Ye et al., code).

    c is the one of 1000 equally spaced points of [0, lowest loss] with the largest
    |corr(r, log(L - c))|, the lowest such c; then slope and intercept of log(L - c) by least
    squares. At the last point the lowest run has log(0), whose correlation is not a number.
    """
    share_N = weight_NS[:, 0] - weight_NS[:, 0].mean()
    c_C = np.linspace(0, loss_N.min(), 1000)[:-1]
    log_CN = np.log(loss_N - c_C[:, None])
    log_CN -= log_CN.mean(axis=1, keepdims=True)
    covariance_C = log_CN @ share_N
    best = np.argmax(np.abs(covariance_C) / np.linalg.norm(log_CN, axis=1))
    slope = covariance_C[best] / (share_N @ share_N)
    at_mean = np.log(loss_N - c_C[best]).mean()
    log_k = at_mean + slope * (0.5 - weight_NS[:, 0].mean())
    return ExponentialLaw(c_C[best], log_k, np.array([slope / 2, -slope / 2]))


def hubers_loss(law, weight_NS, loss_N):
    """The sum over the runs, at the authors' delta: what a fit minimizes."""
    error_N = np.abs(law.predict(weight_NS) - loss_N)
    return np.where(error_N <= 0.05, error_N**2 / 2, 0.05 * (error_N - 0.025)).sum()

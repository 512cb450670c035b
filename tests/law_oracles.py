"""Mixing laws written out: slopes, one law in another gauge, the best mixture by a long search.

Shapes: S sources, V laws, P parameters of a fit.
"""

from dataclasses import replace

import numpy as np
from scipy.optimize import minimize

from dograph.mixtures.exponential import ExponentialLaw


def gradient(law, weight_S):
    """dL/dr_j: t_j exp(log_k + t . r), or -alpha a_j (a . r)^(-alpha - 1)."""
    if isinstance(law, ExponentialLaw):
        return law.t_S * np.exp(law.log_k + weight_S @ law.t_S)
    return -law.alpha * law.a_S * (weight_S @ law.a_S) ** (-law.alpha - 1)


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

"""The authors' own recipe for the mixing law of two sources.

Shapes: N runs, S = 2 sources, C values of c.
"""

import numpy as np

from dograph.errors import ConfigError
from dograph.mixtures.exponential import DELTA_TWO_SOURCES, ExponentialLaw, checked
from dograph.mixtures.newton import huber

C_POINTS = 1000  # on [0, lowest loss], ends included


def two_source_law(weight_NS: np.ndarray, loss_N: np.ndarray) -> ExponentialLaw:
    """The law with the c for which log(L - c) is most nearly linear in the share (Ye et al., code).

    c is the one of 1000 equally spaced points of [0, lowest loss] with the largest
    |corr(r, log(L - c))|, the lowest such c; then slope and intercept of log(L - c) by least
    squares. No loss is minimised on the loss scale: `Exponential(delta=0.02)` does that.
    """
    weight_NS, loss_N = checked(weight_NS, loss_N)
    if weight_NS.shape[1] != 2:
        raise ConfigError(
            f"the two-source recipe got {weight_NS.shape[1]} sources; use Exponential for others"
        )
    share_N = weight_NS[:, 0] - weight_NS[:, 0].mean()
    if len(loss_N) < 3 or not np.ptp(share_N) > 0 or not np.ptp(loss_N) > 0:
        raise ConfigError(
            f"{len(loss_N)} runs with {len(np.unique(weight_NS[:, 0]))} different mixtures and "
            f"{len(np.unique(loss_N))} different losses; the recipe needs 3 runs that differ"
        )
    # At the last point the lowest run has log(0), whose correlation is not a number.
    c_C = np.linspace(0, loss_N.min(), C_POINTS)[:-1]
    log_CN = np.log(loss_N - c_C[:, None])
    log_CN -= log_CN.mean(axis=1, keepdims=True)
    covariance_C = log_CN @ share_N
    best = int(np.argmax(np.abs(covariance_C) / np.linalg.norm(log_CN, axis=1)))
    c = float(c_C[best])
    slope = float(covariance_C[best] / (share_N @ share_N))
    at_mean = float(np.log(loss_N - c).mean())
    error_N = c + np.exp(at_mean + slope * share_N) - loss_N
    return ExponentialLaw(
        c=c,
        log_k=at_mean + slope * (0.5 - float(weight_NS[:, 0].mean())),
        t_S=np.array([slope / 2, -slope / 2]),
        huber=float(huber(error_N[None], DELTA_TWO_SOURCES)[0][0]),
    )

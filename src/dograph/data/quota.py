"""Whole samples for fractional weights: counts that never stray from their share.

Largest remainders alone can take a sample back (the Alabama paradox), and carrying the error from
step to step alone can drift. Tijdeman's chairman assignment (1980) does neither: draw j of
stratum s may be made once N q_s >= j - beta and must be made before N q_s > j - 1 + beta, where
beta = 1 - 1/(2S - 2); serving the earliest deadline first always meets every deadline, so after
N draws each count is within beta < 1 of N q_s.
"""

import numpy as np

SLACK = 1e-9  # absorbs rounding in N * q; far below the 1/(2S - 2) left between beta and 1


def advance(drawn_S: np.ndarray, weight_S: np.ndarray, num_draws: int) -> np.ndarray:
    """Counts after `num_draws` more draws, given counts since the mixture last changed.

    Deadlines are met at the ends of steps; which draw comes first inside a step is not decided
    here. O(S + num_draws log num_draws).
    """
    live_S = np.flatnonzero(weight_S > 0)
    weight_L, drawn_L = weight_S[live_S], drawn_S[live_S]
    beta = 1 - 1 / (2 * len(live_S) - 2) if len(live_S) > 1 else 1.0
    total = int(drawn_S.sum()) + num_draws

    released_L = np.floor(total * weight_L + beta + SLACK).astype(np.int64)
    open_L = np.maximum(released_L - drawn_L, 0)
    stratum_N = np.repeat(np.arange(len(live_S)), open_L)
    rank_N = np.arange(len(stratum_N)) - np.repeat(np.cumsum(open_L) - open_L, open_L)
    deadline_N = (drawn_L[stratum_N] + rank_N + beta) / weight_L[stratum_N]

    first_N = np.lexsort((stratum_N, deadline_N))[:num_draws]  # ties by index
    assert len(first_N) == num_draws, "the schedule is feasible by Tijdeman's theorem"
    after_S = drawn_S.copy()
    after_S[live_S] += np.bincount(stratum_N[first_N], minlength=len(live_S))
    return after_S

"""Counts stay within one of their share after every step, and never go back."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dograph.data.sampler import advance

weights = st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=30)


@settings(deadline=None, max_examples=60)
@given(raw=weights, batch=st.integers(1, 60), zeros=st.integers(0, 3))
@example(raw=[0.5, 0.3, 0.2], batch=1, zeros=9)
def test_counts_track_their_share(raw, batch, zeros):
    """Tijdeman's bound, by the sources that are drawn from."""
    most = 1 - 1 / (2 * len(raw) - 2) if len(raw) > 1 else 0
    weight_S = np.array(raw + [0.0] * zeros)
    weight_S /= weight_S.sum()
    drawn_S = np.zeros(len(weight_S), dtype=np.int64)
    for step in range(1, 80):
        after_S = advance(drawn_S, weight_S, batch)
        assert after_S.sum() == step * batch
        assert (after_S >= drawn_S).all()
        assert np.abs(after_S - step * batch * weight_S).max() <= most + 1e-6
        drawn_S = after_S
    assert (drawn_S[len(raw) :] == 0).all()


def test_stays_within_one_over_a_long_run():
    """Rounding must not add up: a million draws of seven sources."""
    weight_S = np.array([0.541, 0.287, 0.042, 0.037, 0.034, 0.031, 0.028])
    drawn_S = np.zeros(7, dtype=np.int64)
    for step in range(1, 20_834):
        drawn_S = advance(drawn_S, weight_S, 48)
        assert np.abs(drawn_S - step * 48 * weight_S).max() < 1

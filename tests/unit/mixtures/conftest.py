"""What the tests of mixtures share."""

import pytest

from dograph.mixtures.surrogates import SURROGATES


@pytest.fixture(scope="module")
def shared_fits():
    """Every surrogate is fitted once per module on the same runs: a fit is a function of them.

    Tests plan from one table again and again, and cross-validation draws the same folds each time.
    """
    kept = {}

    def sharing(name, fit):
        def shared(weight_NS, loss_N, *, seed=0, **how):
            runs = weight_NS.shape, weight_NS.tobytes(), loss_N.tobytes()
            key = (name, *runs, seed, *sorted(how.items()))
            if key not in kept:
                kept[key] = fit(weight_NS, loss_N, seed=seed, **how)
            return kept[key]

        return shared

    with pytest.MonkeyPatch.context() as patch:
        for name, fit in list(SURROGATES.items()):
            patch.setitem(SURROGATES, name, sharing(name, fit))
        yield

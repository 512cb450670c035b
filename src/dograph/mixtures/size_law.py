"""The size law: how loss falls with the model's size at equal tokens (Data Mixing Laws).

Shapes: J curves, X sizes of a curve.
"""

from collections.abc import Mapping

import numpy as np

from dograph.errors import ConfigError
from dograph.mixtures.laws import Curve, fit_power_laws, mean_error
from dograph.mixtures.step_law import CurveLaws, Key

SIZE_DELTA = 0.08  # nats (the authors' code)


def fit_size_laws(curves: Mapping[Key, Curve], *, alpha: float | None = None) -> CurveLaws[Key]:
    """L = c + (N0 / N)^alpha for each curve, N non-embedding parameters, one alpha for all.

    The held-out error is that at the largest size, by laws fitted on the smaller ones. Three
    sizes leave two, which fix c and N0 only: alpha then comes from all three, as the authors
    choose among their fits by the largest size, and a note says that it has seen it.
    """
    if not curves:
        raise ConfigError("no curves to fit a size law on; give at least one")
    key_J = list(curves)
    size_X = np.unique(np.concatenate([curve.x_X for curve in curves.values()]))
    if len(size_X) < 3 and alpha is None:
        raise ConfigError(
            f"{len(size_X)} size(s) ({', '.join(f'{size:g}' for size in size_X)}) cannot fix c, N0 "
            "and alpha; train proxies of a third size, or fix alpha"
        )
    final = fit_power_laws(list(curves.values()), delta=SIZE_DELTA, alpha=alpha)
    laws = dict(zip(key_J, final.laws, strict=True))
    if len(size_X) < 3:
        note = f"{len(size_X)} sizes: none to spare for a held-out error"
        return CurveLaws(laws, final.error, None, (note,))
    notes: tuple[str, ...] = ()
    if len(size_X) == 3 and alpha is None:
        alpha = final.laws[0].alpha
        notes = ("the held-out error is optimistic: alpha has seen the largest of three sizes",)
    largest = size_X[-1]
    small, large = [], []
    for curve in curves.values():
        below_X = curve.x_X < largest
        if len(np.unique(curve.x_X[below_X])) >= 2 and not below_X.all():
            small.append(Curve(curve.x_X[below_X], curve.loss_X[below_X]))
            large.append(Curve(curve.x_X[~below_X], curve.loss_X[~below_X]))
    if not small:
        note = "no curve has the largest size and two smaller ones: no held-out error"
        return CurveLaws(laws, final.error, None, (note,))
    held_out = mean_error(fit_power_laws(small, delta=SIZE_DELTA, alpha=alpha).laws, large)
    return CurveLaws(laws, final.error, held_out, notes)

"""The step law: how one run's loss goes on falling with tokens (Ye et al., Data Mixing Laws).

Shapes: J curves, X points of a curve.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from dograph.errors import ConfigError
from dograph.mixtures.laws import Curve, PowerLaw, fit_power_laws, mean_error

STEP_DELTA = 0.05  # nats (the authors' code, alpha shared across the validation sets of one run)
MOST_HELD_OUT = 5  # points at the end of each curve, as the authors'

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class CurveLaws(Generic[Key]):
    """The laws by curve, with the error on points they were fitted on and on points they were not.

    `held_out` is None where nothing could be spared. It is the error of laws fitted without these
    points; the laws returned have seen all points.
    """

    laws: Mapping[Key, PowerLaw]
    in_sample: float
    held_out: float | None
    notes: tuple[str, ...] = ()


def fit_step_laws(
    curves: Mapping[Key, Curve],
    *,
    shared: Mapping[Key, Hashable] | None = None,
    alpha: float | None = None,
    held_out: int | None = None,
) -> CurveLaws[Key]:
    """L = c + (D0 / tokens)^alpha for each curve, by Huber's loss (Data Mixing Laws, step law).

    Curves with the same entry in `shared` share alpha; all do by default. `alpha` fixes it.
    `held_out` last points of each curve are predicted by laws fitted without them: by default a
    fifth of the shortest curve, at most 5. The authors hold out 5 to choose among 5500 random
    starts; `fit_power_laws` needs none.
    """
    if not curves:
        raise ConfigError("no curves to fit a step law on; give at least one")
    key_J = list(curves)
    sorted_J = [_by_tokens(curves[key]) for key in key_J]
    group_J = _numbered([None if shared is None else shared[key] for key in key_J])
    final = fit_power_laws(sorted_J, delta=STEP_DELTA, group_J=group_J, alpha=alpha)
    shortest = min(len(curve.x_X) for curve in sorted_J)
    spare = shortest - (3 if alpha is None else 2)
    if held_out is None:
        held_out = max(min(MOST_HELD_OUT, shortest // 5, spare), 0)
    elif held_out < 0 or held_out > spare:
        raise ConfigError(
            f"{held_out} points held out of a curve of {shortest}; at most {max(spare, 0)} can be, "
            "as the others must fix the law"
        )
    error: float | None = None
    notes: tuple[str, ...] = (f"curves of {shortest} points: none to spare for a held-out error",)
    if held_out:
        early_J = [Curve(c.x_X[:-held_out], c.loss_X[:-held_out]) for c in sorted_J]
        late_J = [Curve(c.x_X[-held_out:], c.loss_X[-held_out:]) for c in sorted_J]
        early = fit_power_laws(early_J, delta=STEP_DELTA, group_J=group_J, alpha=alpha)
        error, notes = mean_error(early.laws, late_J), ()
    return CurveLaws(dict(zip(key_J, final.laws, strict=True)), final.error, error, notes)


def _by_tokens(curve: Curve) -> Curve:
    """The curve in the order of its tokens, so that its last points are the latest."""
    order_X = curve.x_X.argsort(kind="stable")
    return Curve(curve.x_X[order_X], curve.loss_X[order_X])


def _numbered(labels: Sequence[Hashable]) -> list[int]:
    """Labels as numbers, in the order in which they first appear."""
    number = {label: index for index, label in enumerate(dict.fromkeys(labels))}
    return [number[label] for label in labels]

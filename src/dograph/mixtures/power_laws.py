"""Power laws c + (x0 / x)^alpha for many curves at once: over tokens, over sizes, and nested.

Shapes: J curves, X points of the longest curve, P columns, G groups, A values of alpha.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

import numpy as np

from dograph.errors import ConfigError
from dograph.mixtures.fitting import huber

ALPHAS = np.geomspace(0.02, 4.0, 48)  # the authors start in [0.65, 0.9] and [0.3, 0.8]
INNER_STEPS = 100
PRECISION = 1e-14  # a step that lowers the loss by less than this share of it is the last
NOTHING = 1e-26  # a loss below this is 0: squares of rounding errors


@dataclass(frozen=True)
class PowerLaw:
    """L(x) = c + (x0 / x)^alpha, x a number of tokens or of parameters."""

    c: float
    log_x0: float
    alpha: float

    def predict(self, x: np.ndarray | float) -> np.ndarray:
        """Losses at these tokens or sizes."""
        loss: np.ndarray = self.c + np.exp(self.alpha * (self.log_x0 - np.log(x)))
        return loss


class LossCurve(NamedTuple):
    """One curve's points: tokens or sizes, and the losses there."""

    x_X: np.ndarray
    loss_X: np.ndarray


def fit_power_laws(
    curves: Sequence[LossCurve],
    *,
    delta: float,
    group_J: Sequence[int] | None = None,
    alpha: float | None = None,
) -> list[PowerLaw]:
    """The laws with the lowest Huber loss; curves of one group share alpha (all, by default).

    For a given alpha the law is linear in c and B = x0^alpha, so each curve is a convex problem
    (c and B at least 0) with one answer: there are no starts for them and nothing to scale to the
    data, however few tokens a proxy saw. The slope of the whole in alpha is the partial one, as c
    and B are optimal; alpha starts at the best of a grid over [0.02, 4] and goes to the zero of
    that slope. `alpha` fixes it instead.
    """
    groups = [0] * len(curves) if group_J is None else list(group_J)
    _check(curves, groups, alpha)
    problem = _Problem(curves, delta)
    number_J = np.unique(groups, return_inverse=True)[1]
    alpha_J = np.full(len(curves), alpha) if alpha else _best_alpha(problem, number_J)
    c_J, b_J, _, _ = problem.solve(alpha_J)
    # B of 0 is a curve that does not fall: x0 = 0, whose logarithm must stay finite in JSON.
    log_x0_J = problem.centre_J + np.log(np.maximum(b_J, 1e-300)) / alpha_J
    each_J = zip(c_J.tolist(), log_x0_J.tolist(), alpha_J.tolist(), strict=True)
    return [PowerLaw(*parameters) for parameters in each_J]


def mean_error(laws: Sequence[PowerLaw], curves: Sequence[LossCurve]) -> float:
    """Mean absolute error over all points of all curves."""
    errors = [
        np.abs(law.predict(curve.x_X) - curve.loss_X)
        for law, curve in zip(laws, curves, strict=True)
    ]
    return float(np.concatenate(errors).mean())


def _check(curves: Sequence[LossCurve], group_J: Sequence[int], alpha: float | None) -> None:
    """Refuse curves that cannot fix their parameters, rather than return one fit of many."""
    if alpha is not None and not alpha > 0:
        raise ConfigError(f"alpha is {alpha}; it must be above 0")
    for number, (x_X, loss_X) in enumerate(curves):
        if np.shape(x_X) != np.shape(loss_X) or np.ndim(x_X) != 1:
            raise ConfigError(f"curve {number} has {np.size(x_X)} x and {np.size(loss_X)} losses")
        if not (
            np.isfinite(x_X).all() and np.isfinite(loss_X).all() and np.min(x_X, initial=1) > 0
        ):
            raise ConfigError(f"curve {number} has an x or a loss that is not a positive number")
        if len(np.unique(x_X)) < 2:
            raise ConfigError(
                f"curve {number} has {len(np.unique(x_X))} different x; c and x0 need at least 2"
            )
    for group in sorted(set(group_J)) if alpha is None else ():
        members = [curve for curve, own in zip(curves, group_J, strict=True) if own == group]
        points = sum(len(np.unique(curve.x_X)) for curve in members)
        if points < 2 * len(members) + 1:
            raise ConfigError(
                f"{points} points on {len(members)} curve(s) cannot fix {2 * len(members) + 1} "
                "parameters (c and x0 for each curve, one alpha): add a point, or fix alpha"
            )


class _Problem:
    """Padded curves, x in units of each curve's geometric mean."""

    def __init__(self, curves: Sequence[LossCurve], delta: float) -> None:
        longest = max(len(curve.x_X) for curve in curves)
        self.delta = delta
        self.log_x_JX = np.zeros((len(curves), longest))
        self.loss_JX = np.zeros((len(curves), longest))
        self.there_JX = np.zeros((len(curves), longest))
        self.centre_J = np.zeros(len(curves))
        for row, (x_X, loss_X) in enumerate(curves):
            log_x_X = np.log(np.asarray(x_X, dtype=np.float64))
            self.centre_J[row] = log_x_X.mean()
            self.log_x_JX[row, : len(x_X)] = log_x_X - self.centre_J[row]
            self.loss_JX[row, : len(x_X)] = loss_X
            self.there_JX[row, : len(x_X)] = 1

    def solve(
        self, alpha_J: np.ndarray, rows: np.ndarray | slice = slice(None)
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """c, B, Huber's loss and its slope in alpha, for each curve (of `rows`) at its alpha.

        A convex problem whose free minimum breaks a bound has its minimum on one: on c = 0 or on
        B = 0, where a problem in one number remains, whose minimum is cut off at 0.
        """
        log_x_JX, loss_JX, there_JX = self.log_x_JX[rows], self.loss_JX[rows], self.there_JX[rows]
        fall_JX = np.exp(-alpha_J[:, None] * log_x_JX)
        column_JX2 = np.stack([np.ones_like(fall_JX), fall_JX], axis=2) * there_JX[:, :, None]

        def value(answer_J2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            error_JX = (column_JX2 @ answer_J2[:, :, None])[:, :, 0] - loss_JX
            return huber(error_JX, self.delta)[:2]

        answer_J2 = huber_regression(column_JX2, loss_JX, self.delta)
        broken_J: np.ndarray = np.less(answer_J2, 0).any(axis=1)
        if broken_J.any():
            flat_J2, rest_J2 = np.zeros_like(answer_J2), np.zeros_like(answer_J2)
            for edge_J2, at in ((flat_J2, 0), (rest_J2, 1)):
                alone_J1 = huber_regression(column_JX2[:, :, [at]], loss_JX, self.delta)
                edge_J2[:, at] = np.maximum(alone_J1[:, 0], 0)
            flat_wins_J = np.less_equal(value(flat_J2)[0], value(rest_J2)[0])
            edge_J2 = np.where(flat_wins_J[:, None], flat_J2, rest_J2)
            answer_J2 = np.where(broken_J[:, None], edge_J2, answer_J2)
        value_J, slope_JX = value(answer_J2)
        by_alpha_JX = -answer_J2[:, 1:] * fall_JX * log_x_JX
        return answer_J2[:, 0], answer_J2[:, 1], value_J, (slope_JX * by_alpha_JX).sum(axis=1)


def huber_regression(column_JXP: np.ndarray, loss_JX: np.ndarray, delta: float) -> np.ndarray:
    """Huber regression of the losses on the columns, (J, P), of all curves at once.

    scipy fits one curve in a call, some 1 ms each; a plan asks for a hundred thousand. Each step
    is the best of Newton's, of two between, and of reweighted least squares, which never raises
    the loss. It is convex and piecewise quadratic: few steps end at its minimum.
    """
    turned_JPX = column_JXP.swapaxes(1, 2)
    gram_JPP = turned_JPX @ column_JXP
    # Nearly equal columns (a tiny alpha), or no error within delta, still need a step.
    ridge_J11 = 1e-14 * np.trace(gram_JPP, axis1=1, axis2=2)[:, None, None]
    ridge_JPP = ridge_J11 * np.eye(column_JXP.shape[2])
    point_JP1 = np.linalg.solve(gram_JPP + ridge_JPP, turned_JPX @ loss_JX[:, :, None])
    for _ in range(INNER_STEPS):
        error_JX = (column_JXP @ point_JP1)[:, :, 0] - loss_JX
        value_J, slope_JX, weight_JX = huber(error_JX, delta)
        slope_JP1 = turned_JPX @ slope_JX[:, :, None]
        inside_JX, lowest_J, from_JP1 = weight_JX >= 1, value_J, point_JP1
        for row_JX in (inside_JX, *(inside_JX + m * weight_JX for m in (1e-3, 0.03)), weight_JX):
            matrix_JPP = turned_JPX @ (row_JX[:, :, None] * column_JXP) + ridge_JPP
            trial_JP1 = from_JP1 - np.linalg.solve(matrix_JPP, slope_JP1)
            trial_J = huber((column_JXP @ trial_JP1)[:, :, 0] - loss_JX, delta)[0]
            point_JP1 = np.where((trial_J < lowest_J)[:, None, None], trial_JP1, point_JP1)
            lowest_J = np.minimum(trial_J, lowest_J)
        if (value_J - lowest_J <= np.maximum(PRECISION * value_J, NOTHING)).all():
            break
    return np.asarray(point_JP1[:, :, 0])


def _best_alpha(problem: _Problem, group_J: np.ndarray) -> np.ndarray:
    """Each curve's alpha: the lowest of its group, from a grid and then where the slope is 0."""
    from scipy.optimize import brentq, minimize_scalar

    num_groups = int(group_J.max()) + 1
    value_AG, slope_AG = np.empty((2, len(ALPHAS), num_groups))
    for row, alpha in enumerate(ALPHAS):
        _, _, value_J, slope_J = problem.solve(np.full(len(group_J), alpha))
        value_AG[row] = np.bincount(group_J, value_J)
        slope_AG[row] = np.bincount(group_J, slope_J)
    alpha_J = np.empty(len(group_J))
    for group, best in enumerate(value_AG.argmin(axis=0).tolist()):
        rows = np.flatnonzero(group_J == group)
        rises = slope_AG[best, group] > 0
        ends = [max(best - rises, 0), min(best + (not rises), len(ALPHAS) - 1)]
        low, high = ALPHAS[ends]

        def at(alpha: float, part: int, rows: np.ndarray = rows) -> float:
            return float(problem.solve(np.full(len(rows), alpha), rows)[part].sum())

        if low == high:  # at an end of the grid
            alpha_J[rows] = low
        elif slope_AG[ends[0], group] < 0 < slope_AG[ends[1], group]:
            alpha_J[rows] = brentq(at, low, high, args=(3,), xtol=1e-15, rtol=1e-15)
        else:  # two valleys within a step of the grid
            alpha_J[rows] = minimize_scalar(at, args=(2,), bounds=(low, high)).x
    return alpha_J


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
    curves: Mapping[Key, LossCurve],
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
    sorted_J = []  # each in the order of its tokens, so that its last points are the latest
    for curve in curves.values():
        order_X = curve.x_X.argsort(kind="stable")
        sorted_J.append(LossCurve(curve.x_X[order_X], curve.loss_X[order_X]))
    labels = [None if shared is None else shared[key] for key in curves]
    number = {label: index for index, label in enumerate(dict.fromkeys(labels))}
    group_J = [number[label] for label in labels]
    laws = fit_power_laws(sorted_J, delta=STEP_DELTA, group_J=group_J, alpha=alpha)
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
        early_J = [LossCurve(c.x_X[:-held_out], c.loss_X[:-held_out]) for c in sorted_J]
        late_J = [LossCurve(c.x_X[-held_out:], c.loss_X[-held_out:]) for c in sorted_J]
        early = fit_power_laws(early_J, delta=STEP_DELTA, group_J=group_J, alpha=alpha)
        error, notes = mean_error(early, late_J), ()
    by_key = dict(zip(curves, laws, strict=True))
    return CurveLaws(by_key, mean_error(laws, sorted_J), error, notes)


SIZE_DELTA = 0.08  # nats (the authors' code)


def fit_size_laws(curves: Mapping[Key, LossCurve], *, alpha: float | None = None) -> CurveLaws[Key]:
    """L = c + (N0 / N)^alpha for each curve, N non-embedding parameters, one alpha for all.

    The held-out error is that at the largest size, by laws fitted on the smaller ones. Three
    sizes leave two, which fix c and N0 only: alpha then comes from all three, as the authors
    choose among their fits by the largest size, and a note says that it has seen it.
    """
    if not curves:
        raise ConfigError("no curves to fit a size law on; give at least one")
    size_X = np.unique(np.concatenate([curve.x_X for curve in curves.values()]))
    if len(size_X) < 3 and alpha is None:
        raise ConfigError(
            f"{len(size_X)} size(s) ({', '.join(f'{size:g}' for size in size_X)}) cannot fix c, N0 "
            "and alpha; train proxies of a third size, or fix alpha"
        )
    fitted_J = fit_power_laws(list(curves.values()), delta=SIZE_DELTA, alpha=alpha)
    laws = dict(zip(curves, fitted_J, strict=True))
    in_sample = mean_error(fitted_J, list(curves.values()))
    if len(size_X) < 3:
        note = f"{len(size_X)} sizes: none to spare for a held-out error"
        return CurveLaws(laws, in_sample, None, (note,))
    notes: tuple[str, ...] = ()
    if len(size_X) == 3 and alpha is None:
        alpha = fitted_J[0].alpha
        notes = ("the held-out error is optimistic: alpha has seen the largest of three sizes",)
    largest = size_X[-1]
    small, large = [], []
    for curve in curves.values():
        below_X = curve.x_X < largest
        if len(np.unique(curve.x_X[below_X])) >= 2 and not below_X.all():
            small.append(LossCurve(curve.x_X[below_X], curve.loss_X[below_X]))
            large.append(LossCurve(curve.x_X[~below_X], curve.loss_X[~below_X]))
    if not small:
        note = "no curve has the largest size and two smaller ones: no held-out error"
        return CurveLaws(laws, in_sample, None, (note,))
    held_out = mean_error(fit_power_laws(small, delta=SIZE_DELTA, alpha=alpha), large)
    return CurveLaws(laws, in_sample, held_out, notes)


Sharing = Literal["run", "all", "none"]
Place = tuple[float, str, str]  # size, mixture, target


@dataclass(frozen=True)
class Nested:
    """Losses predicted at the target size and tokens, to fit the mixing law on.

    `loss_NV` is NaN where the runs do not reach, and `notes` name these places. Errors are mean
    absolute ones, in nats: `*_in_sample` on points the laws were fitted on, `*_held_out` on points
    that laws fitted without them predicted (None where no point could be spared). Neither is the
    error at the target, which nobody has run.
    """

    mixtures: list[str]
    targets: list[str]
    loss_NV: np.ndarray
    step_in_sample: float
    step_held_out: float | None
    size_in_sample: float | None
    size_held_out: float | None
    notes: tuple[str, ...]


def nest(
    curves: Mapping[Place, LossCurve],
    *,
    size: float,
    tokens: float,
    share_step_alpha: Sharing = "run",
) -> Nested:
    """The losses of each mixture at the target size and tokens (Data Mixing Laws, nested use).

    `curves` holds losses over tokens by (size, mixture, target). First a step law for each curve,
    alpha shared by the targets of one run ("run", the authors' `valid`), by everything ("all") or
    by nothing ("none"), gives the loss at `tokens`; then a size law for each mixture and target,
    alpha shared by all, gives the loss at `size`. With runs of the target size only there is no
    size law. Sizes are non-embedding parameters.
    """
    if not curves:
        raise ConfigError("no curves to nest; give losses over tokens by size, mixture and target")
    if not (size > 0 and tokens > 0):
        raise ConfigError(f"the target is {size:g} parameters and {tokens:g} tokens; give both")
    groups = {
        "run": {place: place[:2] for place in curves},
        "all": None,
        "none": {place: place for place in curves},
    }
    steps = fit_step_laws(curves, shared=groups[share_step_alpha])
    at_tokens = {place: float(law.predict(tokens)) for place, law in steps.laws.items()}
    mixtures = list(dict.fromkeys(mixture for _, mixture, _ in curves))
    targets = list(dict.fromkeys(target for _, _, target in curves))
    loss_NV = np.full((len(mixtures), len(targets)), np.nan)
    notes, sizes = steps.notes, None
    if {own for own, _, _ in curves} == {size}:
        reached = {place[1:]: loss for place, loss in at_tokens.items()}
    else:
        sizes = _size_laws(at_tokens, size)
        reached = {pair: float(law.predict(size)) for pair, law in sizes.laws.items()}
        notes += sizes.notes
    for (mixture, target), loss in reached.items():
        loss_NV[mixtures.index(mixture), targets.index(target)] = loss
    for row, column in np.argwhere(np.isnan(loss_NV)):
        notes += (f"{mixtures[row]} on {targets[column]}: too few sizes to predict from",)
    return Nested(
        mixtures,
        targets,
        loss_NV,
        step_in_sample=steps.in_sample,
        step_held_out=steps.held_out,
        size_in_sample=sizes.in_sample if sizes else None,
        size_held_out=sizes.held_out if sizes else None,
        notes=notes,
    )


def _size_laws(at_tokens: Mapping[Place, float], target: float) -> CurveLaws[tuple[str, str]]:
    """Size laws of the pairs of mixture and target set that were run at two sizes or more."""
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for (size, mixture, target_set), loss in at_tokens.items():
        points.setdefault((mixture, target_set), []).append((size, loss))
    curves = {
        pair: LossCurve(*(np.array(part) for part in zip(*sorted(known), strict=True)))
        for pair, known in points.items()
        if len(known) >= 2
    }
    if not curves:
        sizes = ", ".join(f"{size:g}" for size in sorted({place[0] for place in at_tokens}))
        raise ConfigError(
            f"all mixtures were run at one size each ({sizes}), and the target is {target:g}: run "
            "the same mixtures at three sizes, or at the target size"
        )
    return fit_size_laws(curves)

"""Power laws c + (x0 / x)^alpha for many curves at once: over tokens, over sizes, and nested.

Shapes: J curves, X points of the longest curve, P columns, G groups, A values of alpha.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from dograph.errors import ConfigError
from dograph.mixtures.mixing_laws import huber
from dograph.progress import counted

ALPHAS = np.geomspace(0.02, 4.0, 48)  # the authors start in [0.65, 0.9] and [0.3, 0.8]
INNER_STEPS = 100
PRECISION = 1e-14  # stop when a step lowers the loss by less than this share of it
NOTHING = 1e-26  # a loss below this counts as 0: squares of rounding errors


@dataclass(frozen=True)
class PowerLaw:
    """L(x) = c + (x0 / x)^alpha, x a number of tokens or of parameters."""

    c: float
    log_x0: float
    alpha: float

    def predict(self, x: np.ndarray | float) -> np.ndarray:
        """Losses at these tokens or sizes."""
        return self.c + np.exp(self.alpha * (self.log_x0 - np.log(x)))


class LossCurve(NamedTuple):
    """The points of a curve: tokens or sizes, and losses."""

    x_X: np.ndarray
    loss_X: np.ndarray


def fit_power_laws(
    curves: Sequence[LossCurve],
    *,
    delta: float,
    group_J: Sequence[Hashable] | None = None,
    alpha: float | None = None,
) -> list[PowerLaw]:
    """The laws with the lowest Huber loss; curves of one group share alpha (all, by default).

    For a given alpha the law is linear in c and B = x0^alpha, so each curve is a convex problem
    (c, B >= 0) with one solution, which needs no starting points. The derivative of the total in
    alpha is the partial one, because c and B are optimal; alpha is its zero next to the best of a
    grid over [0.02, 4]. `alpha` fixes it instead.
    """
    labels = list(group_J or [0] * len(curves))
    number = {label: index for index, label in enumerate(dict.fromkeys(labels))}
    group_of_J = np.array([number[label] for label in labels])
    points_J = np.array([len(np.unique(curve.x_X)) for curve in curves])
    for index, (x_X, loss_X) in enumerate(curves):
        finite = np.isfinite(x_X).all() and np.isfinite(loss_X).all()
        if not (finite and np.min(x_X, initial=1) > 0):
            raise ConfigError(f"curve {index} has an x or a loss that is not a positive number")
        if points_J[index] < 2:
            what = f"curve {index} has {points_J[index]} different x; at least 2 needed"
            raise ConfigError(f"{what} (curves of {labels[index]})")
    for label, group in number.items() if alpha is None else ():
        members, points = (group_of_J == group).sum(), points_J[group_of_J == group].sum()
        if points < 2 * members + 1:
            raise ConfigError(
                f"{points} points on {members} curve(s) cannot fix {2 * members + 1} parameters "
                f"(c and x0 for each curve, one alpha) of {label}: add a point, or fix alpha"
            )
    problem = _Problem(curves, delta)
    alpha_J = np.full(len(curves), alpha) if alpha else _best_alpha(problem, group_of_J)
    c_J, b_J, _, _ = problem.solve(alpha_J)
    # B = 0 is a curve that does not fall: x0 = 0, whose logarithm must be finite for JSON.
    log_x0_J = problem.centre_J + np.log(np.maximum(b_J, 1e-300)) / alpha_J
    each_J = zip(c_J.tolist(), log_x0_J.tolist(), alpha_J.tolist(), strict=True)
    return [PowerLaw(*parameters) for parameters in each_J]


def mean_error(laws: Sequence[PowerLaw], curves: Sequence[LossCurve]) -> float:
    """Mean absolute error over all points of all curves."""
    pairs = zip(laws, curves, strict=True)
    errors = [np.abs(law.predict(curve.x_X) - curve.loss_X) for law, curve in pairs]
    return float(np.concatenate(errors).mean())


class _Problem:
    """Padded curves, x in units of each curve's geometric mean."""

    def __init__(self, curves: Sequence[LossCurve], delta: float) -> None:
        self.delta, self.centre_J = delta, np.zeros(len(curves))
        longest = max(len(curve.x_X) for curve in curves)
        self.log_x_JX, self.loss_JX, self.there_JX = np.zeros((3, len(curves), longest))
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

        If the unconstrained minimum of the convex problem breaks a bound, the minimum is on c = 0
        or on B = 0, where a problem in one variable remains, whose minimum is clipped to 0.
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

    scipy fits one curve per call, in about 1 ms; a plan needs a hundred thousand. Each step is the
    best of Newton's, two in between, and reweighted least squares, which never raises the loss. The
    loss is convex and piecewise quadratic, so few steps reach its minimum.
    """
    turned_JPX = column_JXP.swapaxes(1, 2)
    gram_JPP = turned_JPX @ column_JXP
    # Keeps the system solvable for nearly equal columns (a tiny alpha) or no error within delta.
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
    """Each curve's alpha: the best of its group on a grid, then the zero of the slope."""
    from scipy.optimize import brentq, minimize_scalar

    num_groups = int(group_J.max()) + 1
    value_AG, slope_AG = np.empty((2, len(ALPHAS), num_groups))
    alpha_J = np.empty(len(group_J))
    with counted("{done}/{total}") as display:
        for row, alpha in enumerate(ALPHAS):
            _, _, value_J, slope_J = problem.solve(np.full(len(group_J), alpha))
            value_AG[row] = np.bincount(group_J, value_J)
            slope_AG[row] = np.bincount(group_J, slope_J)
            display.update(row + 1, stage="power laws, grid of alpha", total=len(ALPHAS))
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
            else:  # two minima within one step of the grid
                alpha_J[rows] = minimize_scalar(at, args=(2,), bounds=(low, high)).x
            display.update(group + 1, stage="power laws", total=num_groups)
    return alpha_J


STEP_DELTA = 0.05  # nats (the authors' code, alpha shared across the validation sets of one run)
SIZE_DELTA = 0.08  # nats (the authors' code)
MOST_HELD_OUT = 5  # points at the end of each curve, as the authors'


@dataclass(frozen=True)
class CurveLaws:
    """Laws fitted on all points, with their mean error.

    `held_out` is the error on left-out points of laws fitted without them; None if there are none.
    """

    laws: list[PowerLaw]
    in_sample: float | None
    held_out: float | None
    notes: tuple[str, ...] = ()


def fit_step_laws(
    curves: Sequence[LossCurve], group_J: Sequence[Hashable] | None = None
) -> CurveLaws:
    """L = c + (D0 / tokens)^alpha for each curve, by Huber's loss (Data Mixing Laws, step law).

    The last points of each curve are predicted by laws fitted without them: a fifth of the
    shortest curve, at most 5 (the authors hold out 5 to choose among 5500 random starts).
    """
    laws = fit_power_laws(curves, delta=STEP_DELTA, group_J=group_J)
    shortest = min(len(curve.x_X) for curve in curves)
    late = min(MOST_HELD_OUT, shortest // 5)
    rank_J = [x_X.argsort(kind="stable").argsort() for x_X, _ in curves]  # by tokens
    late_J = [rank_X >= len(rank_X) - late for rank_X in rank_J]
    held_out = _held_out(curves, late_J, delta=STEP_DELTA, group_J=group_J) if late else None
    notes = () if late else (f"curves of {shortest} points: too short for a held-out error",)
    return CurveLaws(laws, mean_error(laws, curves), held_out, notes)


def _held_out(curves: Sequence[LossCurve], late_J: Sequence[np.ndarray], **how: Any) -> float:
    """Mean error on the late points of all curves, by laws fitted without them."""
    early, late = [], []
    for (x_X, loss_X), late_X in zip(curves, late_J, strict=True):
        early.append(LossCurve(x_X[~late_X], loss_X[~late_X]))
        late.append(LossCurve(x_X[late_X], loss_X[late_X]))
    return mean_error(fit_power_laws(early, **how), late)


def fit_size_laws(curves: Sequence[LossCurve]) -> CurveLaws:
    """L = c + (N0 / N)^alpha for each curve, N non-embedding parameters, one alpha for all.

    The held-out error is that at the largest size, by laws fitted on the smaller ones. Of three
    sizes two are left, which determine c and N0 only: alpha then comes from all three, as the
    authors choose among their fits by the largest size, and a note says so.
    """
    size_X = np.unique(np.concatenate([curve.x_X for curve in curves]))
    if len(size_X) < 3:
        raise ConfigError(
            f"{len(size_X)} size(s) ({', '.join(f'{size:g}' for size in size_X)}) cannot fix c, N0 "
            "and alpha; train proxies of a third size"
        )
    laws = fit_power_laws(curves, delta=SIZE_DELTA)
    in_sample = mean_error(laws, curves)
    large_J = [x_X == size_X[-1] for x_X, _ in curves]
    both = zip(curves, large_J, strict=True)
    known = [(c, at_X) for c, at_X in both if at_X.any() and len(np.unique(c.x_X[~at_X])) >= 2]
    if not known:
        note = "no curve has the largest size and two smaller ones: no held-out error"
        return CurveLaws(laws, in_sample, None, (note,))
    alpha, notes = None, []
    if len(size_X) == 3:
        alpha = laws[0].alpha
        notes = ["the held-out error is optimistic: alpha has seen the largest of three sizes"]
    held_out = _held_out(*zip(*known, strict=True), delta=SIZE_DELTA, alpha=alpha)
    return CurveLaws(laws, in_sample, held_out, tuple(notes))


Place = tuple[float, str, str]  # size, mixture, target


def nest(
    curves: Mapping[Place, LossCurve], *, size: float, tokens: float
) -> tuple[list[Mapping[str, float]], dict[str, Any]]:
    """The losses of each mixture at the target size and tokens (Data Mixing Laws, nested use).

    `curves` holds losses over tokens by (size, mixture, target). First a step law for each curve,
    alpha shared by the targets of one run (the authors' `valid`), gives the loss at `tokens`; then
    a size law for each mixture and target that were run at two sizes or more, alpha shared by all,
    gives the loss at `size`. With runs of the target size only there is no size law, with losses at
    the target's tokens only no step law. Sizes are non-embedding parameters.

    A loss is NaN where there are too few runs, and notes name these places. The findings have the
    mean absolute errors of both laws, in nats, in sample and on left-out points. Neither is the
    error at the target, which is unknown.
    """
    if not curves:
        raise ConfigError("no curves to nest; give losses over tokens by size, mixture and target")
    steps = sizes = CurveLaws([], None, None)  # where there are none to fit
    at_tokens = [float(curve.loss_X[-1]) for curve in curves.values()]
    if any((curve.x_X != tokens).any() for curve in curves.values()):
        steps = fit_step_laws(list(curves.values()), [place[:2] for place in curves])
        at_tokens = [float(law.predict(tokens)) for law in steps.laws]
    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for (own, mixture, target), loss in zip(curves, at_tokens, strict=True):
        points.setdefault((mixture, target), []).append((own, loss))
    tried = sorted({own for own, _, _ in curves})
    if tried == [size]:
        reached = {pair: loss for pair, [(_, loss)] in points.items()}
    else:
        by_size = {
            pair: LossCurve(*(np.array(part) for part in zip(*sorted(known), strict=True)))
            for pair, known in points.items()
            if len(known) >= 2
        }
        if not by_size:
            raise ConfigError(
                f"all mixtures were run at one size each ({', '.join(f'{own:g}' for own in tried)})"
                f", and the target is {size:g}: run the same mixtures at three sizes, or at the "
                "target size"
            )
        sizes = fit_size_laws(list(by_size.values()))
        laws = zip(by_size, sizes.laws, strict=True)
        reached = {pair: float(law.predict(size)) for pair, law in laws}
    mixtures = list(dict.fromkeys(mixture for _, mixture, _ in curves))
    targets = list(dict.fromkeys(target for _, _, target in curves))
    missing = [pair for pair in product(mixtures, targets) if pair not in reached]
    few = "too few sizes to predict from"
    findings = {
        "parameters": size,
        "tokens": tokens,
        "step_in_sample": steps.in_sample,
        "step_held_out": steps.held_out,
        "size_in_sample": sizes.in_sample,
        "size_held_out": sizes.held_out,
        "notes": [*steps.notes, *sizes.notes, *(f"{m} on {t}: {few}" for m, t in missing)],
    }
    return [{t: reached.get((m, t), np.nan) for t in targets} for m in mixtures], findings

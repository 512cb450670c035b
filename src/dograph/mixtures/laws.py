"""Power laws c + (x0 / x)^alpha for many curves at once, with alpha shared within groups.

Shapes: J curves, X points of the longest curve, G groups, A values of alpha.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeVar

import numpy as np

from dograph.errors import ConfigError
from dograph.mixtures.newton import Local, damped_newton, huber

ALPHAS = np.geomspace(0.02, 4.0, 48)  # the authors start in [0.65, 0.9] and [0.3, 0.8]
FALSE_POSITIONS = 60  # at most; some 10 to 15 reach full precision
INNER_STEPS = 60


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


class Curve(NamedTuple):
    """One curve's points: tokens or sizes, and the losses there."""

    x_X: np.ndarray
    loss_X: np.ndarray


class Fitted(NamedTuple):
    """The laws of the curves, in their order, and their mean absolute error where they fitted."""

    laws: list[PowerLaw]
    error: float


def fit_power_laws(
    curves: Sequence[Curve],
    *,
    delta: float,
    group_J: Sequence[int] | None = None,
    alpha: float | None = None,
) -> Fitted:
    """The laws with the lowest Huber loss; curves of one group share alpha (all, by default).

    For a given alpha the law is linear in c and B = x0^alpha, so each curve is a convex problem
    (c and B at least 0) with one answer: there are no starts for them and nothing to scale to the
    data, however few tokens a proxy saw. The slope of the whole in alpha is the partial one, as c
    and B are optimal; alpha starts at the best of a grid over [0.02, 4] and goes to the zero of
    that slope. `alpha` fixes it instead.
    """
    group_J = [0] * len(curves) if group_J is None else list(group_J)
    _check(curves, group_J, alpha)
    problem = _Problem(curves, delta)
    group = np.unique(group_J, return_inverse=True)[1]
    alpha_J = np.full(len(curves), alpha) if alpha else _best_alpha(problem, group)
    c_J, b_J, _, _ = problem.solve(alpha_J)
    # B of 0 is a curve that does not fall: x0 = 0, whose logarithm must stay finite in JSON.
    log_x0_J = problem.centre_J + np.log(np.maximum(b_J, 1e-300)) / alpha_J
    laws = [
        PowerLaw(float(c), float(log_x0), float(alpha))
        for c, log_x0, alpha in zip(c_J, log_x0_J, alpha_J, strict=True)
    ]
    return Fitted(laws, mean_error(laws, curves))


def mean_error(laws: Sequence[PowerLaw], curves: Sequence[Curve]) -> float:
    """Mean absolute error over all points of all curves."""
    errors = [
        np.abs(law.predict(curve.x_X) - curve.loss_X)
        for law, curve in zip(laws, curves, strict=True)
    ]
    return float(np.concatenate(errors).mean())


def _check(curves: Sequence[Curve], group_J: Sequence[int], alpha: float | None) -> None:
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

    def __init__(self, curves: Sequence[Curve], delta: float) -> None:
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

    def solve(self, alpha_J: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """c, B, Huber's loss and its slope in alpha, for each curve at its alpha.

        A convex problem whose free minimum breaks a bound has its minimum on one: on c = 0 or on
        B = 0, where a problem in one number remains, whose minimum is cut off at 0.
        """
        fall_JX = np.exp(-alpha_J[:, None] * self.log_x_JX)
        one_JX = np.ones_like(fall_JX)
        answer_J2 = self._regress(np.stack([one_JX, fall_JX], axis=2))
        broken_J: np.ndarray = np.less(answer_J2, 0).any(axis=1)
        if broken_J.any():
            flat_J2, rest_J2 = np.zeros_like(answer_J2), np.zeros_like(answer_J2)
            flat_J2[:, 0] = np.maximum(self._regress(one_JX[:, :, None])[:, 0], 0)
            rest_J2[:, 1] = np.maximum(self._regress(fall_JX[:, :, None])[:, 0], 0)
            flat_J, rest_J = (self._value(edge, fall_JX)[0] for edge in (flat_J2, rest_J2))
            edge_J2 = np.where(np.less_equal(flat_J, rest_J)[:, None], flat_J2, rest_J2)
            answer_J2 = np.where(broken_J[:, None], edge_J2, answer_J2)
        value_J, slope_JX = self._value(answer_J2, fall_JX)
        by_alpha_JX = -answer_J2[:, 1:] * fall_JX * self.log_x_JX
        return answer_J2[:, 0], answer_J2[:, 1], value_J, (slope_JX * by_alpha_JX).sum(axis=1)

    def _value(self, answer_J2: np.ndarray, fall_JX: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        error_JX = answer_J2[:, :1] + answer_J2[:, 1:] * fall_JX - self.loss_JX
        value_J, slope_JX, _ = huber(error_JX * self.there_JX, self.delta)
        return value_J, slope_JX

    def _regress(self, column_JXP: np.ndarray) -> np.ndarray:
        """Huber regression of the losses on the columns, curve by curve, from least squares."""
        column_JXP = column_JXP * self.there_JX[:, :, None]
        turned_JPX = column_JXP.swapaxes(1, 2)
        gram_JPP = turned_JPX @ column_JXP
        # Nearly equal columns (a tiny alpha) still need a start; Newton's steps repair it.
        gram_JPP = gram_JPP + 1e-14 * np.trace(gram_JPP, axis1=1, axis2=2)[:, None, None] * np.eye(
            column_JXP.shape[2]
        )
        start_JP = np.linalg.solve(gram_JPP, turned_JPX @ self.loss_JX[:, :, None])[:, :, 0]

        def at(point_JP: np.ndarray, which: np.ndarray) -> Local:
            here_JXP = column_JXP[which]
            turned_JPX = here_JXP.swapaxes(1, 2)
            error_JX = (here_JXP @ point_JP[:, :, None])[:, :, 0] - self.loss_JX[which]
            value_J, slope_JX, weight_JX = huber(error_JX, self.delta)
            inside_JX = (weight_JX >= 1).astype(np.float64)
            return Local(
                value_J,
                (turned_JPX @ slope_JX[:, :, None])[:, :, 0],
                turned_JPX @ (inside_JX[:, :, None] * here_JXP),
                turned_JPX @ (weight_JX[:, :, None] * here_JXP),
            )

        return damped_newton(at, start_JP, iterations=INNER_STEPS)[0]


def _best_alpha(problem: _Problem, group_J: np.ndarray) -> np.ndarray:
    """Each curve's alpha: the lowest of its group, from a grid and then where the slope is 0.

    The zero is found by false position with the Illinois rule: a bound that stays twice running
    counts half, so that both bounds close in on it.
    """
    num_groups = int(group_J.max()) + 1
    value_AG, slope_AG = np.empty((2, len(ALPHAS), num_groups))
    for row, alpha in enumerate(ALPHAS):
        _, _, value_J, slope_J = problem.solve(np.full(len(group_J), alpha))
        value_AG[row] = np.bincount(group_J, value_J)
        slope_AG[row] = np.bincount(group_J, slope_J)
    best_G, each_G = value_AG.argmin(axis=0), np.arange(num_groups)
    rises_G = slope_AG[best_G, each_G] > 0
    low_at_G = np.maximum(best_G - rises_G, 0)
    high_at_G = np.minimum(best_G + ~rises_G, len(ALPHAS) - 1)
    low_G, high_G = ALPHAS[low_at_G], ALPHAS[high_at_G]
    low_slope_G, high_slope_G = slope_AG[low_at_G, each_G], slope_AG[high_at_G, each_G]
    alpha_G = low_G
    for _ in range(FALSE_POSITIONS):
        before_G, rose_G = alpha_G, rises_G
        share_G = low_slope_G / np.where(low_slope_G < high_slope_G, low_slope_G - high_slope_G, 1)
        share_G = np.where((share_G > 0) & (share_G < 1), share_G, 0.5)
        alpha_G = low_G + share_G * (high_G - low_G)
        slope_G = np.bincount(group_J, problem.solve(alpha_G[group_J])[3])
        rises_G = slope_G > 0
        again_G = np.where(rises_G == rose_G, 0.5, 1.0)
        low_slope_G = np.where(rises_G, low_slope_G * again_G, slope_G)
        high_slope_G = np.where(rises_G, slope_G, high_slope_G * again_G)
        low_G, high_G = np.where(rises_G, low_G, alpha_G), np.where(rises_G, alpha_G, high_G)
        if (np.abs(alpha_G - before_G) <= 1e-14 * alpha_G).all():
            break
    alpha_J: np.ndarray = alpha_G[group_J]
    return alpha_J


# The step law: how one run's loss goes on falling with tokens (Ye et al., Data Mixing Laws).


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


# The size law: how loss falls with the model's size at equal tokens (Data Mixing Laws).


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


# From small runs to a table of predicted losses of the run one means to do.


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
    curves: Mapping[Place, Curve],
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
        pair: Curve(*(np.array(part) for part in zip(*sorted(known), strict=True)))
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

"""Step and size laws and their nesting: planted curves, scipy's optimum, and what is refused."""

import numpy as np
import pytest
from scipy.optimize import minimize

from dograph.errors import ConfigError
from dograph.mixtures.mixing_laws import huber
from dograph.mixtures.power_laws import (
    LossCurve,
    PowerLaw,
    _Problem,
    fit_power_laws,
    fit_size_laws,
    fit_step_laws,
    mean_error,
    nest,
)


def curves_of(seed, number, noise, alpha=0.5, points=10):
    draws = np.random.default_rng(seed)
    truth = [
        PowerLaw(draws.uniform(1, 3), np.log(draws.uniform(1e5, 3e6)), alpha) for _ in range(number)
    ]
    curves = []
    for law in truth:
        x_X = np.sort(draws.uniform(2e5, 1e7, points))
        curves.append(LossCurve(x_X, law.predict(x_X) + draws.normal(0, noise, points)))
    return truth, curves


def huber_loss(laws, curves, delta):
    return sum(
        huber((law.predict(curve.x_X) - curve.loss_X)[None], delta)[0][0]
        for law, curve in zip(laws, curves, strict=True)
    )


def long_search(curves, delta, starts):
    """The lowest loss that scipy's L-BFGS-B finds in log c, log B and log alpha."""
    count = len(curves)
    centre = np.mean(np.concatenate([np.log(curve.x_X) for curve in curves]))

    def objective(point):
        value, slope, alpha = 0.0, np.zeros_like(point), np.exp(point[-1])
        for j, (x_X, loss_X) in enumerate(curves):
            c, back_X = np.exp(point[j]), centre - np.log(x_X)
            fall_X = np.exp(np.minimum(point[count + j] + alpha * back_X, 50))
            error_X = c + fall_X - loss_X
            clipped_X = np.clip(error_X, -delta, delta)
            value += clipped_X @ (error_X - clipped_X / 2)
            slope[j] = clipped_X.sum() * c
            slope[count + j] = clipped_X @ fall_X
            slope[-1] += alpha * clipped_X @ (fall_X * back_X)
        return value, slope

    draws, best = np.random.default_rng(0), np.inf
    for _ in range(starts):
        low = np.log([curve.loss_X.min() for curve in curves]) - draws.uniform(0, 2, count)
        alpha = np.log(draws.uniform(0.1, 1.5))
        found = minimize(
            objective,
            np.concatenate([low, draws.uniform(-2, 1, count), [alpha]]),
            jac=True,
            method="L-BFGS-B",
            bounds=[(-25, 5)] * count + [(-60, 60)] * count + [(np.log(0.02), np.log(4))],
            options={"maxiter": 5000, "maxfun": 20000, "ftol": 1e-16, "gtol": 1e-12},
        )
        best = min(best, found.fun)
    return best


@pytest.mark.parametrize("noise", [0.01, 0.1])
def test_reaches_the_optimum_of_a_long_search(noise):
    _, curves = curves_of(1, 3, noise)
    laws = fit_power_laws(curves, delta=0.05)
    assert len({law.alpha for law in laws}) == 1
    assert huber_loss(laws, curves, 0.05) <= long_search(curves, 0.05, starts=8) * (1 + 1e-8)


@pytest.mark.parametrize("alpha", [0.2, 0.75])
@pytest.mark.parametrize("unit", [1.0, 1e5])
def test_finds_planted_curves_at_any_scale_of_tokens(alpha, unit):
    truth, curves = curves_of(2, 4, 0.0, alpha)
    laws = fit_power_laws([LossCurve(c.x_X * unit, c.loss_X) for c in curves], delta=0.05)
    for law, known in zip(laws, truth, strict=True):
        assert law.alpha == pytest.approx(alpha, abs=1e-8)
        assert law.c == pytest.approx(known.c, abs=1e-7)
        assert law.log_x0 == pytest.approx(known.log_x0 + np.log(unit), abs=1e-6)


@pytest.mark.parametrize("alpha", [0.05, 2.5])
def test_finds_steep_and_flat_curves(alpha):
    draws = np.random.default_rng(9)
    x_X = np.geomspace(1e5, 1e7, 20)
    truth = [PowerLaw(draws.uniform(1, 3), np.log(3e5), alpha) for _ in range(3)]
    laws = fit_power_laws([LossCurve(x_X, law.predict(x_X)) for law in truth], delta=0.05)
    assert laws[0].alpha == pytest.approx(alpha, rel=1e-4)
    for law, known in zip(laws, truth, strict=True):
        np.testing.assert_allclose(law.predict(x_X), known.predict(x_X), atol=1e-7)


def test_alpha_by_group():
    _, three = curves_of(3, 3, 0.0, 0.3)
    _, two = curves_of(4, 2, 0.0, 0.9)
    mixed = [three[0], two[0], three[1], two[1], three[2]]
    laws = fit_power_laws(mixed, delta=0.05, group_J=[7, 2, 7, 2, 7])
    np.testing.assert_allclose([law.alpha for law in laws], [0.3, 0.9, 0.3, 0.9, 0.3], atol=1e-8)


def test_the_slope_in_alpha_against_finite_differences():
    problem = _Problem(curves_of(5, 3, 0.1)[1], 0.05)
    alpha_J, step = np.array([0.4, 0.6, 0.9]), 1e-6
    by_steps = (problem.solve(alpha_J + step)[2] - problem.solve(alpha_J - step)[2]) / (2 * step)
    np.testing.assert_allclose(problem.solve(alpha_J)[3], by_steps, rtol=1e-5)


def test_bounds_hold_where_the_free_fit_would_cross_them():
    x_X = np.geomspace(1e5, 1e7, 8)
    rising = LossCurve(x_X, 2 + 0.01 * np.arange(8.0))
    to_zero = LossCurve(x_X, np.maximum((1e5 / x_X) ** 0.2 * 3 - 0.8, 0.2))
    laws = fit_power_laws([rising, to_zero], delta=0.05, alpha=0.2)
    assert laws[0].c == pytest.approx(np.median(rising.loss_X), abs=0.01)
    np.testing.assert_allclose(laws[0].predict(x_X), laws[0].c)
    assert laws[1].c == 0

    def free(b):
        return huber_loss([PowerLaw(0.0, np.log(b) / 0.2, 0.2)], [to_zero], 0.05)

    best = huber_loss(laws[1:], [to_zero], 0.05)
    for b in np.exp(0.2 * laws[1].log_x0) * np.array([0.999, 1.001]):
        assert best < free(b)


def test_curves_that_cannot_fix_their_law_are_refused():
    two = LossCurve(np.array([1e6, 2e6]), np.array([3.0, 2.8]))
    three = LossCurve(np.array([1e6, 2e6, 4e6]), np.array([3.0, 2.8, 2.7]))
    with pytest.raises(ConfigError, match=r"4 points on 2 curve\(s\) cannot fix 5 parameters"):
        fit_power_laws([two, two], delta=0.05)
    assert mean_error(fit_power_laws([two, three], delta=0.05), [two, three]) < 1e-9
    fixed = fit_power_laws([two], delta=0.05, alpha=0.5)
    assert mean_error(fixed, [two]) < 1e-12
    assert fixed[0].alpha == 0.5
    with pytest.raises(ConfigError, match="1 different x"):
        fit_power_laws(
            [LossCurve(np.array([1e6, 1e6]), np.array([3.0, 2.8]))], delta=0.05, alpha=0.5
        )
    with pytest.raises(ConfigError, match="not a positive number"):
        fit_power_laws([LossCurve(np.array([0, 1e6]), np.array([3.0, 2.8]))], delta=0.05, alpha=0.5)


def test_the_step_laws_held_out_points_are_not_seen():
    _, (curve,) = curves_of(6, 1, 0.0)
    bent = LossCurve(curve.x_X, curve.loss_X + np.where(np.arange(10) >= 8, 0.04, 0.0))
    fit = fit_step_laws([bent])
    assert fit.held_out == pytest.approx(0.04, abs=1e-7)
    assert 0 < fit.in_sample < 0.04
    shuffled = np.random.default_rng(0).permutation(10)
    again = fit_step_laws([LossCurve(bent.x_X[shuffled], bent.loss_X[shuffled])])
    assert again.held_out == pytest.approx(0.04, abs=1e-7)
    assert fit_step_laws([curve]).held_out < 1e-9
    short = LossCurve(curve.x_X[:4], curve.loss_X[:4])
    assert fit_step_laws([short]).held_out is None


def test_a_fifth_of_a_curve_is_held_out_but_at_most_five_points():
    _, (long,) = curves_of(10, 1, 0.05, points=40)
    for points, held_out in ((40, 5), (12, 2)):
        x_X, loss_X = long.x_X[:points], long.loss_X[:points]
        early = fit_power_laws([LossCurve(x_X[:-held_out], loss_X[:-held_out])], delta=0.05)
        late = [LossCurve(x_X[-held_out:], loss_X[-held_out:])]
        assert fit_step_laws([LossCurve(x_X, loss_X)]).held_out == mean_error(early, late)


def test_hubers_deltas_are_the_authors():
    """0.05 nats in the step law, 0.08 in the size law; noise beyond them, so that they matter."""
    _, curves = curves_of(11, 2, 0.15)
    for fit, delta in ((fit_step_laws, 0.05), (fit_size_laws, 0.08)):
        laws = fit(curves).laws
        assert laws == fit_power_laws(curves, delta=delta)
        assert laws != fit_power_laws(curves, delta=1.5 * delta)


def size_curves(sizes, count=3):
    draws = np.random.default_rng(7)
    x_X = np.array(sizes)
    laws = [
        PowerLaw(draws.uniform(1, 2), np.log(draws.uniform(1e4, 1e5)), 0.4) for _ in range(count)
    ]
    return [LossCurve(x_X, law.predict(x_X)) for law in laws], laws


def test_size_laws_hold_out_the_largest_size():
    curves, truth = size_curves([2e5, 1e6, 5e6, 2e7])
    fit = fit_size_laws(curves)
    assert fit.held_out < 1e-9
    assert fit.notes == ()
    np.testing.assert_allclose(fit.laws[0].predict(1e9), truth[0].predict(1e9), atol=1e-8)
    lifted = [LossCurve(c.x_X, c.loss_X + np.array([0, 0, 0, 0.03])) for c in curves]
    assert fit_size_laws(lifted).held_out == pytest.approx(0.03, abs=1e-7)


def test_size_laws_of_three_sizes_say_that_alpha_has_seen_the_largest():
    fit = fit_size_laws(size_curves([2e5, 1e6, 5e6])[0])
    assert fit.held_out < 1e-9
    assert "alpha has seen" in fit.notes[0]


def test_size_laws_of_two_sizes_are_refused():
    with pytest.raises(ConfigError, match=r"2 size\(s\) \(200000, 1e\+06\) cannot fix"):
        fit_size_laws(size_curves([2e5, 1e6])[0])


def nested_truth(noise=0.0):
    """Losses that are exactly a step law at each size and a size law at the target tokens."""
    draws, tokens, size = np.random.default_rng(8), 5e7, 1e8
    tokens_X = np.linspace(1e6, 1e7, 12)
    curves, loss_NV = {}, np.zeros((4, 2))
    for n in range(4):
        for v in range(2):
            by_size = PowerLaw(draws.uniform(1, 2), np.log(draws.uniform(1e4, 1e5)), 0.4)
            loss_NV[n, v] = by_size.predict(size)
            for own in (2e5, 1e6, 5e6, 2e7):
                fall = PowerLaw(0.0, np.log(draws.uniform(1e4, 1e5)), 0.6)
                end = by_size.predict(own) - fall.predict(tokens)
                loss_X = end + fall.predict(tokens_X) + draws.normal(0, noise, 12)
                curves[own, f"mix{n}", f"set{v}"] = LossCurve(tokens_X, loss_X)
    return curves, loss_NV, size, tokens


def rows(losses):
    return np.array([list(row.values()) for row in losses])


def test_nesting_recovers_what_was_planted():
    curves, loss_NV, size, tokens = nested_truth()
    losses, findings = nest(curves, size=size, tokens=tokens)
    assert all(list(row) == ["set0", "set1"] for row in losses)
    np.testing.assert_allclose(rows(losses), loss_NV, atol=1e-6)
    for error in ("step_in_sample", "step_held_out", "size_in_sample", "size_held_out"):
        assert findings[error] < 1e-7
    assert (findings["parameters"], findings["tokens"]) == (size, tokens)


def test_alpha_is_that_of_each_run():
    """Runs of different steepness, each on two sets: one alpha for all would miss them."""
    tokens_X, curves = np.linspace(1e6, 1e7, 12), {}
    for n, alpha in enumerate((0.3, 0.6, 0.9)):
        for v in range(2):
            law = PowerLaw(1.5 + v, np.log(2e5 * (1 + v)), alpha)
            curves[1e6, f"mix{n}", f"set{v}"] = LossCurve(tokens_X, law.predict(tokens_X))
    truth = [
        [1.5 + v + (2e5 * (1 + v) / 1e9) ** alpha for v in range(2)] for alpha in (0.3, 0.6, 0.9)
    ]
    losses, _ = nest(curves, size=1e6, tokens=1e9)
    np.testing.assert_allclose(rows(losses), truth, atol=1e-6)
    shared = fit_step_laws(list(curves.values())).laws
    assert np.abs([law.predict(1e9) for law in shared] - np.ravel(truth)).max() > 0.01


def test_nesting_reports_the_two_errors_apart():
    curves, loss_NV, size, tokens = nested_truth(noise=0.003)
    losses, found = nest(curves, size=size, tokens=tokens)
    assert 0.001 < found["step_in_sample"] < 0.004
    assert found["step_held_out"] > found["step_in_sample"]
    assert found["size_held_out"] > found["size_in_sample"] > 0
    assert np.abs(rows(losses) - loss_NV).max() < 0.2


def test_nesting_at_the_size_that_was_run_needs_no_size_law():
    curves, _, _, tokens = nested_truth()
    one = {place: curve for place, curve in curves.items() if place[0] == 2e7}
    losses, found = nest(one, size=2e7, tokens=tokens)
    assert losses[0]["set0"] < one[2e7, "mix0", "set0"].loss_X.min()
    assert found["size_in_sample"] is None
    with pytest.raises(ConfigError, match=r"one size each \(2e\+07\), and the target is 1e\+09"):
        nest(one, size=1e9, tokens=tokens)


def test_places_the_runs_do_not_reach_are_missing_and_named():
    curves, loss_NV, size, tokens = nested_truth()
    for own in (1e6, 5e6, 2e7):
        del curves[own, "mix2", "set1"]
    losses, found = nest(curves, size=size, tokens=tokens)
    assert np.isnan(losses[2]["set1"])
    assert np.isfinite(rows(losses)).sum() == 7
    assert any("mix2 on set1" in note for note in found["notes"])
    np.testing.assert_allclose(rows(losses)[0], loss_NV[0], atol=1e-6)


def test_nesting_needs_curves():
    with pytest.raises(ConfigError, match="no curves to nest"):
        nest({}, size=1e8, tokens=1e9)

"""The surrogate that ranks left-out runs best, and how that is found."""

import json
import resource
from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from dograph.errors import ConfigError, MissingExtraError
from dograph.mixtures import surrogates as choosing
from dograph.mixtures.surrogates import (
    SURROGATES,
    LinearLaw,
    choose_surrogate,
    draw_folds,
    fit_linear,
)
from dograph.progress import Progress
from planned_tables import PILE, PILE_TARGETS, exponential_table

ONE = np.ones(1)  # the share of a single target


class Spy:
    """Predicts the first weight, times a sign; remembers what it was fitted on."""

    def __init__(self, sign=1.0, level=0.0):
        self.sign, self.level, self.seen = sign, level, []

    def fit(self, weight_NS, loss_N, *, seed=0):
        self.seen.append((weight_NS.copy(), loss_N.copy()))
        slope_S = np.zeros(weight_NS.shape[1])
        slope_S[0] = self.sign
        return LinearLaw(self.level, slope_S)


def with_surrogates(**surrogates):
    return {name: own.fit for name, own in surrogates.items()}


def some(*names):
    return {name: SURROGATES[name] for name in names}


def runs(number=30, sources=3, seed=0):
    draws = np.random.default_rng(seed)
    weight_NS = draws.dirichlet(np.ones(sources), size=number)
    return weight_NS, (weight_NS[:, 0] + 0.1 * draws.standard_normal(number))[:, None]


def test_folds():
    fold_RN = draw_folds(33, seed=1)
    assert fold_RN.shape == (3, 33)
    assert all(sorted(np.bincount(fold_N)) == [6, 6, 7, 7, 7] for fold_N in fold_RN)
    assert not np.array_equal(fold_RN[0], fold_RN[1])
    np.testing.assert_array_equal(fold_RN, draw_folds(33, seed=1))
    assert not np.array_equal(fold_RN, draw_folds(33, seed=2))
    np.testing.assert_array_equal(draw_folds(7, seed=1), [np.arange(7)])
    assert draw_folds(100, seed=1).shape == (1, 100)


def test_every_run_is_left_out_of_the_fits_that_predict_it():
    weight_NS, loss_NV = runs()
    spy = Spy()
    choose_surrogate(weight_NS, loss_NV, ONE, surrogates=with_surrogates(spy=spy), seed=5)
    assert len(spy.seen) == 15
    rows = {row.tobytes() for row in weight_NS}
    for fitted_NS, fitted_N in spy.seen:
        out = rows - {row.tobytes() for row in fitted_NS}
        assert len(out) == 6
        assert len(fitted_N) == 24
    left_out = [rows - {row.tobytes() for row in seen} for seen, _ in spy.seen]
    assert sum(row in out for out in left_out for row in rows) == 3 * 30


def test_scores_are_of_pooled_predictions():
    """By hand: one fit for each fold, Spearman over all runs at once, the mean over repeats."""
    weight_NS, loss_NV = runs(40)
    result = choose_surrogate(weight_NS, loss_NV, ONE, surrogates=some("linear"), seed=3)
    rhos, errors = [], []
    for fold_N in draw_folds(40, seed=3):
        guess_N = np.empty(40)
        for fold in range(5):
            out_N = fold_N == fold
            fitted = fit_linear(weight_NS[~out_N], loss_NV[~out_N, 0])
            guess_N[out_N] = fitted.predict(weight_NS[out_N])
        rhos.append(stats.spearmanr(guess_N, loss_NV[:, 0]).statistic)
        errors.append(np.abs(guess_N - loss_NV[:, 0]).mean())
    scores = result.validated["linear"]
    assert scores.spearman == pytest.approx(np.mean(rhos), abs=1e-12)
    assert scores.mean_error == pytest.approx(np.mean(errors), abs=1e-12)
    assert (result.folds, result.repeats) == (5, 3)


def scores_of_linear(weight_NS, loss_NV, *shares):
    surrogates = some("linear")
    choice = choose_surrogate(weight_NS, loss_NV, np.array(shares), surrogates=surrogates)
    return choice.validated["linear"]


def test_several_targets_are_added_up_by_their_shares():
    weight_NS, loss_NV = runs(120)
    both_NV = np.hstack([loss_NV, 1 - 3 * loss_NV])
    both = scores_of_linear(weight_NS, both_NV, 0.6, 0.4)  # the second outweighs the first
    up, down = (scores_of_linear(weight_NS, both_NV[:, [v]], 1.0) for v in (0, 1))
    assert up.spearman == pytest.approx(down.spearman)
    assert both.spearman == pytest.approx(up.spearman)
    assert both.mean_error == pytest.approx(0.6 * up.mean_error)


def test_one_target_that_is_constant_does_not_make_the_objective_so():
    weight_NS, loss_NV = runs(40)
    stands_NV = np.full_like(loss_NV, 2.0)
    both = scores_of_linear(weight_NS, np.hstack([loss_NV, stands_NV]), 0.5, 0.5)
    assert scores_of_linear(weight_NS, stands_NV, 1.0).note == "constant"
    assert both.note is None
    assert both.spearman == pytest.approx(scores_of_linear(weight_NS, loss_NV, 1.0).spearman)
    assert both.spearman > 0.5


def test_the_highest_rank_correlation_wins():
    weight_NS, loss_NV = runs()
    names = with_surrogates(a=Spy(-1), b=Spy(1, level=9.0), c=SimpleNamespace(fit=fit_linear))
    result = choose_surrogate(weight_NS, loss_NV, ONE, surrogates=names)
    assert result.name in ("b", "c")
    assert result.validated["a"].spearman < 0
    ordered = sorted(names, key=lambda n: -result.validated[n].spearman)
    assert result.name == ordered[0]
    said = [f"{name} {result.validated[name].spearman:.4f}" for name in ordered]
    assert result.why.endswith(", ".join(said))


def test_equal_ranks_go_by_error_and_then_by_name():
    weight_NS, loss_NV = runs()
    names = with_surrogates(z=Spy(level=0.1), far=Spy(level=9.0), a=Spy(level=-9.0))
    assert choose_surrogate(weight_NS, loss_NV, ONE, surrogates=names).name == "z"
    names = with_surrogates(z=Spy(), b=Spy(), c=Spy())
    assert choose_surrogate(weight_NS, loss_NV, ONE, surrogates=names).name == "b"


@pytest.mark.parametrize("number", [8, 32])
def test_lightgbm_is_constant_on_few_runs_and_counts_as_zero(number):
    """Its folds have different means, which must not pass for an order."""
    weight_NS, loss_NV = runs(number)
    result = choose_surrogate(weight_NS, loss_NV, ONE, surrogates=some("lightgbm", "linear"))
    scores = result.validated["lightgbm"]
    assert (scores.spearman, scores.pearson, scores.note) == (0.0, None, "constant")
    assert scores.mean_error > 0
    assert result.name == "linear"
    assert "surrogate lightgbm, cross-validated: constant" in result.notes


def test_the_law_is_chosen_where_it_holds():
    table, _ = exponential_table(60, ["a", "b", "c", "d"], ["a", "b"], noise=0.002)
    result = choose_surrogate(table.weight_NS, table.loss_NV, np.array([0.5, 0.5]))
    assert result.name == "exponential"
    assert set(result.validated) == set(SURROGATES)
    assert result.validated["exponential"].spearman > 0.98


def test_a_surrogate_that_cannot_be_fitted_is_named_and_left_out():
    class Absent(Spy):
        def fit(self, weight_NS, loss_N, *, seed=0):
            raise MissingExtraError("lightgbm is not installed. pip install 'dograph[plan]'")

    weight_NS, loss_NV = runs()
    names = with_surrogates(absent=Absent(), there=Spy())
    result = choose_surrogate(weight_NS, loss_NV, ONE, surrogates=names)
    assert result.name == "there"
    assert any("absent was left out" in note and "dograph[plan]" in note for note in result.notes)
    assert "could be fitted" in result.why
    with pytest.raises(MissingExtraError):
        choose_surrogate(weight_NS, loss_NV, ONE, surrogates={"absent": Absent().fit})
    names = with_surrogates(absent=Absent(), too=Absent())
    with pytest.raises(ConfigError, match=r"no surrogate can be fitted.*dograph\[plan\]"):
        choose_surrogate(weight_NS, loss_NV, ONE, surrogates=names)


def test_the_exponential_law_refuses_losses_below_zero():
    weight_NS, loss_NV = runs()
    result = choose_surrogate(weight_NS, loss_NV - 5, ONE, surrogates=some("exponential", "ridge"))
    assert result.name == "ridge"
    with pytest.raises(ConfigError):
        choose_surrogate(weight_NS, loss_NV - 5, ONE, surrogates=some("exponential"))


def test_progress_counts_every_fit(monkeypatch, capsys):
    """As shown of work that takes long: here all work does, and no line is left out."""
    monkeypatch.setattr(choosing, "counted", lambda *given: Progress(*given, line_seconds=0))
    weight_NS, loss_NV = runs()
    choose_surrogate(weight_NS, loss_NV, ONE, surrogates=some("ridge", "linear"))
    shown = [line.split("; ")[:2] for line in capsys.readouterr().err.splitlines()]
    assert shown == [
        [f"{done}/30 fits", "ridge" if done <= 15 else "linear"] for done in range(1, 31)
    ]


def test_it_is_the_same_every_time():
    table, _ = exponential_table(50, ["a", "b", "c"], ["a"], noise=0.05)
    first, again = (choose_surrogate(table.weight_NS, table.loss_NV, ONE) for _ in range(2))
    assert first == again


@pytest.mark.slow
def test_a_table_like_regmixs_is_chosen_for_in_a_minute():
    """512 runs, 17 sources, 13 targets, all surrogates: 60 s on two cores are 120 of work."""
    table, _ = exponential_table(512, PILE, PILE_TARGETS, noise=0.02)
    shares = np.full(13, 1 / 13)
    before = resource.getrusage(resource.RUSAGE_SELF)
    result = choose_surrogate(table.weight_NS, table.loss_NV, shares)
    after = resource.getrusage(resource.RUSAGE_SELF)
    assert set(result.validated) == set(SURROGATES)
    work = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    assert work < 80


class Beyond:
    """Predicts the first weight, and infinity where it is above a limit."""

    def __init__(self, limit):
        self.limit = limit

    def fit(self, weight_NS, loss_N, *, seed=0):
        return self

    def predict(self, weight_NS):
        return np.where(weight_NS[:, 0] > self.limit, np.inf, weight_NS[:, 0])


def test_an_infinite_error_loses_to_any_other():
    weight_NS, _ = runs()
    highest = float(weight_NS[:, 0].max())
    # the highest is still the last in rank: both rank alike
    names = with_surrogates(a=Beyond(highest - 1e-9), b=Beyond(1.0))
    result = choose_surrogate(weight_NS, 5 + weight_NS[:, :1], ONE, surrogates=names)
    assert result.name == "b"
    scores = result.validated["a"]
    assert (scores.spearman, scores.mean_error) == (pytest.approx(1.0), None)
    assert "surrogate a, cross-validated: an infinite loss is predicted of 1 of 30 runs" in (
        result.notes
    )
    json.dumps(asdict(scores), allow_nan=False)


def test_an_error_that_is_infinite_in_one_repeat_is_not_known():
    weight_NS, _ = runs()
    fitted = []

    def fit(weights, losses, *, seed=0):
        fitted.append(None)  # of three repeats of five folds; the threads may take any order
        return Beyond(1.0 if len(fitted) > 1 else -1.0)

    result = choose_surrogate(weight_NS, 5 + weight_NS[:, :1], ONE, surrogates={"a": fit})
    assert len(fitted) == 15
    assert (result.validated["a"].mean_error, result.validated["a"].bias) == (None, None)

"""A plan from runs that exist: RegMix or the data mixing law, fitted on a table.

Shapes: N runs, S sources, V targets that count.
"""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from dograph.errors import ConfigError, did_you_mean
from dograph.mixtures.choice import (
    Choice,
    PlanObjective,
    Progress,
    choose_surrogate,
    is_constant,
    score,
    score_table,
)
from dograph.mixtures.convex import find_optimum
from dograph.mixtures.exponential import ExponentialLaw
from dograph.mixtures.proposals import (
    DRAWS,
    TOP,
    Target,
    cap_vector,
    known_name,
    simulate,
    target_shares,
)
from dograph.mixtures.surrogates import LAWS, SURROGATES
from dograph.mixtures.tables import MixtureTable, listed
from dograph.mixtures.transfer import TransferLaw
from dograph.types import Mixture

Method = Literal["regmix", "mixing-law"]
FEWEST_RUNS = 4


@dataclass(frozen=True, slots=True)
class Proposal:
    """A mixture, and what is known of how it came about (JSON values)."""

    mixture: Mixture
    findings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Rows:
    """The runs that a plan is fitted on, and what bounds it."""

    table: MixtureTable
    shares: dict[str, float]
    runs: list[str]
    weight_NS: np.ndarray
    loss_NV: np.ndarray
    prior_S: np.ndarray
    cap_S: np.ndarray
    notes: list[str]

    @property
    def share_V(self) -> np.ndarray:
        return np.array(list(self.shares.values()))

    def by_source(self, value_S: np.ndarray) -> dict[str, float]:
        return dict(zip(self.table.sources, value_S.tolist(), strict=True))


def propose_from_table(
    method: Method,
    table: MixtureTable,
    *,
    target: Target,
    prior: Mapping[str, float] | None = None,
    caps: Mapping[str, float] | None = None,
    surrogate: str | None = None,
    seed: int = 42,
    test_table: MixtureTable | None = None,
    draws: int = DRAWS,
    top: int = TOP,
    progress: Progress | None = None,
) -> Proposal:
    """The mixture that runs of other mixtures speak for.

    `regmix`: the surrogate that best ranks left-out runs (or the one named), then the mean of the
    mixtures of a simulation whose predicted loss is lowest. `mixing-law`: a law for each target,
    the authors' exponential one unless the surrogate `transfer` is named, and the optimum of their
    sum, exact because it is convex. Both stay within `caps` (highest weight by source) and leave
    out sources that the prior has none of. `prior` defaults to the mean of the table's mixtures.
    Errors in the sample and on left-out runs are told apart.
    """
    names = _candidates(method, surrogate)
    if not 1 <= top <= draws:
        raise ConfigError(f"top={top}: of {draws:,} simulated mixtures 1 to all may be averaged")
    rows = _rows(table, target, prior, caps)
    choice = choose_surrogate(
        rows.weight_NS, rows.loss_NV, rows.shares, names=names, seed=seed, progress=progress
    )
    chosen = SURROGATES[choice.name]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        fitted_V = pool.map(lambda y: chosen.fit(rows.weight_NS, y, seed=seed), rows.loss_NV.T)
        objective = PlanObjective(list(fitted_V), rows.share_V)
    findings = _findings(method, rows, choice, objective, surrogate)
    if method == "regmix":
        weight_S, findings["simulation"] = _simulated(rows, objective, seed, draws, top)
    else:
        weight_S, findings["optimum"] = _lowest(rows, objective)
    findings["predicted"] = _predicted(rows, objective, weight_S)
    if test_table is not None:
        findings["held_out"] = score_table(objective, rows.shares, table, test_table)
    return Proposal(Mixture.normalised(rows.by_source(weight_S)), findings)


def _candidates(method: str, surrogate: str | None) -> tuple[str, ...]:
    if method not in ("regmix", "mixing-law"):
        raise ConfigError(
            f'a table cannot be planned from by "{method}"; '
            f"{did_you_mean(method, ['regmix', 'mixing-law'])}"
        )
    if surrogate is not None and surrogate not in SURROGATES:
        raise ConfigError(
            f'there is no surrogate "{surrogate}"; {did_you_mean(surrogate, SURROGATES)}'
        )
    if method == "mixing-law":
        if surrogate is not None and surrogate not in LAWS:
            raise ConfigError(
                f"the mixing law is a surrogate with an exact optimum: {' or '.join(LAWS)}; "
                f'to plan with "{surrogate}", use regmix'
            )
        return (surrogate or LAWS[0],)
    return tuple(SURROGATES) if surrogate is None else (surrogate,)


def _rows(
    table: MixtureTable,
    target: Target,
    prior: Mapping[str, float] | None,
    caps: Mapping[str, float] | None,
) -> _Rows:
    shares = target_shares(table, target)
    notes = [*table.notes, *(note for note in table.remarks() if note not in table.notes)]
    loss_NV = table.loss_NV[:, [table.targets.index(name) for name in shares]]
    whole_N = ~np.isnan(loss_NV).any(1)
    if whole_N.sum() < FEWEST_RUNS:
        raise ConfigError(
            f"{int(whole_N.sum())} of {len(table.runs)} runs have the losses of "
            f"{listed(list(shares))}; at least {FEWEST_RUNS} are needed: add runs, or name a "
            "target that more of them have"
        )
    if not whole_N.all():
        names = [table.runs[n] for n in np.flatnonzero(~whole_N)]
        notes.append(f"not fitted on, a loss is missing: {len(names)} runs: {listed(names)}")
    weight_NS, loss_NV = table.weight_NS[whole_N], loss_NV[whole_N]
    if is_constant(loss_NV @ np.array(list(shares.values()))):
        raise ConfigError(
            f"the loss of {listed(list(shares))} is the same in every run: nothing can be learned "
            "from it; name another target"
        )
    if len(weight_NS) < len(table.sources) + 1:
        notes.append(
            f"{len(weight_NS)} runs are fewer than sources + 1 ({len(table.sources) + 1}): many "
            "linear functions fit them, and the shortest is taken"
        )
    if prior is None:
        notes.append("no prior was given; it is the mean of the table's mixtures")
        prior_S: np.ndarray = table.weight_NS.mean(0)
        prior_S /= prior_S.sum()
    else:
        given = {
            known_name(name, table.sources, table.aliases, "source"): weight
            for name, weight in prior.items()
        }
        if silent := [source for source in table.sources if source not in given]:
            raise ConfigError(
                f"the prior says nothing of {listed(silent)}; give 0 to leave a source out"
            )
        normalised = Mixture.normalised(given).weights
        prior_S = np.array([normalised[source] for source in table.sources])
    cap_S = cap_vector(caps, prior_S, table.sources, table.aliases)
    runs = [run for run, whole in zip(table.runs, whole_N, strict=True) if whole]
    return _Rows(table, shares, runs, weight_NS, loss_NV, prior_S, cap_S, notes)


def _findings(
    method: str, rows: _Rows, choice: Choice, objective: PlanObjective, forced: str | None
) -> dict[str, Any]:
    """What is known before a mixture is proposed; later notes go to the same list."""
    rows.notes.extend(choice.notes)
    fitted_NV = objective.each(rows.weight_NS)
    fitted_N, loss_N = fitted_NV @ rows.share_V, rows.loss_NV @ rows.share_V
    if is_constant(fitted_N):
        few = choice.name == "lightgbm" and len(rows.runs) < 40
        why = "with fewer than 40 runs it cannot split" if few else "it learned nothing"
        rows.notes.append(f"{choice.name} predicts a constant: {why}")
    ranked = choice.validated[choice.name].objective.spearman
    if ranked is not None and ranked <= 0:
        rows.notes.append(
            f"on left-out runs the fit ranks no better than chance (Spearman {ranked:.2f}): "
            "nothing speaks for the proposal; make more runs"
        )
    own = method == "mixing-law" and choice.name == LAWS[0]
    named = "the mixing law" if own else f"{forced} was asked for"
    each = zip(rows.shares, fitted_NV.T, rows.loss_NV.T, strict=True)
    in_sample = asdict(score(fitted_N, loss_N))
    in_sample["targets"] = {name: asdict(score(guess, loss)) for name, guess, loss in each}
    return {
        "method": method,
        "runs": len(rows.runs),
        "sources": list(rows.table.sources),
        "targets": rows.shares,
        "all_targets": list(rows.table.targets),
        "prior": rows.by_source(rows.prior_S),
        "caps": {name: cap for name, cap in rows.by_source(rows.cap_S).items() if cap < 1},
        "surrogate": {
            "name": choice.name,
            "chosen": forced is None and method == "regmix",
            "why": choice.why if forced is None and method == "regmix" else named,
            "folds": choice.folds,
            "repeats": choice.repeats,
            "cross_validated": {name: v.as_json() for name, v in choice.validated.items()},
        },
        "in_sample": in_sample,
        "notes": rows.notes,
    }


def _simulated(
    rows: _Rows, objective: PlanObjective, seed: int, draws: int, top: int
) -> tuple[np.ndarray, dict[str, Any]]:
    result = simulate(objective.predict, rows.prior_S, rows.cap_S, seed=seed, draws=draws, top=top)
    if result.constant:
        rows.notes.append(
            "the surrogate predicts the same loss for every mixture, so none is better than "
            "another: the proposal is the prior, within the caps"
        )
    sensitivity = [
        {
            "top": average.top,
            "predicted_loss": average.loss,
            "distance": average.distance,
            "weights": rows.by_source(average.weight_S),
        }
        for average in result.averages
    ]
    return result.chosen.weight_S, {
        "draws": draws,
        "top": result.chosen.top,
        "constant": result.constant,
        "cut_to_caps": result.cut,
        "sensitivity": sensitivity,
    }


def _lowest(rows: _Rows, objective: PlanObjective) -> tuple[np.ndarray, dict[str, Any]]:
    """The exact optimum of the laws' sum within the caps, and the laws, free of gauge and unit."""
    laws = [law for law in objective.fitted_V if isinstance(law, ExponentialLaw | TransferLaw)]
    assert len(laws) == len(objective.fitted_V)
    optimum = find_optimum(laws, rows.share_V, rows.cap_S)
    if not optimum.unique:
        rows.notes.append(
            "several mixtures have the lowest predicted loss; the proposal is one in their middle"
        )
    targets_of: dict[str, list[str]] = {}  # a note that several laws share is said once
    parameters: dict[str, Any] = {}
    for target, law in zip(rows.shares, laws, strict=True):
        for note in law.notes:
            targets_of.setdefault(note, []).append(target)
        if isinstance(law, ExponentialLaw):
            form: dict[str, Any] = {"log_k_plus_t": rows.by_source(law.at_sources)}
        else:
            worth = rows.by_source(law.worth_S)
            form = {"log_k": law.log_k, "alpha": law.alpha, "worth": worth}
        parameters[target] = {"c": law.c, **form, "converged": law.converged}
    rows.notes.extend(f"law of {listed(own)}: {note}" for note, own in targets_of.items())
    findings = {"gap": optimum.gap, "unique": optimum.unique, "laws": parameters}
    return np.minimum(optimum.weight_S, rows.cap_S), findings


def _predicted(rows: _Rows, objective: PlanObjective, weight_S: np.ndarray) -> dict[str, Any]:
    """Losses of the proposal, the prior and the best run; beyond what runs tried, a note."""
    beyond = [
        f"{source} {weight:.4g} (most in a run: {most:.4g})"
        for source, weight, most in zip(
            rows.table.sources, weight_S, rows.weight_NS.max(0), strict=True
        )
        if weight > most + 1e-9
    ]
    if beyond:
        rows.notes.append(f"the proposal has more of a source than any run: {listed(beyond)}")
    loss_N = rows.loss_NV @ rows.share_V
    best = int(loss_N.argmin())
    points_PS = np.stack([weight_S, rows.prior_S, rows.weight_NS[best]])
    proposal, prior, at_best = objective.predict(points_PS).tolist()
    if not np.isfinite(proposal):
        raise ConfigError(
            "an infinite loss is predicted of every mixture that prior and caps allow: sources "
            "that a target was learned from have none there; allow one, or name another surrogate"
        )
    return {
        "proposal": proposal,
        "prior": prior,
        "best_run": {
            "run": rows.runs[best],
            "predicted": at_best,
            "measured": float(loss_N[best]),
            "weights": rows.by_source(rows.weight_NS[best]),
        },
    }

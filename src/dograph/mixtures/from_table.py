"""A plan from runs that exist: RegMix or the data mixing law, fitted on a table.

Shapes: N runs, S sources, V targets that count.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from dograph.errors import ConfigError, did_you_mean
from dograph.mixtures.convex import ConvexLaw, find_optimum
from dograph.mixtures.proposals import DRAWS, TOP, simulate
from dograph.mixtures.surrogates import (
    LAWS,
    SURROGATES,
    Choice,
    Judged,
    PlanObjective,
    Progress,
    choose_surrogate,
    fit_objective,
    is_constant,
    score,
    score_table,
)
from dograph.mixtures.tables import MixtureTable, listed
from dograph.types import Mixture

Method = Literal["regmix", "mixing-law"]
# What a plan is to lower: one target by its name, the mean of all, or several with shares.
Target = str | Sequence[str] | Mapping[str, float]
MEAN = "mean"
FEWEST_RUNS = 4


@dataclass(frozen=True, slots=True)
class Proposal:
    """A mixture, and what is known of how it came about (JSON values)."""

    mixture: Mixture
    findings: dict[str, Any]


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
    rows = _Rows(table, target, prior, caps)
    choice = choose_surrogate(
        rows.weight_NS, rows.loss_NV, rows.shares, names=names, seed=seed, progress=progress
    )
    objective = fit_objective(
        SURROGATES[choice.name], rows.weight_NS, rows.loss_NV, rows.share_V, seed=seed
    )
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
    """The surrogates to choose from."""
    if method not in ("regmix", "mixing-law"):
        raise ConfigError(
            f'a table cannot be planned from by "{method}"; '
            f"{did_you_mean(method, ['regmix', 'mixing-law'])}"
        )
    if surrogate is not None and surrogate not in SURROGATES:
        raise ConfigError(
            f'there is no surrogate "{surrogate}"; {did_you_mean(surrogate, SURROGATES)}'
        )
    if method == "regmix":
        return tuple(SURROGATES) if surrogate is None else (surrogate,)
    if surrogate is not None and surrogate not in LAWS:
        raise ConfigError(
            f"the mixing law is a surrogate with an exact optimum: {' or '.join(LAWS)}; "
            f'to plan with "{surrogate}", use regmix'
        )
    return (surrogate or LAWS[0],)


def known_name(
    name: str, known: Sequence[str], aliases: Mapping[str, str], what: str, also: str = ""
) -> str:
    """The table's own name for a name as users write it: that one, or the column's."""
    own = name if name in known else aliases.get(name)
    if own is None or own not in known:
        raise ConfigError(f'the table has no {what} "{name}"; {did_you_mean(name, known)}{also}')
    return own


def target_shares(table: MixtureTable, target: Target) -> dict[str, float]:
    """Share of each target in what is to be lowered; they sum to 1.

    Targets are named, never counted: columns of such files have changed places before.
    """
    if target == MEAN and MEAN in table.targets:
        raise ConfigError(
            'a target of the table is called "mean", which also asks for the mean over all '
            "targets; rename that column, or name the targets with their shares"
        )
    also = f' (or "{MEAN}", over all targets)' if isinstance(target, str) else ""
    if isinstance(target, str):
        target = table.targets if target == MEAN else [target]
    given = target if isinstance(target, Mapping) else dict.fromkeys(target, 1.0)
    shares: dict[str, float] = {}
    for name, share in given.items():
        own = known_name(name, table.targets, table.aliases, "target", also)
        if own in shares:
            raise ConfigError(f'target "{own}" is named twice')
        if not (math.isfinite(share) and share >= 0):
            raise ConfigError(f'the share of target "{name}" must be >= 0, got {share}')
        shares[own] = float(share)
    total = math.fsum(shares.values())
    if not total > 0:
        raise ConfigError(f"targets need a share above 0, got {dict(shares)}")
    return {name: share / total for name, share in shares.items() if share > 0}


def cap_vector(
    caps: Mapping[str, float] | None,
    prior_S: np.ndarray,
    sources: Sequence[str],
    aliases: Mapping[str, str],
) -> np.ndarray:
    """Highest weight of each source: its cap, else 1; 0 where the prior has none of it."""
    cap_S = np.where(prior_S > 0, 1.0, 0.0)
    for name, cap in (caps or {}).items():
        if not cap >= 0:
            raise ConfigError(f'the cap of source "{name}" must be >= 0, got {cap}')
        column = list(sources).index(known_name(name, sources, aliases, "source"))
        cap_S[column] = min(cap_S[column], cap)
    if cap_S.sum() < 1 - 1e-9:
        tight = [f"{s} {c:.4g}" for s, c in zip(sources, cap_S, strict=True) if c < 1]
        raise ConfigError(
            f"the caps allow {cap_S.sum():.4g} of a mixture, which needs 1: {listed(tight)}; "
            "raise some of them"
        )
    return cap_S


class _Rows:
    """The runs that a plan is fitted on, what bounds it, and notes on both."""

    def __init__(
        self,
        table: MixtureTable,
        target: Target,
        prior: Mapping[str, float] | None,
        caps: Mapping[str, float] | None,
    ) -> None:
        self.table, self.shares = table, target_shares(table, target)
        self.share_V = np.array(list(self.shares.values()))
        self.notes = [*table.notes, *(note for note in table.remarks() if note not in table.notes)]
        named = listed(list(self.shares))
        loss_NV = table.loss_NV[:, [table.targets.index(name) for name in self.shares]]
        whole_N = ~np.isnan(loss_NV).any(1)
        if whole_N.sum() < FEWEST_RUNS:
            raise ConfigError(
                f"{int(whole_N.sum())} of {len(table.runs)} runs have the losses of {named}; at "
                f"least {FEWEST_RUNS} are needed: add runs, or name a target that more of them have"
            )
        if not whole_N.all():
            out = [table.runs[n] for n in np.flatnonzero(~whole_N)]
            self.notes.append(f"not fitted on, a loss is missing: {len(out)} runs: {listed(out)}")
        self.runs = [table.runs[n] for n in np.flatnonzero(whole_N)]
        self.weight_NS, self.loss_NV = table.weight_NS[whole_N], loss_NV[whole_N]
        self.loss_N = self.loss_NV @ self.share_V
        if is_constant(self.loss_N):
            raise ConfigError(
                f"the loss of {named} is the same in every run: nothing can be learned from it; "
                "name another target"
            )
        needed = len(table.sources) + 1
        if len(self.runs) < needed:
            self.notes.append(
                f"{len(self.runs)} runs are fewer than sources + 1 ({needed}): many linear "
                "functions fit them, and the shortest is taken"
            )
        self.prior_S = self._prior(prior)
        self.cap_S = cap_vector(caps, self.prior_S, table.sources, table.aliases)

    def _prior(self, prior: Mapping[str, float] | None) -> np.ndarray:
        """The prior's weights by the table's sources; by default the mean of its mixtures."""
        sources = self.table.sources
        if prior is None:
            self.notes.append("no prior was given; it is the mean of the table's mixtures")
            mean_S: np.ndarray = self.table.weight_NS.mean(0)
            mean_S /= mean_S.sum()
            return mean_S
        given = {
            known_name(name, sources, self.table.aliases, "source"): weight
            for name, weight in prior.items()
        }
        if silent := [source for source in sources if source not in given]:
            raise ConfigError(
                f"the prior says nothing of {listed(silent)}; give 0 to leave a source out"
            )
        normalised = Mixture.normalised(given).weights
        return np.array([normalised[source] for source in sources])

    def by_source(self, value_S: np.ndarray) -> dict[str, float]:
        return dict(zip(self.table.sources, value_S.tolist(), strict=True))


def _findings(
    method: str, rows: _Rows, choice: Choice, objective: PlanObjective, forced: str | None
) -> dict[str, Any]:
    """What is known before a mixture is proposed; later notes go to the same list."""
    rows.notes.extend(choice.notes)
    fitted_NV = objective.each(rows.weight_NS)
    fitted_N = fitted_NV @ rows.share_V
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
    chosen = forced is None and method == "regmix"
    own = method == "mixing-law" and choice.name == LAWS[0]
    named = "the mixing law" if own else f"{forced} was asked for"
    each = zip(rows.shares, fitted_NV.T, rows.loss_NV.T, strict=True)
    by_target = {name: score(guess_N, loss_N) for name, guess_N, loss_N in each}
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
            "chosen": chosen,
            "why": choice.why if chosen else named,
            "folds": choice.folds,
            "repeats": choice.repeats,
            "cross_validated": {name: v.as_json() for name, v in choice.validated.items()},
        },
        "in_sample": Judged(score(fitted_N, rows.loss_N), by_target).as_json(),
        "notes": rows.notes,
    }


def _simulated(
    rows: _Rows, objective: PlanObjective, seed: int, draws: int, top: int
) -> tuple[np.ndarray, dict[str, Any]]:
    """RegMix's optimum, and how much hangs on the number of mixtures averaged."""
    weight_S, findings = simulate(
        objective.predict, rows.prior_S, rows.cap_S, seed=seed, draws=draws, top=top
    )
    if findings["constant"]:
        rows.notes.append(
            "the surrogate predicts the same loss for every mixture, so none is better than "
            "another: the proposal is the prior, within the caps"
        )
    for average in findings["sensitivity"]:
        average["weights"] = rows.by_source(average["weights"])
    return weight_S, findings


def _lowest(rows: _Rows, objective: PlanObjective) -> tuple[np.ndarray, dict[str, Any]]:
    """The exact optimum of the laws' sum within the caps, and the laws, free of gauge and unit."""
    laws = [law for law in objective.fitted_V if isinstance(law, ConvexLaw)]
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
        own = {
            name: rows.by_source(value) if isinstance(value, np.ndarray) else value
            for name, value in law.parameters().items()
        }
        parameters[target] = {"c": law.c, **own, "converged": law.converged}
    rows.notes.extend(f"law of {listed(own)}: {note}" for note, own in targets_of.items())
    findings = {"gap": optimum.gap, "unique": optimum.unique, "laws": parameters}
    return np.minimum(optimum.weight_S, rows.cap_S), findings


def _predicted(rows: _Rows, objective: PlanObjective, weight_S: np.ndarray) -> dict[str, Any]:
    """Losses of the proposal, the prior and the best run; beyond what runs tried, a note."""
    tried = zip(rows.table.sources, weight_S, rows.weight_NS.max(0), strict=True)
    if beyond := [
        f"{source} {weight:.4g} (most in a run: {most:.4g})"
        for source, weight, most in tried
        if weight > most + 1e-9
    ]:
        rows.notes.append(f"the proposal has more of a source than any run: {listed(beyond)}")
    best = int(rows.loss_N.argmin())
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
            "measured": float(rows.loss_N[best]),
            "weights": rows.by_source(rows.weight_NS[best]),
        },
    }

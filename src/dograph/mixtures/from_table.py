"""A plan from existing runs: RegMix, the data mixing law or Olmix, fitted on a table.

Shapes: N runs, S sources of the table, U unchanged ones, V targets with a share in the objective.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal, Self, get_args

import numpy as np

from dograph.errors import ConfigError, did_you_mean, listed, require_known
from dograph.mixtures.convex import find_optimum
from dograph.mixtures.mixing_laws import DELTA, ExponentialLaw
from dograph.mixtures.proposals import DRAWS, TOP, simulate
from dograph.mixtures.surrogates import (
    SURROGATES,
    Choice,
    PlanObjective,
    Surrogate,
    choose_surrogate,
    fit_objective,
    is_constant,
    require_surrogate,
    score,
)
from dograph.mixtures.tables import MixtureTable
from dograph.types import Mixture

# Mixture reuse (Olmix): when a corpus changes, only its changed sources are weighed anew.
#
# Sources that did not change keep their ratios of an earlier mixture and become one source. The
# plan is made for that source and the others, then expanded: r_j = r_unchanged * ratio_j.

UNCHANGED = "unchanged"
SAME_RATIOS = 0.02  # L1: closer ratios are those of the earlier mixture up to rounding


@dataclass(frozen=True)
class MixtureReuse:
    """Unchanged sources with their ratios, and the name of the source that stands for them."""

    name: str
    ratios: Mapping[str, float]  # sum to 1
    is_column: bool = False  # `name` is a source of the table; the ratios' sources are not

    @classmethod
    def of(
        cls, earlier: Mapping[str, float], unchanged: Sequence[str], table: MixtureTable
    ) -> Self:
        """Unchanged sources of the table; or one that stands for the sources which it lacks."""
        names = [known_name(name, table.sources, table.aliases, "source") for name in unchanged]
        if is_column := len(names) == 1 and names[0] not in earlier:
            kept = {name: w for name, w in earlier.items() if name not in table.sources}
        else:
            if silent := [name for name in names if name not in earlier]:
                what = f"unchanged: the earlier mixture does not name {listed(silent)}"
                raise ConfigError(f"{what}; it names {listed(list(earlier))}")
            kept = {name: earlier[name] for name in names}
        if not sum(kept.values()) > 0:
            raise ConfigError(f"the earlier mixture has no weight on {listed(list(kept) or names)}")
        name = names[0] if is_column else UNCHANGED
        return cls(name, Mixture.normalised(kept).weights, is_column)

    def table(self, table: MixtureTable) -> MixtureTable:
        """The table with one source in place of the unchanged ones."""
        if self.is_column:
            return table
        at_U = [table.sources.index(name) for name in self.ratios]
        rest = [s for s in range(len(table.sources)) if s not in at_U]
        weight_NU = table.weight_NS[:, at_U]
        total_N1 = weight_NU.sum(1, keepdims=True)
        off_N = np.abs(weight_NU - total_N1 * np.array(list(self.ratios.values()))).sum(1)
        notes = list(table.notes)
        if other := int((off_N > SAME_RATIOS).sum()):
            notes.append(
                f"in {other} of {len(off_N)} runs the unchanged sources are not in the ratios of "
                f"the earlier mixture (L1 up to {off_N.max():.2f}): the fit takes them to be"
            )
        sources = [*(table.sources[s] for s in rest), self.name]
        weight_NS = np.hstack([table.weight_NS[:, rest], total_N1])
        return replace(table, sources=sources, weight_NS=weight_NS, notes=notes)

    def prior(self, prior: Mapping[str, float]) -> tuple[dict[str, float], float]:
        """The prior with one source, and KL(ratios || prior of the unchanged sources)."""
        if self.is_column:
            return dict(prior), 0.0
        own = {name: prior.get(name, 0.0) for name in self.ratios}
        if none := [name for name, ratio in self.ratios.items() if ratio > 0 and not own[name] > 0]:
            raise ConfigError(f"the prior has nothing of {listed(none)}, which the plan keeps")
        total = sum(own.values())
        kept = {name: ratio for name, ratio in self.ratios.items() if ratio > 0}
        distance = sum(r * float(np.log(r * total / own[name])) for name, r in kept.items())
        return {n: w for n, w in prior.items() if n not in own} | {self.name: total}, distance

    def caps(self, caps: Mapping[str, float]) -> dict[str, float]:
        """Caps with one source: as much of it as no cap of the unchanged sources forbids."""
        kept = [caps[n] / r for n, r in self.ratios.items() if n in caps and r > 0]
        others = {name: cap for name, cap in caps.items() if name not in self.ratios}
        return others | ({self.name: min([*kept, others.get(self.name, 1.0), 1.0])} if kept else {})

    def expanded(self, weights: Mapping[str, float]) -> dict[str, float]:
        """The weights of all sources."""
        whole = weights.get(self.name, 0.0)
        others = {name: weight for name, weight in weights.items() if name != self.name}
        return others | {name: whole * ratio for name, ratio in self.ratios.items()}


NOTHING_REUSED = MixtureReuse("", {}, is_column=True)  # changes no table, prior or caps

Method = Literal["regmix", "mixing-law", "olmix"]
Weights = Mapping[str, float]  # by source
# What a plan minimizes: one target by name, the mean of all, or several with shares.
Target = str | Sequence[str] | Mapping[str, float]
MEAN = "mean"
FEWEST_RUNS = 4

# A proposal has the support of its runs if the fit ranks left-out runs and if it is near them.
LEAST_SPEARMAN = 0.5  # two of three pairs of left-out runs in the right order, where chance has one
CHANCE = 1.645  # standard deviations of a rank correlation: chance passes in 1 of 20 tables
MOST_TIMES_SEEN = 2.0  # a source's weight over the highest in any run,
HARMLESS = 0.02  # and at least so much above it: small weights hardly change a loss
MOST_DISTANCE = 1.0  # L1 to the nearest blend of runs: half of all weight would have to move
NEAREST_RUNS = 3  # are named


@dataclass(frozen=True, slots=True)
class Proposal:
    """A mixture, diagnostics of how it was chosen (JSON values), and the fit that chose it."""

    mixture: Mixture
    findings: dict[str, Any]
    objective: PlanObjective


def propose_from_table(
    method: Method,
    table: MixtureTable,
    *,
    target: Target,
    prior: Weights | None = None,
    caps: Weights | None = None,
    max_usage: float | None = None,
    surrogate: str | None = None,
    seed: int = 42,
    draws: int = DRAWS,
    top: int = TOP,
    delta: float = DELTA,
    kl: float = 0.0,
    reuse: MixtureReuse = NOTHING_REUSED,
) -> Proposal:
    """The mixture with the lowest loss predicted from runs of other mixtures.

    `regmix`: the surrogate that best ranks left-out runs (or the one named), then the mean of the
    simulated mixtures with the lowest predicted loss. `mixing-law`: an exponential law for each
    target (Huber's loss with `delta`), and the exact optimum of their sum, which is convex.
    `olmix`: the same, with kl * KL(mixture || prior) added, and `reuse`.

    All stay within `caps` (highest weight by source) and `max_usage` times the prior, and leave out
    sources that the prior has none of. `prior` defaults to the mean of the table's mixtures.
    Findings give errors in sample and on left-out runs separately, and `support`: how well the runs
    support the proposal.
    """
    surrogates = _candidates(method, surrogate, delta)
    if not 1 <= top <= draws:
        raise ConfigError(f"top={top}: of {draws:,} simulated mixtures 1 to all may be averaged")
    rows = _Rows(table, target, prior, caps, max_usage, reuse)
    runs = rows.weight_NS, rows.loss_NV
    choice = choose_surrogate(*runs, rows.share_V, surrogates=surrogates, seed=seed)
    objective = fit_objective(surrogates[choice.name], *runs, rows.share_V, seed=seed)
    findings = _findings(method, rows, choice, objective, surrogate)
    if method == "regmix":
        how = {"seed": seed, "draws": draws, "top": top}
        weight_S, simulation = simulate(objective.predict, rows.prior_S, rows.cap_S, **how)
        if simulation["constant"]:
            rows.notes.append(
                "the surrogate predicts the same loss for every mixture, so none is better than "
                "another: the proposal is the prior, within the caps"
            )
        findings["simulation"] = simulation
    else:
        weight_S, findings["optimum"] = _optimum(rows, objective, kl)
    findings["predicted"] = _predicted(rows, objective, weight_S)
    findings["support"] = _support(rows, choice, weight_S)
    weights = reuse.expanded(rows.by_source(weight_S))
    return Proposal(Mixture.normalised(weights), findings, objective)


def _candidates(method: str, surrogate: str | None, delta: float) -> dict[str, Surrogate]:
    """The surrogates to choose from."""
    methods = get_args(Method)
    require_known(method, methods, f'"{method}" does not plan from tables')
    require_surrogate(surrogate)
    if method == "regmix":
        return dict(SURROGATES) if surrogate is None else {surrogate: SURROGATES[surrogate]}
    if surrogate not in (None, "exponential"):
        what = f"{method} has an exponential law"
        raise ConfigError(f'{what}; to plan with "{surrogate}", use regmix')
    return {"exponential": partial(SURROGATES["exponential"], delta=delta)}


def known_name(
    name: str, known: Sequence[str], aliases: Mapping[str, str], what: str, also: str = ""
) -> str:
    """The table's name for what the user calls `name`: the same, or that of the file's column."""
    own = name if name in known else aliases.get(name)
    if own is None or own not in known:
        raise ConfigError(f'the table has no {what} "{name}"; {did_you_mean(name, known)}{also}')
    return own


def by_own_names(weights: Weights, table: MixtureTable) -> dict[str, float]:
    """Weights or caps under the table's names of its sources."""
    names = table.sources, table.aliases, "source"
    return {known_name(name, *names): weight for name, weight in weights.items()}


def target_shares(table: MixtureTable, target: Target) -> dict[str, float]:
    """Share of each target in the objective; they sum to 1.

    Targets are named, never given by position: columns of such files have changed places before.
    """
    also = ""
    if isinstance(target, str):
        if target == MEAN and MEAN in table.targets:
            raise ConfigError(
                'a target of the table is called "mean", which also asks for the mean over all '
                "targets; rename that column, or name the targets with their shares"
            )
        also = f' (or "{MEAN}", over all targets)'
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
    caps: Weights, prior_S: np.ndarray, sources: Sequence[str], max_usage: float | None = None
) -> np.ndarray:
    """Highest weight of each source: its cap, at most `max_usage` times its prior, otherwise 1."""
    cap_S: np.ndarray = np.where(prior_S > 0, 1.0, 0.0)
    if max_usage is not None:
        cap_S = np.minimum(cap_S, max_usage * prior_S)
    for name, cap in caps.items():
        if not cap >= 0:
            raise ConfigError(f'the cap of source "{name}" must be >= 0, got {cap}')
    cap_S = np.minimum(cap_S, [caps.get(name, 1.0) for name in sources])
    if cap_S.sum() < 1 - 1e-9:
        tight = [f"{s} {c:.4g}" for s, c in zip(sources, cap_S, strict=True) if c < 1]
        what = f"the caps allow {cap_S.sum():.4g} of a mixture, which needs 1"
        raise ConfigError(f"{what}; raise some of them: {listed(tight)}")
    return cap_S


class _Rows:
    """The runs that a plan is fitted on, its prior and caps, and notes on them."""

    def __init__(
        self,
        table: MixtureTable,
        target: Target,
        prior: Weights | None,
        caps: Weights | None,
        max_usage: float | None,
        reuse: MixtureReuse,
    ) -> None:
        whole, table = table, reuse.table(table)
        self.table, self.shares = table, target_shares(table, target)
        self.share_V = np.array(list(self.shares.values()))
        self.notes = [*table.notes, *(note for note in table.remarks() if note not in table.notes)]
        named = listed(list(self.shares))
        loss_NV = table.loss_NV[:, [table.targets.index(name) for name in self.shares]]
        whole_N = ~np.isnan(loss_NV).any(1)
        self.runs = [table.runs[n] for n in np.flatnonzero(whole_N)]
        if len(self.runs) < FEWEST_RUNS:
            raise ConfigError(
                f"{len(self.runs)} of {len(table.runs)} runs have the losses of {named}; at "
                f"least {FEWEST_RUNS} are needed: add runs, or name a target that more of them have"
            )
        if out := [table.runs[n] for n in np.flatnonzero(~whole_N)]:
            self.notes.append(f"not fitted on, a loss is missing: {len(out)} runs: {listed(out)}")
        self.weight_NS, self.loss_NV = table.weight_NS[whole_N], loss_NV[whole_N]
        self.loss_N = self.loss_NV @ self.share_V
        if is_constant(self.loss_N):
            raise ConfigError(f"the loss of {named} is the same in every run; name another target")
        needed = len(table.sources) + 1
        if len(self.runs) < needed:
            self.notes.append(
                f"{len(self.runs)} runs are fewer than sources + 1 ({needed}): many linear "
                "functions fit them, and the one with the smallest slope is used"
            )
        if prior is None:
            self.notes.append("no prior was given; it is the mean of the table's mixtures")
            given = dict(zip(whole.sources, whole.weight_NS.mean(0).tolist(), strict=True))
        else:
            given = by_own_names(prior, whole)
            if silent := [source for source in whole.sources if source not in given]:
                raise ConfigError(f"the prior lacks {listed(silent)}; give 0 to leave a source out")
        self.prior = Mixture.normalised(given).weights
        own, kept_distance = reuse.prior(self.prior)
        own_caps = reuse.caps(by_own_names(caps or {}, whole))
        self.prior_S: np.ndarray = np.array([own[source] for source in table.sources])
        self.cap_S = cap_vector(own_caps, self.prior_S, table.sources, max_usage)
        # The KL term is that of the expanded mixture.
        is_kept_S = np.array([source == reuse.name for source in table.sources])
        self.kl_prior_S = self.prior_S * np.where(is_kept_S, math.exp(-kept_distance), 1.0)

    def by_source(self, value_S: np.ndarray) -> dict[str, float]:
        return dict(zip(self.table.sources, value_S.tolist(), strict=True))


def _findings(
    method: str, rows: _Rows, choice: Choice, objective: PlanObjective, surrogate: str | None
) -> dict[str, Any]:
    """What is known before a mixture is proposed; later notes go to the same list."""
    rows.notes.extend(choice.notes)
    fitted_N = objective.predict(rows.weight_NS)
    if is_constant(fitted_N):
        few = choice.name == "lightgbm" and len(rows.runs) < 40
        why = "with fewer than 40 runs it cannot split" if few else "it learned nothing"
        rows.notes.append(f"{choice.name} predicts a constant: {why}")
    chosen = surrogate is None and method == "regmix"
    laws = {"mixing-law": "the mixing law", "olmix": "the law of Olmix"}
    named = laws.get(method, f"{surrogate} was asked for")
    return {
        "method": method,
        "runs": len(rows.runs),
        "sources": list(rows.table.sources),
        "targets": rows.shares,
        "prior": dict(rows.prior),
        "caps": {name: cap for name, cap in rows.by_source(rows.cap_S).items() if cap < 1},
        "surrogate": {
            "name": choice.name,
            "chosen": chosen,
            "why": choice.why if chosen else named,
            "folds": choice.folds,
            "repeats": choice.repeats,
            "cross_validated": {name: asdict(v) for name, v in choice.validated.items()},
        },
        "in_sample": asdict(score(fitted_N, rows.loss_N)),
        "notes": rows.notes,
        **({"nested": dict(rows.table.nested)} if rows.table.nested else {}),
    }


def _optimum(rows: _Rows, objective: PlanObjective, kl: float) -> tuple[np.ndarray, dict[str, Any]]:
    """The exact optimum of the laws' sum within the caps, and the laws' identifiable parameters."""
    laws = [law for law in objective.fitted_V if isinstance(law, ExponentialLaw)]
    optimum = find_optimum(laws, rows.share_V, rows.cap_S, kl=kl, prior_S=rows.kl_prior_S)
    if not optimum.unique:
        rows.notes.append(
            "several mixtures have the lowest predicted loss; the proposal is one in their middle"
        )
    targets_of: dict[str, list[str]] = {}  # a note that several laws share appears once
    parameters: dict[str, Any] = {}
    for target, law in zip(rows.shares, laws, strict=True):
        for note in law.notes:
            targets_of.setdefault(note, []).append(target)
        own = rows.by_source(law.at_sources)
        parameters[target] = {"c": law.c, "log_k_plus_t": own, "converged": law.converged}
    rows.notes.extend(f"law of {listed(own)}: {note}" for note, own in targets_of.items())
    findings = {"gap": optimum.gap, "unique": optimum.unique, "laws": parameters}
    return np.minimum(optimum.weight_S, rows.cap_S), findings


def _predicted(rows: _Rows, objective: PlanObjective, weight_S: np.ndarray) -> dict[str, Any]:
    """Losses of the proposal, the prior and the best run."""
    best = int(rows.loss_N.argmin())
    points_PS = np.stack([weight_S, rows.prior_S, rows.weight_NS[best]])
    proposal, prior, at_best = objective.predict(points_PS).tolist()
    if not np.isfinite(proposal):
        raise ConfigError(
            "an infinite loss is predicted for every mixture within prior and caps; allow other "
            "sources, or name another surrogate"
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


def _support(rows: _Rows, choice: Choice, weight_S: np.ndarray) -> dict[str, Any]:
    """How well the runs support a proposal; `problems` are also notes, none if they do."""
    ranked = choice.validated[choice.name].spearman
    least = max(LEAST_SPEARMAN, CHANCE / math.sqrt(len(rows.runs) - 1))
    problems = []
    if ranked is None or ranked < least:
        is_chance = "no order" if ranked is None else f"a Spearman correlation of {ranked:.2f}"
        problems.append(
            f"on the {len(rows.runs)} runs, each left out of a fit, {choice.name} predicts losses "
            f"with {is_chance}; at least {least:.2f} is needed: make more runs, or name a target "
            "that depends more on the mixture"
        )
    seen_S = rows.weight_NS.max(0)
    above: dict[bool, list[str]] = {False: [], True: []}
    for source, weight, seen in zip(rows.table.sources, weight_S, seen_S, strict=True):
        if weight > seen + 1e-9:
            is_far = weight > MOST_TIMES_SEEN * seen and weight > seen + HARMLESS
            above[is_far].append(f"{source} {weight:.4g} (most in a run: {seen:.4g})")
    if above[True]:
        problems.append(
            f"the proposal has more than {MOST_TIMES_SEEN:g} times as much of a source as any run: "
            f"{listed(above[True])}; set mixer.caps or mixer.max_usage, or make runs with more"
        )
    if above[False]:
        rows.notes.append(f"the proposal has more of a source than any run: {listed(above[False])}")
    distance_N = np.abs(rows.weight_NS - weight_S).sum(1)
    nearest = np.argsort(distance_N, kind="stable")[:NEAREST_RUNS]
    near = {rows.runs[n]: float(distance_N[n]) for n in nearest}
    if (away := distance_to_blends(rows.weight_NS, weight_S)) > MOST_DISTANCE:
        problems.append(
            f"the proposal is {away:.2f} (L1) from every average of runs, at most "
            f"{MOST_DISTANCE:.2f} is allowed: make runs near it, or set caps"
        )
    rows.notes.extend(problems)
    return {
        "spearman": ranked,
        "least_spearman": least,
        "nearest_runs": near,
        "distance": away,
        "problems": problems,
    }


def distance_to_blends(weight_NS: np.ndarray, weight_S: np.ndarray) -> float:
    """L1 distance to the nearest weighted average of runs, 0 between them: a linear program.

    With many sources even the best interpolation is far from each single run.
    """
    from scipy.optimize import linprog

    num_runs, num_sources = weight_NS.shape
    error_SS, some_N = np.eye(num_sources), np.ones(num_runs)
    best = linprog(
        np.concatenate([0 * some_N, np.ones(num_sources)]),
        A_ub=np.block([[weight_NS.T, -error_SS], [-weight_NS.T, -error_SS]]),
        b_ub=np.concatenate([weight_S, -weight_S]),
        A_eq=np.concatenate([some_N, np.zeros(num_sources)])[None],
        b_eq=[1.0],
    )
    return float(best.fun)

"""What came out in a sentence or two, and no more than may be said."""

from collections.abc import Sequence

from dograph.report.content import Comparison, Method, RunData, SourceLoss
from dograph.report.intervals import Estimate, over_seeds


def verdict_of(runs: Sequence[RunData], comparisons: Sequence[Comparison]) -> str:
    """The first comparison's outcome, or the run's."""
    if comparisons:
        return comparisons[0].claim
    if not runs:
        return "There are no runs to speak of."
    if len(runs) == 1:
        return _single(runs[0])
    judged = [(run, loss) for run in runs if (loss := mean_loss(run)) is not None]
    if not judged:
        return f"{len(runs)} runs, none of them validated yet."
    unfinished = sum(run.steps < run.total_steps for run in runs)
    if len(judged) == len(runs) and not unfinished and len({run.group for run in runs}) == 1:
        values = [loss.nats.value for _, loss in judged]
        return (
            f"{len(runs)} seeds of {runs[0].group}: mean validation loss "
            f"{told(over_seeds(values))} nats, 95 % over seeds."
        )
    best, loss = min(judged, key=lambda pair: pair[1].nats.value)
    why = f"{unfinished} not complete" if unfinished else "They were not trained alike"
    return (
        f"{len(runs)} runs; the lowest mean validation loss is {best.name}'s, "
        f"{told(loss.nats)} nats. {why}, so no claim is made."
    )


def mean_loss(run: RunData) -> SourceLoss | None:
    return next((loss for loss in run.losses if loss.is_summary and loss.name == "mean"), None)


def told(estimate: Estimate, *, sign: bool = False) -> str:
    """A figure with its interval."""
    shape = "+.4f" if sign else ".4f"
    value = format(estimate.value, shape)
    if estimate.low is None or estimate.high is None:
        return value
    return f"{value} [{estimate.low:{shape}}, {estimate.high:{shape}}]"


def _single(run: RunData) -> str:
    loss = mean_loss(run)
    how_far = (
        f"Complete after {run.steps:,} steps"
        if run.steps >= run.total_steps
        else f"{run.steps:,} of {run.total_steps:,} steps made"
    )
    level = (
        "no validation loss yet" if loss is None else f"mean validation loss {told(loss.nats)} nats"
    )
    parts = [f"{how_far}: {level}"]
    nmi = next((m for m in run.health if m.name == "domains/nmi"), None)
    if nmi is not None and nmi.curve.raw.y:
        parts.append(
            f"agreement of domains with sources {nmi.curve.raw.y[-1]:.2f} (NMI, at most 1)"
        )
    if run.warnings:
        count = len(run.warnings)
        parts.append(f"{count} warning{'s' if count > 1 else ''}")
    return "; ".join(parts) + "."


def claim_of(baseline: str, methods: Sequence[Method], *, is_planned: bool) -> str:
    """Which methods are lower than the baseline, which higher, and of which nothing is claimed."""
    others = [method for method in methods if "mean" in method.differences]
    if not others:
        return f"No method could be set beside {baseline}."
    best = min(others, key=_difference)
    if _difference(best) < 0:
        level = f"The lowest mean loss is {best.name}'s: {_figures(best, baseline)}."
    else:
        level = f"No mean loss is below {baseline}'s; the nearest is {best.name}'s: "
        level += f"{_figures(best, baseline)}."
    if not is_planned:
        return f"{level} Runs picked by hand: no claim."
    by_claim: dict[str, list[Method]] = {}
    for method in others:
        by_claim.setdefault(method.differences["mean"].claim or "no claim", []).append(method)
    lower, higher = by_claim.pop("lower", []), by_claim.pop("higher", [])
    told = []
    if lower:
        lead, most = f"Lower than {baseline} in mean loss", min(lower, key=_difference)
        told.append(f"{lead}: {_names(lower)}. Most so {most.name}: {_figures(most, baseline)}.")
    if higher:
        lead, most = f"Higher than {baseline} in mean loss", max(higher, key=_difference)
        told.append(f"{lead}: {_names(higher)}. Most so {most.name}: {_figures(most, baseline)}.")
    is_all = not told and len(by_claim) == 1
    told += [_unclaimed(claim, own, is_all=is_all) for claim, own in by_claim.items()]
    return " ".join(told if lower else [*told, level])


def _unclaimed(claim: str, methods: Sequence[Method], *, is_all: bool) -> str:
    """Why nothing is claimed of these methods; they are named where there are others."""
    if claim == "unclear":
        return "No difference is shown" + ("." if is_all else f" for {_names(methods)}.")
    reason = claim.removeprefix("no claim").removeprefix(": ")
    lead = "Nothing is claimed" if is_all else f"Nothing is claimed of {_names(methods)}"
    return f"{lead}: {reason}." if reason else f"{lead}."


def _names(methods: Sequence[Method]) -> str:
    return ", ".join(method.name for method in methods)


def _difference(method: Method) -> float:
    return method.differences["mean"].value.value


def _figures(method: Method, baseline: str) -> str:
    difference = method.differences["mean"].value
    return f"{told(difference, sign=True)} nats to {baseline}, {_seeds(method)}"


def _seeds(method: Method) -> str:
    return f"{method.seeds} seed{'s' if method.seeds > 1 else ''}"

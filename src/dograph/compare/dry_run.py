"""What a comparison would cost, before it is started."""

from collections.abc import Callable, Iterator, Sequence

from dograph.compare.arms import Ask
from dograph.compare.cells import lay_out
from dograph.compare.planning import Plans
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError
from dograph.plan.planning import forecast_plan
from dograph.train.forecast import EFFICIENCY, measure_matmul

Without = Callable[[Sequence[str]], str]


def leave_out(labels: Sequence[str]) -> str:
    """How a comparison goes without some methods."""
    return f"leave {', '.join(labels)} out of --mixers"


def forecast_lines(ask: Ask, corpus: Corpus, without: Without = leave_out) -> Iterator[str]:
    """Cells, FLOPs and a guess of the time; plans by what their first proxies would cost.

    `without` tells the user how to do without methods whose plans are refused.
    """
    plans = _forecast_plans(ask, without)  # first: a refusal should not come after half of it
    cells = lay_out(ask, corpus, Plans({}, {}))
    methods, seeds = len(ask.methods), len(ask.seeds)
    listed = ", ".join(map(str, ask.seeds))
    yield f"{len(cells)} cells: {methods} methods x {seeds} seeds ({listed})"
    for method in ask.methods:
        own = next(cell for cell in cells if cell.method == method.label)
        steps = own.config.train.steps
        more = " or more" if ask.budget == "compute" else ""
        yield f"  {method.label}: {steps:,} steps{more}, {own.flops:.3g} FLOPs a run"
        if method.is_planned:
            number = f"{seeds} plans, each" if ask.replan else "one plan for all seeds"
            yield f"    {number}: {plans[method.label]}"
    if any(method.is_planned for method in ask.methods):
        yield "  plans by their first proxies; later ones may depend on what those show"
    flops = sum(cell.flops for cell in cells)
    speed = EFFICIENCY * measure_matmul(ask.config, 256)
    guess = flops / speed / 60
    yield (
        f"in all {flops:.3g} FLOPs without plans: about {_duration(guess)} of one worker here, "
        "if its steps reach the usual part of this machine's matmul speed"
    )


def _forecast_plans(ask: Ask, without: Without) -> dict[str, str]:
    """What each plan would cost; all that are refused are told at once."""
    plans: dict[str, str] = {}
    refused: dict[str, ConfigError] = {}
    for method in ask.methods:
        if method.is_planned:
            assert ask.proxy is not None
            try:
                target = method.config(ask.config)
                plans[method.label] = forecast_plan(target, ask.proxy, lab=ask.lab)
            except ConfigError as error:
                refused[method.label] = error
    if refused:
        told = "\n".join(f"{label}: {error}" for label, error in refused.items())
        raise ConfigError(f"{told}\nOr {without(list(refused))}")
    return plans


def _duration(minutes: float) -> str:
    if minutes < 120:
        return f"{minutes:.1f} minutes"
    return f"{minutes / 60:.1f} hours" if minutes < 2880 else f"{minutes / 1440:.1f} days"

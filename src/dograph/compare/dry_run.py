"""What a comparison would cost, before it is started."""

from collections.abc import Iterator

from dograph.compare.ask import Ask
from dograph.compare.cells import lay_out
from dograph.compare.planning import Plans
from dograph.corpus.corpus import Corpus
from dograph.lab.planning import forecast_plan
from dograph.training.forecast import EFFICIENCY, measure_matmul


def forecast_lines(ask: Ask, corpus: Corpus) -> Iterator[str]:
    """Cells, FLOPs and a guess of the time; plans by what their first proxies would cost."""
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
            assert ask.proxy is not None
            plans = f"{seeds} plans, each: " if ask.replan else "one plan for all seeds: "
            target = method.config(ask.config)
            yield f"    {plans}{forecast_plan(target, ask.proxy, lab=ask.lab)}"
    if any(method.is_planned for method in ask.methods):
        yield "  plans by their first proxies; later ones may depend on what those show"
    flops = sum(cell.flops for cell in cells)
    speed = EFFICIENCY * measure_matmul(ask.config, 256)
    guess = flops / speed / 60
    yield (
        f"in all {flops:.3g} FLOPs without plans: about {_duration(guess)} of one worker here, "
        "if its steps reach the usual part of this machine's matmul speed"
    )


def _duration(minutes: float) -> str:
    if minutes < 120:
        return f"{minutes:.1f} minutes"
    return f"{minutes / 60:.1f} hours" if minutes < 2880 else f"{minutes / 1440:.1f} days"

"""Tables of `dograph eval`: tasks with their standard errors, and sources."""

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from dograph.eval.evaluate import Evaluation
from dograph.eval.scores import Estimate
from dograph.train.metrics import SUMMARIES


def task_table(found: Evaluation) -> Table:
    """Accuracies in per cent with standard errors, and what guessing would score."""
    table = _table("downstream tasks", "task", "n", "acc", "acc_norm", "chance", "bits/B", "ppl")
    for number, score in enumerate(found.scores, start=1):
        table.add_row(
            score.task,
            _count(score.items, found.record["tasks"][score.task]["available"]),
            _percent(score.acc),
            _percent(score.acc_norm),
            f"{100 * score.chance:.1f}",
            _plain(score.bits_per_byte, ".3f"),
            _plain(score.perplexity, ".4g"),
            end_section=number == len(found.scores),
        )
    tasks = "1 task" if len(found.scores) == 1 else f"{len(found.scores)} tasks"
    table.add_row("average", tasks, "", _percent(found.average), f"{100 * found.chance:.1f}")
    return table


def source_table(found: Evaluation) -> Table:
    """Validation loss of each source of the run's corpus, and their summaries."""
    table = _table("validation loss per source", "source", "nats", "ppl", "bits/B")
    names = [x.removesuffix("/loss_nats") for x in found.sources if x.endswith("/loss_nats")]
    sources = [name for name in names if name not in SUMMARIES]
    for name in [*sources, *SUMMARIES]:
        cells = [
            "" if value is None else format(value, shape)
            for value, shape in (
                (found.sources.get(f"{name}/loss_nats"), ".4f"),
                (found.sources.get(f"{name}/ppl"), ".1f"),
                (found.sources.get(f"{name}/bits_per_byte"), ".3f"),
            )
        ]
        table.add_row(escape(name), *cells, end_section=name == sources[-1])
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1))
    for k, column in enumerate(columns):
        table.add_column(column, justify="right" if k else "left", no_wrap=True)
    return table


def _count(items: int, available: int) -> str:
    return str(items) if items == available else f"{items} of {available}"


def _percent(estimate: Estimate | None) -> str:
    if estimate is None:
        return ""
    error = "" if estimate.se is None else f" ± {100 * estimate.se:.1f}"
    return f"{100 * estimate.value:.1f}{error}"


def _plain(estimate: Estimate | None, shape: str) -> str:
    if estimate is None:
        return ""
    error = "" if estimate.se is None else f" ± {format(estimate.se, shape)}"
    return f"{format(estimate.value, shape)}{error}"

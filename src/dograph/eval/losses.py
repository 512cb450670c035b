"""A table of validation losses per source, from run directories."""

from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from dograph.errors import RunError
from dograph.train.metrics import SUMMARIES, Row, read_metrics
from dograph.train.run_dir import RunDirectory


def last_validation(run: RunDirectory) -> Row:
    """The newest validation of a run."""
    rows = read_metrics(run.metrics_file) if run.metrics_file.is_file() else []
    validations = [row for row in rows if "valid/mean/loss_nats" in row]
    if not validations:
        raise RunError(f"{run.path} has no validation yet; it makes one every eval.every steps")
    return validations[-1]


def losses_table(paths: list[Path]) -> Table:
    """Sources down, runs across: nats per token, perplexity, bits per byte, times read through."""
    table = Table(title="validation loss per source", box=SIMPLE_HEAD, padding=0)
    table.add_column("source", no_wrap=True)
    columns = []
    for path in paths:
        run = RunDirectory.open(path)
        columns.append((last_validation(run), last_epochs(run)))
        table.add_column(f"{path.resolve().name}\nnats", justify="right", no_wrap=True)
        for unit in ("ppl", "bits/B", "epochs"):
            table.add_column(f"\n{unit}", justify="right", no_wrap=True)
    sources = sorted(
        {
            name.removeprefix("valid/").removesuffix("/loss_nats")
            for row, _ in columns
            for name in row
            if name.startswith("valid/") and name.endswith("/loss_nats")
        }
        - set(SUMMARIES)
    )
    for name in [*sources, *SUMMARIES]:
        cells = [cell for row, epochs in columns for cell in _cells(row, epochs, name)]
        table.add_row(name, *cells, end_section=name == sources[-1])
    return table


def last_epochs(run: RunDirectory) -> Row:
    rows = [row for row in read_metrics(run.metrics_file) if "optim/lr" in row]
    named = {k: v for row in rows for k, v in row.items() if k.startswith("data/")}
    return named


def _cells(row: Row, epochs: Row, name: str) -> list[str]:
    units = (("loss_nats", ".4f"), ("ppl", ".1f"), ("bits_per_byte", ".3f"))
    cells = []
    for unit, shape in units:
        value = row.get(f"valid/{name}/{unit}")
        cells.append("" if value is None else format(value, shape))
    times = epochs.get(f"data/{name}/epochs")
    return [*cells, "" if times is None else f"{times:.2f}"]

"""What a terminal shows: tables, what differs, the paper's own errors, verdicts."""

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dograph.reproduce.artefacts import ARTEFACTS, Artefact
from dograph.reproduce.study import Outcome, Sheet


def print_list(console: Console) -> None:
    """Every name with its line."""
    table = Table(box=None, pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("what it shows")
    table.add_column("in the paper", overflow="fold")
    for artefact in ARTEFACTS.values():
        table.add_row(artefact.name, artefact.line, artefact.where)
    console.print(table, highlight=False)
    console.print("one of them: dograph reproduce NAME --dry-run", highlight=False)


def print_outcome(
    console: Console, artefact: Artefact, outcome: Outcome, record: Mapping[str, Any]
) -> None:
    for sheet in outcome.sheets:
        # A title of the table itself would be folded into the table's width.
        console.print(f"{sheet.title}:", markup=False, highlight=False, soft_wrap=True)
        console.print(rich_table(sheet))
    _lines(console, "what differs in set-up:", record["setup"])
    _lines(console, "in the paper itself:", record["errata"])
    _lines(console, "notes:", record["notes"])
    lines = [verdict.line for verdict in outcome.verdicts]
    _lines(console, f"claims of the paper ({artefact.where}):", lines)


def rich_table(sheet: Sheet) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for number, column in enumerate(sheet.columns):
        table.add_column(escape(column), justify="right" if number else "left", overflow="fold")
    for row in sheet.rows:
        table.add_row(*(escape(cell) for cell in row))
    return table


def _lines(console: Console, title: str, lines: list[str]) -> None:
    if not lines:
        return
    console.print(title, markup=False, highlight=False)
    for line in lines:
        console.print(f"- {line}", markup=False, highlight=False, soft_wrap=True)

"""dograph doctor: versions, devices, what is missing and how to install it."""

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from dograph.cli.console import open_console

if TYPE_CHECKING:
    from dograph.doctor import Finding

MARKS = {"ok": "[green]ok[/]", "warn": "[yellow]note[/]", "missing": "[red]missing[/]"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Show what this installation and this machine can do. Exits with 1 if dograph cannot run.

    \b
    dograph doctor           a table: versions, devices, extras, what is missing and how to get it
    dograph doctor --json    the same for a script or a bug report
    """  # noqa: D301
    from dograph.doctor import examine, is_core_fine

    findings = examine()
    fine = is_core_fine(findings)
    if as_json:
        rows = [dataclasses.asdict(finding) for finding in findings]
        typer.echo(json.dumps({"core_is_fine": fine, "findings": rows}, indent=2))
    else:
        _print_table(findings)
    if not fine:
        raise typer.Exit(1)


def _print_table(findings: "list[Finding]") -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table("", "", "found", "what to do")
    for part in ("core", "extra", "machine"):
        for finding in findings:
            if finding.part == part:
                is_fault = part == "core" or finding.status != "missing"
                mark = MARKS[finding.status] if is_fault else "[dim]absent[/]"
                table.add_row(finding.name, mark, escape(finding.detail), escape(finding.remedy))
        table.add_section()
    open_console().print(table)

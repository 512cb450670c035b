"""dograph doctor: versions, devices, what is missing and how to install it."""

import dataclasses
import json
from typing import Annotated

import typer

from dograph.cli.console import open_console

MARKS = {"ok": "[green]ok[/]", "warn": "[yellow]note[/]", "missing": "[red]missing[/]"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="print one JSON object")] = False,
) -> None:
    """Show what this installation and this machine can do. Exits with 1 if dograph cannot run.

    \b
    dograph doctor           a table: versions, devices, extras, what is missing and how to get it
    dograph doctor --json    the same for a script or a bug report
    """  # noqa: D301
    from rich.markup import escape
    from rich.table import Table

    from dograph.doctor import examine, is_core_fine

    findings = examine()
    fine = is_core_fine(findings)
    if as_json:
        rows = [dataclasses.asdict(finding) for finding in findings]
        typer.echo(json.dumps({"core_is_fine": fine, "findings": rows}, indent=2))
    else:
        table = Table("", "", "found", "what to do")
        for part in ("core", "extra", "machine"):
            for finding in (finding for finding in findings if finding.part == part):
                is_fault = part == "core" or finding.status != "missing"
                mark = MARKS[finding.status] if is_fault else "[dim]absent[/]"
                table.add_row(finding.name, mark, escape(finding.detail), escape(finding.remedy))
            table.add_section()
        open_console().print(table)
    if not fine:
        raise typer.Exit(1)

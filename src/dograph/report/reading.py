"""The files a page is made from: their names beside those of `RunDirectory`, and how to read them.

They are written by other commands, which a page does without; a test keeps the names the same.
"""

import json
from pathlib import Path
from typing import Any

from dograph.train.metrics import read_metrics
from dograph.train.run_dir import RunDirectory

ENVIRONMENT = "env.json"  # of a run: versions and devices
RESULT = "result.json"  # of a run that a pool made
EVALUATION = "eval.json"  # of a run: `dograph eval`
COMPARISON, ASKED, CELLS = "compare.json", "ask.json", "cells"  # `dograph compare`
BENCH = "bench.json"  # `dograph bench`


def is_run(path: Path) -> bool:
    return RunDirectory(path).config_file.is_file()


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file; empty where there is none."""
    if not path.is_file():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    return found if isinstance(found, dict) else {}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """An object a line; a line that is still being written, or was cut short, is left out."""
    rows: list[Any] = read_metrics(path)
    return rows

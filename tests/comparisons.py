"""Comparisons of tiny runs, in this process."""

import json

from rich.console import Console

from dograph.compare.arms import Ask, parse_methods
from dograph.compare.findings import Findings
from dograph.compare.session import run_compare
from dograph.compare.tables import equal_time_table, tables
from dograph.config import parse_config
from dograph.files import plain
from dograph.plan.lab import default_proxy
from dograph.train.run_dir import RunDirectory
from lab_runs import Here

STEPS = 6


def ask_of(config, mixers, seeds, *, baseline="natural", **rest):
    """An ask as the command makes it; without a budget, of equal tokens."""
    methods = tuple(parse_methods(mixers, config, baseline))
    planned = any(method.is_planned for method in methods)
    given = {"budget": "tokens", "replan": False, **rest}
    proxy = default_proxy(config) if planned else None
    return Ask(config=config, proxy=proxy, methods=methods, seeds=tuple(seeds), **given)


def ask(place, mixers, *, out, seeds=(0, 1), **rest):
    """Runs of a tiny model on the corpus of `place`."""
    values = {
        "data": {"corpus": str(place / "corpus"), "seq_len": 16},
        "model": {"preset": "tiny"},
        "mixer": {"name": "natural"},
        "sketch": {"dim": 80},
        "optim": {"warmup_steps": 2},
        "train": {"steps": STEPS, "batch_size": 6, "device": "cpu"},
        "eval": {"every": 0, "max_samples_per_source": 4},
        "checkpoint": {"every": 0},
        "probe": {"rows": 0},
    }
    folders = {"out": place / out, "lab": place / "lab"}
    config = parse_config(values, "test")
    return ask_of(config, mixers, seeds, command="dograph compare test", **folders, **rest)


def made(asked, pool=None, say=lambda text: None):
    """What the comparison found, as compare.json has it but for what is not finite."""
    found = run_compare(asked, pool or Here(), say)
    values = plain(found)
    assert Findings.of_json(json.loads(json.dumps(values))) == found
    return values


def run_of(place, out, cell):
    return RunDirectory.open(place / out / "cells" / cell)


def printed(findings):
    found = Findings.of_json(findings)
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    for table in filter(None, (equal_time_table(found), *tables(found))):
        console.print(table)
    return console.export_text()

"""Runs in a folder that several artefacts share, or that holds more than is asked for now.

Only what is asked for is trained and shown. OUT/compare.json has every finished cell of the
folder, so that a look at some rows takes none away.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dograph.compare.arms import Ask
from dograph.compare.cells import Cell, lay_out
from dograph.compare.files import REPORT, write_findings
from dograph.compare.findings import Findings, find
from dograph.compare.findings import Outcome as CellOutcome
from dograph.compare.methods import Method
from dograph.compare.planning import Plans, Say, make_plans
from dograph.compare.session import open_corpus, train_cells
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError
from dograph.plan.jobs import DamagedResultError, Result, read_result
from dograph.plan.pool import Pool


def run_asked(ask: Ask, pool: Pool, say: Say) -> Findings:
    """Make what is asked for and not there yet, and return what that came to."""
    corpus = open_corpus(ask)
    whole = ask.join_folder(corpus)
    whole = replace(whole, methods=tuple(_known(whole.methods, say)))
    plans = make_plans(ask, pool, say)
    cells = lay_out(ask, corpus, plans)
    outcome = train_cells(cells, corpus, pool)
    findings = find(ask, corpus, plans, cells, outcome)
    everything = findings
    if (whole.methods, whole.seeds) != (ask.methods, ask.seeds):
        everything = _everything(whole, corpus, pool, plans, cells, outcome)
    write_findings(ask.out, everything)
    return findings


def _known(methods: Iterable[Method], say: Say) -> Iterator[Method]:
    """Those whose mixers can be built; a mixer of the user's own may have moved since."""
    for method in methods:
        try:
            method.is_planned  # noqa: B018  builds it
        except ConfigError as error:
            say(f"{method.label} stays in cells/, but is not in {REPORT} this time: {error}")
        else:
            yield method


def _everything(
    whole: Ask,
    corpus: Corpus,
    pool: Pool,
    plans: Plans,
    cells: Sequence[Cell],
    outcome: CellOutcome,
) -> Findings:
    """Of what was asked for, and of the other finished cells of the folder."""
    both = Plans(_made_before(whole, pool).made | plans.made, plans.failed)
    asked, laid = {cell.label for cell in cells}, lay_out(whole, corpus, both)
    others = {
        cell.label: result
        for cell in laid
        if cell.label not in asked and (result := _finished(cell, corpus)) is not None
    }
    shown = [cell for cell in laid if cell.label in asked or cell.label in others]
    labels = {cell.method for cell in shown}
    methods = tuple(method for method in whole.methods if method.label in labels)
    results = CellOutcome(outcome.results | others, outcome.failures)
    found = find(replace(whole, methods=methods), corpus, both, shown, results)
    return found | {"proxy": found["proxy"] or _told_proxy(whole.out)}


def _made_before(whole: Ask, pool: Pool) -> Plans:
    """Plans that are on disk: they are read, none is made."""
    there = [
        method
        for method in whole.methods
        if method.is_planned and (whole.out / "plans" / f"{method.label}.json").is_file()
    ]
    return make_plans(replace(whole, methods=tuple(there)), pool, _unheard)


def _unheard(text: str) -> None:
    """What an old plan says against itself was said when it was made."""


def _finished(cell: Cell, corpus: Corpus) -> Result | None:
    try:
        return read_result(Path(cell.config.run), corpus)
    except DamagedResultError:
        return None


def _told_proxy(out: Path) -> Findings | None:
    """What the proxies of the folder's plans were; what is asked for now may have none."""
    file = out / REPORT
    found: Findings | None = json.loads(file.read_text())["proxy"] if file.is_file() else None
    return found

"""A comparison: plans, then cells through a pool, then what they came to. Resumable throughout.

OUT/ask.json       what was asked; the same command goes on
OUT/plans/         mixtures of the methods that plan, and what they cost
OUT/cells/         one run directory for each method and seed
OUT/compare.json   everything that was found
OUT/methods.csv    one row a method
OUT/cells.csv      one row a cell
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dograph.compare.arms import Ask
from dograph.compare.cells import Cell, lay_out
from dograph.compare.files import write_findings
from dograph.compare.findings import Outcome, find
from dograph.compare.methods import Method
from dograph.compare.planning import Say, make_plans
from dograph.config import RunConfig
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError, DographError
from dograph.mixers.registry import build_mixer
from dograph.plan.jobs import DamagedResultError, Job, Result, read_result
from dograph.plan.pool import JobError, Pool
from dograph.plan.progress import Progress, Tally, open_progress
from dograph.train.assembly import open_sampler
from dograph.train.forecast import planned_epochs
from dograph.train.lab import open_lab


def run_compare(ask: Ask, pool: Pool, say: Say) -> dict[str, Any]:
    """Make what is not there yet; write and return what was found.

    A plan or cell that fails is named in the findings, and all others are made.
    """
    corpus = open_corpus(ask)
    ask.take_folder(corpus)
    plans = make_plans(ask, pool, say)
    cells = lay_out(ask, corpus, plans)
    outcome = train_cells(cells, corpus, pool)
    findings = find(ask, corpus, plans, cells, outcome)
    write_findings(ask.out, findings)
    return findings


def open_corpus(ask: Ask) -> Corpus:
    """The corpus, on which there is a loss to compare and from which every method can draw."""
    corpus = Corpus(ask.config.data.corpus)
    if not corpus.validation:
        raise ConfigError(
            f"{corpus.directory} has no validation text, so there is no loss to compare; prepare "
            "it with some held out"
        )
    for method in ask.methods:
        if not method.is_planned:
            _check_drawn(method, method.config(ask.config), corpus)
    return corpus


def _check_drawn(method: Method, config: RunConfig, corpus: Corpus) -> None:
    """A source that is misspelt should not be told by the last cell, days later."""
    mixer = build_mixer(config.mixer.name, config.mixer.options)
    sampler = open_sampler(config, corpus)
    try:
        sampler.remix(0, mixer.plan(open_lab(config, corpus)), reason="plan")
        planned_epochs(config, sampler, mixer)  # what is drawn later, too
    except DographError as error:
        raise ConfigError(f"{method.label}: {error}") from error


@dataclass(slots=True)
class _Round:
    """Cells on their way."""

    outcome: Outcome
    progress: Progress
    left: list[Cell] = field(default_factory=list)

    def on_start(self, job: Job) -> None:
        self.progress.tally.begun(job.label)
        self.progress.update()

    def on_done(self, job: Job, result: Result) -> None:
        self.outcome.results[job.label] = result
        self.left = [cell for cell in self.left if cell.label != job.label]
        self.progress.tally.ended(job.label, result.seconds)
        self.progress.update()

    def on_death(self, job: Job, how: str) -> None:
        self.progress.say(f'the process of "{job.label}" died ({how}); it goes on in another')

    def on_failure(self, error: JobError) -> None:
        """Set aside the cell that failed."""
        self.outcome.failures[error.job.label] = str(error)
        self.left = [cell for cell in self.left if cell.label != error.job.label]
        # All others were stopped with it, and begin again.
        self.progress.tally.running.clear()
        self.progress.tally.total -= 1
        self.progress.say(str(error))


def train_cells(cells: Sequence[Cell], corpus: Corpus, pool: Pool) -> Outcome:
    """Make every cell that is not there; those that fail are left out, and the rest go on."""
    outcome = Outcome({}, {cell.label: cell.problem for cell in cells if cell.problem})
    todo = []
    for cell in cells:
        if cell.problem:
            continue
        result = _kept(cell, corpus)
        if result is None:
            todo.append(cell)
        else:
            outcome.results[cell.label] = result
    if not todo:
        return outcome
    done = len(outcome.results)
    progress = open_progress(Tally(total=done + len(todo), cached=done, noun="cells"))
    now = _Round(outcome, progress, todo)
    try:
        while now.left:
            try:
                jobs = [cell.job for cell in now.left]
                pool.run(jobs, now.on_done, now.on_start, now.on_death)
            except JobError as error:
                now.on_failure(error)
    finally:
        progress.close()
    return outcome


def _kept(cell: Cell, corpus: Corpus) -> Result | None:
    try:
        return read_result(Path(cell.config.run), corpus)
    except DamagedResultError:
        return None  # the pool makes it anew

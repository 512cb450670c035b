"""What the paper claims, and whether the runs made here bear it out.

A claim is a difference with a sign. It is confirmed where the 95 % interval over seeds lies on the
claimed side of zero, and in size too where it holds the paper's number. Claims over several
methods at once ("the lowest of all") need every one of their simultaneous intervals. With fewer
than five seeds there is no verdict, as in `dograph compare`.

Numbers over seeds are means with 95 % t intervals, and differences are taken seed by seed. Their
intervals end where their quantity does (`stats.Range`): no loss below 0, no accuracy above 100.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from dograph.compare.arms import Ask
from dograph.compare.findings import CellFindings, Findings
from dograph.files import plain
from dograph.reproduce.artefacts import LEAD, Artefact, Scale
from dograph.reproduce.paper import NAMES, OURS
from dograph.stats import (
    ABOVE_ZERO,
    ANY,
    LEAST_SEEDS,
    Estimate,
    Interval,
    Range,
    mean_estimate,
    paired_difference,
)

DEFAULT = "dograph"  # our own recipe
SUBJECTS = (OURS, DEFAULT)  # whom the paper's claims are asked of
AVERAGE = "average"  # of the tasks


@dataclass(frozen=True, slots=True)
class CellScores:
    """What the model of a run scored, by task and on average."""

    accuracy: dict[str, float]  # per cent: acc_norm where there is one, else acc
    error: dict[str, float | None]  # standard error over items, as a share
    limited: dict[str, str]  # tasks of which not all items were asked: `copa 4 of 100`
    notes: list[str]

    @classmethod
    def of_json(cls, record: Mapping[str, Any]) -> Self:
        """From the content of an eval.json."""
        tasks: Mapping[str, Any] = record["tasks"]
        primary = {name: task[task["primary"]] for name, task in tasks.items()}
        primary[AVERAGE] = record["average"]
        return cls(
            accuracy={name: 100 * float(score["value"]) for name, score in primary.items()},
            error={name: score["se"] for name, score in primary.items()},
            limited={
                name: f"{name} {task['items']:,} of {task['available']:,}"
                for name, task in tasks.items()
                if "available" in task and task["items"] < task["available"]
            },
            notes=list(record["notes"]),
        )


@dataclass(frozen=True, slots=True)
class Study:
    """What an artefact is made from, finished comparisons: one, or one for each model size."""

    artefact: Artefact
    scale: Scale
    asks: Mapping[str, Ask]
    findings: Mapping[str, Findings]
    scores: Mapping[str, CellScores] = field(default_factory=dict)  # by cell, where tasks are asked

    @property
    def only(self) -> Findings:
        (findings,) = self.findings.values()
        return findings

    @property
    def rows(self) -> list[str]:
        """Labels in the order of a table's rows: those that come first, then as asked."""
        labels = next(iter(self.findings.values())).labels
        return sorted(labels, key=lambda label: (*LEAD, label).index(label))


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of every finished run, by method and seed, with the range of it and its change."""

    values: Mapping[str, Mapping[int, float]]
    ends: Range = ABOVE_ZERO
    ends_of_change: Range = ANY

    @classmethod
    def read(cls, findings: Findings, of: Callable[[CellFindings], float], *ends: Range) -> Self:
        found: dict[str, dict[int, float]] = {label: {} for label in findings.labels}
        for cell in findings.finished:
            found[cell.method][cell.seed] = of(cell)
        return cls(found, *ends)

    def __contains__(self, label: str) -> bool:
        """Whether a run of the method was finished."""
        return bool(self.of(label))

    def of(self, label: str) -> Mapping[int, float]:
        return self.values.get(label, {})

    def level(self, label: str) -> Estimate:
        return mean_estimate(list(self.of(label).values())).within(self.ends)

    def less(self, label: str, other: str, family: int = 1) -> Estimate:
        """A method less another, over the seeds that both have."""
        found = paired_difference(self.of(label), self.of(other), family)
        return found.within(self.ends_of_change)

    def more_per_cent(self, label: str, other: str) -> Estimate:
        """By how many per cent a method is above another, pair by pair."""
        own, theirs = self.of(label), self.of(other)
        found = paired_difference(own, theirs, of=lambda a, b: 100 * (a / b - 1))
        return found.within((-100.0, math.inf))


def losses(findings: Findings, name: str = "mean") -> Figure:
    """Validation loss in nats: mean, natural, worst or gap."""
    return Figure.read(findings, lambda cell: cell.summaries[name])


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table as it is printed: text cells, the first column on the left."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class FigureColumn:
    """What a table shows of every row, and how: `±.3f` and `[+.3f]` show an interval too."""

    head: str
    key: str  # in the figures of a row
    shape: str
    but: str = ""  # the row that is left empty: a difference to itself
    of: Callable[[Any], Any] = lambda value: value

    def text(self, label: str, figures: Mapping[str, Any]) -> str:
        if label == self.but or figures[self.key] is None:
            return ""
        value, shape = self.of(figures[self.key]), self.shape
        if shape.startswith("["):
            return str(value.text(shape[1:-1]))
        if isinstance(value, Estimate):
            is_level = shape.startswith("±")
            return value.plus_minus(shape[1:]) if is_level else value.plain(shape)
        return format(value, shape)


Rows = dict[str, dict[str, Any]]  # figures by method: estimates, intervals, numbers


def table_of(title: str, first: str, rows: Rows, columns: Sequence[FigureColumn]) -> TextTable:
    heads = (first, *(column.head for column in columns))
    cells = [[label, *(c.text(label, own) for c in columns)] for label, own in rows.items()]
    return TextTable(title, heads, cells)


Change = Callable[[Figure, str, str], Estimate]  # of a method to another
Word = Literal["confirmed", "sign only", "unclear", "opposite", "no verdict"]
_AGAINST: tuple[Word, ...] = ("confirmed", "unclear", "no verdict", "opposite")  # ever more
_SIDES: dict[int, Word] = {1: "confirmed", 0: "unclear", -1: "opposite"}
_SAID: dict[Word, str] = {
    "confirmed": "confirmed",
    "sign only": "confirmed in sign, not in size",
    "unclear": "not confirmed, the interval holds zero",
    "opposite": "not confirmed, it is the other way round",
}


@dataclass(frozen=True, slots=True)
class Claim:
    """A difference that the paper claims of a method; once judged, with its verdict."""

    says: str
    sign: Literal[-1, 1]
    of: str = OURS  # the method that it is asked of
    paper: float | None = None  # the size claimed, signed; None where it gives none
    shape: str = ".3f"
    unit: str = ""
    ours: Estimate | None = None
    word: Word = "no verdict"
    line: str = ""

    def judge(self, ours: Estimate) -> Self:
        """By one difference."""
        word, interval = self._side(ours.interval), ours.interval
        if word == "confirmed" and self.paper is not None and interval is not None:
            word = word if interval.low <= self.paper <= interval.high else "sign only"
        word = word if ours.num >= LEAST_SEEDS else "no verdict"
        size = "" if self.paper is None else f" by {abs(self.paper):{self.shape}}{self.unit}"
        return self._judged(word, ours, f"{size}; here {self._told(word, ours)}")

    def judge_less(
        self, figure: Figure, rival: str, change: Change = Figure.less, why: str | None = None
    ) -> Self:
        """By its method less another, or not tested: neither may lack a finished run."""
        if missing := [name for name in (self.of, rival) if name not in figure]:
            return self.untested(why or f"no finished run of {' and of '.join(missing)}")
        return self.judge(change(figure, self.of, rival))

    def judge_best(self, figure: Figure) -> Self:
        """By its method less every rival in the paper's tables."""
        if self.of not in figure:
            return self.untested(f"no finished run of {self.of}")
        rivals = [name for name in NAMES if name != OURS and name in figure]
        return self.judge_all({name: figure.less(self.of, name, len(rivals)) for name in rivals})

    def judge_all(self, rivals: Mapping[str, Estimate]) -> Self:
        """By differences to every rival at once; the one that speaks most against it is shown.

        Where a rival has too few seeds there is no verdict, and it is the one that is shown.
        """
        if not rivals:
            return self.untested("no such runs were asked for")
        words = {name: self._side(figure.simultaneous) for name, figure in rivals.items()}
        few = [name for name, figure in rivals.items() if figure.num < LEAST_SEEDS]

        def against(name: str) -> tuple[int, float]:
            return _AGAINST.index(words[name]), -self.sign * rivals[name].value

        name = max(few or rivals, key=against)
        worst, word = rivals[name], "no verdict" if few else words[name]
        shown = self._told(word, replace(worst, interval=worst.simultaneous))
        return self._judged(word, worst, f"; here, against {name}, {shown}")

    def untested(self, why: str) -> Self:
        return replace(self, paper=None)._judged("no verdict", None, f": not tested, {why}")

    def _judged(self, word: Word, ours: Estimate | None, end: str) -> Self:
        """The paper claims it of its own recipe; ours is asked the same."""
        who = "the same of the default recipe" if self.of == DEFAULT else "paper"
        return replace(self, word=word, ours=ours, line=f"{who}: {self.says}{end}")

    def _side(self, interval: Interval | None) -> Word:
        return "no verdict" if interval is None else _SIDES[self.sign * interval.side]

    def _told(self, word: Word, figure: Estimate) -> str:
        """`-0.040 [-0.060, -0.020]: confirmed`."""
        text = figure.text(f"+{self.shape}", " ") + (self.unit if figure.num else "")
        few = figure.num < LEAST_SEEDS
        why = f"{figure.num} of {LEAST_SEEDS} seeds" if few else "a figure is not finite"
        return f"{text}: {_SAID.get(word, f'no verdict, {why}')}"

    def record(self) -> dict[str, Any]:
        ours = None if self.ours is None else self.ours.record()
        claimed = {"of": self.of, "says": self.says, "paper": self.paper}
        return claimed | {"ours": ours, "verdict": self.word, "line": self.line}


@dataclass(frozen=True, slots=True)
class Reproduction:
    """What an artefact comes to: tables to print, figures by method, a verdict for each claim."""

    sheets: Sequence[TextTable]
    methods: Rows
    verdicts: Sequence[Claim]
    notes: Sequence[str] = ()
    tasks: Sequence[str] | None = None  # that were asked

    @property
    def data(self) -> dict[str, Any]:
        """The figures as JSON values."""
        found = {"methods": _recorded(self.methods)}
        return found if self.tasks is None else found | {"tasks": list(self.tasks)}


def _recorded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _recorded(part) for key, part in value.items()}
    return value.record() if isinstance(value, Estimate) else plain(value)

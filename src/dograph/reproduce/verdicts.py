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
from typing import Any, Literal

from dograph.compare.arms import Ask
from dograph.compare.findings import CellFindings, Findings
from dograph.reproduce.artefacts import LEAD, Artefact, Scale
from dograph.reproduce.paper import OURS
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


@dataclass(frozen=True, slots=True)
class Study:
    """What an artefact is made from, finished comparisons: one, or one for each model size."""

    artefact: Artefact
    scale: Scale
    asks: Mapping[str, Ask]
    findings: Mapping[str, Findings]
    scores: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # eval.json by cell

    @property
    def only(self) -> Findings:
        (findings,) = self.findings.values()
        return findings

    @property
    def rows(self) -> list[str]:
        """Labels in the order of a table's rows: those that come first, then as asked."""
        labels = next(iter(self.findings.values())).labels
        first = [label for label in LEAD if label in labels]
        return [*first, *(label for label in labels if label not in first)]


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table as it is printed: text cells, the first column on the left."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


Values = Mapping[str, Mapping[int, float]]  # of each method, by seed


def values_of(findings: Findings, read: Callable[[CellFindings], float]) -> Values:
    """What `read` makes of every cell that was finished."""
    found: dict[str, dict[int, float]] = {label: {} for label in findings.labels}
    for cell in findings.finished:
        found[cell.method][cell.seed] = read(cell)
    return found


def losses(findings: Findings, name: str = "mean") -> Values:
    """Validation loss in nats: mean, natural, worst or gap."""
    return values_of(findings, lambda cell: cell.summaries[name])


def level(values: Values, label: str, ends: Range = ABOVE_ZERO) -> Estimate:
    """Of one method."""
    return mean_estimate(list(values.get(label, {}).values())).within(ends)


def less(values: Values, label: str, other: str, family: int = 1, *, ends: Range = ANY) -> Estimate:
    """A method less another, over the seeds that both have."""
    return paired_difference(values.get(label, {}), values.get(other, {}), family).within(ends)


def more_per_cent(values: Values, label: str, other: str) -> Estimate:
    """By how many per cent a method is above another, pair by pair."""
    own, theirs = values.get(label, {}), values.get(other, {})
    found = paired_difference(own, theirs, of=lambda a, b: 100 * (a / b - 1))
    return found.within((-100.0, math.inf))


Word = Literal["confirmed", "sign only", "unclear", "opposite", "no verdict"]
_AGAINST: tuple[Word, ...] = ("confirmed", "unclear", "no verdict", "opposite")  # ever more
Sign = Literal[-1, 1]
DEFAULT = "dograph"  # our own recipe
SUBJECTS = (OURS, DEFAULT)  # whom the paper's claims are asked of
_SAID: dict[Word, str] = {
    "confirmed": "confirmed",
    "sign only": "confirmed in sign, not in size",
    "unclear": "not confirmed, the interval holds zero",
    "opposite": "not confirmed, it is the other way round",
}


@dataclass(frozen=True, slots=True)
class Verdict:
    """A claim of the paper and what became of it."""

    of: str  # the method that it is asked of
    says: str
    paper: float | None  # the size claimed, signed; None where it gives none
    ours: Estimate | None
    word: Word
    line: str

    def record(self) -> dict[str, Any]:
        return {
            "of": self.of,
            "says": self.says,
            "paper": self.paper,
            "ours": None if self.ours is None else self.ours.record(),
            "verdict": self.word,
            "line": self.line,
        }


@dataclass(frozen=True, slots=True)
class Reproduction:
    """What an artefact comes to: tables to print, the same as data, a verdict for each claim."""

    sheets: Sequence[TextTable]
    data: Mapping[str, Any]
    verdicts: Sequence[Verdict]
    notes: Sequence[str] = ()


def judge(
    says: str,
    ours: Estimate,
    *,
    sign: Sign,
    paper: float | None = None,
    shape: str = ".3f",
    unit: str = "",
    of: str = OURS,
) -> Verdict:
    """One difference: below zero is claimed by sign -1, above by 1."""
    word = _side(ours.interval, sign)
    if word == "confirmed" and paper is not None and ours.interval is not None:
        word = word if ours.interval.low <= paper <= ours.interval.high else "sign only"
    word = word if ours.num >= LEAST_SEEDS else "no verdict"
    claimed = "" if paper is None else f" by {abs(paper):{shape}}{unit}"
    line = f"{_asked(of)}: {says}{claimed}; here {_told(word, ours, shape, unit)}"
    return Verdict(of, says, paper, ours, word, line)


def judge_less(
    values: Values,
    label: str,
    rival: str,
    says: str,
    *,
    difference: Callable[[Values, str, str], Estimate] = less,
    why: str | None = None,
    **rest: Any,
) -> Verdict:
    """A method less another, or that it was not tested: neither may lack a finished run."""
    if missing := [name for name in (label, rival) if not values.get(name)]:
        why = why or f"no finished run of {' and of '.join(missing)}"
        return untested(says, why, label)
    return judge(says, difference(values, label, rival), of=label, **rest)


def judge_all(
    says: str,
    rivals: Mapping[str, Estimate],
    *,
    sign: Sign,
    shape: str = ".3f",
    unit: str = "",
    of: str = OURS,
) -> Verdict:
    """Differences to every rival at once; the one that speaks most against the claim is shown.

    Where a rival has too few seeds there is no verdict, and it is the one that is shown.
    """
    if not rivals:
        return untested(says, "no such runs were asked for", of)
    words = {name: _side(figure.simultaneous, sign) for name, figure in rivals.items()}
    few = [name for name, figure in rivals.items() if figure.num < LEAST_SEEDS]
    name = max(
        few or rivals, key=lambda one: (_AGAINST.index(words[one]), -sign * rivals[one].value)
    )
    worst, word = rivals[name], "no verdict" if few else words[name]
    shown = _told(word, replace(worst, interval=worst.simultaneous), shape, unit)
    return Verdict(
        of, says, None, worst, word, f"{_asked(of)}: {says}; here, against {name}, {shown}"
    )


def untested(says: str, why: str, of: str = OURS) -> Verdict:
    line = f"{_asked(of)}: {says}: not tested, {why}"
    return Verdict(of, says, None, None, "no verdict", line)


def _asked(of: str) -> str:
    """The paper claims it of its own recipe; ours is asked the same."""
    return "the same of the default recipe" if of == DEFAULT else "paper"


def _side(interval: Interval | None, sign: Sign) -> Word:
    if interval is None:
        return "no verdict"
    side = sign * interval.side
    return "confirmed" if side > 0 else "opposite" if side < 0 else "unclear"


def _told(word: Word, figure: Estimate, shape: str, unit: str) -> str:
    """`-0.040 [-0.060, -0.020]: confirmed`."""
    text = figure.text(f"+{shape}", " ") + (unit if figure.num else "")
    if word != "no verdict":
        return f"{text}: {_SAID[word]}"
    few = figure.num < LEAST_SEEDS
    why = f"{figure.num} of {LEAST_SEEDS} seeds" if few else "a figure is not finite"
    return f"{text}: no verdict, {why}"

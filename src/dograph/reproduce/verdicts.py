"""What the paper claims, and whether the runs made here bear it out.

A claim is a difference with a sign. It is confirmed where the 95 % interval over seeds lies on the
claimed side of zero, and in size too where it holds the paper's number. Claims over several
methods at once ("the lowest of all") need every one of their simultaneous intervals. With fewer
than five seeds there is no verdict, as in `dograph compare`.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from dograph.compare.arms import Ask
from dograph.compare.findings import Findings
from dograph.reproduce.artefacts import Artefact, Scale
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

# Numbers over seeds: a mean with its 95 % t interval, and differences taken seed by seed.
#
# Intervals end where their quantity does (`stats.Range`): no loss below 0, no accuracy above
# 100.


Values = Mapping[str, Mapping[int, float]]  # of each method, by seed


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


def values_of(findings: Findings, read: Callable[[Mapping[str, Any]], float]) -> Values:
    """What `read` makes of every cell that was finished."""
    found: dict[str, dict[int, float]] = {m["label"]: {} for m in findings["methods"]}
    for cell in findings["cells"]:
        if cell["error"] is None:
            found[cell["method"]][cell["seed"]] = read(cell)
    return found


def losses(findings: Findings, name: str = "mean") -> Values:
    """Validation loss in nats: mean, natural, worst or gap."""
    return values_of(findings, lambda cell: float(cell["summaries"][name]))


def present(findings: Findings, labels: Sequence[str]) -> list[str]:
    """Those of the labels that a run was finished for."""
    finished = {cell["method"] for cell in findings["cells"] if cell["error"] is None}
    return [label for label in labels if label in finished]


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
        ours = None if self.ours is None else self.ours.record()
        return {
            "of": self.of,
            "says": self.says,
            "paper": self.paper,
            "ours": ours,
            "verdict": self.word,
            "line": self.line,
        }


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
    if word == "confirmed" and paper is not None and not _holds(ours.interval, paper):
        word = "sign only"
    word = word if ours.num >= LEAST_SEEDS else "no verdict"
    claimed = "" if paper is None else f" by {abs(paper):{shape}}{unit}"
    here = _here(ours, ours.interval, shape, unit)
    line = f"{_asked(of)}: {says}{claimed}; here {here}: {_told(word, ours)}"
    return Verdict(of, says, paper, ours, word, line)


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
    here = _here(worst, worst.simultaneous, shape, unit)
    line = f"{_asked(of)}: {says}; here, against {name}, {here}: {_told(word, worst)}"
    return Verdict(of, says, None, worst, word, line)


def untested(says: str, why: str, of: str = OURS) -> Verdict:
    line = f"{_asked(of)}: {says}: not tested, {why}"
    return Verdict(of, says, None, None, "no verdict", line)


def _asked(of: str) -> str:
    """The paper claims it of its own recipe; ours is asked the same."""
    return "the same of the default recipe" if of == DEFAULT else "paper"


def _here(figure: Estimate, interval: Interval | None, shape: str, unit: str) -> str:
    text = replace(figure, interval=interval).text(f"+{shape}", " ")
    return f"{text}{unit}" if figure.num else text


def _side(interval: Interval | None, sign: Sign) -> Word:
    if interval is None:
        return "no verdict"
    side = sign * interval.side
    return "confirmed" if side > 0 else "opposite" if side < 0 else "unclear"


def _holds(interval: Interval | None, value: float) -> bool:
    return interval is not None and interval.low <= value <= interval.high


def _told(word: Word, figure: Estimate) -> str:
    if word == "no verdict":
        few = figure.num < LEAST_SEEDS
        why = f"{figure.num} of {LEAST_SEEDS} seeds" if few else "a figure is not finite"
        return f"no verdict, {why}"
    return _SAID[word]


# What an artefact is made from, and what it comes to.


@dataclass(frozen=True, slots=True)
class Study:
    """Finished comparisons: one, or one for each model size."""

    artefact: Artefact
    scale: Scale
    asks: Mapping[str, Ask]
    findings: Mapping[str, Findings]
    scores: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # eval.json by cell

    @property
    def only(self) -> Findings:
        (findings,) = self.findings.values()
        return findings


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table as it is printed: text cells, the first column on the left."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Tables to print, the same as data, and a verdict for each claim."""

    sheets: Sequence[Sheet]
    data: Mapping[str, Any]
    verdicts: Sequence[Verdict]
    notes: Sequence[str] = ()

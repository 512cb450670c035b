"""What the paper claims, and whether the runs made here bear it out.

A claim is a difference with a sign. It is confirmed where the 95 % interval over seeds lies on the
claimed side of zero, and in size too where it holds the paper's number. Claims over several
methods at once ("the lowest of all") need every one of their simultaneous intervals. With fewer
than five seeds there is no verdict, as in `dograph compare`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dograph.reproduce.figures import Figure, bounds
from dograph.reproduce.paper import OURS
from dograph.stats import LEAST_SEEDS, Interval

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
    ours: Figure | None
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
    ours: Figure,
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
    word = word if ours.seeds >= LEAST_SEEDS else "no verdict"
    claimed = "" if paper is None else f" by {abs(paper):{shape}}{unit}"
    here = _here(ours, ours.interval, shape, unit)
    line = f"{_asked(of)}: {says}{claimed}; here {here}: {_told(word, ours)}"
    return Verdict(of, says, paper, ours, word, line)


def judge_all(
    says: str,
    rivals: Mapping[str, Figure],
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
    few = [name for name, figure in rivals.items() if figure.seeds < LEAST_SEEDS]
    name = max(
        few or rivals, key=lambda one: (_AGAINST.index(words[one]), -sign * rivals[one].mean)
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


def _here(figure: Figure, interval: Interval | None, shape: str, unit: str) -> str:
    text = f"{figure.plain(f'+{shape}')} {bounds(interval, f'+{shape}', ' ')}".strip()
    return f"{text}{unit}" if figure.seeds else text


def _side(interval: Interval | None, sign: Sign) -> Word:
    if interval is None:
        return "no verdict"
    low, high = sorted((sign * interval.low, sign * interval.high))
    if low > 0:
        return "confirmed"
    return "opposite" if high < 0 else "unclear"


def _holds(interval: Interval | None, value: float) -> bool:
    return interval is not None and interval.low <= value <= interval.high


def _told(word: Word, figure: Figure) -> str:
    if word == "no verdict":
        few = figure.seeds < LEAST_SEEDS
        why = f"{figure.seeds} of {LEAST_SEEDS} seeds" if few else "a figure is not finite"
        return f"no verdict, {why}"
    return _SAID[word]

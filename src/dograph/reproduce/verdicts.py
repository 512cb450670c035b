"""Metrics over seeds, the tables that show them, and verdicts on the paper's claims.

A claim is a difference with a sign. It is confirmed if the 95 % interval over seeds lies on the
claimed side of zero, and confirmed in size if the interval also contains the paper's number. A
claim over several methods ("the lowest of all") needs all of their simultaneous intervals. With
fewer than five seeds there is no verdict, as in `dograph compare`.

Means over seeds have 95 % t intervals, and differences are paired by seed. Intervals are cut to
the range of their quantity (`stats.Range`): no loss below 0, no accuracy above 100.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

from dograph import stats
from dograph.compare.arms import Ask
from dograph.compare.findings import CellFindings, Findings
from dograph.compare.tables import TextTable
from dograph.files import plain
from dograph.reproduce.artefacts import LEAD, Artefact, Scale
from dograph.reproduce.paper import NAMES, OURS
from dograph.stats import LEAST_SEEDS, Estimate, Range

DEFAULT = "dograph"  # our own recipe
SUBJECTS = (OURS, DEFAULT)  # the methods that the paper's claims are tested on


@dataclass(frozen=True, slots=True)
class Study:
    """The finished comparison of an artefact."""

    artefact: Artefact
    scale: Scale
    ask: Ask
    findings: Findings
    scores: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # eval.json by cell

    @property
    def rows(self) -> list[str]:
        """Labels in the order of a table's rows: `LEAD` first, then as requested."""
        return sorted(self.findings.labels, key=lambda label: (*LEAD, label).index(label))


@dataclass(frozen=True, slots=True)
class RunMetric:
    """One number per finished run, by method and seed; the ranges of it and of its differences."""

    values: Mapping[str, Mapping[int, float]]
    range: Range = stats.ABOVE_ZERO
    difference_range: Range = stats.ANY
    in_per_cent: bool = field(default=False, kw_only=True)  # differences: of the other's value

    @classmethod
    def read(cls, findings: Findings, of: Callable[[CellFindings], float], *ranges: Range) -> Self:
        values: dict[str, dict[int, float]] = {label: {} for label in findings.labels}
        for cell in findings.finished:
            values[cell.method][cell.seed] = of(cell)
        return cls(values, *ranges)

    def by_seed(self, label: str) -> Mapping[int, float]:
        """Empty if the method has no finished run."""
        return self.values.get(label, {})

    def mean(self, label: str) -> Estimate:
        return stats.mean_estimate(list(self.by_seed(label).values())).within(self.range)

    def difference(self, label: str, other: str, family: int = 1) -> Estimate:
        """A method minus another, over the seeds that both have."""
        own, theirs = self.by_seed(label), self.by_seed(other)
        if self.in_per_cent:
            own = {seed: 100 * own[seed] / theirs[seed] for seed in own if seed in theirs}
            theirs = dict.fromkeys(own, 100.0)
        estimate = stats.paired_difference(own, theirs, family)
        return estimate.within(self.difference_range)


def losses(findings: Findings, name: str = "mean") -> RunMetric:
    """Validation loss in nats: mean, natural, worst or gap."""
    return RunMetric.read(findings, lambda cell: cell.summaries[name])


Rows = dict[str, dict[str, Any]]  # metrics by method, as JSON values


@dataclass(frozen=True, slots=True)
class MetricColumn:
    """A metric of every method: a key of reproduce.json, a column of a table, or both."""

    key: str  # "" if it is only shown
    value: Callable[[str], Any]  # of a method: a number, an estimate, an interval, None
    head: str = ""  # "" if it is only stored
    shape: str = ""  # number format; `±.3f` and `[+.3f]` also show the interval
    blank: str = ""  # the row that is left empty: a difference to itself

    def text(self, label: str) -> str:
        value, shape = self.value(label), self.shape
        if label == self.blank or value is None:
            return ""
        if shape.startswith("["):
            return str(value.text(shape[1:-1]))
        if shape.startswith("±"):
            return str(value.plus_minus(shape[1:]))
        return value.plain(shape) if isinstance(value, Estimate) else format(value, shape)


def rows_of(labels: Sequence[str], columns: Sequence[MetricColumn]) -> Rows:
    def stored(value: Any) -> Any:
        return value.record() if isinstance(value, Estimate) else plain(value)

    return {label: {c.key: stored(c.value(label)) for c in columns if c.key} for label in labels}


def table_of(
    title: str, first: str, labels: Sequence[str], columns: Sequence[MetricColumn]
) -> TextTable:
    shown = [column for column in columns if column.head]
    cells = [[label, *(column.text(label) for column in shown)] for label in labels]
    return TextTable(title, (first, *(column.head for column in shown)), cells)


Verdict = Literal["confirmed", "sign only", "unclear", "opposite", "no verdict"]
# By the side of zero that the interval lies on, 1 for the claimed one; from the best to the worst.
_VERDICTS: dict[int | None, tuple[Verdict, str]] = {
    1: ("confirmed", "confirmed"),
    0: ("unclear", "not confirmed, the interval contains zero"),
    None: ("no verdict", "no verdict, a value is not finite"),
    -1: ("opposite", "not confirmed, the opposite holds"),
}


@dataclass(frozen=True, slots=True)
class Claim:
    """A difference that the paper claims for a method; once judged, with its verdict."""

    says: str
    sign: Literal[-1, 1]
    of: str = OURS  # the method that it is tested on
    paper: float | None = None  # the claimed size, signed; None if the paper gives none
    shape: str = ".3f"
    unit: str = ""
    ours: Estimate | None = None
    verdict: Verdict = "no verdict"
    found: str = ""  # the end of its line

    @property
    def line(self) -> str:
        """The paper claims it for its own recipe; we also test ours."""
        who = "the same claim for our default recipe" if self.of == DEFAULT else "paper"
        return f"{who}: {self.says}{self.found}"

    def untested(self, why: str) -> Self:
        return replace(self, paper=None, found=f": not tested, {why}")

    def judge_runs(self, metric: RunMetric, rival: str | None = None) -> Self:
        """By its method's difference to a rival, or else to every other method of the paper."""
        needed = [self.of] if rival is None else [self.of, rival]
        if missing := [name for name in needed if not metric.by_seed(name)]:
            return self.untested(f"no finished run of {' and of '.join(missing)}")
        if rival is not None:
            return self.judge({"": metric.difference(self.of, rival)})
        rivals = [name for name in NAMES if name != OURS and metric.by_seed(name)]
        return self.judge({name: metric.difference(self.of, name, len(rivals)) for name in rivals})

    def judge(self, rivals: Mapping[str, Estimate]) -> Self:
        """By the differences to all rivals at once; the line shows the worst one for the claim.

        If a rival has too few seeds there is no verdict, and the line shows that rival.
        """
        if not rivals:
            return self.untested("its runs were not requested")

        def side(rival: Estimate) -> int | None:
            ends = rival.simultaneous
            return None if ends is None else self.sign * ends.side

        def severity(name: str) -> tuple[bool, int, float]:
            rival = rivals[name]
            place = list(_VERDICTS).index(side(rival))
            return rival.num < LEAST_SEEDS, place, -self.sign * rival.value

        name = max(rivals, key=severity)
        worst, ends = rivals[name], rivals[name].simultaneous
        verdict, shown = _VERDICTS[side(worst)]
        has_size = self.paper is None or ends is None or ends.low <= self.paper <= ends.high
        if worst.num < LEAST_SEEDS:
            verdict, shown = "no verdict", f"no verdict, {worst.num} of {LEAST_SEEDS} seeds"
        elif verdict == "confirmed" and not has_size:
            verdict, shown = "sign only", "confirmed in sign, not in size"
        size = "" if self.paper is None else f" by {abs(self.paper):{self.shape}}{self.unit}"
        against = f", against {name}," if name else ""
        text = replace(worst, interval=ends).text(f"+{self.shape}", " ")
        unit = self.unit if worst.num else ""
        found = f"{size}; here{against} {text}{unit}: {shown}"
        return replace(self, verdict=verdict, ours=worst, found=found)

    def record(self) -> dict[str, Any]:
        ours = None if self.ours is None else self.ours.record()
        claimed = {"of": self.of, "says": self.says, "paper": self.paper}
        return claimed | {"ours": ours, "verdict": self.verdict, "line": self.line}


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The outcome of an artefact: tables, metrics by method, a verdict for each claim."""

    tables: Sequence[TextTable]
    methods: Rows
    verdicts: Sequence[Claim]
    notes: Sequence[str] = ()
    tasks: Sequence[str] | None = None  # downstream tasks that were scored
    setup: Sequence[str] = ()  # differences to the paper's runs
    failures: Mapping[str, str] = field(default_factory=dict)  # by cell

    @property
    def data(self) -> dict[str, Any]:
        """The metrics, and the tasks if there are some."""
        values: dict[str, Any] = {"methods": self.methods}
        return values if self.tasks is None else values | {"tasks": list(self.tasks)}

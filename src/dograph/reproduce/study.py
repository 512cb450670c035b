"""What an artefact is made from, and what it comes to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dograph.compare.arms import Ask
from dograph.compare.findings import Findings
from dograph.reproduce.artefacts import Artefact
from dograph.reproduce.scales import Scale
from dograph.reproduce.verdicts import Verdict


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

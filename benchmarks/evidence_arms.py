"""What is run for docs/results.md: arms, the two tables, and which cells make up each part.

An arm is a way to weigh and draw; a table is what plain sampling it stands beside: `uniform` draws
every source alike (the paper's protocol, judged by the mean over sources), `natural` by tokens
(judged by the natural-weighted loss). Tuning has seeds 0 to 2, what is reported 10 to 14.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

TableName = Literal["uniform", "natural"]
PLANS = Path(__file__).parent / "results" / "plans"
TUNING, REPORTED = (0, 1, 2), (10, 11, 12, 13, 14)
TUNING_STEPS, REPORTED_STEPS = 400, 700

# With domains that persist, so that weights may follow them; the first ten steps are equal.
UNIT = [
    "mixer.name=dograph",
    "mixer.recipe=safe",
    "mixer.normalize_gradients=true",
    "mixer.min_effective_fraction=null",
    "mixer.warmup_ratio=0",
]


def unit(q: float, *more: str) -> list[str]:
    """Every sample's gradient counts by its direction, domains by precision."""
    return [*UNIT, f"mixer.objective={{name: precision, q: {q}}}", *more]


def paper(*more: str) -> list[str]:
    return ["mixer.name=dograph", "mixer.recipe=paper", *more]


def planned(method: str) -> list[str]:
    return ["mixer.name=static", f"mixer.file={PLANS / method}.yaml"]


SAMPLED = ["mixer.apply_weights_to=sampling", "mixer.warmup_ratio=0.05"]
PRECISION = paper("mixer.objective=precision")
KEPT = "mixer.keep_source_shares=true"
ARMS: dict[str, list[str]] = {
    "plain": [],
    "inverse-norm": unit(0),
    "inverse-norm, all": unit(0, "mixer.gradient_norm_from=all"),
    "dynamic-loss": ["mixer.name=dynamic-loss"],
    "paper": paper(),
    "safe": ["mixer.name=dograph", "mixer.recipe=safe"],
    "recommended": ["mixer.name=dograph", "mixer.recipe=recommended"],
    "recommended, kept": ["mixer.name=dograph", "mixer.recipe=recommended", KEPT],
    **{method: planned(method) for method in ("doremi", "doge", "regmix", "mixing-law")},
    # The paper's analyses, on its own recipe: objectives, number of domains, scope and geometry.
    **{name: paper(f"mixer.objective={name}") for name in ("variance", "robust", "alignment")},
    **{f"m={m}": paper(f"mixer.num_domains={m}") for m in (7, 9, 13, 15)},
    "batch, spherical": paper("mixer.spherical_kmeans=true"),
    "epoch": paper("mixer.scope=period"),
    "epoch, spherical": paper("mixer.scope=period", "mixer.spherical_kmeans=true"),
    "stream, spherical": paper("mixer.scope=stream"),
    # Candidates. `lawful` ones draw the mixture of a law, fitted for what the table judges; `kept`
    # ones leave every source the share that was drawn.
    "precision": PRECISION,
    "precision q=1.5": paper("mixer.objective={name: precision, q: 1.5}"),
    "precision, lawful": PRECISION,
    "precision m=24, kept": [*PRECISION, "mixer.num_domains=24", KEPT],
    "inverse-norm, all, kept": unit(0, "mixer.gradient_norm_from=all", KEPT),
    "unit q=-1": unit(-1),
    "unit q=-0.5": unit(-0.5),
    "unit q=0.5": unit(0.5),
    "unit q=1": unit(1),
    "unit batch q=1": unit(1, "mixer.scope=batch"),
    "unit, sampled q=1": unit(1, *SAMPLED),
    "unit, sampled q=-1": unit(-1, *SAMPLED),
    "unit, sampled alignment": [*UNIT, "mixer.objective=alignment", *SAMPLED],
    "unit, sampled robust": [*UNIT, "mixer.objective=robust", *SAMPLED],
    "unit, sampled uncertainty": [
        *UNIT,
        "mixer.objective={name: uncertainty, sigma: mean}",
        *SAMPLED,
    ],
}
CANDIDATES = (
    *("inverse-norm, all", "precision q=1.5", "precision, lawful", "unit q=-1", "unit q=-0.5"),
    *("unit q=0.5", "unit q=1", "unit batch q=1", "unit, sampled q=1", "unit, sampled q=-1"),
    *("unit, sampled alignment", "unit, sampled robust", "unit, sampled uncertainty"),
    *("precision m=24, kept", "inverse-norm, all, kept"),
)
PLANNED = ("doremi", "doge", "regmix", "mixing-law")
# Plan files, made with a law that the project no longer has.
LAW = {"uniform": "transfer", "natural": "transfer-natural"}


@dataclass(frozen=True, slots=True, order=True)
class Cell:
    """One run."""

    table: TableName
    arm: str
    seed: int
    steps: int
    preset: str = "gpt2-mini"

    @property
    def key(self) -> str:
        return f"{self.table} {self.arm} {self.seed} {self.steps} {self.preset}"

    @property
    def overrides(self) -> list[str]:
        """The mixer, and what it draws."""
        if self.arm == "plain":
            return [f"mixer.name={self.table}"]
        if self.arm in PLANNED:
            return ARMS[self.arm]
        sampling = PLANS / f"{LAW[self.table]}.yaml" if "lawful" in self.arm else self.table
        return [*ARMS[self.arm], f"mixer.sampling={sampling}"]


def cells(table: TableName, arms: Sequence[str], seeds: Sequence[int], steps: int) -> list[Cell]:
    """Seed by seed, so that pairs are complete early."""
    return [Cell(table, arm, seed, steps) for seed in seeds for arm in arms]


def reported(table: TableName, *arms: str) -> list[Cell]:
    seeds = REPORTED if table == "uniform" else REPORTED[:3]
    return cells(table, arms, seeds, REPORTED_STEPS)


def tuning(table: TableName, *arms: str, seeds: Sequence[int] = TUNING) -> list[Cell]:
    return cells(table, arms, seeds, TUNING_STEPS)


PARTS: dict[str, list[Cell]] = {
    "candidates": [  # leads: one seed, more where the first was good
        *tuning("uniform", *CANDIDATES, seeds=TUNING[:1]),
        *tuning("uniform", "precision, lawful", seeds=TUNING[:2]),
        *tuning("uniform", "precision m=24, kept", "inverse-norm, all, kept"),
        *tuning("natural", "precision", "precision, lawful", seeds=TUNING[:2]),
        *tuning("natural", "inverse-norm, all", "unit q=-1", "unit q=-0.5", seeds=TUNING[:1]),
        *tuning("natural", "inverse-norm, all, kept", seeds=TUNING[:1]),
    ],
    "sceptic": reported("uniform", "plain", "inverse-norm"),
    "sceptic-natural": reported("natural", "plain", "inverse-norm"),
    "chosen": reported("uniform", "recommended"),
    "chosen-natural": reported("natural", "recommended"),
    "kept": reported("uniform", "recommended, kept"),
    "kept-natural": reported("natural", "recommended, kept"),
    "online": reported("uniform", "dynamic-loss", "paper", "safe"),
    "online-natural": reported("natural", "inverse-norm, all", "safe", "unit, sampled q=-1"),
    "planned": reported("uniform", *PLANNED),
    "analyses": tuning(
        "uniform",
        *("paper", "variance", "robust", "alignment", "precision", "m=7", "m=9", "m=13", "m=15"),
        *("batch, spherical", "epoch", "epoch, spherical", "stream, spherical"),
    ),
}

"""docs/results.md says what the committed figures say, and its tables say it right."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.evidence_arms import ARMS, PARTS, PLANS, REPORTED, TUNING
from benchmarks.measure import RESULTS
from benchmarks.results_page import PAGE, missing, page
from benchmarks.results_tables import (
    curve_table,
    effective,
    loss_table,
    select,
    tuning_table,
    verdict,
)
from scipy import stats

from dograph.mixers.registry import build_mixer
from dograph.training.presets import resolve_config

SHARES = {"a": 0.75, "b": 0.25}


def cell(arm: str, seed: int, a: float, b: float, **more: Any) -> dict[str, Any]:
    summed = {"mean": (a + b) / 2, "natural": 0.75 * a + 0.25 * b, "worst": max(a, b), "gap": 0.0}
    losses = {"a": a, "b": b}
    common = {"table": "uniform", "steps": 700, "preset": "gpt2-mini", "effective": [48.0, 47.0]}
    return common | {"arm": arm, "seed": seed, "losses": losses, "summaries": summed} | more


def row_of(lines: list[str], arm: str) -> list[str]:
    line = next(line for line in lines if line.startswith(f"| {arm} |"))
    return [part.strip() for part in line.strip("|").split("|")]


def test_the_page_is_what_the_committed_figures_give() -> None:
    record = json.loads((RESULTS / "evidence-h200.json").read_text())
    assert PAGE.read_text() == page(record), "run `make results`"


def test_differences_are_paired_t_intervals() -> None:
    gaps = np.array([-0.03, -0.02, -0.025, -0.01, -0.04])
    cells = [cell("plain", s, 5 + s, 5.5 + s) for s in range(5)]
    cells += [cell("mine", s, 5 + s + gaps[s], 5.5 + s + gaps[s]) for s in range(5)]
    lines = loss_table(select(cells, "uniform", 700), ("plain", "mine"), "mean", SHARES)
    arm, seeds, level, less, _, claimed = row_of(lines, "mine")[:6]
    low, high = stats.t.interval(0.95, 4, gaps.mean(), stats.sem(gaps))
    assert (arm, seeds, claimed) == ("mine", "5", "lower")
    assert level == f"{7.25 + gaps.mean():.4f}"
    assert less == f"{gaps.mean():+.4f} [{low:+.4f}, {high:+.4f}]"


def test_few_seeds_make_no_claim() -> None:
    cells = [cell("plain", s, 5, 5) for s in range(3)] + [cell("mine", s, 4, 4) for s in range(3)]
    lines = loss_table(select(cells, "uniform", 700), ("plain", "mine"), "mean", SHARES)
    assert row_of(lines, "mine")[5] == "none, too few seeds"


def test_a_seed_without_its_pair_does_not_count_in_a_difference() -> None:
    cells = [cell("plain", 0, 5, 5), cell("plain", 1, 6, 6)]
    cells += [cell("mine", s, 5 + s - 0.1, 5 + s - 0.1) for s in range(3)]
    for one in cells:
        one["steps"] = 400
    lines = tuning_table(cells, "uniform", ("plain", "mine"), "mean", "plain")
    assert row_of(lines, "mine")[1:4] == ["3", "5.900", "-0.100 [-0.100, -0.100]"]


def test_tables_keep_other_runs_out() -> None:
    cells = [cell("plain", 0, 5, 5), cell("plain", 0, 9, 9, preset="tiny")]
    cells += [cell("plain", 1, 9, 9, table="natural"), cell("plain", 2, 9, 9, steps=400)]
    assert list(select(cells, "uniform", 700)["plain"]) == [0]


def test_the_verdict_of_noise_is_unclear() -> None:
    assert verdict([0.01, -0.01, 0.02, -0.02, 0.001])[1] == "unclear"
    assert verdict([-0.011, -0.01, -0.012, -0.009, -0.01])[1] == "lower"


def test_effective_samples_leave_the_first_reading_out() -> None:
    assert effective([{"effective": [10.0, 44.0, 46.6]}]) == "44 to 47"
    assert effective([{"effective": [None, None]}]) == "48"


def test_what_was_not_run_is_listed() -> None:
    lines = missing([])
    assert "- uniform: plain, 700 steps, seeds 10, 11, 12, 13, 14" in lines
    keys = [
        dict(zip(("table", "arm", "seed", "steps", "preset"), _parts(c), strict=True))
        for c in every()
    ]
    assert missing(keys) == []


def every() -> list[Any]:
    return [one for part in PARTS.values() for one in part]


def _parts(one: Any) -> tuple[Any, ...]:
    return one.table, one.arm, one.seed, one.steps, one.preset


@pytest.mark.parametrize("arm", sorted(ARMS))
def test_every_arm_is_a_run(arm: str) -> None:
    for one in (c for c in every() if c.arm == arm):
        config = resolve_config(None, one.overrides)
        build_mixer(config.mixer.name, config.mixer.options)


def test_tuning_and_reported_seeds_are_apart() -> None:
    assert not set(TUNING) & set(REPORTED)
    for name, part in PARTS.items():
        seeds = TUNING if name in ("tuning", "analyses") else REPORTED
        assert {one.seed for one in part} <= set(seeds)


def test_plans_name_no_machine() -> None:
    texts = [path.read_text() for path in [*PLANS.glob("*.yaml"), *RESULTS.glob("*.json")]]
    assert not [text for text in texts if "/tmp/" in text or "/root/" in text]
    assert Path(PLANS / "doremi.yaml").is_file()


def test_curves_of_other_batches_are_not_compared() -> None:
    curve = {"curve": [[1, 9.0], [2, 8.0]], "mixture": {"a": 0.5, "b": 0.5}}
    cells = [cell("plain", 0, 5, 5, **curve), cell("mine", 0, 5, 5, **curve)]
    cells.append(cell("planned", 0, 5, 5, **curve | {"mixture": {"a": 1.0, "b": 0.0}}))
    lines = curve_table(select(cells, "uniform", 700), ("plain", "mine", "planned"), points=2)
    assert [line.split(" |")[0] for line in lines[2:]] == ["| mine"]

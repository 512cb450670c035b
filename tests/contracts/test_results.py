"""docs/results.md says what the committed figures say, and its tables say it right."""

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.evidence_arms import ARMS, PARTS, PLANS, REPORTED, TUNING, Cell
from benchmarks.measure import RESULTS
from benchmarks.results_page import EVIDENCE, PAGE, committed, findings, missing, page, two_tables
from benchmarks.results_tables import (
    TASKS,
    curve_table,
    effective,
    loss_table,
    select,
    source_table,
    task_table,
    tuning_table,
    verdicts,
)
from scipy import stats

from dograph.config import resolve_config
from dograph.mixers.registry import build_mixer
from results_cells import SHARES, cell, row_of


def test_the_page_is_what_the_committed_figures_give() -> None:
    assert PAGE.read_text() == page(*committed()), "run `make results`"


def test_the_files_of_evidence_are_of_one_machine_and_set_up() -> None:
    records = [json.loads((RESULTS / file).read_text()) for file in EVIDENCE]
    assert len(records) == 3
    for name in ("config", "machine"):
        assert all(record[name] == records[0][name] for record in records)
    keys = [(c["table"], c["arm"], c["seed"], c["steps"]) for r in records for c in r["cells"]]
    assert len(keys) == len(set(keys)) == len(committed()[0]["cells"])


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
    noise, lower = [0.01, -0.01, 0.02, -0.02, 0.001], [-0.011, -0.01, -0.012, -0.009, -0.01]
    assert [word for _, word in verdicts([noise, lower])] == ["unclear", "lower"]


DOUBTFUL = np.array([-0.03, -0.01, -0.025, -0.002, -0.04])  # a claim by itself, not one of two


def test_claims_made_together_are_corrected_together() -> None:
    p_value = stats.ttest_1samp(DOUBTFUL, 0).pvalue
    assert 0.025 < p_value < 0.05
    assert [word for _, word in verdicts([DOUBTFUL])] == ["lower"]
    assert [word for _, word in verdicts([DOUBTFUL, DOUBTFUL])] == ["unclear", "unclear"]
    weak = np.array([-0.03, 0.005, -0.025, -0.002, -0.04])  # one-sided it would be a claim
    assert 0.05 < stats.ttest_1samp(weak, 0).pvalue < 0.1
    assert verdicts([weak])[0][1] == "unclear"
    cells = [cell("plain", s, 5 + s, 6 + s) for s in range(5)]
    for arm in ("mine", "other"):
        cells += [cell(arm, s, 5 + s + DOUBTFUL[s], 6 + s + DOUBTFUL[s]) for s in range(5)]
    lines = loss_table(select(cells, "uniform", 700), ("plain", "mine", "other"), "mean", SHARES)
    assert [row_of(lines, arm)[5] for arm in ("mine", "other")] == ["unclear", "unclear"]
    lines = loss_table(select(cells[:10], "uniform", 700), ("plain", "mine"), "mean", SHARES)
    assert row_of(lines, "mine")[5] == "lower"


def with_blocks(arm: str, seed: int, a: float, b: float, **more: Any) -> dict[str, Any]:
    """Every block is off its source's mean by the same in all runs: nothing is left to chance."""
    off = (-0.4, 0.1, 0.3)
    blocks = {"a": [a + x for x in off], "b": [b + x for x in off]}
    return cell(arm, seed, a, b, blocks=blocks, **more)


def test_a_row_of_losses_by_hand() -> None:
    """mine: -0.2 and -0.4 to plain, -0.1 and -0.3 to inverse-norm; a weighs three times b."""
    cells = [with_blocks("plain", s, 5 + s, 6 + s) for s in range(5)]
    cells += [with_blocks("inverse-norm", s, 4.9 + s, 5.9 + s) for s in range(5)]
    waver = np.array([-0.02, 0.01, 0.0, 0.02, -0.01])  # over seeds; every block goes along
    cells += [with_blocks("mine", s, 4.8 + s + waver[s], 5.6 + s + waver[s]) for s in range(5)]
    reach = stats.t.ppf(0.975, 4) * stats.sem(waver)
    order = ("inverse-norm", "plain", "mine")
    lines = loss_table(select(cells, "uniform", 700), order, "natural", SHARES)
    assert [line.split(" |")[0] for line in lines[2:]] == [f"| {arm}" for arm in order]
    assert row_of(lines, "mine") == [
        *("mine", "5", "7.0000", f"-0.2500 [{-0.25 - reach:+.4f}, {-0.25 + reach:+.4f}]"),
        *("[-0.2500, -0.2500]", "lower"),
        f"-0.1500 [{-0.15 - reach:+.4f}, {-0.15 + reach:+.4f}]",
        *("7.200", "7.600", "0.000", "47"),  # mean, worst, gap
    ]
    assert row_of(lines, "plain")[3:7] == ["", "", "", "+0.1000 [+0.1000, +0.1000]"]


@pytest.mark.parametrize(("scale", "mark"), [(0.0, "!"), (1.0, "")])
def test_losses_by_source_are_marked_where_holm_allows(scale: float, mark: str) -> None:
    gaps = DOUBTFUL.mean() + scale * (DOUBTFUL - DOUBTFUL.mean())
    gaps = gaps + 1e-6 * np.arange(5)
    cells = [cell("plain", s, 5 + s, 6 + s) for s in range(5)]
    cells += [cell("mine", s, 5 + s + gaps[s], 6 + s - gaps[s]) for s in range(5)]
    lines = source_table(select(cells, "uniform", 700), ("plain", "mine"), SHARES)
    assert row_of(lines, "plain") == ["plain", "7.000", "8.000"]
    assert row_of(lines, "mine") == ["mine", f"6.979 (-0.021{mark})", f"8.021 (+0.021{mark})"]


def test_tuning_arms_by_hand() -> None:
    cells = [cell("plain", s, 5 + s, 6 + s, steps=400) for s in range(2)]
    cells += [cell("mine", s, 4.5 + s, 7 + s, steps=400) for s in range(2)]
    lines = tuning_table(cells, "uniform", ("plain", "mine", "none"), "mean", "plain")
    assert row_of(lines, "plain") == ["plain", "2", "6.000", "", "6.500", "47"]
    told = "+0.250 [+0.250, +0.250]"
    assert row_of(lines, "mine") == ["mine", "2", "6.250", told, "7.500", "47"]
    assert len(lines) == 4  # an arm that was not run has no row


def scored(arm: str, value: float, **more: Any) -> dict[str, Any]:
    def score(x: float) -> dict[str, float]:
        return {"value": x, "se": x / 10}

    tasks: dict[str, Any] = {
        task: {
            "acc": score(value + 0.001 * n),
            "acc_norm": score(value + 0.1 + 0.001 * n),
            "bits_per_byte": score(1 + value + n),
            "primary": "acc" if task == "copa" else "acc_norm",
        }
        for n, task in enumerate(TASKS)
    }
    tasks["average"] = {"value": value + 0.0912, "se": 0.0123}
    return cell(arm, 10, 5, 5, tasks=tasks, **more)


def test_tasks_in_per_cent_by_their_own_score() -> None:
    cells = [scored("mine", 0.3), scored("plain", 0.2), scored("plain", 0.4, table="natural")]
    cells += [scored("early", 0.9, steps=400), scored("small", 0.9, preset="tiny")]
    cells.append(cell("unscored", 10, 5, 5))
    lines = task_table(cells, ("plain", "mine"), bits=False)
    names = [line.split(" |")[0] for line in lines[2:]]
    assert names == ["| plain", "| mine", "| plain, by tokens"]
    row = row_of(lines, "mine")
    assert row[1:3] == ["40.0 ± 4.0", "40.1 ± 4.0"]
    assert row[1 + TASKS.index("copa")] == "30.3 ± 3.0"  # acc
    assert row[-1] == "39.12 ± 1.23"
    row = row_of(task_table(cells, ("plain", "mine"), bits=True), "mine")
    assert row[1:3] == ["1.300", "2.300"]
    assert row[-1] == "5.3000"  # 1.3 + the mean of 0 to 8


def test_curves_are_averages_over_stretches_and_seeds() -> None:
    def run(arm: str, seed: int, *losses: float) -> dict[str, Any]:
        curve = [[10 * n, loss] for n, loss in enumerate(losses)]
        return cell(arm, seed, 5, 5, curve=curve, mixture={"a": 0.5, "b": 0.5})

    cells = [
        run("plain", 0, 9, 8, 7, 6),
        run("plain", 1, 19, 18, 17, 16),
        run("mine", 2, 1, 1, 1, 1),
    ]
    cells += [run("mine", 0, 9, 7.9, 6.5, 5.5), run("mine", 1, 19, 17.7, 17, 16)]
    lines = curve_table(select(cells, "uniform", 700), ("plain", "mine"), points=2)
    assert lines[0] == "| arm | 0 to 10 | 20 to 30 |"
    assert row_of(lines, "mine") == ["mine", "-0.100", "-0.250"]


def test_findings_are_by_the_figure_that_each_table_is_judged_by() -> None:
    main = [cell("plain", s, 5 + s, 6 + s) for s in range(5)]
    main += [cell("recommended", s, 4.9 + s, 5.7 + s) for s in range(5)]
    second = [one | {"table": "natural", "mixture": SHARES} for one in main]
    by_arm, by_tokens, shares = two_tables([*main, *second])
    assert shares == SHARES
    assert findings(by_arm, by_tokens)[2:] == [
        "- equal sampling, mean over sources: **recommended vs. plain**: "
        "-0.2000 [-0.2000, -0.2000], 5 seeds: lower",
        "- natural sampling, natural-weighted: **recommended vs. plain**: "
        "-0.1500 [-0.1500, -0.1500], 5 seeds: lower",
    ]


def test_the_page_has_each_table_by_its_own_figure() -> None:
    cells = [cell("plain", s, 5.0, 6.0) for s in range(5)]
    cells += [cell("plain", s, 4.0, 8.0, table="natural", mixture=SHARES) for s in range(3)]
    machine = {"versions": {"torch": "2"}, "gpus": ["H200"]}
    record = {"cells": cells, "machine": machine, "config": {"corpus": "0" * 64}}
    lines = page(record, committed()[1]).splitlines()
    first, second = (
        next(n for n, line in enumerate(lines) if line.startswith(f"## {which} table"))
        for which in ("Main", "Second")
    )
    natural = row_of(lines[first:second], "natural sampling")
    assert natural[1:4] == ["3", "6.0000", "+0.5000 [+0.5000, +0.5000]"]  # the mean over sources
    assert row_of(lines[first:second], "plain")[2] == "5.5000"
    assert row_of(lines[second:], "plain")[2] == "5.0000"  # 0.75 x 4 + 0.25 x 8


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


def test_every_arm_belongs_to_a_part() -> None:
    assert {one.arm for one in every()} == set(ARMS)


def every() -> list[Any]:
    return [one for part in PARTS.values() for one in part]


def _parts(one: Any) -> tuple[Any, ...]:
    return one.table, one.arm, one.seed, one.steps, one.preset


@pytest.mark.parametrize("arm", sorted(ARMS))
def test_every_arm_is_a_run(arm: str) -> None:
    for table in ("uniform", "natural"):
        config = resolve_config(None, Cell(table, arm, 0, 400).overrides)
        build_mixer(config.mixer.name, config.mixer.options)


def test_tuning_and_reported_seeds_are_apart() -> None:
    assert not set(TUNING) & set(REPORTED)
    for name, part in PARTS.items():
        seeds = TUNING if name in ("candidates", "analyses") else REPORTED
        assert {one.seed for one in part} <= set(seeds)


def test_plans_name_no_machine() -> None:
    texts = [path.read_text() for path in [*PLANS.glob("*.yaml"), *RESULTS.glob("*.json")]]
    homes = (f"{tempfile.gettempdir()}/", f"{Path.home()}/")
    assert not [text for text in texts if any(home in text for home in homes)]
    assert Path(PLANS / "doremi.yaml").is_file()


def test_curves_of_other_batches_are_not_compared() -> None:
    curve = {"curve": [[1, 9.0], [2, 8.0]], "mixture": {"a": 0.5, "b": 0.5}}
    cells = [cell("plain", 0, 5, 5, **curve), cell("mine", 0, 5, 5, **curve)]
    cells.append(cell("planned", 0, 5, 5, **curve | {"mixture": {"a": 1.0, "b": 0.0}}))
    lines = curve_table(select(cells, "uniform", 700), ("plain", "mine", "planned"), points=2)
    assert [line.split(" |")[0] for line in lines[2:]] == ["| mine"]

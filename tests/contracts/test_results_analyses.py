"""The parts of docs/results.md that say why bear what they say."""

import math
from typing import Any

import numpy as np
from benchmarks.results_analyses import analyses, merging, reasons, worth
from benchmarks.results_page import committed, two_tables
from benchmarks.results_tables import effective, source_table
from scipy import stats

from results_cells import SHARES, cell, row_of


def test_numbers_of_domains_are_set_against_eleven() -> None:
    losses = {"plain": 5.0, "paper": 4.0, "m=7": 4.5}
    cells = [cell(arm, s, x + s, x + s, steps=400) for arm, x in losses.items() for s in range(2)]
    lines = analyses(cells)
    start = lines.index("Number of domains (`paper` has 11):")
    assert row_of(lines[start:], "m=7")[3] == "+0.500 [+0.500, +0.500]"


def test_gains_are_worth_the_steps_that_plain_training_needs_for_them() -> None:
    """Plain training follows 10 - 0.5 ln(steps); a method reaches what it has after 1.1 N steps."""
    tables = {"uniform": "mean", "natural": "natural"}
    plain = [
        cell("plain", seed, *[10 - 0.5 * math.log(steps)] * 2, steps=steps, table=table)
        for table in tables
        for steps in (400, 700)
        for seed in range(3)
    ]
    gain = 0.5 * math.log(1.1)
    better = [
        cell(arm, one["seed"], *[one["losses"]["a"] - gain] * 2, table=one["table"])
        for arm in ("inverse-norm", "recommended")
        for one in plain
        if one["steps"] == 700
    ]
    lines = worth([*plain, *better])
    assert (
        "0.50 (uniform sampling) and 0.50 (natural sampling) nats for an e-fold of steps" in lines
    )
    assert row_of(lines, "recommended")[-1] == "1.100 [1.100, 1.100]"
    assert row_of(lines, "recommended")[3] == f"{-gain:+.4f} [{-gain:+.4f}, {-gain:+.4f}]"


def test_the_chosen_recipe_is_set_beside_every_row() -> None:
    """Pairs of both tables: -0.2 five times and -0.15 three times; one row's claims by Holm."""
    main = [cell(arm, s, 5 + s, 6 + s) for arm in ("plain", "inverse-norm") for s in range(5)]
    waver = np.array([-0.02, 0.01, 0.0, 0.02, -0.01])
    chosen = [cell("recommended", s, 4.9 + s + waver[s], 5.7 + s + waver[s]) for s in range(5)]
    everything = [*main, *chosen]
    everything += [
        one | {"table": "natural", "mixture": SHARES} for one in [*main, *chosen] if one["seed"] < 3
    ]
    lines = reasons(*two_tables(everything)[:2])
    reach = stats.t.ppf(0.975, 4) * stats.sem(waver)
    told = f"-0.2000 [{-0.2 - reach:+.4f}, {-0.2 + reach:+.4f}]"
    assert f"| plain | main | 5 | {told} | lower |" in lines
    rows = [line for line in lines if line.startswith(("| plain", "| inverse-norm"))]
    assert [line.split(" | ")[1] for line in rows] == ["main", "main", "second", "second"]
    assert all("no claim: 3 of 5 seeds" in line for line in rows[2:])
    assert "recommended" not in "".join(rows)
    pairs = np.concatenate([-0.2 + waver, -0.15 + waver[:3]])
    low, high = stats.t.interval(0.95, 7, pairs.mean(), stats.sem(pairs))
    assert f"{pairs.mean():+.4f} [{low:+.4f}, {high:+.4f}]" in "\n".join(lines)
    by_source = [f"{x:+.3f} [{x - reach:+.3f}, {x + reach:+.3f}]" for x in (-0.1, -0.3)]
    assert f"| {' | '.join(by_source)} |" in lines


def test_what_the_page_says_of_the_recipe_is_so() -> None:
    """The sentences of `reasons` are words: they must go where the figures no longer bear them."""
    main, second, shares = two_tables(committed()[0]["cells"])
    rows = [line.strip("| ").split(" | ") for line in reasons(main, {}) if " | main | " in line]
    claimed = {row[0]: row[4] for row in rows}
    assert claimed.pop("inverse-norm") == claimed.pop("recommended, kept") == "unclear"
    assert set(claimed.values()) == {"lower"}
    arms = ("inverse-norm", "recommended", "recommended, kept")
    beside = source_table(main, arms, shares)
    gaps = {
        arm: dict(
            zip(shares, (float(part.split("(")[1].rstrip("!)")) for part in parts), strict=True)
        )
        for arm, *parts in (row_of(beside, arm) for arm in arms)
    }
    code = {"RedPajamaArXiv", "RedPajamaGithub"}
    assert {source for source, gap in gaps["inverse-norm"].items() if gap > 0} == code
    assert max(gaps["recommended"].values()) < 0.002
    assert max(gaps["recommended, kept"].values()) < -0.015
    by_tokens = {
        arm: np.mean([own[seed]["summaries"]["natural"] for seed in (10, 11, 12)])
        for arm, own in second.items()
        if len(own) >= 3
    }
    assert min(by_tokens, key=by_tokens.__getitem__) == "inverse-norm, all"
    spent = {arm: effective(main[arm].values()) for arm in ("inverse-norm", "recommended", "paper")}
    assert spent == {"inverse-norm": "42 to 46", "recommended": "45 to 48", "paper": "16 to 46"}
    planned = [main[arm] for arm in ("doremi", "doge", "regmix", "mixing-law")]
    plain = np.mean([one["summaries"]["mean"] for one in main["plain"].values()])
    assert all(np.mean([c["summaries"]["mean"] for c in own.values()]) > plain for own in planned)


def test_merging_is_shown_as_it_was_found() -> None:
    def at(step: int, value: float) -> dict[str, Any]:
        names = ("separation", "separation_directions", "nmi", "purity")
        found = {
            name: {
                "value": value + n,
                "interval": {"low": value + n - 0.1, "high": value + n + 0.1},
            }
            for n, name in enumerate(names)
        }
        return {"step": step, "nmi_by_chance": 0.03, "purity_by_chance": 0.2} | found

    figures = {"methods": {"equal": {"figures": [at(0, 1.0), at(9, 0.5)]}}}
    table = {"sources": ["RedPajamaBook", "C4"], "rows": [[3, 1], [0, 2], [0, 0]]}
    domains = {"methods": {"equal": {"composition": {"9": table}}}}
    first = {"seeds": [3, 4], "results": figures, "verdicts": [{"line": "they do"}]}
    lines = merging({"artefacts": {"gradient-pca": first, "clusters": {"results": domains}}})
    told = ["0.500 [0.400, 0.600]", "1.500 [1.400, 1.600]", "2.500 [2.400, 2.600]"]
    assert row_of(lines, "9") == ["9", *told, "3.500 [3.400, 3.600]", "0.030, 0.200"]
    assert "3 to 4:" in lines
    assert "- they do" in lines
    start = lines.index("| domain | rows | Book | C4 |")
    assert lines[start + 2 : start + 5] == [
        "| 1 | 4 | 75 | 25 |",
        "| 2 | 2 |  | 100 |",
        "| 3 | 0 |  |  |",
    ]

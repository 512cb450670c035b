"""A comparison's findings on the page: figures, claims, downstream scores."""

import json
from pathlib import Path

import pytest

from dograph.compare.findings import Findings
from dograph.report.collect import Comparison, collect, open_subjects, verdict_of
from dograph.report.figures import draw_comparison
from dograph.report.render import render
from page_runs import write_eval, write_run

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


@pytest.fixture(scope="module")
def findings():
    """A real comparison: seven methods, five seeds."""
    return json.loads((RESULTS / "compare-demo-tiny.json").read_text())


def compared(findings):
    return Comparison("demo", Findings.of_json(findings))


def test_figures_are_those_of_the_file(findings):
    found = compared(findings)
    by_name = {method["label"]: method for method in findings["methods"]}
    assert [method.label for method in found.methods] == list(by_name)
    for method in found.methods:
        own = by_name[method.label]
        assert method.losses["mean"].mean == own["losses"]["mean"]["mean"]
        for source in method.sources if method.differences else ():
            difference = method.difference(source)
            told = own["differences"]["sources"][source]
            assert difference.estimate.low == told["interval"]["low"]
            assert difference.claim == told["claim"]
    assert found.findings.notes == findings["notes"]
    assert found.methods[0].difference("mean") is None


def test_a_figure_has_every_difference_and_its_interval(findings):
    ((name, figure),) = draw_comparison(compared(findings), "comparison-")
    assert name == "comparison-differences"
    (axis,) = figure.axes
    other = [method for method in findings["methods"] if method["label"] != "natural"]
    told = [label.get_text() for label in axis.get_yticklabels()]
    assert told == [method["label"] for method in other]
    points = [line.get_xdata()[0] for line in axis.lines if len(line.get_xdata()) == 1]
    assert points == [method["differences"]["mean"]["mean"] for method in other]
    whiskers = [list(line.get_xdata()) for line in axis.lines if line.get_linestyle() == "-"]
    ends = [method["differences"]["mean"]["interval"] for method in other]
    assert whiskers[: len(other)] == [[own["low"], own["high"]] for own in ends]


def test_the_verdict_claims_what_the_comparison_claims(findings):
    found = compared(findings)
    claimed = {
        m.label for m in found.methods if m.differences and m.differences["mean"].claim == "lower"
    }
    said = verdict_of([], [found])
    if claimed:
        assert said.startswith("Lower mean loss than natural: ")
        assert all(name in said for name in claimed)
    else:
        assert said.startswith("No significant difference")


def altered(findings, **claim):
    changed = json.loads(json.dumps(findings))
    for method in changed["methods"][1:]:
        method["differences"]["mean"] |= claim
    return compared(changed)


def test_the_verdict_goes_no_further_than_the_claim(findings):
    assert verdict_of([], [altered(findings, claim="unclear")]).startswith(
        "No significant difference."
    )
    few = verdict_of([], [altered(findings, claim="no claim: 3 of 5 seeds")])
    assert few.startswith("No claim: 3 of 5 seeds. The lowest mean loss is that of ")
    assert "Lower mean loss than natural" in verdict_of([], [altered(findings, claim="lower")])
    worse = altered(findings, claim="higher", mean=0.1)
    said = verdict_of([], [worse])
    assert said.startswith("Higher mean loss than natural: uniform, ")
    assert "No mean loss is below that of natural; the closest is" in said


def test_what_is_most_so_is_claimed_itself(findings):
    """A larger difference that is unclear is not what the sentence names."""
    changed = json.loads(json.dumps(findings))
    for method, mean, claim in zip(
        changed["methods"][1:3], (-0.5, -0.1), ("unclear", "lower"), strict=True
    ):
        method["differences"]["mean"] |= {"mean": mean, "claim": claim}
    for method in changed["methods"][3:]:
        method["differences"]["mean"] |= {"mean": 0.0, "claim": "unclear"}
    label = changed["methods"][2]["label"]
    said = verdict_of([], [compared(changed)])
    lead = f"Lower mean loss than natural: {label}. Largest difference: {label}, -0.1000 ["
    assert said.startswith(lead)


def claimed(findings, **claims):
    """The comparison with these claims, by method; the others are unclear."""
    changed = json.loads(json.dumps(findings))
    for method in changed["methods"][1:]:
        claim = claims.get(method["label"].replace("-", "_"), "unclear")
        mean = {"lower": -0.2, "higher": 0.3}.get(claim, 0.0)
        method["differences"]["mean"] |= {"mean": mean, "claim": claim}
    return compared(changed)


def test_what_is_worse_is_named_beside_what_is_better(findings):
    said = claimed(findings, regmix="lower", uniform="higher", doge="higher").claim
    largest = ". Largest difference: "
    assert said.startswith(f"Lower mean loss than natural: regmix{largest}regmix, -0.2000 [")
    assert f" Higher mean loss than natural: uniform, doge{largest}uniform, +0.3000 [" in said
    assert said.endswith(
        " No significant difference for dynamic-loss, doremi, mixing-law, dograph."
    )


def test_every_method_is_in_the_claim_once(findings):
    found = claimed(findings, doremi="lower", doge="higher", dograph="no claim: 4 of 5 seeds")
    lists = [
        part.rstrip(".").split(", ")
        for lead, end in (
            ("Lower mean loss than natural: ", ". Largest"),
            ("Higher mean loss than natural: ", ". Largest"),
            ("No significant difference for ", ". "),
            ("No claim for ", ": 4 of 5 seeds."),
        )
        for part in [found.claim.split(lead)[1].split(end)[0]]
    ]
    named = [name for names in lists for name in names]
    assert sorted(named) == sorted(m["label"] for m in findings["methods"][1:])
    assert lists[3] == ["dograph"]


def test_each_comparison_has_its_own_claim(findings):
    first, second = claimed(findings, doge="higher"), claimed(findings, doge="lower")
    assert verdict_of([], [first, second]) == first.claim
    assert second.claim.startswith("Lower mean loss than natural: doge.")


def test_too_few_seeds_are_no_claim_however_large_the_difference(findings):
    said = altered(findings, claim="no claim: 2 of 5 seeds", mean=-3.0).claim
    assert said.startswith("No claim: 2 of 5 seeds. ")
    assert "Lower mean" not in said


def test_what_failed_is_left_out(findings):
    changed = json.loads(json.dumps(findings))
    for part in ("losses", "sources", "seconds", "differences"):
        del changed["methods"][1][part]
    for told in changed["methods"][2]["sources"].values():
        told["mean"] = None
    changed["methods"][3]["differences"]["mean"] |= {"mean": None, "interval": None}
    found = compared(changed)
    labels = [method["label"] for method in findings["methods"]]
    assert [method.label for method in found.methods] == [labels[0], *labels[3:]]
    assert found.methods[1].difference("mean") is None
    assert verdict_of([], [found])


def test_a_folder_of_a_comparison_stands_for_its_runs(findings, tmp_path):
    folder = tmp_path / "compare"
    runs = {
        label: write_run(folder / "cells" / label, mixer=label.split("-s")[0], seed=int(label[-1]))
        for label in ("natural-s0", "natural-s1", "uniform-s0")
    }
    cells = [
        findings["cells"][0]
        | {"label": label, "method": label.split("-s")[0], "run": f"moved/{label}"}
        for label in [*runs, "gone-s0"]
    ]
    (folder / "compare.json").write_text(json.dumps(findings | {"cells": cells}))
    data = collect(open_subjects([folder]))
    assert [run.name for run in data.runs] == list(runs)
    assert [run.group for run in data.runs] == ["natural", "natural", "uniform"]
    assert len(data.comparisons) == 1
    assert data.title == "comparison compare"
    assert render(data)


def test_runs_from_elsewhere_join_no_method_of_a_comparison(findings, tmp_path):
    """A run of the same mixer with other settings is not another seed of it."""
    folder = tmp_path / "compare"
    write_run(folder / "cells" / "uniform-s0", mixer="uniform")
    own = {"label": "uniform-s0", "method": "uniform", "run": "moved"}
    cells = [findings["cells"][0] | own]
    (folder / "compare.json").write_text(json.dumps(findings | {"cells": cells}))
    other = write_run(tmp_path / "other", mixer="uniform", steps=40)
    data = collect(open_subjects([folder, other]))
    assert [run.group for run in data.runs] == ["compare: uniform", "uniform"]
    assert [len(names) for names in data.groups.values()] == [1, 1]


def test_downstream_scores_have_error_bars(tmp_path):
    runs = [write_run(tmp_path / f"natural-{seed}", seed=seed) for seed in (0, 1)]
    runs.append(write_run(tmp_path / "uniform", mixer="uniform"))
    for run, value in zip(runs, (0.6, 0.7, 0.8), strict=True):
        write_eval(run, value)
    table = collect(open_subjects(runs)).tasks
    tasks = [*(f"task-{k}" for k in range(9)), "average"]
    assert table.heads == ["method", *tasks]
    assert [row[0] for row in table.rows] == ["natural", "uniform", "chance"]
    cells = zip(tasks, zip(*(row[1:] for row in table.rows), strict=True), strict=True)
    rows = {task: dict(zip(("natural", "uniform"), own, strict=False)) for task, own in cells}
    assert rows["task-0"]["uniform"].value.high == pytest.approx(80 + 100 * 1.96 * 0.01)
    over_seeds = rows["average"]["natural"].value
    assert over_seeds.value == pytest.approx(65)
    assert over_seeds.value - over_seeds.low == pytest.approx(12.7062 * 5, rel=1e-3)
    assert over_seeds.high == 100  # the t interval would reach 128 %

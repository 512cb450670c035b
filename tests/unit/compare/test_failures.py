"""Comparisons of which something fails, or which cannot be made at all."""

import pytest

from comparisons import ask, made, printed
from dograph.errors import DographError, RunError
from lab_runs import Here


def test_a_cell_that_fails_is_named_and_the_others_are_made(place):
    asked = ask(place, "bad=compare_mixers:Breaks,uniform", out="failing", seeds=(0,))
    findings = made(asked)
    assert list(findings["failures"]) == ["bad-s0"]
    assert "this mixer breaks" in findings["failures"]["bad-s0"]
    by_label = {method["label"]: method for method in findings["methods"]}
    assert by_label["bad"]["failed"] == ["bad-s0"]
    assert by_label["uniform"]["differences"]["mean"]["seeds"] == 1
    assert any(note.startswith("failed") for note in findings["notes"])
    assert "bad (1 failed)" in printed(findings)
    pool = Here()
    made(asked, pool)
    assert pool.made == []  # tried again, and failed again; the others are there


@pytest.mark.slow
def test_a_plan_that_fails_takes_its_cells_alone(place):
    said = []
    asked = ask(place, "hopeless=compare_mixers:Hopeless,uniform", out="hopeless", seeds=(0,))
    findings = made(asked, say=said.append)
    assert list(findings["failures"]) == ["hopeless-s0"]
    assert "its plan failed" in findings["failures"]["hopeless-s0"]
    assert any("its plan failed" in line for line in said)
    assert findings["methods"][2]["differences"]["mean"]["seeds"] == 1


def test_a_folder_that_cannot_be_is_told(place):
    (place / "file").write_text("")
    asked = ask(place, "uniform", out="file", seeds=(0,))
    with pytest.raises(RunError, match=r"cannot be written: .*; use another folder"):
        made(asked)


@pytest.mark.parametrize(
    "mixer",
    ["static[weights={alfa: 1}]", "scheduled[stages={0: {alpha: 1}, 3: {alfa: 1}}]"],
)
def test_sources_that_are_not_there_are_told_before_any_cell(place, mixer):
    pool = Here()
    asked = ask(place, f"wrong={mixer}", out="wrong", seeds=(0,))
    with pytest.raises(DographError, match=r'wrong: .*"alfa".*did you mean "alpha"'):
        made(asked, pool)
    assert pool.made == []

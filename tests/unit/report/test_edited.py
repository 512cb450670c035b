"""A run that was given another mixture on the way says so, and is no seed of one that was not."""

from dograph.report.collect import collect, open_subjects
from edited_runs import SECOND, THIRD, edit_of
from page_runs import write_run


def test_edits_are_among_the_notices(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "edits.jsonl").write_text(edit_of(30, SECOND) + edit_of(40, THIRD) + edit_of(20, THIRD))
    [told] = [line for line in collect(open_subjects([run])).runs[0].warnings if "edited" in line]
    assert "mixture after step 20: alpha 0.6 -> 0.45, beta 0.3 -> 0, gamma 0.1 -> 0.55" in told
    assert "config.yaml alone does not reproduce the run" in told


def test_an_edited_run_is_a_method_of_its_own(tmp_path):
    runs = [write_run(tmp_path / f"run-{seed}", seed=seed) for seed in range(3)]
    assert len(collect(open_subjects(runs)).groups) == 1
    (runs[0] / "edits.jsonl").write_text(edit_of(30, SECOND))
    data = collect(open_subjects(runs))
    assert list(data.groups.items()) == [
        ("natural edited=after 30: alpha 0.1 beta 0.2 gamma 0.7", ["run-0"]),
        ("natural", ["run-1", "run-2"]),
    ]

"""Explanations from what a run kept, for every kind of mixer."""

import json

import pytest

from dograph.choices import CHOICES
from dograph.config import resolve_config
from dograph.errors import RunError
from dograph.eval.recorded import explain_step, read_graph
from dograph.train.run_dir import RunDirectory

DOMAINS = {
    f"domains/{j}/{name}": value
    for j in range(2)
    for name, value in {
        "samples": 2.0,
        "share": 0.5,
        "weight": 0.4 + 0.2 * j,
        "gradient_norm": 3.0,
        "mean_norm": 1.0,
    }.items()
}
STEP = {"optim/lr": 0.1, "weights/effective_samples": 3.5}
SAFE = ["mixer.name=dograph", "mixer.recipe=safe"]


def write_run(path, overrides, rows, samples=None):
    run = RunDirectory(path)
    base = [f"run={path}", "train.batch_size=4", "train.steps=100"]
    run.create(resolve_config(None, [*base, *overrides]), {})
    run.metrics_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    if samples is not None:
        run.samples_file.write_text("".join(json.dumps(row) + "\n" for row in samples))
    run.unlock()
    return path


def explained(path, overrides, row, sample=None, step=50):
    rows = [{"step": n + 1, **(row if n + 1 == step else STEP)} for n in range(step)]
    rows.append({"step": step, "valid/mean/loss_nats": 1.0})
    samples = None if sample is None else [{"step": step, **sample}]
    return explain_step(write_run(path, overrides, rows, samples), step)


def dograph_row(**more):
    return {**STEP, **DOMAINS, "weights/solver_residual": 1e-7, "weights/fallback": 0.0, **more}


@pytest.mark.parametrize("objective", CHOICES["mixer.objective"])
def test_every_objective_is_named_with_its_rule_and_residual(tmp_path, objective):
    overrides = ["mixer.name=dograph", f"mixer.objective={objective}"]
    sample = {"weight": [0.8, 1.2, 1.0, 1.0], "domain": [0, 1, 1, 0]}
    found = explained(tmp_path / "run", overrides, dograph_row(), sample)
    rule = CHOICES["mixer.objective"][objective]
    assert found.reasons[0] == f"objective {objective}: {rule}; residual 1e-07"
    assert found.weight_B == sample["weight"]
    assert found.domain_B == sample["domain"]
    assert [domain["weight"] for domain in found.domains] == [0.4, pytest.approx(0.6)]
    assert found.reasons[-1] == "effective samples: 3.5 of 4"


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("mixer.min_effective_fraction=0.7", "until 70% of the samples are effective"),
        ("mixer.normalize_gradients=true", "divided by its own gradient norm"),
        ("mixer.keep_source_shares=true", "each source keeps its share"),
        ("mixer.apply_weights_to=sampling", "change what is drawn"),
        ("mixer.recipe=paper", "the domains are those of this batch alone"),
        ("mixer.warmup_ratio=0.5", "warm-up until step 50: all 4 samples counted alike"),
        ("mixer.warmup_steps=60", "warm-up until step 60: all 4 samples counted alike"),
    ],
)
def test_what_bounds_the_weights_is_told(tmp_path, override, words):
    found = explained(tmp_path / "run", [*SAFE, override], dograph_row())
    assert words in " ".join(found.reasons)
    plain = explained(tmp_path / "plain", SAFE, dograph_row())
    assert words not in " ".join(plain.reasons)


def test_a_floor_in_the_mean_is_told_as_such(tmp_path):
    lagged, pieces = "sketch.accumulation=lagged", "train.micro_batch_size=2"
    for name, overrides in (("a", [lagged, pieces]), ("b", [lagged]), ("c", [pieces])):
        found = explained(tmp_path / name, [*SAFE, *overrides], dograph_row())
        told = "90% of the samples are effective, in the mean over batches"
        assert (told in found.reasons[-2]) == (name == "a")


def test_a_warm_up_of_no_steps_is_none(tmp_path):
    """Not the recipe's 5 % of 100 steps."""
    for name, override, told in (("a", "mixer.warmup_steps=0", False), ("b", "mixer.seed=1", True)):
        found = explained(tmp_path / name, [*SAFE, override], dograph_row(), step=3)
        assert ("warm-up until step 5" in " ".join(found.reasons)) == told


def test_a_fallback_is_told(tmp_path):
    row = dograph_row(**{"weights/fallback": 1.0})
    found = explained(tmp_path / "run", ["mixer.name=dograph"], row)
    assert found.reasons[-1] == "some gradient was not finite: all 4 samples counted alike"


@pytest.mark.parametrize(("effective", "words"), [(4.0, "all 4 samples"), (3.5, "3.5 of 4")])
def test_mixers_without_domains(tmp_path, effective, words):
    row = {**STEP, "weights/effective_samples": effective}
    found = explained(tmp_path / "run", ["mixer.name=my_module:Mine"], row)
    assert found.domains == []
    assert words in found.reasons[0]
    assert ("not recorded" in found.reasons[0]) == (effective < 4)


def test_steps_and_graphs_that_are_not_there(tmp_path):
    path = write_run(tmp_path / "run", ["mixer.name=dograph"], [{"step": 1, **STEP}])
    with pytest.raises(RunError, match="steps 1 to 1; step 2 is not one"):
        explain_step(path, 2)
    (path / "graph.jsonl").touch()  # as it is opened with the run
    with pytest.raises(RunError, match="no domain graph yet"):
        read_graph(path, None)

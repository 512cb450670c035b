"""Several processes: the same samples, the same losses, stop and resume on another number."""

import json

import pytest
from processes import SETTINGS, rows, run, start, steps_logged, wait_until

from corpora import write_corpus
from dograph.train.run_dir import RunDirectory


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c")


@pytest.fixture(scope="module")
def alone(corpus, tmp_path_factory):
    directory = tmp_path_factory.mktemp("alone") / "run"
    run("train", f"data.corpus={corpus}", f"run={directory}", *SETTINGS)
    return directory


def assert_close(left, right):
    """Losses within a relative 1e-5; everything that counts samples exactly equal."""
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            if "loss" in name or "ppl" in name or "bits" in name:
                assert a[name] == pytest.approx(b[name], rel=1e-5), (a["step"], name)
            elif "grad_norm" in name:
                assert a[name] == pytest.approx(b[name], rel=1e-4)
            else:
                assert a[name] == b[name], (a["step"], name)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_give_the_losses_of_one_process(corpus, alone, tmp_path, ranks):
    directory = tmp_path / "run"
    run("train", f"data.corpus={corpus}", f"run={directory}", *SETTINGS, ranks=ranks)
    assert_close(rows(directory)[:20], rows(alone)[:20])
    assert json.loads((directory / "env.json").read_text())["world_size"] == ranks


def _without_weights(row):
    """Weights by losses agree to rounding, as losses do."""
    return {name: value for name, value in row.items() if not name.startswith("weights/")}


@pytest.mark.slow
def test_batches_that_grow_are_shared_by_ranks_alike(corpus, tmp_path):
    """Sizes 5, 9 and 20 in micro-batches of 3; two ranks, stopped and finished by one process."""
    sizes = ("train.batch_size=[[0, 5], [1600, 9], [5000, 20]]", "train.reference_batch_size=12")
    given = (f"data.corpus={corpus}", *SETTINGS, *sizes, "train.micro_batch_size=3")
    given = (*given, "mixer.name=dynamic-loss", "train.steps=20")  # a loss decides each weight
    one, two = tmp_path / "one", tmp_path / "two"
    run("train", *given, f"run={one}")
    process = start("train", *given, f"run={two}", ranks=2)
    assert wait_until(lambda: steps_logged(two) >= 12, process)
    process.terminate()
    process.communicate(timeout=200)
    run("train", "--resume", str(two))
    left, right = ([_without_weights(row) for row in rows(own)] for own in (two, one))
    assert_close(left, right)
    assert (two / "weights.jsonl").read_bytes() == (one / "weights.jsonl").read_bytes()
    found = [row["train/batch_size"] for row in rows(one) if "train/batch_size" in row]
    assert (set(found[:-1]), found[-1]) == ({5, 9, 20}, 2)  # the last step has what is left
    assert found[:-1] == sorted(found[:-1])


@pytest.mark.slow
def test_resume_on_another_world_size_sees_the_same_samples(corpus, alone, tmp_path):
    directory = tmp_path / "run"
    process = start("train", f"data.corpus={corpus}", f"run={directory}", *SETTINGS, ranks=2)
    assert wait_until(lambda: steps_logged(directory) >= 8, process)
    process.terminate()
    process.communicate(timeout=200)
    stopped = RunDirectory(directory).checkpoint_steps()[-1]
    assert 0 < stopped < 40
    run("train", "--resume", str(directory))
    assert_close(rows(directory)[:20], rows(alone)[:20])
    assert (directory / "weights.jsonl").read_bytes() == (alone / "weights.jsonl").read_bytes()


@pytest.mark.slow
def test_more_ranks_than_samples_is_refused(corpus, tmp_path):
    settings = [*SETTINGS, "train.batch_size=1"]
    process = start("train", f"data.corpus={corpus}", f"run={tmp_path / 'run'}", *settings, ranks=2)
    _, err = process.communicate(timeout=280)
    assert process.returncode != 0
    assert "train.batch_size=1" in err


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_weights_cover_the_world_batch_under_accumulation(corpus, tmp_path, monkeypatch, ranks):
    """A mixer that needs every loss of the step: uneven ranks and micro-batches change nothing."""
    (tmp_path / "by_loss.py").write_text(
        "import torch\nfrom dograph import Mixer\n"
        "class ByLoss(Mixer):\n"
        "    needs = frozenset({'loss', 'source'})\n"
        "    def weigh(self, signals):\n"
        "        assert len(signals.loss_B) == len(signals.source_B) == signals.num_samples\n"
        "        return torch.softmax(2 * signals.loss_B, dim=0)\n"
    )
    monkeypatch.chdir(tmp_path)
    settings = [*SETTINGS, "mixer.name=by_loss:ByLoss", "train.batch_size=11", "train.steps=20"]
    run("train", f"data.corpus={corpus}", f"run={tmp_path / 'one'}", *settings)
    many = [*settings, "train.micro_batch_size=2"]
    run("train", f"data.corpus={corpus}", f"run={tmp_path / 'many'}", *many, ranks=ranks)
    one, split = rows(tmp_path / "one"), rows(tmp_path / "many")
    for row in [*one, *split]:
        row.pop("weights/effective_samples", None)
    assert_close(split, one)

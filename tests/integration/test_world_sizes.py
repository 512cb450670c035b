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

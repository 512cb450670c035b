"""A run that branches off another one's checkpoint."""

import json
import shutil
from pathlib import Path

import pytest

from corpora import write_corpus
from dograph.cli.train import _forked
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError, RunError
from dograph.eval.recorded import losses_table
from dograph.files import sha256_of
from dograph.records import Skipped
from dograph.train.run_dir import RunDirectory
from dograph.train.trainer import fork_run, resume_run
from edited_runs import SECOND, begin, finish, log_of, metrics, stop_after
from tiny_steps import ALONE

pytestmark = pytest.mark.usefixtures("one_thread")
DOGRAPH = ("mixer.num_domains=3", "mixer.kmeans_restarts=2", "sketch.dim=64", "probe.rows=8")
LAST = "checkpoints/step-00000012"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c")


@pytest.fixture(scope="module")
def parent(corpus, tmp_path_factory):
    """DoGraph on 12 steps, with domains of each batch, and checkpoints of steps 5, 10 and 12."""
    directory = tmp_path_factory.mktemp("parent") / "run"
    finish(begin(corpus, directory, *DOGRAPH, "mixer.recipe=recommended", mixer="dograph"))
    return directory


def forked(parent, directory, *settings, at=5):
    """The fork before its first step, and what is said about it."""
    given = [f"run={directory}", *settings]
    config, origin = _forked(parent, at, given)
    note = fork_run(config, *origin)
    return resume_run(config, ALONE), note


def own_lines(path, at):
    """Of a record file: what was written after a step."""
    lines = path.read_text().splitlines()
    return [line for line in lines if json.loads(line)["step"] > at]


def assert_same(fork, parent, at=5):
    """From the checkpoint on they are one run; before it, losses are those of the parent."""
    pairs = list(zip(metrics(fork), metrics(parent), strict=True))
    for row, other in pairs:
        assert row.items() <= other.items()
        assert row == other or row["step"] <= at
        assert row["step"] == other["step"]
        assert [row.get(f"{x}/loss_nats") for x in ("train", "valid/mean")] == [
            other.get(f"{x}/loss_nats") for x in ("train", "valid/mean")
        ]
    for name in ("samples.jsonl", "graph.jsonl"):
        assert own_lines(fork / name, at) == own_lines(parent / name, at) != []
    names = ("weights.jsonl", "validation.jsonl", "model/model.safetensors")
    names += tuple(f"{LAST}/{n}" for n in ("optimizer.safetensors", "mixer.safetensors"))
    for name in (*names, f"{LAST}/state.json"):
        assert (fork / name).read_bytes() == (parent / name).read_bytes(), name


def test_a_fork_without_changes_is_its_parent(parent, tmp_path):
    trainer, note = forked(parent, tmp_path / "fork")
    assert trainer.done == 5
    assert "goes on with its state of step 5" in note
    assert (trainer.warnings, trainer.notes) == ([], [])
    finish(trainer)
    assert_same(tmp_path / "fork", parent)
    record = json.loads((tmp_path / "fork" / "fork.json").read_text())
    assert record["parent"] == str(parent)
    assert record["step"] == 5
    assert record["state_sha256"] == sha256_of(parent / "checkpoints/step-00000005/state.json")


def test_a_fork_needs_its_parent_no_more(parent, tmp_path):
    source = shutil.copytree(parent, tmp_path / "parent", symlinks=True)
    trainer, _ = forked(source, tmp_path / "fork")
    trainer.run.unlock()  # killed before its first step
    shutil.rmtree(source)
    config = RunDirectory(tmp_path / "fork").config()
    finish(resume_run(config, ALONE))
    assert_same(tmp_path / "fork", parent)


def test_another_mixer_starts_anew_and_draws_go_on(parent, tmp_path):
    weights = f"mixer.weights={json.dumps(SECOND)}"
    trainer, note = forked(parent, tmp_path / "fork", "mixer.name=static", weights)
    assert "mixer static starts anew after step 5; draws go on" in note
    stop_after(trainer, 9)
    finish(resume_run(RunDirectory(tmp_path / "fork").config(), ALONE))
    first, second = log_of(tmp_path / "fork")
    assert (first["step"], second["step"]) == (0, 5)
    assert second["weight"] == pytest.approx(SECOND)
    assert sum(second["drawn"].values()) == 5 * 7  # samples of the parent are not drawn again
    rows = metrics(tmp_path / "fork")
    assert [row["step"] for row in rows if "train/loss_nats" in row] == list(range(1, 13))
    assert not [name for row in rows for name in row if name.startswith("domains/")]
    assert not (tmp_path / "fork" / "graph.jsonl").exists()
    own = [row["train/loss_nats"] for row in metrics(parent) if "train/loss_nats" in row]
    assert [row["train/loss_nats"] for row in rows if "train/loss_nats" in row][:5] == own[:5]
    skipped = Skipped()
    losses_table([tmp_path / "fork"], skipped)
    assert skipped.warnings() == []


def test_a_schedule_is_joined_at_its_stage(parent, tmp_path):
    stages = f"mixer.stages={json.dumps({0: {'alpha': 1}, 3: SECOND, 8: {'beta': 1}})}"
    trainer, _ = forked(parent, tmp_path / "fork", "mixer.name=scheduled", stages)
    finish(trainer)
    log = log_of(tmp_path / "fork")
    assert [row["step"] for row in log] == [0, 5, 8]
    assert log[1]["weight"] == pytest.approx(SECOND)


def test_other_batches_start_the_draws_anew(parent, tmp_path):
    trainer, note = forked(parent, tmp_path / "fork", "train.batch_size=4")
    assert "draws start anew" in note
    finish(trainer)
    [only] = log_of(tmp_path / "fork")
    assert only["step"] == 5
    assert set(only["drawn"].values()) == {0}


def test_a_list_of_skipped_documents_starts_the_draws_anew(parent, tmp_path):
    """The shuffle of an epoch is another one without some blocks: the old counts do not apply."""
    corpus = Corpus(RunDirectory(parent).config().data.corpus)
    _, record, number, *_ = corpus.train[0].documents[0].tolist()
    skip = f'data.skip=["{corpus.manifest.inputs[number]}:{record + 1}"]'
    trainer, _ = forked(parent, tmp_path / "fork", skip)
    assert trainer.state.sampler.log.entries[0].step == 5
    finish(trainer)
    blocks = [trainer.state.sampler.draw(step) for step in range(5, 12)]
    assert 0 not in [
        b for ids in blocks for s, b in zip(ids.stratum_B, ids.block_B, strict=True) if s == 0
    ]


def test_another_corpus_needs_the_same_tokenizer(parent, tmp_path):
    other = write_corpus(tmp_path / "other", {"alpha": 4000, "delta": 900})
    trainer, _ = forked(parent, tmp_path / "fork", f"data.corpus={other}")
    finish(trainer)
    assert set(log_of(tmp_path / "fork")[0]["weight"]) == {"alpha", "delta"}
    wider = write_corpus(tmp_path / "wider", vocab=120)
    with pytest.raises(ConfigError, match="tokenizer"):
        forked(parent, tmp_path / "no", f"data.corpus={wider}")
    assert not (tmp_path / "no").exists()


def test_more_steps_and_another_rate(parent, tmp_path):
    settings = ("train.steps=15", "optim.lr=1e-3", "optim.lr_end=0")
    trainer, _ = forked(parent, tmp_path / "fork", *settings, at=None)
    assert trainer.done == 12
    finish(trainer)
    rows = [row for row in metrics(tmp_path / "fork") if "train/loss_nats" in row]
    assert len(rows) == 15
    assert rows[-1]["optim/lr"] == 0


@pytest.mark.parametrize(
    ("at", "settings", "why"),
    [
        (7, [], r"no checkpoint of step 7, only of \[5, 10, 12\].*checkpoint.every=5.*keep=9"),
        (5, ["model.preset=demo"], "weights of its parent"),
        (12, [], "train.steps=N"),
        (12, ["train.steps=9"], "has made 12;"),
    ],
)
def test_what_cannot_be_forked_is_refused(parent, tmp_path, at, settings, why):
    with pytest.raises(ConfigError, match=why):
        forked(parent, tmp_path / "fork", *settings, at=at)
    assert list(tmp_path.iterdir()) == []


def test_a_fork_needs_a_name_of_its_own(parent, tmp_path):
    config, origin = _forked(parent, 5, [])
    with pytest.raises(RunError, match=r"already exists.*name another"):
        fork_run(config, *origin)


def test_a_damaged_checkpoint_is_not_forked(parent, tmp_path):
    source = shutil.copytree(parent, tmp_path / "parent", symlinks=True)
    (source / "checkpoints/step-00000005/optimizer.safetensors").write_bytes(b"")
    with pytest.raises(RunError, match=r"optimizer\.safetensors is damaged"):
        forked(source, tmp_path / "fork")
    assert not (tmp_path / "fork").exists()


def test_a_full_disk_leaves_no_half_fork(parent, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dograph.train.checkpoint.seal", full)
    with pytest.raises(RunError, match="No space left"):
        forked(parent, tmp_path / "fork")
    assert list(Path(tmp_path).iterdir()) == []

"""The command line as a person meets it."""

import json
import os
import pty
import re
import subprocess
import sys

import numpy as np
import pytest
from processes import SETTINGS, command, rows, run

from corpora import write_corpus
from dograph.data.corpus import Corpus
from dograph.data.loader import Loader
from dograph.data.sampler import WeightLog
from dograph.eval.recorded import samples_of_step
from dograph.train.assembly import open_sampler
from dograph.train.run_dir import RunDirectory
from token_corpora import span


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c")


@pytest.fixture(scope="module")
def scheduled(corpus, tmp_path_factory):
    """A run whose mixture changes on the way, with a sink."""
    directory = tmp_path_factory.mktemp("scheduled") / "run"
    stages = "{0: {alpha: 1, beta: 1}, 7: {gamma: 1}, 9: {alpha: 3, gamma: 1}}"
    out, err = run(
        "train",
        f"data.corpus={corpus}",
        f"run={directory}",
        *SETTINGS,
        "train.steps=12",
        "mixer.name=scheduled",
        f"mixer.stages={stages}",
        "log.sinks=[tensorboard]",
        "log.every=1",
        "data.warn_epochs=0.5",
    )
    return directory, out, err


def test_it_ends_with_a_table_and_the_paths_of_the_run_and_its_page(scheduled):
    directory, out, _ = scheduled
    assert "validation loss per source" in out
    assert out.rstrip().endswith(f"run: {directory}\npage: {directory}/page.html")
    assert (directory / "page.html").read_text().startswith("<!doctype html>")


def test_repeats_are_warned_about_before_training(scheduled):
    _, _, err = scheduled
    assert "warning: gamma would be read through" in err


def test_the_run_says_how_long_it_takes_by_its_own_steps(scheduled):
    _, _, err = scheduled
    assert re.search(r"^step \d+/12; .*\d+ (s|min) left$", err, re.MULTILINE)


def test_the_schedule_was_followed(scheduled):
    directory, _, _ = scheduled
    drawn = [
        {n.split("/")[1] for n in row if n.count("/") == 2 and n.startswith("train/")}
        for row in rows(directory)
        if "train/loss_nats" in row
    ]
    assert drawn[0] == {"alpha", "beta"}
    assert drawn[7] == drawn[8] == {"gamma"}
    assert drawn[9] == {"alpha", "gamma"}


def test_show_names_the_samples_that_the_step_saw(scheduled):
    directory, _, _ = scheduled
    config = RunDirectory.open(directory).config()
    corpus = Corpus(config.data.corpus)
    sampler = open_sampler(config, corpus)
    sampler.log = WeightLog.load(directory / "weights.jsonl", sampler.names)
    for step in (1, 7, 8, 12):
        batch = Loader(corpus, sampler).load(step - 1, ahead=False)
        shown = samples_of_step(directory, step)
        assert [row["source"] for row in shown] == [corpus.sources[i] for i in batch.source_B]
        for row, tokens in zip(shown, batch.token_BT.numpy(), strict=True):
            stratum = next(s for s in corpus.train if s.entry.stratum == row["stratum"])
            start = span(stratum, row["document"])[0] + row["offset"]
            assert np.array_equal(stratum.token_N[start : start + 32], tokens)
            assert row["input"] == f"{row['source']}.jsonl"


@pytest.mark.slow
def test_show_prints_a_table_json_and_errors(scheduled):
    directory, _, _ = scheduled
    out, _ = run("show", "samples", str(directory), "--step", "3", "--json")
    assert len([json.loads(line) for line in out.splitlines()]) == 12
    out, _ = run("show", "samples", str(directory), "--step", "3")
    assert "12 samples" in " ".join(out.split())  # a long path may wrap the title
    _, err = run("show", "samples", str(directory), "--step", "13", code=2)
    assert "has steps 1 to 12; step 13 is not one of them" in err


def test_print_config_is_a_config(corpus, tmp_path):
    out, _ = run("train", "paper-gpt2-small", "train.steps=700", "--print-config")
    (tmp_path / "again.yaml").write_text(out)
    again, _ = run("train", str(tmp_path / "again.yaml"), "--print-config")
    assert again == out


@pytest.mark.slow
def test_dry_run_trains_nothing(corpus, tmp_path):
    directory = tmp_path / "run"
    out, _ = run("train", f"data.corpus={corpus}", f"run={directory}", *SETTINGS, "--dry-run")
    for word in ("parameters", "memory", "training tokens", "epochs", "time on this"):
        assert word in out
    assert not directory.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "train.stpes=3"], 'did you mean "train.steps"'),
        (["train", "data.corpus=nowhere"], "is not a prepared corpus"),
        (["train", "mixer.name=unifrom"], 'did you mean "uniform"'),
        (["train", "train.device=cuda"], "torch sees no GPU"),
        (["train", "--resume", "nowhere"], "nowhere is not a run"),
        (["show", "losses", "nowhere"], "nowhere is not a run"),
        (["train", "model.preset=gpt2-samll"], 'did you mean "gpt2-small"'),
    ],
)
def test_mistakes_are_answered_without_a_traceback(corpus, tmp_path, arguments, message):
    if arguments[0] == "train" and arguments[1] != "--resume":
        arguments = ["train", f"data.corpus={corpus}", f"run={tmp_path / 'r'}", *arguments[1:]]
    _, err = run(*arguments, code=2)
    assert message in err
    assert "Traceback" not in err
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
def test_a_terminal_gets_a_live_bar(corpus, tmp_path):
    """Through a pseudo-terminal: the bar is drawn, and plain step lines are not."""
    main, child = pty.openpty()
    arguments = ["train", f"data.corpus={corpus}", f"run={tmp_path / 'run'}", *SETTINGS]
    process = subprocess.Popen(
        command(*arguments),
        stdout=subprocess.DEVNULL,
        stderr=child,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(child)
    shown = b""
    while True:
        try:
            part = os.read(main, 4096)
        except OSError:
            break
        if not part:
            break
        shown += part
    assert process.wait(timeout=60) == 0
    assert b"40/40" in shown
    assert b"tokens/s" in shown
    assert b"step 4/40;" not in shown


def test_help_is_quick():
    """Asking for help must not load torch."""
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom dograph.cli.main import app\n"
        "result = CliRunner().invoke(app, ['train', '--help'])\n"
        "assert result.exit_code == 0 and 'torch' not in sys.modules, sorted(sys.modules)[:5]\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

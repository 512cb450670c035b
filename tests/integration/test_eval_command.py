"""dograph eval as a person meets it: a run, a checkpoint, a model folder; and what it writes."""

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from tokenizers import Tokenizer
from typer.testing import CliRunner

from dograph.cli.eval import evaluate
from dograph.cli.main import app as dograph
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError, CorpusError
from dograph.eval.evaluate import EvalRequest, find_subject, open_scorer
from dograph.files import sha256_of
from text_inputs import text

SHARED = Path(__file__).parents[3] / "shared" / "data" / "benchmarks"
SETTINGS = (
    "data.seq_len=48",
    "model.preset=tiny",
    "train.steps=6",
    "train.batch_size=8",
    "eval.every=0",
    "eval.max_samples_per_source=4",
    "checkpoint.every=3",
    "checkpoint.keep=9",
    "optim.warmup_steps=2",
    "mixer.name=natural",
)
QUESTIONS = {
    "piqa/validation.jsonl": [
        {"goal": f"alpha {n}", "sol1": "beta gamma", "sol2": "delta " * 80, "label": n % 2}
        for n in range(6)
    ],
    "lambada_openai/test.jsonl": [{"text": f"alpha beta gamma {n}"} for n in range(5)],
    "copa/validation.jsonl": [
        {
            "premise": f"Alpha {n}.",
            "choice1": "Beta.",
            "choice2": "Gamma.",
            "question": "effect",
            "label": 1,
        }
        for n in range(3)
    ],
}

app = typer.Typer()
app.command()(evaluate)


@pytest.fixture(scope="module")
def benchmarks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("benchmarks")
    for name, documents in QUESTIONS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("".join(json.dumps(x) + "\n" for x in documents))
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    for source, first in (("alpha", 0), ("beta", 5000)):
        (folder / "in").mkdir(exist_ok=True)
        lines = [json.dumps({"text": text(first + n, words=40)}) for n in range(120)]
        (folder / "in" / f"{source}.jsonl").write_text("\n".join(lines) + "\n")
    corpus = folder / "corpus"
    options = ("--tokenizer", "bpe", "--vocab-size", "400", "--out", str(corpus))
    made = CliRunner().invoke(dograph, ["data", "prepare", str(folder / "in"), *options])
    assert made.exit_code == 0, made.output
    where = (f"data.corpus={corpus}", f"run={folder / 'run'}")
    trained = CliRunner().invoke(dograph, ["train", *where, *SETTINGS])
    assert trained.exit_code == 0, trained.output
    return folder / "run"


def evaluated(*arguments, error=None):
    result = CliRunner().invoke(app, [str(x) for x in arguments], catch_exceptions=True)
    if error is None:
        assert result.exit_code == 0, result.output + repr(result.exception)
    else:
        assert isinstance(result.exception, error), result.output
    return str(result.exception) if error else result.output


THREE = ("--tasks", "copa,piqa,lambada_openai")


@pytest.fixture(scope="module")
def output(run, benchmarks):
    return evaluated(run, "--benchmarks", benchmarks, *THREE)


def test_a_run_is_scored_and_the_result_kept_beside_it(run, benchmarks, output):
    found = json.loads((run / "eval.json").read_text())
    assert list(found["tasks"]) == ["piqa", "lambada_openai", "copa"]
    piqa, copa = found["tasks"]["piqa"], found["tasks"]["copa"]
    assert (piqa["items"], piqa["available"], piqa["split"]) == (6, 6, "validation")
    assert (piqa["chance"], piqa["primary"], copa["acc_norm"]) == (0.5, "acc_norm", None)
    file = benchmarks / "piqa" / "validation.jsonl"
    assert piqa["files"] == [
        {"file": "piqa/validation.jsonl", "sha256": sha256_of(file), "items": 6}
    ]
    value = sum(task[task["primary"]]["value"] for task in found["tasks"].values()) / 3
    assert found["average"]["value"] == pytest.approx(value)
    assert (found["average"]["tasks"], found["average"]["of"]) == (3, 9)
    made = found["provenance"]
    assert (made["scorer"], made["step"], made["max_length"]) == ("builtin", 6, 48)
    assert made["weights"] == {"model.safetensors": sha256_of(run / "model" / "model.safetensors")}
    assert made["environment"]["libraries"]["torch"]
    assert f"result: {run / 'eval.json'}" in output


def test_the_table_shows_errors_chance_average_and_what_was_cut(output):
    lines = {line.split()[0]: line.split() for line in output.splitlines() if line.split()}
    assert lines["task"] == ["task", "n", "acc", "acc_norm", "chance", "bits/B", "ppl"]
    assert lines["copa"][1] == "3"
    assert lines["piqa"].count("±") == 3  # acc, acc_norm, bits per byte
    assert lines["average"][1:3] == ["3", "tasks"]
    assert "did not fit into 48 tokens and lost their beginning: piqa 6" in output


def test_a_second_evaluation_is_equal_and_batches_do_not_matter(run, benchmarks, tmp_path, output):
    first = json.loads((run / "eval.json").read_text())
    evaluated(run, "--benchmarks", benchmarks, *THREE, "--out", tmp_path / "again.json")
    again = json.loads((tmp_path / "again.json").read_text())
    assert (again["tasks"], again["average"]) == (first["tasks"], first["average"])
    options = ("--batch-size", 1, "--out", tmp_path / "one.json")
    evaluated(run, "--benchmarks", benchmarks, *THREE, *options)
    one = json.loads((tmp_path / "one.json").read_text())
    for name, task in first["tasks"].items():
        assert one["tasks"][name]["acc"] == task["acc"]
        assert one["tasks"][name]["bits_per_byte"]["value"] == pytest.approx(
            task["bits_per_byte"]["value"], rel=1e-5
        )


def test_a_checkpoint_has_a_result_of_its_own(run, benchmarks):
    folder = run / "checkpoints" / "step-00000003" / "model"
    evaluated(folder, "--benchmarks", benchmarks, "--tasks", "copa", "--limit", 2)
    found = json.loads((run / "eval-step-3.json").read_text())
    assert found["provenance"]["step"] == 3
    assert (found["tasks"]["copa"]["items"], found["tasks"]["copa"]["available"]) == (2, 3)


def test_a_model_folder_is_shown_all_its_positions_and_kept_where_asked(run, benchmarks, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(run / "model", model)
    (model / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"})
    )
    options = ("--benchmarks", benchmarks, "--tasks", "piqa")
    assert "not written to a file; name one with --out" in evaluated(model, *options)
    evaluated(model, *options, "--out", tmp_path / "deep" / "kept.json")
    found = json.loads((tmp_path / "deep" / "kept.json").read_text())
    assert found["provenance"]["max_length"] == 512
    assert found["provenance"]["step"] is None


def test_the_tokenizer_is_the_one_of_the_corpus(run):
    corpus = Corpus(run.parent / "corpus")
    scorer = open_scorer(find_subject(str(run)), EvalRequest(device="cpu"), corpus, None)
    own = Tokenizer.from_file(str(run.parent / "corpus" / "tokenizer.json"))
    for number in range(20):
        sentence = f"{text(number)} {number} — x\n y"
        assert scorer.encoder.encode(sentence) == own.encode(sentence).ids


def test_what_cannot_be_done_is_said_with_the_way_out(run, benchmarks, tmp_path):
    folder = ("--benchmarks", benchmarks)
    copy = tmp_path / "model"
    shutil.copytree(run / "model", copy)
    for file in copy.glob("tokenizer*"):
        file.unlink()
    for arguments, error, said in (
        ((run, *folder), CorpusError, "leave hellaswag out with --tasks"),
        ((run, *folder, "--tasks", "copper"), ConfigError, 'did you mean "copa"'),
        ((run, *folder, *THREE, "--with", "both"), ConfigError, "allowed: builtin, lm-eval"),
        ((run, *folder, *THREE, "data.seq_len=9999"), ConfigError, "has 512 positions"),
        ((copy, *folder, *THREE), ConfigError, "has no tokenizer"),
        ((tmp_path / "nowhere", *folder), ConfigError, "there is no folder"),
    ):
        assert said in evaluated(*arguments, error=error)
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.yaml").touch()
    assert "not complete" in evaluated(tmp_path / "half", *folder, error=ConfigError)


def test_without_the_corpus_the_tasks_are_scored(run, benchmarks, tmp_path):
    copy = tmp_path / "run"
    shutil.copytree(run, copy, symlinks=True)
    config = (copy / "config.yaml").read_text()
    (copy / "config.yaml").write_text(config.replace(str(run.parent / "corpus"), "/nowhere"))
    output = evaluated(copy, "--benchmarks", benchmarks, "--tasks", "copa")
    assert "the tokenizer's own end of text is used" in output
    assert list(json.loads((copy / "eval.json").read_text())["tasks"]) == ["copa"]


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.timeout(600)
@pytest.mark.skipif(not SHARED.is_dir(), reason="no shared benchmarks")
def test_the_harness_offline_gives_the_same_file(run, tmp_path):
    """Through the command, without network or cache."""
    pytest.importorskip("lm_eval")
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path / "home"),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    code = "import typer; from dograph.cli.eval import evaluate; typer.run(evaluate)"
    found = {}
    for scorer in ("builtin", "lm-eval"):
        out = tmp_path / f"{scorer}.json"
        options = ["--benchmarks", SHARED, "--limit", 6, "data.seq_len=512"]
        given = [run, *options, "--with", scorer, "--out", out]
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, given)],
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        found[scorer] = json.loads(out.read_text())
    ours, theirs = found["builtin"], found["lm-eval"]
    assert theirs["provenance"]["also"].keys() == {"lm_eval", "datasets"}
    assert list(ours["tasks"]) == list(theirs["tasks"])
    for name, task in ours["tasks"].items():
        other = theirs["tasks"][name]
        for metric in ("acc", "acc_norm", "bits_per_byte"):
            assert task[metric] == (other[metric] and pytest.approx(other[metric], rel=1e-6))
    # The perplexity of a hardly trained model is astronomic; its logarithm is the mean of nats.
    ours_nats, theirs_nats = (
        math.log(found[scorer]["tasks"]["lambada_openai"]["perplexity"]["value"])
        for scorer in ("builtin", "lm-eval")
    )
    assert ours_nats == pytest.approx(theirs_nats, rel=1e-6)
    assert ours["notes"] == theirs["notes"]

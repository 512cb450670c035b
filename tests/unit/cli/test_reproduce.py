"""The reproduce command in this process: its list, what it refuses, forecasts, makes."""

import json

import pytest
import typer
from typer.testing import CliRunner

from artefact_runs import TINY
from corpora import write_corpus
from dograph.cli import reproduce as command
from dograph.cli.main import app as dograph
from dograph.errors import ConfigError, CorpusError
from dograph.plan.jobs import Stopped
from dograph.plan.pool import JobError
from dograph.reproduce.artefacts import ALL, ARTEFACTS
from lab_runs import Here

app = typer.Typer()
app.command()(command.reproduce)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c")


@pytest.fixture
def pool(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = Here()
    monkeypatch.setattr(command.console, "open_pool", lambda *_: made)
    return made


def invoke(*arguments, code=0):
    result = CliRunner().invoke(app, list(map(str, arguments)))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result


def test_without_a_name_all_are_listed(pool):
    out = invoke().output
    for name, artefact in ARTEFACTS.items():
        assert f"\n{name} " in f"\n{out}"
        assert artefact.where.split(",")[0] in out


def test_help_shows_examples():
    out = CliRunner().invoke(dograph, ["reproduce", "--help"]).output
    for words in ("dograph reproduce validation-loss --dry-run", "--scale paper", "--benchmarks"):
        assert words in out


@pytest.mark.parametrize(
    ("arguments", "kind", "told"),
    [
        (["validation-los"], ConfigError, 'did you mean "validation-loss"'),
        (["validation-loss"], CorpusError, "dograph data prepare slimpajama-6b --tokenizer gpt2"),
        (
            ["validation-loss", "data.corpus=nowhere"],
            CorpusError,
            "nowhere is not a prepared corpus",
        ),
        (
            ["validation-loss", "--limit", "9", "data.corpus=demo"],
            ConfigError,
            "validation-loss has none",
        ),
        (["validation-loss", "mixer.name=doge"], ConfigError, "--methods names the mixers"),
        (["validation-loss", "--seeds", "none"], ConfigError, "--seeds"),
    ],
)
def test_what_is_refused(pool, arguments, kind, told):
    with pytest.raises(kind, match=told):
        invoke(*arguments)
    assert pool.asked == []


def test_a_dry_run_makes_nothing(pool, corpus, tmp_path):
    more = ("model.preset=tiny,demo", f"data.corpus={corpus}", "--dry-run")
    out = invoke("model-scale", *TINY[1:], *more)
    tokens = "192 tokens per run"
    assert [line.split(": ")[0] for line in out.output.splitlines() if tokens in line] == [
        "reproduce/mini/model-scale/tiny",
        "reproduce/mini/model-scale/demo",
    ]
    for words in ("tokens per run on", "30 cells: 6 methods x 5 seeds", "FLOPs"):
        assert words in out.output
    assert pool.asked == []
    assert not (tmp_path / "reproduce").exists()


def test_a_dry_run_says_how_to_do_without_plans_that_are_refused(pool, corpus):
    """The corpus is too small for two methods, not for the rest of the table."""
    settings = ("validation-loss", *TINY, "train.steps=5000", f"data.corpus={corpus}", "--dry-run")
    with pytest.raises(ConfigError) as refused:
        invoke(*settings)
    *reasons, told = str(refused.value).splitlines()
    for label, reason in zip(("regmix", "mixing-law"), reasons, strict=True):
        assert reason.startswith(f"{label}: mixer.max_epochs=4: the run draws 480,000 tokens")
    assert told == "Or leave regmix, mixing-law out of --methods"
    others = ",".join(label for label in ALL if label not in ("regmix", "mixing-law"))
    assert "8 methods" in invoke(*settings, "--methods", others).output


def test_a_table_is_made_and_the_same_command_goes_on(pool, corpus, tmp_path):
    arguments = (
        "validation-loss",
        *TINY,
        f"data.corpus={corpus}",
        "--seeds",
        "2",
        "--methods",
        "natural",
    )
    out = invoke(*arguments, "--out", tmp_path / "mine").stdout
    assert [job.label for job in pool.asked] == [
        f"{method}-s{seed}" for seed in (10, 11) for method in ("uniform", "natural")
    ]
    for words in (
        "validation loss, mean over sources",
        "natural",
        "claims of the paper",
        "results: ",
    ):
        assert words in out
    stored = json.loads((tmp_path / "mine" / "reproduce.json").read_text())
    assert stored["artefacts"]["validation-loss"]["seeds"] == [10, 11]
    again = invoke(*arguments, "--out", tmp_path / "mine").stdout
    assert len(pool.asked) == 4
    assert again == out


def test_a_stop_is_told_with_where_things_are(pool, corpus, monkeypatch):
    def run(*_):
        raise Stopped(2)

    monkeypatch.setattr(pool, "run", run)
    more = (f"data.corpus={corpus}", "--seeds", "1", "--methods", "natural")
    result = invoke("validation-loss", *TINY, *more, code=130)
    assert "the same command goes on; finished cells are in reproduce/mini/methods" in result.stderr


def test_failed_cells_end_with_status_one(pool, corpus):
    more = (f"data.corpus={corpus}", "--seeds", "1", "--methods", "bad=compare_mixers:Breaks")
    run = pool.run

    def failing(jobs, *calls):
        for job in jobs:
            if job.label.startswith("bad"):
                raise JobError(job, " failed: it breaks")
            run([job], *calls)

    pool.run = failing
    result = invoke("validation-loss", *TINY, *more, code=1)
    assert "failed: bad-s10; the same command tries them again" in result.stderr
    assert "uniform" in result.output

"""dograph mix as it is typed, beside a run that answers as told."""

import threading

import pytest
from typer.testing import CliRunner

from corpora import write_corpus
from dograph.cli.main import app
from dograph.errors import ConfigError, RunError
from dograph.train.edits import Requests
from dograph.train.run_dir import RunDirectory
from edited_runs import SECOND, begin, configured, request_of, write


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c")


@pytest.fixture
def run(corpus, tmp_path):
    """A run whose trainer holds the lock and takes mixtures, but does not train."""
    directory = RunDirectory(tmp_path / "run")
    directory.create(configured(corpus, tmp_path / "run"), {})
    directory.announce()
    yield directory
    directory.unlock()


@pytest.fixture
def mixture(tmp_path):
    return write(tmp_path / "m.yaml", SECOND)


def mix(run, mixture, *more):
    return CliRunner().invoke(app, ["mix", str(run.path), str(mixture), *more])


def answering(run, act):
    """Wait for a request in another thread, then do as the trainer would."""
    requests, over = Requests(run.path), threading.Event()

    def wait():
        while not over.wait(0.01):
            asked = requests.claim()
            if asked is not None:
                act(requests, asked)
                return

    thread = threading.Thread(target=wait)
    thread.start()
    return lambda: (over.set(), thread.join())


def test_the_answer_is_told(run, mixture):
    asked = []

    def act(requests, request):
        asked.append(request)
        identity = request["identity"]
        requests.reply({"identity": identity, "step": 3, "line": "so be it", "warnings": ["oh"]})

    end = answering(run, act)
    found = mix(run, mixture)
    end()
    assert found.exit_code == 0, found.output
    assert found.stdout == "so be it\n"
    assert "warning: oh" in found.stderr
    assert asked[0]["weights"] == pytest.approx(SECOND)
    assert asked[0]["given"] == str(mixture)


def test_a_refusal_is_told(run, mixture):
    def refuse(requests, request):
        requests.reply({"identity": request["identity"], "refused": "no more"})

    end = answering(run, refuse)
    found = mix(run, mixture)
    end()
    assert isinstance(found.exception, ConfigError)
    assert str(found.exception) == "the run keeps its mixture: no more"


def test_a_run_that_dies_with_the_request_is_told(run, mixture):
    end = answering(run, lambda *_: run.unlock())
    found = mix(run, mixture)
    end()
    assert isinstance(found.exception, RunError)
    assert str(found.exception).startswith("nothing changed: ")
    assert f"dograph train --resume {run.path} --mixture {mixture}" in str(found.exception)


def test_a_run_that_dies_after_the_edit_has_made_it(corpus, tmp_path, mixture):
    trainer = begin(corpus, tmp_path / "run")
    trainer.edits.listen()

    def die(requests, request):
        requests.place(request)
        trainer.edits.look(0)
        trainer.run.unlock()  # before it answered

    end = answering(trainer.run, die)
    found = mix(trainer.run, mixture)
    end()
    assert found.exit_code == 0, found.exception
    assert found.stdout.startswith("mixture after step 0: alpha 0.6 -> 0.1")


def test_no_answer_takes_the_request_back(run, mixture):
    found = mix(run, mixture, "--timeout", "0.1")
    assert "no answer in 0.1 s; the request is withdrawn" in str(found.exception)
    assert Requests(run.path).read() is None


def test_another_request_is_not_pushed_aside(run, mixture):
    Requests(run.path).place(request_of("first", SECOND))
    found = mix(run, mixture)
    assert "holds another request, of by hand" in str(found.exception)
    assert Requests(run.path).read()["identity"] == "first"


def test_unknown_sources_never_reach_the_run(run, tmp_path):
    found = mix(run, write(tmp_path / "n.yaml", {"alpha": 1, "delta": 1}))
    assert isinstance(found.exception, ConfigError)
    assert 'names "delta", which is not in the corpus' in str(found.exception)
    assert Requests(run.path).read() is None


def test_a_source_left_out_is_warned_of(run, tmp_path):
    found = mix(run, write(tmp_path / "n.yaml", {"alpha": 1, "beta": 3}), "--timeout", "0")
    assert "warning: the mixture does not name gamma: not drawn in this run" in found.stderr


def test_processes_that_take_no_mixture(corpus, tmp_path, mixture):
    directory = RunDirectory(tmp_path / "cell")
    directory.create(configured(corpus, tmp_path / "cell"), {})
    assert "takes no other mixture" in str(mix(directory, mixture).exception)
    directory.unlock()
    assert f"--resume {directory.path} --mixture {mixture}" in str(
        mix(directory, mixture).exception
    )
    directory.checkpoint(12).mkdir()
    assert "is complete" in str(mix(directory, mixture).exception)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--mixture", "m.yaml"], "mixer.name=static mixer.file=m.yaml"),
        (
            ["--resume", "RUN", "--mixture", "m.yaml", "--dry-run"],
            "leave out --print-config and --dry-run",
        ),
    ],
)
def test_mixture_goes_with_resume_alone(arguments, told):
    found = CliRunner().invoke(app, ["train", *arguments])
    assert isinstance(found.exception, ConfigError)
    assert told in str(found.exception)


def test_a_run_that_is_still_loading_is_told_from_one_that_is_none(corpus, tmp_path, mixture):
    """By every command that takes a run; nothing is left if it is not made after all."""
    directory = RunDirectory(tmp_path / "new" / "run")
    with directory.loading():
        found = mix(directory, mixture)
        assert isinstance(found.exception, RunError)
        assert "is still loading" in str(found.exception)
        assert "try again" in str(found.exception)
        directory.refuse_existing()  # other ranks, and a start after a kill
    assert not (tmp_path / "new").exists()
    assert "There is no such folder" in str(mix(directory, mixture).exception)
    with directory.loading():
        directory.create(configured(corpus, directory.path), {})
    assert directory.use() == "busy"
    assert "still starting" in str(mix(directory, mixture).exception)
    directory.unlock()
    assert not list(directory.path.glob(".*.tmp"))
    with pytest.raises(RunError, match="already exists"), directory.loading():
        raise AssertionError

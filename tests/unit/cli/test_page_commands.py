"""dograph report as it is typed: the page, figures, the live server."""

import signal
import subprocess
import sys
import urllib.request

import pytest
from typer.testing import CliRunner

from dograph.cli.main import app
from dograph.errors import ConfigError, RunError
from page_runs import write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("runs") / "run")


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_report_names_the_page(run, tmp_path):
    found = invoke("report", run, run, "--out", tmp_path / "page.html")
    assert found.exit_code == 0
    assert found.output.startswith(f"page: {tmp_path}/page.html (1 run, 0.")  # one run, given twice
    assert (tmp_path / "page.html").stat().st_size > 50_000


def test_report_refuses_what_it_cannot_do(run, tmp_path):
    assert isinstance(invoke("report", tmp_path).exception, RunError)
    nowhere = invoke("report", run, "--out", tmp_path / "none" / "page.html")
    assert isinstance(nowhere.exception, ConfigError)


def test_figures_need_a_folder(run, tmp_path):
    (tmp_path / "file").write_text("")
    assert isinstance(invoke("report", run, "--figures", tmp_path / "file").exception, ConfigError)


def test_watch_says_at_once_that_it_loads(tmp_path):
    found = invoke("report", tmp_path / "none", "--watch")
    assert isinstance(found.exception, RunError)
    assert found.stderr == f"{tmp_path / 'none'}: loading\n"


@pytest.mark.slow
def test_watch_serves_until_ctrl_c(run):
    """As a process: it says where it is, answers, and ends without a traceback."""
    started = subprocess.Popen(
        [sys.executable, "-m", "dograph", "report", str(run), "--watch", "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        line = started.stdout.readline()
        address = next(word for word in line.split() if word.startswith("http://127.0.0.1:"))
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert b"dograph" in answer.read()
        started.send_signal(signal.SIGINT)
        _, told = started.communicate(timeout=60)
        assert (started.returncode, told) == (0, f"{run}: loading\n")
    finally:
        started.kill()

"""What commands share: where tables go, and how durations are told."""

import ast
from pathlib import Path

import pytest

import dograph
from dograph.cli.console import PIPE_WIDTH, duration, open_console

COMMANDS = Path(dograph.__file__).parent / "cli"


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.4, "0 s"),
        (119.4, "119 s"),
        (119.6, "2 min"),
        (7169, "119 min"),
        (7199, "2.0 h"),
        (12_600, "3.5 h"),
    ],
)
def test_a_duration_has_the_unit_that_suits_it(seconds, told):
    assert duration(seconds) == told


def test_a_pipe_cuts_nothing_off(capsys):
    """Longer than what rich takes for the width of a pipe."""
    words = "x" * (PIPE_WIDTH - 1)
    open_console().print(words)
    open_console(300).print("y" * 299)
    assert capsys.readouterr().out == f"{words}\n{'y' * 299}\n"


def test_a_terminal_has_its_own_width(monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "77")
    assert open_console().width == 77


def test_no_command_opens_a_console_of_its_own():
    """Progress, which goes to stderr, apart."""
    own = []
    for file in COMMANDS.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            if is_call and node.func.id == "Console":
                own += [file.stem] * all(word.arg != "file" for word in node.keywords)
    assert sorted(own) == ["console"]

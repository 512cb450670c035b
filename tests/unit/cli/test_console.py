"""What commands share: where tables go."""

import ast
from pathlib import Path

import dograph
from dograph.cli.console import PIPE_WIDTH, open_console

COMMANDS = Path(dograph.__file__).parent / "cli"


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

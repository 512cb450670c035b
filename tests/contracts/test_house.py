"""Size of the source and of the command line, docstrings, class names. Growth needs a decision."""

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path
from typing import Any

from typer.main import get_command

from dograph.cli.main import app

SOURCE = Path(__file__).parents[2] / "src" / "dograph"
MODULES = sorted(SOURCE.rglob("*.py"))
ASSETS = sorted(  # scripts and styles of the page, tables and templates
    path for path in SOURCE.rglob("*") if path.suffix in (".js", ".css", ".html", ".yaml", ".txt")
)

MAX_LINES = 33_000  # of Python and assets together; only ever lowered
MAX_MODULES = 160
MAX_VERBS, MAX_FLAGS = 13, 90
MIN_EXPLAINED = 0.132  # lines of docstrings and comments among all lines of Python


def num_lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def explained_lines(path: Path) -> int:
    """Lines of docstrings, and lines that hold a comment."""
    text = path.read_text()
    lines: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                lines.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            lines.add(token.start[0])
    return len(lines)


def test_the_source_is_below_its_limit_of_lines():
    assert sum(map(num_lines, [*MODULES, *ASSETS])) <= MAX_LINES


def test_the_source_is_below_its_limit_of_modules():
    assert len([path for path in MODULES if path.name != "__init__.py"]) <= MAX_MODULES


def test_the_share_of_docstrings_and_comments_is_kept():
    assert sum(map(explained_lines, MODULES)) >= MIN_EXPLAINED * sum(map(num_lines, MODULES))


def test_every_module_says_what_it_is_for():
    assert not [path for path in MODULES if not ast.get_docstring(ast.parse(path.read_text()))]


def test_no_public_class_name_is_used_twice():
    names = Counter(
        node.name
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert not [name for name, number in names.items() if number > 1]


def flags(command: Any) -> list[str]:
    """Every option of a command and of the commands below it, except --help."""
    own = [p.opts[0] for p in command.params if p.param_type_name == "option" and p.name != "help"]
    below = getattr(command, "commands", {}).values()
    return own + [flag for child in below for flag in flags(child)]


def test_the_command_line_is_below_its_limits_of_verbs_and_flags():
    root: Any = get_command(app)
    assert len(root.commands) <= MAX_VERBS
    assert len(flags(root)) <= MAX_FLAGS

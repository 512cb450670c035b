"""Imports point one way, files and functions stay short, heavy and optional imports stay lazy."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dograph

SOURCE = Path(__file__).parents[2] / "src" / "dograph"
FILES = sorted(SOURCE.rglob("*.py"))

# A part imports from itself and from parts above it in this list, never from below.
LAYERS = [
    "errors",
    "types",
    "rng",
    "files",
    "processes",
    "progress",
    "stats",
    "choices",
    "renamed",
    "records",
    "config",
    "kernels",
    "data",
    "sketch",
    "models",
    "domains",
    "mixtures",
    "mixers",
    "train",
    "integrations",
    "testing",
    "eval",
    "plan",
    "bench",
    "compare",
    "reproduce",
    "report",
    "cli",
    "__main__",
]
EXTRAS = {
    "datasets",
    "zstandard",
    "pyarrow",
    "tensorboard",
    "wandb",
    "trackio",
    "lightgbm",
    "lm_eval",
    "ray",
    "matplotlib",
}


def part_of(path: Path) -> str:
    relative = path.relative_to(SOURCE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    part = part_of(path)
    if part == "__init__":  # it names the public classes, wherever they live
        return
    ours = {name.split(".")[1] for name in imported(path) if name.startswith("dograph.")}
    above = {"__version__", *dograph.__all__, *LAYERS[: LAYERS.index(part) + 1]}
    assert ours <= above, f"{path} imports {ours - above}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_files_and_functions_are_short(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 500
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            assert length <= 60, f"{path}:{node.lineno} {node.name} has {length} lines"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_extras_are_never_imported_at_the_top(path):
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module]
            assert not {str(name).split(".")[0] for name in names} & EXTRAS


def test_every_module_imports_with_the_core_dependencies_alone():
    """In a process where the extras cannot be found at all."""
    modules = [
        ".".join(("dograph", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(
            ".__init__"
        )
        for path in FILES
        if path.stem != "__main__" and (path.stem == "__init__" or path.parent.name != "kernels")
    ]
    code = (
        "import sys, importlib, importlib.abc\n"
        f"blocked = {EXTRAS!r}\n"
        "class Block(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in blocked:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Block())\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "from dograph.errors import MissingExtraError, require\n"
        "try: require('datasets', 'corpus')\n"
        "except MissingExtraError as e: assert \"pip install 'dograph[corpus]'\" in str(e)\n"
        "else: raise SystemExit('datasets was not missed')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=100)


def test_import_is_light():
    """`import dograph` loads neither torch nor transformers, and takes well under 0.3 s of work."""
    code = (
        "import sys, time; start = time.process_time(); import dograph\n"
        "assert time.process_time() - start < 0.3\n"
        "assert not {'torch', 'transformers', 'numpy', 'scipy'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

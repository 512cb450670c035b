"""The demo corpus: there on every installation, the same on every run, and real text."""

import ast
import io
import os
import subprocess
import sys
import tokenize
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from dograph.data import embedded as demo

DIGEST_OF_A_TENTH = """
import hashlib
from dograph.data import embedded as demo
demo.SOURCES = {name: (chars // 10, make) for name, (chars, make) in demo.SOURCES.items()}
demo.MIN_SOURCE_CHARS = 0
digest = hashlib.sha256()
for document in demo.demo_documents():
    digest.update(repr(document).encode())
print(digest.hexdigest())
"""


@pytest.fixture(scope="module")
def documents():
    return list(demo.demo_documents())


def test_sources_are_several_unequal_and_within_their_bounds(documents):
    chars = Counter()
    for source, text in documents:
        chars[source] += len(text)
    assert {"code", "docstrings", "bytecode", "topics", "unicode", "tables"} <= set(chars)
    assert 5.5e6 < chars.total() < 10e6
    assert 0.35 < max(chars.values()) / chars.total() < 0.65
    assert min(chars.values()) / chars.total() > 0.01
    for source, count in chars.items():
        assert count <= demo.SOURCES[source][0] + 2 * demo.SPLIT_CHARS


def test_documents_are_utf8_of_sensible_length_and_many_in_each_source(documents):
    for _, text in documents:
        text.encode("utf-8")
        assert 200 <= len(text) <= 20_000
    assert min(Counter(source for source, _ in documents).values()) >= 40


def test_documents_do_not_repeat(documents):
    assert len({text for _, text in documents}) > 0.98 * len(documents)


@pytest.mark.slow
def test_text_is_the_same_under_another_hash_seed_and_optimisation_level():
    digests = set()
    for flags, seed in [([], "1"), (["-OO"], "2")]:
        digests.add(
            subprocess.run(
                [sys.executable, *flags, "-c", DIGEST_OF_A_TENTH],
                env={**os.environ, "PYTHONHASHSEED": seed},
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
    assert len(digests) == 1


@pytest.mark.parametrize("module", ["argparse", "dataclasses", "enum", "typing", "asyncio.tasks"])
def test_code_without_docstrings_has_the_syntax_tree_of_the_code(module):
    __import__(module)
    source = Path(sys.modules[module].__file__).read_text("utf-8")
    bare = demo.without_docstrings(source, ast.parse(source))
    assert ast.dump(ast.parse(bare)) == ast.dump(_WithoutDocstrings().visit(ast.parse(source)))
    assert _comments(bare) == _comments(source)


def test_a_docstring_that_shares_its_line_stays():
    source = 'def f(): "text"\nclass C:\n    "text"; x = 1\n'
    assert demo.without_docstrings(source, ast.parse(source)) == source


def test_docstrings_of_builtin_types_are_there(documents):
    text = "\n".join(text for source, text in documents if source == "docstrings")
    assert dict.setdefault.__doc__ in text
    assert str.splitlines.__doc__ in text


def test_only_standard_modules_are_read(tmp_path, monkeypatch):
    body = "x = 'from the standard library'\n" * 20
    for name in ["json/decoder.py", "site-packages/json.py", "mine.py", "json/tests/test_it.py"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(body if name == "json/decoder.py" else "y = 'local'\n" * 50)
    (tmp_path / "json/broken.py").write_bytes("é = 'not UTF-8'\n".encode("latin-1") * 50)
    monkeypatch.setattr(demo, "LIBRARY", tmp_path)
    monkeypatch.setattr(demo, "MIN_SOURCE_CHARS", 0)
    assert [text for source, text in demo.demo_documents() if source == "code"] == [body]


def test_five_sources_remain_where_the_library_is_a_zip_of_compiled_files(tmp_path, monkeypatch):
    archive = tmp_path / "python.zip"
    with zipfile.PyZipFile(archive, "w") as file:
        for name in ["argparse", "ast", "inspect", "pathlib", "tarfile", "turtle", "typing"]:
            path = Path(ast.__file__).with_name(f"{name}.py")
            if path.is_file():
                file.writepy(str(path))
    monkeypatch.setattr(demo, "LIBRARY", tmp_path / "absent")
    monkeypatch.setattr(sys, "path", [str(archive), *sys.path])
    sources = {source for source, _ in demo.demo_documents()}
    assert sources == {"docstrings", "bytecode", "topics", "unicode", "tables"}


def _comments(source):
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [token.string for token in tokens if token.type == tokenize.COMMENT]


class _WithoutDocstrings(ast.NodeTransformer):
    """An independent way to take docstrings out: on the tree."""

    def _visit(self, node):
        self.generic_visit(node)
        if ast.get_docstring(node) is not None:
            rest = node.body[1:]
            node.body = rest if rest or isinstance(node, ast.Module) else [ast.Pass()]
        return node

    visit_Module = visit_ClassDef = visit_FunctionDef = visit_AsyncFunctionDef = _visit

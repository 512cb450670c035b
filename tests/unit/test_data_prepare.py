"""The command: what it prints, what it teaches, how it fails."""

import numpy as np
import pytest
from typer.testing import CliRunner

from dograph.cli import console
from dograph.cli.main import app
from dograph.data.pipeline import PreparationProgress
from dograph.errors import ConfigError
from text_inputs import lines, text, write_jsonl, write_tokenizer


def run(*arguments, code=0):
    result = CliRunner().invoke(app, ["data", "prepare", *map(str, arguments)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout


@pytest.fixture
def tokenizer(tmp_path):
    return write_tokenizer(tmp_path / "tokenizer.json")


def test_the_table_of_a_recipe_has_the_papers_shares(tmp_path, tokenizer):
    names = ["RedPajamaC4", "RedPajamaC4", "RedPajamaBook", "RedPajamaArXiv"]
    records = [
        {"text": text(n), "meta": {"redpajama_set_name": name}} for n, name in enumerate(names)
    ]
    (tmp_path / "a.jsonl").write_bytes(lines(records))
    arguments = ["--tokenizer", tokenizer, "--recipe", "slimpajama-6b", "--out", tmp_path / "out"]
    shown = run(tmp_path / "a.jsonl", *arguments, "--validation-fraction", 0).splitlines()
    size = [len(text(n).encode()) for n in range(4)]
    row = next(line.split() for line in shown if line.startswith("RedPajamaC4"))
    assert row[1] == "2"
    assert f"{100 * (size[0] + size[1]) / sum(size):.1f}" in row
    assert "28.7" in row
    absent = next(line for line in shown if line.startswith("in the paper's table"))
    assert "RedPajamaGithub" in absent
    assert "RedPajamaC4" not in absent
    assert next(line for line in shown if "without validation text" in line).count("RedPajama") == 3


def test_tokens_made_elsewhere_have_no_megabytes(tmp_path):
    np.arange(100, dtype=np.uint16).tofile(tmp_path / "a.bin")
    shown = run(tmp_path / "a.bin", "--out", tmp_path / "out")
    assert "share: of the tokens" in shown
    assert "MB" not in shown


def test_repairs_are_told(tmp_path, tokenizer):
    path = write_jsonl(tmp_path / "a.jsonl", [text(1), "", text(2)])
    shown = run(path, "--tokenizer", tokenizer, "--out", tmp_path / "out")
    assert "empty: 1" in shown


def test_the_help_teaches_with_commands_that_parse():
    shown = run("--help")
    examples = [line.strip() for line in shown.splitlines() if "dograph data prepare" in line]
    assert len(examples) >= 5
    for word in (
        "--bad-records",
        "--strata",
        "--recipe",
        "hf:NAME[:CONFIG][@SPLIT]",
        "NAME names its source",
    ):
        assert word in " ".join(shown.split())


def test_a_wrong_option_says_what_is_allowed(tmp_path):
    with pytest.raises(ConfigError, match="slimpajama-6b"):
        run("demo", "--out", tmp_path / "out", "--recipe", "slimpajama")


def test_plain_lines_are_few(capsys, monkeypatch):
    clock = iter(np.arange(0, 1000, 0.5))
    monkeypatch.setattr(console.time, "monotonic", lambda: float(next(clock)))
    with console.preparing() as report:
        report(PreparationProgress("training the tokenizer"))
        for n in range(1, 101):
            report(PreparationProgress("encoding", n, 100, n * 2**20, n, n * 1000))
        report(PreparationProgress("finishing"))
    printed = capsys.readouterr().err.splitlines()
    assert printed[0].startswith("training")
    assert printed[-1].startswith("finishing")
    assert 4 <= len(printed) <= 20
    assert any("% read" in line and "tokens/s" in line for line in printed)

"""dograph export: what it takes for a mixture, and where it writes."""

import json

import pytest
import typer
import yaml
from typer.testing import CliRunner

from dograph.cli.export import export
from dograph.config import RunConfig
from dograph.errors import ConfigError, RunError
from dograph.mixtures.file import PRESETS
from token_corpora import write_manifest, write_split

app = typer.Typer()
app.command()(export)


def run(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    sizes = {"c4": 900, "cc": 600, "wiki": 300}
    write_manifest(
        folder, [write_split(folder, "train", name, [[1] * n]) for name, n in sizes.items()]
    )
    return folder


def test_a_mixture_file_to_stdout_and_to_a_file(tmp_path):
    mixture, out = tmp_path / "m.yaml", tmp_path / "out.yaml"
    mixture.write_text("weights: {C4: 3, Book: 1}\n")
    shown = run(mixture, "--to", "olmo-core", "--place", "C4=/data/c4=x").stdout
    sources = yaml.safe_load(shown)["sources"]
    assert [source["paths"] for source in sources] == [["/data/c4=x"], ["data/Book/*.npy"]]
    assert [source["target_ratio"] for source in sources] == [0.75, 0.25]
    assert run(mixture, "--to", "olmo-core", "--place", "C4=/data/c4=x", "--out", out).stdout == ""
    assert out.read_text() == shown
    with pytest.raises(ConfigError, match="is the mixture itself"):
        run(mixture, "--to", "yaml", "--out", mixture)
    assert mixture.read_text() == "weights: {C4: 3, Book: 1}\n"


def test_a_preset_by_its_own_names_or_a_corpus(corpus):
    own = json.loads(run("doge-slimpajama", "--to", "json").stdout)["weights"]
    assert own["C4"] == 0.269
    fitted = run("doge-slimpajama", "--to", "json", "--corpus", corpus)
    left = 0.269 + 0.214 + 0.148
    assert json.loads(fitted.stdout)["weights"] == pytest.approx(
        {"c4": 0.269 / left, "cc": 0.214 / left, "wiki": 0.148 / left}, abs=1e-6
    )
    assert "warning: the corpus has no ArXiv" in fitted.stderr


def test_the_mixture_a_run_ended_with(tmp_path, corpus):
    folder = tmp_path / "run"
    folder.mkdir()
    config = RunConfig.model_validate({"data": {"corpus": str(corpus)}, "run": str(folder)})
    (folder / "config.yaml").write_text(config.dump())
    with pytest.raises(ConfigError, match=r"no weights\.jsonl"):
        run(folder)
    counts = {"c4": 0, "cc": 0, "wiki": 0}
    rows = [
        {"step": step, "reason": "x", "weight": dict(zip(counts, weights, strict=True))}
        | {"drawn": counts, "base_step": 0, "base_drawn": counts}
        for step, weights in [(0, [0.5, 0.25, 0.25]), (10, [0.75, 0.25, 0.0])]
    ]
    (folder / "weights.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert yaml.safe_load(run(folder).stdout)["weights"] == {"c4": 0.75, "cc": 0.25, "wiki": 0.0}
    with pytest.raises(RunError, match="is not a run"):
        run(corpus)


def test_lists():
    shown = run().stdout
    assert all(name in shown for name in PRESETS)
    assert "0.2690  C4" in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "hf"], "name a mixture file, a run or a published mixture"),
        (["regmix-pil"], 'did you mean "regmix-pile"'),
        (["regmix-pile", "--place", "C4"], 'NAME=VALUE, got "C4"'),
        (["regmix-pile", "--place", "a=1", "--place", "a=2"], 'names "a" twice'),
        (["regmix-pile", "--out", "/dev/null/at/all"], "cannot be written"),
    ],
)
def test_mistakes_are_told(arguments, message):
    with pytest.raises(ConfigError, match=message):
        run(*arguments)

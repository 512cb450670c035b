"""dograph bench from its command line to its table and its file; rivals beside it."""

import json
import sys

import pytest
from benchmarks import rivals
from typer.testing import CliRunner

from dograph.cli.main import app, main
from dograph.errors import ConfigError

SMALL = ["model.preset=tiny", "train.batch_size=6", "data.seq_len=16", "--vocab-size", "500"]
SMALL += ["sketch.dim=80", "sketch.top_blocks=1", "train.device=cpu", "--steps", "10"]
PARTS = ["model.preset=llama-tiny", "train.micro_batch_size=3"]
MODES = ["full", "topdown", "head", "exact", "twopass"]


def invoke(*arguments):
    result = CliRunner().invoke(app, ["bench", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench") / "bench.json"
    result = invoke(*SMALL, "--out", str(out))
    return json.loads(out.read_text()), result


@pytest.mark.slow
def test_every_arm_is_in_the_file(measured):
    found, _ = measured
    assert found["complete"]
    assert list(found["arms"]) == ["plain", *MODES]
    assert not [arm for arm in found["arms"].values() if "error" in arm]
    assert found["options"]["batch"] == 6
    assert found["environment"]["libraries"]["torch"]
    assert found["device"]["peak_from"].startswith("measured")


@pytest.mark.slow
def test_modes_have_ratios_floors_and_parts(measured):
    arms = measured[0]["arms"]
    for mode in MODES:
        arm = arms[mode]
        ratio = arm["ratio"]
        assert ratio["low"] <= ratio["median"] <= ratio["high"]
        assert ratio["blocks"] == arm["ms"]["steps"] == 10
        run = arm["run"]
        assert (run["steps"], run["segment_steps"], run["ratio"]["blocks"]) == (20, 20, 1)
        assert run["ratio"]["median"] == pytest.approx(run["ms"] / run["plain_ms"])
        assert arm["floor_ms"]["total"] > 0
        assert arm["floor_ratio"] > 1
        assert list(arm["parts_ms"]) == ["forward", "sketch", "weigh", "deferred", "update"]
        assert 0 < sum(arm["parts_ms"].values()) < 1.5 * arm["ms"]["median"]
        assert arm["tokens_per_second"] == pytest.approx(1e3 * 96 / arm["ms"]["median"])
    assert arms["plain"]["ms"]["steps"] == 10 * len(MODES)  # beside every mode
    assert list(arms["plain"]["parts_ms"]) == ["forward", "backward", "update"]


@pytest.mark.slow
def test_flops_and_speed_make_mfu(measured):
    found, _ = measured
    arm, peak = found["arms"]["full"], found["device"]["peak_flops_per_second"]
    expected = found["flops_per_step"] / (arm["ms"]["median"] / 1e3) / peak
    assert arm["mfu"] == pytest.approx(expected)


@pytest.mark.slow
def test_the_table_has_a_row_for_each(measured):
    found, result = measured
    lines = [line.split() for line in result.stdout.splitlines()]
    rows = [line[0] for line in lines if line and line[0] in found["arms"]]
    assert rows[: len(found["arms"])] == list(found["arms"])
    assert "in a run" in result.stdout
    assert "full: {median:.3f} +- 0.000".format(**found["arms"]["full"]["run"]["ratio"]) in (
        result.stdout
    )
    assert "full: warm after" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("accumulation", "last"), [((), "backward"), (("sketch.accumulation=lagged",), "deferred")]
)
def test_micro_batches_of_a_llama(tmp_path, accumulation, last):
    """As in a run: two sweeps, unless another accumulation is set."""
    out = tmp_path / "b.json"
    arguments = [*SMALL, *PARTS, "mixer.recipe=safe", *accumulation]
    invoke(*arguments, "--modes", "head", "--out", str(out))
    arms = json.loads(out.read_text())["arms"]
    assert list(arms["head"]["parts_ms"]) == ["forward", "sketch", "weigh", last, "update"]
    assert arms["head"]["warmup_steps"] == 12


@pytest.mark.slow
def test_rivals_and_a_part_that_fails(tmp_path, monkeypatch, capsys):
    def refuse(*_):
        raise RuntimeError("CUDA out of memory\nand much more")

    monkeypatch.setitem(rivals.RIVALS, "vmap", refuse)
    out = tmp_path / "b.json"
    arguments = [*SMALL, *PARTS, "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["rivals", *arguments])
    rivals.main()
    found = json.loads(out.read_text())
    assert found["complete"]
    arms = found["arms"]
    assert list(arms) == ["plain", "hand", "loop", "vmap", "opacus"]
    assert arms["hand"]["ratio"]["blocks"] == 10
    assert arms["vmap"]["error"] == "RuntimeError: CUDA out of memory"
    assert arms["loop"]["num_samples"] == 3
    assert "MissingExtraError" in arms["opacus"].get("error", "MissingExtraError")
    text = " ".join(capsys.readouterr().out.split())
    assert "3 of 6 samples" in text
    assert "plain runs at" in text


def test_mistakes_are_answered_in_words(tmp_path, monkeypatch, capsys):
    with pytest.raises(ConfigError, match="is not a folder"):
        invoke(*SMALL, "--out", str(tmp_path / "nowhere" / "b.json"))
    monkeypatch.setattr("sys.argv", ["dograph", "bench", "--modes", "ful", "train.device=cpu"])
    with pytest.raises(SystemExit, match="2"):
        main()
    told = capsys.readouterr().err
    assert told.startswith("error: mode ful:")
    assert 'did you mean "full"? allowed: exact, full, head' in told


def test_help_teaches():
    text = CliRunner().invoke(app, ["bench", "--help"]).output
    assert "dograph bench model.preset=gpt2-mini" in text

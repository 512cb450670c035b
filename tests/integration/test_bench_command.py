"""dograph bench from its command line to its table and its file."""

import json

import pytest
from typer.testing import CliRunner

from dograph.bench.session import RIVALS
from dograph.cli.main import app, main
from dograph.errors import ConfigError

SMALL = ["--model", "tiny", "--batch", "6", "--seq-len", "16", "--vocab-size", "500"]
SMALL += ["--dim", "80", "--top-blocks", "1", "--steps", "10", "--device", "cpu"]
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
    assert list(found["arms"]) == ["plain", *MODES, "hand", "loop", "vmap", "opacus"]
    for name, arm in found["arms"].items():
        missing = name == "opacus" and "MissingExtraError" in arm.get("error", "")
        assert missing or "error" not in arm, (name, arm)
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
        assert arm["floor_ms"]["total"] > 0
        assert arm["floor_ratio"] > 1
        assert list(arm["parts_ms"]) == ["forward", "sketch", "weigh", "deferred", "update"]
        assert 0 < sum(arm["parts_ms"].values()) < 1.5 * arm["ms"]["median"]
        assert arm["tokens_per_second"] == pytest.approx(1e3 * 96 / arm["ms"]["median"])
    assert arms["plain"]["ms"]["steps"] == 10 * (len(MODES) + 1)  # beside every mode and hand
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
    assert [line[0] for line in lines if line and line[0] in found["arms"]][:10] == list(
        found["arms"]
    )
    assert "over plain" in result.stdout
    assert "plain runs at" in result.stdout
    assert "full: warm after" in result.stderr


@pytest.mark.slow
def test_micro_batches_of_a_llama_and_a_part_that_fails(tmp_path, monkeypatch):
    def refuse(*_):
        raise RuntimeError("CUDA out of memory\nand much more")

    monkeypatch.setitem(RIVALS, "vmap", refuse)
    out = tmp_path / "b.json"
    arguments = [*SMALL, "--model", "llama-tiny", "--micro-batch", "3", "--recipe", "safe"]
    result = invoke(*arguments, "--modes", "head", "--no-hand", "--profile", "--out", str(out))
    arms = json.loads(out.read_text())["arms"]
    assert list(arms["head"]["parts_ms"]) == ["forward", "sketch", "weigh", "deferred", "update"]
    assert arms["head"]["warmup_steps"] == 12
    for arm in (arms["plain"], arms["head"]):
        spent = [kernel["ms"] for kernel in arm["kernels"]["top"]]
        assert len(spent) == 10
        assert spent == sorted(spent, reverse=True)
        assert sum(spent) <= arm["kernels"]["device_ms"]
    assert arms["vmap"]["error"] == "RuntimeError: CUDA out of memory"
    assert arms["loop"]["num_samples"] == 3
    assert "3 of 6 samples" in " ".join(result.stdout.split())


def test_mistakes_are_answered_in_words(tmp_path, monkeypatch, capsys):
    with pytest.raises(ConfigError, match="is not a folder"):
        invoke(*SMALL, "--out", str(tmp_path / "nowhere" / "b.json"))
    monkeypatch.setattr("sys.argv", ["dograph", "bench", "--modes", "ful", "--device", "cpu"])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert 'error: --modes names "ful": did you mean "full"?' in capsys.readouterr().err


def test_help_teaches():
    text = CliRunner().invoke(app, ["bench", "--help"]).output
    assert "dograph bench --model gpt2-mini" in text

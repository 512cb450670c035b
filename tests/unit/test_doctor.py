"""dograph doctor: what it finds is checked against the packages and tools that are really there."""

import importlib.metadata
import subprocess
import sys
from types import SimpleNamespace

import pytest
import typer
from packaging.requirements import Requirement
from typer.testing import CliRunner

from dograph.cli import doctor
from dograph.cli.doctor import doctor as command

CORE = ["torch", "transformers", "tokenizers", "safetensors", "numpy", "pydantic"]


def run(*arguments):
    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, arguments)


@pytest.fixture(scope="module")
def findings():
    return {finding.name: finding for finding in doctor.examine()}


def test_core_packages_are_found_with_their_version_and_minimum(findings):
    minimum = {}
    for line in importlib.metadata.requires("dograph"):
        requirement = Requirement(line)
        if requirement.marker is None:
            minimum[requirement.name] = str(requirement.specifier)
    assert set(CORE) <= set(minimum)
    for name, specifier in minimum.items():
        assert findings[name].part == "core"
        assert findings[name].ok
        assert importlib.metadata.version(name) in findings[name].detail
        assert specifier.removeprefix(">=") in findings[name].detail
    assert findings["Python"].ok
    assert findings["dograph"].ok


def test_every_extra_is_there(findings):
    extras = set(importlib.metadata.metadata("dograph").get_all("Provides-Extra")) - {"dev"}
    assert extras == {name for name, found in findings.items() if found.part == "extra"}


def test_the_machine_is_described(findings):
    import torch

    assert f"torch uses {torch.get_num_threads()} threads" in findings["CPU"].detail
    assert ("gloo" in findings["distributed"].detail) == torch.distributed.is_gloo_available()
    assert {"memory", "disk", "torch.compile"} <= set(findings)
    assert any(name.startswith("GPU") for name in findings)


def test_an_absent_extra_comes_with_its_install_command_and_is_no_fault(monkeypatch):
    hide(monkeypatch, "wandb")
    findings = {finding.name: finding for finding in doctor.examine()}
    assert not findings["wandb"].ok
    assert findings["wandb"].remedy == "pip install 'dograph[wandb]'"
    monkeypatch.setenv("COLUMNS", "200")
    result = run()
    assert result.exit_code == 0
    (row,) = [line for line in result.stdout.splitlines() if line.startswith("│ wandb")]
    assert [cell.strip() for cell in row.split("│")][2] == "absent"
    assert "dograph[wandb]" in row
    assert "dograph[tensorboard]" not in result.stdout


def test_an_absent_core_package_is_a_fault(monkeypatch):
    hide(monkeypatch, "safetensors")
    monkeypatch.setenv("COLUMNS", "200")
    result = run()
    assert result.exit_code == 1
    (row,) = [line for line in result.stdout.splitlines() if line.startswith("│ safetensors")]
    assert [cell.strip() for cell in row.split("│")][2] == "missing"
    assert "pip install 'safetensors>=" in row


@pytest.mark.parametrize(
    ("version", "ok"),
    [("2.10.9", False), ("2.9.1+cu126", False), ("2.11", True), ("2.11.0rc1", True)],
)
def test_a_core_package_that_is_too_old_is_a_fault(monkeypatch, version, ok):
    real = importlib.metadata.version
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: version if name == "torch" else real(name)
    )
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ["torch>=2.11"])
    (found,) = [finding for finding in doctor.examine() if finding.name == "torch"]
    assert found.ok == ok
    assert version in found.detail


def test_a_torch_that_does_not_load_is_a_fault(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (found,) = [finding for finding in doctor.examine() if finding.name == "torch import"]
    assert (found.part, found.ok) == ("core", False)
    assert run().exit_code == 1


@pytest.mark.parametrize(("major", "ok"), [(7, False), (9, True)])
def test_gpus_are_listed_with_memory_and_bfloat16(monkeypatch, major, ok):
    import torch

    properties = SimpleNamespace(name="Big GPU", major=major, total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    gpus = [finding for finding in doctor.examine() if finding.name.startswith("GPU")]
    assert [gpu.name for gpu in gpus] == ["GPU 0", "GPU 1"]
    assert {gpu.ok for gpu in gpus} == {ok}
    assert all("Big GPU, 80.0 GiB" in gpu.detail for gpu in gpus)


def test_a_missing_compiler_is_noticed(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    found = {finding.name: finding for finding in doctor.examine()}["torch.compile"]
    assert not found.ok
    assert "compiler" in found.detail


def test_the_table_shows_install_commands_in_full(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    hide(monkeypatch, "trackio")
    assert "pip install 'dograph[trackio]'" in run().stdout


def test_the_command_imports_nothing_heavy_until_it_runs():
    code = "import sys, dograph.cli.doctor; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def hide(monkeypatch, package):
    """Make one installed package look absent."""
    real = importlib.metadata.version

    def version(name):
        if name == package:
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)


@pytest.mark.parametrize(("version", "ok"), [(None, False), ("3.9.0", True)])
def test_on_a_gpu_triton_is_looked_for(monkeypatch, version, ok):
    import torch

    real = doctor._version
    monkeypatch.setattr(
        doctor, "_version", lambda name: version if name == "triton" else real(name)
    )
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    for is_there in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda is_there=is_there: is_there)
        found = [finding for finding in doctor.examine() if finding.name == "Triton"]
        assert [finding.ok for finding in found] == [ok] * is_there

"""dograph doctor: what this installation and machine can do, and how to get what is missing."""

import importlib.metadata
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple

import typer
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from dograph.cli.console import open_console
from dograph.processes import machine_memory

MIN_MEMORY_GIB, MIN_DISK_GIB, GIB = 4, 5, 1 << 30
Part = Literal["core", "extra", "machine"]
# What each part shows of a check that failed. Extras may be absent, and the machine have limits.
FAILED = {"core": "[red]missing[/]", "extra": "[dim]absent[/]", "machine": "[yellow]note[/]"}


class Finding(NamedTuple):
    part: Part
    name: str
    ok: bool
    detail: str
    remedy: str  # what to do if it is not ok; a command to copy where there is one


def doctor() -> None:
    """Check this installation and this machine. Exits with 1 if dograph cannot run.

    \b
    dograph doctor                 versions, devices, extras, what is missing, how to get it
    dograph doctor > doctor.txt    for a bug report
    """  # noqa: D301
    from rich.markup import escape
    from rich.table import Table

    findings, table = examine(), Table("", "", "found", "what to do")
    for part, failed in FAILED.items():
        for finding in (finding for finding in findings if finding.part == part):
            mark, remedy = ("[green]ok[/]", "") if finding.ok else (failed, finding.remedy)
            table.add_row(finding.name, mark, escape(finding.detail), escape(remedy))
        table.add_section()
    open_console().print(table)
    if not all(finding.ok for finding in findings if finding.part == "core"):
        raise typer.Exit(1)


def examine() -> list[Finding]:
    """Run all checks. None of them raises: what cannot be determined is a finding too."""
    findings = [*_packages(), *_memory_and_disk()]
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a shared library that does not load
        failed = Finding("core", "torch import", False, str(error), "pip install 'torch'")
        return [*findings, failed]
    return [*findings, *_devices(torch)]


def _packages() -> Iterator[Finding]:
    """Python, dograph, the core's requirements, then each extra, from the list that pip reads."""
    version, python = _version("dograph"), platform.python_version()
    about: Any = importlib.metadata.metadata("dograph") if version else {}
    needed = SpecifierSet(about.get("Requires-Python") or ">=3.11")
    detail = f"{python} (needs {needed}), {sys.executable}"
    yield Finding("core", "Python", python in needed, detail, f"install Python {needed}")
    detail = version or "runs from its files, but is not installed"
    yield Finding("core", "dograph", version is not None, detail, "pip install -e .")
    lines = (importlib.metadata.requires("dograph") or []) if version is not None else []
    names = about.get_all("Provides-Extra", []) if version is not None else []
    # By extra: problem, and name with version.
    extras: dict[str, list[tuple[str, str]]] = {name: [] for name in names if name != "dev"}
    for needs in map(Requirement, lines):
        name, version, problem = needs.name, _version(needs.name), ""
        if version is None:
            problem = f"{name} is not installed"
        elif Version(version).base_version not in needs.specifier:
            problem = f"{name} {version} is not {needs.specifier}"
        if needs.marker is None:
            detail = problem or f"{version} (needs {needs.specifier})"
            remedy = f"pip install '{name}{needs.specifier}'"
            yield Finding("core", name, not problem, detail, remedy)
            continue
        for extra, own in extras.items():
            if needs.marker.evaluate({"extra": extra}):
                own.append((problem, f"{name} {version}"))
    for extra, own in extras.items():
        problems = [problem for problem, _ in own if problem]
        detail = "; ".join(problems) or ", ".join(version for _, version in own)
        yield Finding("extra", extra, not problems, detail, f"pip install 'dograph[{extra}]'")


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _memory_and_disk() -> Iterator[Finding]:
    total = machine_memory()
    ok, detail = total >= MIN_MEMORY_GIB * GIB, f"{total / GIB:.1f} GiB"
    remedy = "lower train.micro_batch_size, or choose a smaller model"
    yield Finding("machine", "memory", ok, detail, remedy)
    free = shutil.disk_usage(Path.cwd()).free
    detail = f"{free / GIB:.1f} GiB free in the working directory"
    remedy = "a corpus and its runs may need more; work in another directory"
    yield Finding("machine", "disk", free >= MIN_DISK_GIB * GIB, detail, remedy)


def _devices(torch: ModuleType) -> Iterator[Finding]:
    """Cores and GPUs, and what training on several devices and compiled steps need."""
    cores = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else cores
    threads = torch.get_num_threads()
    detail = f"{cores} cores, {usable} usable, torch uses {threads} threads"
    yield Finding("machine", "CPU", threads <= usable, detail, f"export OMP_NUM_THREADS={usable}")
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(index)
            has_bf16 = gpu.major >= 8 or torch.version.hip is not None
            detail = f"{gpu.name}, {gpu.total_memory / GIB:.1f} GiB, "
            detail += f"bfloat16 {'yes' if has_bf16 else 'no'}"
            remedy = "train with train.dtype=float32"
            yield Finding("machine", f"GPU {index}", has_bf16, detail, remedy)
    elif shutil.which("nvidia-smi"):
        detail = f"torch {torch.__version__} does not see the NVIDIA GPU of this machine"
        remedy = "install a build of torch for your CUDA driver: https://pytorch.org/get-started"
        yield Finding("machine", "GPU", False, detail, remedy)
    else:
        yield Finding("machine", "GPU", False, "none: runs use the CPU", "")
    has = torch.distributed
    known = ("gloo", "nccl") if has.is_available() else ()
    backends = [name for name in known if has.is_backend_available(name)]
    wanted, detail = "nccl" if torch.cuda.is_available() else "gloo", ", ".join(backends)
    remedy = f"this build of torch lacks {wanted}: it trains on one device only"
    yield Finding("machine", "distributed", wanted in backends, detail or "no backend", remedy)
    names = [os.environ.get("CXX", ""), "c++", "g++", "clang++", "cl"]
    compiler = next(filter(None, map(shutil.which, names)), None)
    has_headers = (Path(sysconfig.get_path("include")) / "Python.h").is_file()
    parts = {"a C++ compiler": compiler, "Python's C headers": has_headers}
    lacking = [name for name, found in parts.items() if not found]
    detail = f"lacks {' and '.join(lacking)}" if lacking else f"{compiler}, Python's C headers"
    remedy = "install them with your system's packages (g++, python3-dev)"
    yield Finding("machine", "torch.compile", not lacking, detail, remedy)
    if torch.cuda.is_available():
        version = _version("triton")
        detail = version or "not installed: weights take milliseconds to compute"
        yield Finding("machine", "Triton", version is not None, detail, "pip install triton")

"""What this installation and this machine can do, what is missing, and how to get it."""

import importlib.metadata
import os
import platform
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from types import ModuleType

MIN_MEMORY_GIB = 4
MIN_DISK_GIB = 5
GIB = 1 << 30

_REQUIREMENT = re.compile(
    r"(?P<name>[\w.-]+)(\[[^]]*\])?\s*(>=\s*(?P<minimum>[\d.]+))?"
    r"[^;]*(;.*extra\s*==\s*['\"](?P<extra>[^'\"]+)['\"])?"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    part: Literal["core", "extra", "machine"]
    name: str
    status: Literal["ok", "missing", "warn"]
    detail: str
    remedy: str = ""  # what to do about it, ready to be copied where it is a command


class _Requirement(NamedTuple):
    name: str
    minimum: str
    extra: str  # "" for the core


def examine() -> list[Finding]:
    """Look at everything. Nothing here fails: what cannot be found out is a finding too."""
    findings = [*_packages(), *_extras(), _memory(), _disk()]
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a shared library that does not load
        broken = Finding("core", "torch import", "missing", str(error), "pip install 'torch'")
        return [*findings, broken]
    return [
        *findings,
        _cpu(torch),
        *_gpus(torch),
        _distributed(torch),
        _compiler(),
        *_kernels(torch),
    ]


def is_core_fine(findings: list[Finding]) -> bool:
    """Whether dograph can run: extras and the machine's limits do not count."""
    return all(finding.status == "ok" for finding in findings if finding.part == "core")


def _core(name: str, fine: bool, detail: str, remedy: str) -> Finding:
    return Finding("core", name, "ok" if fine else "missing", detail, "" if fine else remedy)


def _machine(name: str, fine: bool, detail: str, remedy: str = "") -> Finding:
    return Finding("machine", name, "ok" if fine else "warn", detail, "" if fine else remedy)


def _packages() -> Iterator[Finding]:
    minimum = ".".join(re.findall(r"\d+", _metadata("Requires-Python"))) or "3.11"
    python = platform.python_version()
    found = f"{python} (needs >= {minimum}), {sys.executable}"
    is_new_enough = _release(python) >= _release(minimum)
    yield _core("Python", is_new_enough, found, f"install Python {minimum} or newer")
    version = _version("dograph")
    found = version or "runs from its files, but is not installed"
    yield _core("dograph", version is not None, found, "pip install -e .")
    for name, least, extra in _requirements():
        if not extra:
            problem = _problem(name, least)
            found = problem or f"{_version(name)} (needs >= {least})"
            yield _core(name, not problem, found, f"pip install '{name}>={least}'")


def _extras() -> Iterator[Finding]:
    requirements = [needed for needed in _requirements() if needed.extra not in ("", "dev")]
    for extra in dict.fromkeys(requirement.extra for requirement in requirements):
        needed = [requirement for requirement in requirements if requirement.extra == extra]
        problems = [problem for r in needed if (problem := _problem(r.name, r.minimum))]
        versions = ", ".join(f"{r.name} {_version(r.name)}" for r in needed)
        remedy = f"pip install 'dograph[{extra}]'" if problems else ""
        status: Literal["ok", "missing"] = "missing" if problems else "ok"
        yield Finding("extra", extra, status, "; ".join(problems) or versions, remedy)


def _memory() -> Finding:
    if sys.platform == "win32":
        return _machine("memory", False, "unknown on this system")
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit = Path("/sys/fs/cgroup/memory.max")  # what a container may use
    if limit.is_file() and limit.read_text().strip().isdigit():
        total = min(total, int(limit.read_text()))
    remedy = "lower train.micro_batch_size, or choose a smaller model"
    return _machine("memory", total >= MIN_MEMORY_GIB * GIB, f"{total / GIB:.1f} GiB", remedy)


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free
    found = f"{free / GIB:.1f} GiB free in the working directory"
    remedy = "a corpus and its runs may need more; work in another directory"
    return _machine("disk", free >= MIN_DISK_GIB * GIB, found, remedy)


def _cpu(torch: "ModuleType") -> Finding:
    cores = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else cores
    threads = torch.get_num_threads()
    found = f"{cores} cores, {usable} usable, torch uses {threads} threads"
    return _machine("CPU", threads <= usable, found, f"export OMP_NUM_THREADS={usable}")


def _gpus(torch: "ModuleType") -> Iterator[Finding]:
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            has_bf16 = properties.major >= 8 or torch.version.hip is not None
            found = f"{properties.name}, {properties.total_memory / GIB:.1f} GiB, "
            found += f"bfloat16 {'yes' if has_bf16 else 'no'}"
            yield _machine(f"GPU {index}", has_bf16, found, "train with train.dtype=float32")
    elif torch.backends.mps.is_available():
        yield _machine("GPU", True, "Apple GPU through Metal")
    elif shutil.which("nvidia-smi"):
        found = f"torch {torch.__version__} does not see the NVIDIA GPU of this machine"
        remedy = "install a build of torch for your CUDA driver: https://pytorch.org/get-started"
        yield _machine("GPU", False, found, remedy)
    else:
        yield _machine("GPU", False, "none: runs use the CPU")


def _distributed(torch: "ModuleType") -> Finding:
    backends = []
    if torch.distributed.is_available():
        backends += ["gloo"] if torch.distributed.is_gloo_available() else []
        backends += ["nccl"] if torch.distributed.is_nccl_available() else []
    wanted = "nccl" if torch.cuda.is_available() else "gloo"
    remedy = f"this build of torch lacks {wanted}: it trains on one device only"
    found = ", ".join(backends) or "no backend"
    return _machine("distributed", wanted in backends, found, remedy)


def _compiler() -> Finding:
    names = [os.environ.get("CXX", ""), "c++", "g++", "clang++", "cl"]
    compiler = next((path for name in names if name and (path := shutil.which(name))), None)
    has_headers = (Path(sysconfig.get_path("include")) / "Python.h").is_file()
    lacking = [] if compiler else ["a C++ compiler"]
    lacking += [] if has_headers else ["Python's C headers"]
    found = f"lacks {' and '.join(lacking)}" if lacking else f"{compiler}, Python's C headers"
    remedy = "install them with your system's packages (g++, python3-dev)"
    return _machine("torch.compile", not lacking, found, remedy)


def _kernels(torch: "ModuleType") -> Iterator[Finding]:
    """On a GPU: whether DoGraph's solve runs in a few kernels or in a thousand."""
    if torch.cuda.is_available():
        version = _version("triton")
        found = version or "not installed: DoGraph's solve takes milliseconds"
        yield _machine("Triton", version is not None, found, "pip install triton")


def _problem(name: str, minimum: str) -> str:
    """Why a requirement is not met, or nothing."""
    version = _version(name)
    if version is None:
        return f"{name} is not installed"
    is_older = _release(version) < _release(minimum)
    return f"{name} {version} is older than {minimum}" if is_older else ""


def _requirements() -> list[_Requirement]:
    """What the installed dograph asks for, the same list that pip reads."""
    try:
        lines = importlib.metadata.requires("dograph") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    matches = [match for match in map(_REQUIREMENT.match, lines) if match]
    return [_Requirement(m["name"], m["minimum"] or "0", m["extra"] or "") for m in matches]


def _metadata(field: str) -> str:
    try:
        return importlib.metadata.metadata("dograph")[field] or ""
    except importlib.metadata.PackageNotFoundError:
        return ""


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _release(version: str) -> tuple[int, ...]:
    """The numbers before any suffix, without trailing zeros: 2.13.0+cpu is (2, 13)."""
    numbers = [int(part) for part in re.split(r"[^\d.]", version)[0].split(".") if part]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)

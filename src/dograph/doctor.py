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


def _packages() -> Iterator[Finding]:
    minimum = ".".join(re.findall(r"\d+", _metadata("Requires-Python"))) or "3.11"
    python = platform.python_version()
    is_new_enough = _release(python) >= _release(minimum)
    yield Finding(
        "core",
        "Python",
        "ok" if is_new_enough else "missing",
        f"{python} (needs >= {minimum}), {sys.executable}",
        "" if is_new_enough else f"install Python {minimum} or newer",
    )
    version = _version("dograph")
    yield Finding(
        "core",
        "dograph",
        "ok" if version else "missing",
        version or "runs from its files, but is not installed",
        "" if version else "pip install -e .",
    )
    for requirement in _requirements():
        if not requirement.extra:
            problem = _problem(requirement)
            yield Finding(
                "core",
                requirement.name,
                "missing" if problem else "ok",
                problem or f"{_version(requirement.name)} (needs >= {requirement.minimum})",
                f"pip install '{requirement.name}>={requirement.minimum}'" if problem else "",
            )


def _extras() -> Iterator[Finding]:
    requirements = [needed for needed in _requirements() if needed.extra not in ("", "dev")]
    for extra in dict.fromkeys(requirement.extra for requirement in requirements):
        needed = [requirement for requirement in requirements if requirement.extra == extra]
        problems = [problem for problem in map(_problem, needed) if problem]
        versions = ", ".join(f"{r.name} {_version(r.name)}" for r in needed)
        yield Finding(
            "extra",
            extra,
            "missing" if problems else "ok",
            "; ".join(problems) or versions,
            f"pip install 'dograph[{extra}]'" if problems else "",
        )


def _memory() -> Finding:
    total = _physical_memory()
    if total is None:
        return Finding("machine", "memory", "warn", "unknown on this system")
    limit = Path("/sys/fs/cgroup/memory.max")  # what a container may use
    if limit.is_file() and limit.read_text().strip().isdigit():
        total = min(total, int(limit.read_text()))
    is_enough = total >= MIN_MEMORY_GIB * GIB
    return Finding(
        "machine",
        "memory",
        "ok" if is_enough else "warn",
        f"{total / GIB:.1f} GiB",
        "" if is_enough else "lower train.micro_batch_size, or choose a smaller model",
    )


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free
    is_enough = free >= MIN_DISK_GIB * GIB
    return Finding(
        "machine",
        "disk",
        "ok" if is_enough else "warn",
        f"{free / GIB:.1f} GiB free in the working directory",
        "" if is_enough else "a corpus and its runs may need more; work in another directory",
    )


def _cpu(torch: "ModuleType") -> Finding:
    cores = os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else cores
    threads = torch.get_num_threads()
    is_fair = threads <= usable
    return Finding(
        "machine",
        "CPU",
        "ok" if is_fair else "warn",
        f"{cores} cores, {usable} usable, torch uses {threads} threads",
        "" if is_fair else f"export OMP_NUM_THREADS={usable}",
    )


def _gpus(torch: "ModuleType") -> Iterator[Finding]:
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            has_bf16 = properties.major >= 8 or torch.version.hip is not None
            yield Finding(
                "machine",
                f"GPU {index}",
                "ok" if has_bf16 else "warn",
                f"{properties.name}, {properties.total_memory / GIB:.1f} GiB, "
                f"bfloat16 {'yes' if has_bf16 else 'no'}",
                "" if has_bf16 else "train with train.dtype=float32",
            )
    elif torch.backends.mps.is_available():
        yield Finding("machine", "GPU", "ok", "Apple GPU through Metal")
    elif shutil.which("nvidia-smi"):
        yield Finding(
            "machine",
            "GPU",
            "warn",
            f"torch {torch.__version__} does not see the NVIDIA GPU of this machine",
            "install a build of torch for your CUDA driver: https://pytorch.org/get-started",
        )
    else:
        yield Finding("machine", "GPU", "warn", "none: runs use the CPU")


def _distributed(torch: "ModuleType") -> Finding:
    backends = []
    if torch.distributed.is_available():
        backends += ["gloo"] if torch.distributed.is_gloo_available() else []
        backends += ["nccl"] if torch.distributed.is_nccl_available() else []
    wanted = "nccl" if torch.cuda.is_available() else "gloo"
    is_there = wanted in backends
    return Finding(
        "machine",
        "distributed",
        "ok" if is_there else "warn",
        ", ".join(backends) or "no backend",
        "" if is_there else f"this build of torch lacks {wanted}: it trains on one device only",
    )


def _compiler() -> Finding:
    names = [os.environ.get("CXX", ""), "c++", "g++", "clang++", "cl"]
    compiler = next((path for name in names if name and (path := shutil.which(name))), None)
    has_headers = (Path(sysconfig.get_path("include")) / "Python.h").is_file()
    lacking = [] if compiler else ["a C++ compiler"]
    lacking += [] if has_headers else ["Python's C headers"]
    return Finding(
        "machine",
        "torch.compile",
        "warn" if lacking else "ok",
        f"lacks {' and '.join(lacking)}" if lacking else f"{compiler}, Python's C headers",
        "install them with your system's packages (g++, python3-dev)" if lacking else "",
    )


def _kernels(torch: "ModuleType") -> Iterator[Finding]:
    """On a GPU: whether DoGraph's solve runs in a few kernels or in a thousand."""
    if not torch.cuda.is_available():
        return
    version = _version("triton")
    yield Finding(
        "machine",
        "Triton",
        "warn" if version is None else "ok",
        "not installed: DoGraph's solve takes milliseconds" if version is None else version,
        "pip install triton" if version is None else "",
    )


def _physical_memory() -> int | None:
    if sys.platform == "win32":
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _problem(requirement: _Requirement) -> str:
    """Why a requirement is not met, or nothing."""
    version = _version(requirement.name)
    if version is None:
        return f"{requirement.name} is not installed"
    if _release(version) < _release(requirement.minimum):
        return f"{requirement.name} {version} is older than {requirement.minimum}"
    return ""


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

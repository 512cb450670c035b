"""How fast this device is: what it copies, what it multiplies, and what its maker promises."""

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

# Dense bfloat16 TFLOP/s from the makers' data sheets; the first name that fits counts.
PEAKS = (
    ("B200", 2250.0),
    ("H200 NVL", 835.0),
    ("GH200", 989.0),
    ("H200", 989.0),
    ("H100 PCIe", 756.0),
    ("H100 NVL", 835.0),
    ("H100", 989.0),
    ("A100", 312.0),
    ("A800", 312.0),
    ("L40S", 362.0),
    ("L40", 181.0),
    ("RTX A6000", 155.0),
    ("RTX 4090", 165.0),
    ("A10G", 70.0),
    ("A10", 125.0),
    ("L4", 121.0),
)
MACHINE_SECONDS = 0.2  # of each measurement


@dataclass(frozen=True, slots=True)
class Machine:
    """Rates of a device."""

    name: str
    copy_bytes_per_second: float  # read and written
    matmul_flops_per_second: float
    peak_flops_per_second: float
    peak_from: str


def measure_machine(device: torch.device, dtype: str, peak_tflops: float | None) -> Machine:
    """Copy and multiply for under a second."""
    on_gpu = device.type == "cuda"
    name = torch.cuda.get_device_name(device) if on_gpu else processor()
    copy = measure_copy(device)
    side = 8192 if on_gpu else 512
    kind = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    # Zeros would draw less power than a model's numbers do, and run faster.
    draw = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(side, side, generator=draw, device=device).to(kind) for _ in range(2))
    matmul = 2.0 * side**3 * _per_second(lambda: a @ b, device)
    peak, origin = matmul, f"measured: a product of {side}^3 in {dtype}"
    known = next((tflops for part, tflops in PEAKS if part in name), None)
    if peak_tflops is not None:
        peak, origin = 1e12 * peak_tflops, "--peak-tflops"
    elif on_gpu and dtype == "bfloat16" and known is not None:
        peak, origin = 1e12 * known, "data sheet, dense bfloat16"
    return Machine(name, copy, matmul, peak, origin)


def measure_copy(device: torch.device) -> float:
    """Bytes read and written a second."""
    size = 1 << (30 if device.type == "cuda" else 26)
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size * _per_second(lambda: target.copy_(source), device)


def processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def _per_second(work: Callable[[], object], device: torch.device) -> float:
    """How often a second."""

    def timed(times: int) -> float:
        start = time.perf_counter()
        for _ in range(times):
            work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - start

    timed(2)
    times = max(int(MACHINE_SECONDS / max(timed(1), 1e-4)), 1)
    return times / timed(times)

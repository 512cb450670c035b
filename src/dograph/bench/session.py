"""A whole measurement: arms one after another, each in turns with a resident plain one.

What is known is handed to `save` after every arm, so that a run that is cut loses little.
"""

import math
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from dograph.bench.arms import (
    Arm,
    Row,
    Timer,
    in_a_row,
    median_parts,
    open_arm,
    open_model,
    release,
    take_turns,
    top_kernels,
    warm_up,
)
from dograph.bench.hand import open_hand
from dograph.bench.options import LEAST_WARMUP_STEPS, Batches, BenchOptions, open_batches
from dograph.bench.rivals import Opener, measure_rival, open_loop, open_opacus, open_vmap
from dograph.config import SketchConfig
from dograph.models.presets import PRESETS
from dograph.train.distributed import describe_environment
from dograph.train.forecast import Work, count_flops, extra_work
from dograph.train.stopwatch import Lap

# How fast this device is: what it copies, what it multiplies, and what its maker promises.


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


# The least that each mode can cost beyond a plain step, from the shapes of the layers alone.
#
# Each piece of work (training/step_work.py) takes bytes / bandwidth or FLOPs / rate, whichever is
# more, at rates measured on this device; nothing is launched, nothing waits, the weights themselves
# cost nothing. A mode whose extra time is near its floor has nothing left to gain.


def floor_ms(
    work: Iterable[Work], bytes_per_second: float, flops_per_second: float
) -> dict[str, float]:
    """Milliseconds by what they go to, and their sum."""
    total: dict[str, float] = {}
    for piece in work:
        seconds = max(piece.bytes / bytes_per_second, piece.flops / flops_per_second)
        total[piece.what] = total.get(piece.what, 0.0) + 1e3 * seconds
    return total | {"total": sum(total.values())}


# Medians, their exact intervals, and ratios of steps that took turns.


def median_interval(values: Sequence[float], confidence: float = 0.95) -> dict[str, Any]:
    """The median and its exact distribution-free interval, from order statistics.

    Between the k-th smallest and the k-th largest of n values lies the true median with
    probability 1 - 2 P(Bin(n, 1/2) < k), whatever the distribution; k is the largest for which
    that is at least `confidence`. Of too few values all are taken, and what they cover is said.
    """
    ordered, n = sorted(values), len(values)
    below = [math.comb(n, k) / 2**n for k in range(n + 1)]
    low, tail = 0, below[0]  # tail: P(Bin <= low)
    while 2 * (tail + below[low + 1]) <= 1 - confidence:
        low += 1
        tail += below[low]
    return {
        "median": float(statistics.median(ordered)),
        "low": float(ordered[low]),
        "high": float(ordered[n - 1 - low]),
        "confidence": round(max(1 - 2 * tail, 0.0), 4),
        "blocks": n,
    }


def paired_ratio(over: Sequence[float], under: Sequence[float]) -> dict[str, Any]:
    """Median of the ratios of pairs, with its interval."""
    return median_interval([a / b for a, b in zip(over, under, strict=True)])


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, quartiles and the least of some values."""
    if len(values) > 1:
        first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    else:
        first = third = values[0]
    return {
        "median": float(statistics.median(values)),
        "first_quartile": float(first),
        "third_quartile": float(third),
        "least": float(min(values)),
        "steps": len(values),
    }


Findings = dict[str, Any]
Say = Callable[[str], None]
RIVALS: dict[str, Opener] = {"loop": open_loop, "vmap": open_vmap, "opacus": open_opacus}


@dataclass(slots=True)
class Session:
    """The plain arm and what has been found beside it so far."""

    options: BenchOptions
    device: torch.device
    say: Say
    save: Callable[[Findings], None]
    timer: Timer = field(init=False)
    machine: Machine = field(init=False)
    batches: Batches = field(init=False)
    step_flops: float = field(init=False)
    plain: Arm = field(init=False)
    plain_row: Row = field(init=False)
    plain_ms: list[float] = field(default_factory=list)
    plain_laps: list[list[Lap]] = field(default_factory=list)
    findings: Findings = field(default_factory=dict)

    def run(self) -> Findings:
        """Measure everything that was asked for."""
        self._open()
        self._open_plain()
        for mode in self.options.modes:
            self._attempt(mode, partial(self._mode, mode))
        if self.options.hand:
            self._attempt("hand", self._hand)
        ms = self._plain_median()
        if self.options.rivals:
            del self.plain
            for name, opener in RIVALS.items():
                self._attempt(name, partial(self._rival, opener, ms))
        self.findings["complete"] = True
        self.save(self.findings)
        return self.findings

    def _open(self) -> None:
        options = self.options
        self.timer = Timer(self.device)
        self.machine = measure_machine(self.device, options.dtype, options.peak_tflops)
        self.say(
            f"{self.machine.name}: copies {self.machine.copy_bytes_per_second / 1e9:,.0f} GB/s, "
            f"multiplies {self.machine.matmul_flops_per_second / 1e12:,.2f} TFLOP/s"
        )
        self.batches = open_batches(options, self.device)
        model = open_model(options, torch.device("meta"))
        flops = count_flops(model, PRESETS[options.model], options.batch, options.seq_len)
        self.step_flops = flops.step
        self.findings = {
            "complete": False,
            "environment": describe_environment(),
            "device": asdict(self.machine),
            "options": options.to_json(),
            "parameters": sum(p.numel() for p in model.parameters()),
            "flops_per_step": flops.step,
            "arms": {},
        }

    def _open_plain(self) -> None:
        start, held = time.perf_counter(), self.timer.held()
        self.say("plain: building and warming up")
        self.plain = open_arm(self.options, None, self.batches, self.device)
        spent = warm_up(self.plain, LEAST_WARMUP_STEPS, self.timer)
        self.plain_row = in_a_row(self.plain, self.timer, held)
        found = self._basics(self.plain_row, spent, LEAST_WARMUP_STEPS)
        self._ended("plain", found | self._profiled(self.plain), start)

    def _attempt(self, name: str, measure: Callable[[], Findings]) -> None:
        """An arm that fails leaves its reason, and the others are measured all the same."""
        start = time.perf_counter()
        self.say(f"{name}: building and warming up")
        try:
            found = measure()
        except Exception as error:  # torch has one class for most of what can go wrong
            lines = str(error).strip().splitlines() or [""]
            found = {"error": f"{type(error).__name__}: {lines[0]}"}
        self._ended(name, found, start)

    def _ended(self, name: str, found: Findings, start: float) -> None:
        release(self.device)
        seconds = time.perf_counter() - start
        self.findings["arms"][name] = found | {"seconds_spent": seconds}
        told = found.get("error") or f"{found['ms']['median']:.2f} ms a step"
        self.say(f"{name}: {told} ({seconds:.1f} s)")
        self.save(self.findings)

    def _mode(self, mode: str) -> Findings:
        held = self.timer.held()
        arm = open_arm(self.options, mode, self.batches, self.device)
        return self._beside_plain(arm, held, self.options.warmup_steps) | self._floor(arm, mode)

    def _hand(self) -> Findings:
        held = self.timer.held()
        arm = open_hand(self.options, self.batches, self.device)
        found = self._beside_plain(arm, held, LEAST_WARMUP_STEPS)
        how = f"compiled by {self.options.hand_compile}" if self.options.compile else "eager"
        note = f"{how}; plain runs at {found['ratio']['median']:.1%} of its speed"
        return found | {"note": note}

    def _beside_plain(self, arm: Arm, held: int, warmup_steps: int) -> Findings:
        spent = warm_up(arm, warmup_steps, self.timer)
        row = in_a_row(arm, self.timer, held)
        self.say(f"{arm.name}: warm after {spent:.1f} s; {self.options.steps} turns with plain")
        turns = take_turns(arm, self.plain, self.options.steps, self.timer)
        self.plain_ms += turns.plain_ms
        self.plain_laps += turns.plain_laps
        found = self._basics(row, spent, warmup_steps)
        found |= {
            "ms": spread(turns.ms),
            "plain_ms": spread(turns.plain_ms),
            "ratio": paired_ratio(turns.ms, turns.plain_ms),
            "row_ratio": row.ms / self.plain_row.ms,
            "parts_ms": median_parts(turns.laps),
        }
        if row.peak_bytes is not None and self.plain_row.peak_bytes is not None:
            found["memory_ratio"] = row.peak_bytes / self.plain_row.peak_bytes
        self._plain_median()
        return found | self._speed(found["ms"]["median"]) | self._profiled(arm)

    def _basics(self, row: Row, warm_seconds: float, warmup_steps: int) -> Findings:
        """What steps in a row say."""
        return {
            "ms": spread([row.ms]),
            "row_ms": row.ms,
            "peak_bytes": row.peak_bytes,
            "state_bytes": row.state_bytes,
            "warmup_steps": warmup_steps,
            "warmup_seconds": warm_seconds,
            "compile_seconds": max(warm_seconds - warmup_steps * row.ms / 1e3, 0.0),
            **self._speed(row.ms),
        }

    def _speed(self, ms: float, share: float = 1.0) -> Findings:
        """Tokens a second and MFU of a step that holds this share of the batch."""
        return {
            "tokens_per_second": 1e3 * share * self.options.tokens / ms,
            "mfu": 1e3 * share * self.step_flops / ms / self.machine.peak_flops_per_second,
        }

    def _plain_median(self) -> float:
        """Plain steps of all turns so far, brought up to date in the findings."""
        plain = self.findings["arms"]["plain"]
        if self.plain_ms:
            plain |= {"ms": spread(self.plain_ms), "parts_ms": median_parts(self.plain_laps)}
            plain |= self._speed(plain["ms"]["median"])
        return float(plain["ms"]["median"])

    def _floor(self, arm: Arm, mode: str) -> Findings:
        """What this mode costs at least, in milliseconds and as a ratio to the plain step."""
        options = self.options
        sketch = SketchConfig(mode=mode, dim=options.dim, top_blocks=options.top_blocks)
        work = extra_work(
            arm.model,
            PRESETS[options.model],
            sketch,
            options.batch,
            options.seq_len,
            half=options.dtype == "bfloat16",
            two_sweeps=options.accumulates == "two_sweeps",
        )
        parts = floor_ms(
            work,
            self.machine.copy_bytes_per_second,
            self.machine.matmul_flops_per_second,
        )
        plain = self._plain_median()
        return {"floor_ms": parts, "floor_ratio": (plain + parts["total"]) / plain}

    def _profiled(self, arm: Arm) -> Findings:
        return {"kernels": top_kernels(arm, self.timer)} if self.options.profile else {}

    def _rival(self, opener: Opener, plain_ms: float) -> Findings:
        """A few steps alone on the device; the ratio is of medians, counted by the sample."""
        found = measure_rival(opener, self.options, self.batches, self.timer)
        share = found["num_samples"] / self.options.batch
        ratio = found["ms"] / share / plain_ms
        steps = found.pop("steps")
        found |= {"ms": spread([found["ms"]]) | {"steps": steps}, "ratio": {"median": ratio}}
        if found["peak_bytes"] is not None and self.plain_row.peak_bytes:
            found["memory_ratio"] = found["peak_bytes"] / self.plain_row.peak_bytes
        return found | self._speed(found["ms"]["median"], share)


def run_bench(
    options: BenchOptions, device: torch.device, say: Say, save: Callable[[Findings], None]
) -> Findings:
    """Measure every arm; `say` is told what goes on, `save` is given all that is known so far."""
    return Session(options, device, say, save).run()


# What was found, for a terminal.


COLUMNS = ("ms", "over plain", "extra ms", "floor ms", "memory", "tokens/s", "MFU")
SLOW_LAUNCH = 1.05  # in a row over in turns


def arm_table(findings: dict[str, Any]) -> Table:
    """One row an arm."""
    options, device = findings["options"], findings["device"]
    table = Table(
        title=f"{options['model']}, {options['batch']} x {options['seq_len']} tokens, "
        f"{options['dtype']}, {'compiled' if options['compile'] else 'eager'}, recipe "
        f"{options['recipe']}, on {device['name']}",
        box=SIMPLE_HEAD,
        padding=(0, 1),
    )
    table.add_column("arm", no_wrap=True)
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("where it goes")
    for name, arm in findings["arms"].items():
        if "error" in arm:
            table.add_row(name, *[""] * len(COLUMNS), escape(arm["error"]))
        else:
            table.add_row(name, *_figures(name, arm), escape("; ".join(_words(arm))))
    return table


def footnotes(findings: dict[str, Any]) -> list[str]:
    """What the columns do not say."""
    device = findings["device"]
    notes = [
        f"MFU: of {device['peak_flops_per_second'] / 1e12:,.4g} TFLOP/s ({device['peak_from']})",
        "ratios of modes and hand: median of steps in turns with plain [95 % interval]; of rivals: "
        "of medians, by the sample",
    ]
    for name, arm in findings["arms"].items():
        if "ratio" in arm and "row_ms" in arm:
            slower = arm["row_ms"] / arm["ms"]["median"]
            if slower > SLOW_LAUNCH:
                notes.append(
                    f"{name}: {arm['row_ms']:.2f} ms a step in a row, {slower:.2f} times that in "
                    "turns: launching its work, or the machine's noise, holds it up"
                )
    return notes


def _figures(name: str, arm: dict[str, Any]) -> list[str]:
    ms, ratio = arm["ms"]["median"], arm.get("ratio")
    plain = arm["plain_ms"]["median"] if "plain_ms" in arm else None
    floor = arm["floor_ms"]["total"] if "floor_ms" in arm else None
    return [
        f"{ms:.2f}",
        "1" if name == "plain" else _ratio(ratio),
        "" if plain is None else f"{ms - plain:+.2f}",
        "" if floor is None else f"{floor:.2f} ({arm['floor_ratio']:.3f})",
        _memory(arm),
        f"{arm['tokens_per_second']:,.0f}",
        f"{arm['mfu']:.1%}",
    ]


def _ratio(ratio: dict[str, float] | None) -> str:
    if ratio is None:
        return ""
    if "low" not in ratio:
        return f"{ratio['median']:.3g}"
    return f"{ratio['median']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"


def _memory(arm: dict[str, Any]) -> str:
    if arm["peak_bytes"] is None:
        return ""
    times = f" ({arm['memory_ratio']:.2f})" if "memory_ratio" in arm else ""
    return f"{arm['peak_bytes'] / 2**30:.1f} GiB{times}"


def _words(arm: dict[str, Any]) -> list[str]:
    parts = [f"{part} {ms:.2f}" for part, ms in arm.get("parts_ms", {}).items()]
    return [text for text in (", ".join(parts), arm.get("note", "")) if text]

"""A whole measurement: arms one after another, each in turns with a resident plain one.

What is known is handed to `save` after every arm, so that a run that is cut loses little.
"""

import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from dograph.bench.arms import (
    Arm,
    Row,
    held_bytes,
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
from dograph.bench.rivals import Loop, Opacus, Rival, Vmap, measure_rival
from dograph.config import SketchConfig
from dograph.models.presets import PRESETS
from dograph.stats import median_estimate, median_record
from dograph.train.distributed import describe_environment
from dograph.train.forecast import Work, count_flops, extra_work
from dograph.train.step import Lap, Stopwatch

# Dense bfloat16 TFLOP/s from the makers' data sheets; the longest name that fits counts.
PEAKS = {
    "B200": 2250.0,
    **dict.fromkeys(("GH200", "H200", "H100"), 989.0),
    **dict.fromkeys(("H200 NVL", "H100 NVL"), 835.0),
    "H100 PCIe": 756.0,
    **dict.fromkeys(("A100", "A800"), 312.0),
    **{"L40S": 362.0, "L40": 181.0, "L4": 121.0},
    **{"RTX A6000": 155.0, "RTX 4090": 165.0},
    **{"A10G": 70.0, "A10": 125.0},
}
MACHINE_SECONDS = 0.2  # of each measurement


@dataclass(frozen=True, slots=True)
class Machine:
    """How fast a device is: what it copies, what it multiplies, and what its maker promises."""

    name: str
    copy_bytes_per_second: float  # read and written
    matmul_flops_per_second: float
    peak_flops_per_second: float
    peak_from: str


def measure_machine(device: torch.device, dtype: str, peak_tflops: float | None) -> Machine:
    """Copy and multiply for under a second."""
    on_gpu, watch = device.type == "cuda", Stopwatch(device)

    def per_second(work: Callable[[], object]) -> float:
        def timed(times: int) -> float:
            start = time.perf_counter()
            for _ in range(times):
                work()
            watch.wait()
            return time.perf_counter() - start

        timed(2)
        times = max(int(MACHINE_SECONDS / max(timed(1), 1e-4)), 1)
        return times / timed(times)

    source = torch.zeros(1 << (30 if on_gpu else 26), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = 2 * len(source) * per_second(lambda: target.copy_(source))
    side = 8192 if on_gpu else 512
    kind = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    # Zeros would draw less power than a model's numbers do, and run faster.
    draw = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(side, side, generator=draw, device=device).to(kind) for _ in range(2))
    matmul = 2.0 * side**3 * per_second(lambda: a @ b)
    name = torch.cuda.get_device_name(device) if on_gpu else _processor()
    known = max((part for part in PEAKS if part in name), key=len, default=None)
    peak, origin = matmul, f"measured: a product of {side}^3 in {dtype}"
    if peak_tflops is not None:
        peak, origin = 1e12 * peak_tflops, "--peak-tflops"
    elif on_gpu and dtype == "bfloat16" and known is not None:
        peak, origin = 1e12 * PEAKS[known], "data sheet, dense bfloat16"
    return Machine(name, copy, matmul, peak, origin)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def floor_ms(
    work: Iterable[Work], bytes_per_second: float, flops_per_second: float
) -> dict[str, float]:
    """The least that a mode can cost beyond a plain step: milliseconds by what, and their sum.

    Each piece of work takes bytes / bandwidth or FLOPs / rate, whichever is more, at rates measured
    on this device; nothing is launched, nothing waits, the weights themselves cost nothing. A mode
    whose extra time is near its floor has nothing left to gain.
    """
    total: dict[str, float] = {}
    for piece in work:
        seconds = max(piece.bytes / bytes_per_second, piece.flops / flops_per_second)
        total[piece.what] = total.get(piece.what, 0.0) + 1e3 * seconds
    return total | {"total": sum(total.values())}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, quartiles and the least of some values."""
    first, median, third = np.percentile(values, [25, 50, 75])
    return {
        "median": float(median),
        "first_quartile": float(first),
        "third_quartile": float(third),
        "least": float(min(values)),
        "steps": len(values),
    }


Findings = dict[str, Any]
RIVALS: dict[str, type[Rival]] = {"loop": Loop, "vmap": Vmap, "opacus": Opacus}


@dataclass(slots=True)
class Session:
    """The plain arm and what has been found beside it so far."""

    options: BenchOptions
    device: torch.device
    say: Callable[[str], None]
    save: Callable[[Findings], None]
    watch: Stopwatch = field(init=False)
    machine: Machine = field(init=False)
    batches: Batches = field(init=False)
    plain: Arm = field(init=False)
    plain_row: Row = field(init=False)
    plain_ms: list[float] = field(default_factory=list)
    plain_laps: list[list[Lap]] = field(default_factory=list)
    findings: Findings = field(default_factory=dict)

    def run(self) -> Findings:
        """Measure everything that was asked for."""
        options, self.watch = self.options, Stopwatch(self.device)
        self.machine = measure_machine(self.device, options.dtype, options.peak_tflops)
        self.say(
            f"{self.machine.name}: copies {self.machine.copy_bytes_per_second / 1e9:,.0f} GB/s, "
            f"multiplies {self.machine.matmul_flops_per_second / 1e12:,.2f} TFLOP/s"
        )
        self.batches = open_batches(options, self.device)
        model = open_model(options, torch.device("meta"))
        flops = count_flops(model, PRESETS[options.model], options.batch, options.seq_len)
        self.findings = {
            "complete": False,
            "environment": describe_environment(),
            "device": asdict(self.machine),
            "options": options.to_json(),
            "parameters": sum(p.numel() for p in model.parameters()),
            "flops_per_step": flops.step,
            "arms": {},
        }
        self._measure("plain", self._plain)
        for mode in options.modes:
            self._attempt(mode, partial(self._mode, mode))
        if options.hand:
            self._attempt("hand", self._hand)
        ms = self._plain_median()
        if options.rivals:
            del self.plain
            for name, kind in RIVALS.items():
                self._attempt(name, partial(self._rival, kind, ms))
        self.findings["complete"] = True
        self.save(self.findings)
        return self.findings

    def _attempt(self, name: str, measure: Callable[[], Findings]) -> None:
        """An arm that fails leaves its reason, and the others are measured all the same."""

        def tried() -> Findings:
            try:
                return measure()
            except Exception as error:  # torch has one class for most of what can go wrong
                lines = str(error).strip().splitlines() or [""]
                return {"error": f"{type(error).__name__}: {lines[0]}"}

        self._measure(name, tried)

    def _measure(self, name: str, measure: Callable[[], Findings]) -> None:
        start = time.perf_counter()
        self.say(f"{name}: building and warming up")
        found = measure()
        release(self.device)
        seconds = time.perf_counter() - start
        self.findings["arms"][name] = found | {"seconds_spent": seconds}
        told = found.get("error") or f"{found['ms']['median']:.2f} ms a step"
        self.say(f"{name}: {told} ({seconds:.1f} s)")
        self.save(self.findings)

    def _plain(self) -> Findings:
        held = held_bytes(self.device)
        self.plain = open_arm(self.options, None, self.batches, self.device)
        self.plain_row, found = self._alone(self.plain, held, LEAST_WARMUP_STEPS)
        return found | self._profiled(self.plain)

    def _mode(self, mode: str) -> Findings:
        """A mode beside plain, and what it costs at least, in milliseconds and as a ratio."""
        options, held = self.options, held_bytes(self.device)
        arm = open_arm(options, mode, self.batches, self.device)
        found = self._beside_plain(arm, held, options.warmup_steps)
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
        rates = self.machine.copy_bytes_per_second, self.machine.matmul_flops_per_second
        parts, plain = floor_ms(work, *rates), self._plain_median()
        return found | {"floor_ms": parts, "floor_ratio": (plain + parts["total"]) / plain}

    def _hand(self) -> Findings:
        held = held_bytes(self.device)
        arm = open_hand(self.options, self.batches, self.device)
        found = self._beside_plain(arm, held, LEAST_WARMUP_STEPS)
        how = f"compiled by {self.options.hand_compile}" if self.options.compile else "eager"
        note = f"{how}; plain runs at {found['ratio']['median']:.1%} of its speed"
        return found | {"note": note}

    def _alone(self, arm: Arm, held: int, warmup_steps: int) -> tuple[Row, Findings]:
        """What steps in a row say."""
        warm_seconds = warm_up(arm, warmup_steps, self.watch)
        row = in_a_row(arm, self.watch, held)
        return row, {
            "ms": spread([row.ms]),
            "row_ms": row.ms,
            "peak_bytes": row.peak_bytes,
            "state_bytes": row.state_bytes,
            "warmup_steps": warmup_steps,
            "warmup_seconds": warm_seconds,
            "compile_seconds": max(warm_seconds - warmup_steps * row.ms / 1e3, 0.0),
            **self._speed(row.ms),
        }

    def _beside_plain(self, arm: Arm, held: int, warmup_steps: int) -> Findings:
        row, found = self._alone(arm, held, warmup_steps)
        warm = f"{arm.name}: warm after {found['warmup_seconds']:.1f} s"
        self.say(f"{warm}; {self.options.steps} turns with plain")
        turns = take_turns(arm, self.plain, self.options.steps, self.watch)
        self.plain_ms += turns.plain_ms
        self.plain_laps += turns.plain_laps
        ratios = [a / b for a, b in zip(turns.ms, turns.plain_ms, strict=True)]
        found |= {
            "ms": spread(turns.ms),
            "plain_ms": spread(turns.plain_ms),
            "ratio": median_record(median_estimate(ratios)),
            "row_ratio": row.ms / self.plain_row.ms,
            "parts_ms": median_parts(turns.laps),
        }
        if row.peak_bytes is not None and self.plain_row.peak_bytes is not None:
            found["memory_ratio"] = row.peak_bytes / self.plain_row.peak_bytes
        self._plain_median()
        return found | self._speed(found["ms"]["median"]) | self._profiled(arm)

    def _speed(self, ms: float, share: float = 1.0) -> Findings:
        """Tokens a second and MFU of a step that holds this share of the batch."""
        flops = share * self.findings["flops_per_step"]
        return {
            "tokens_per_second": 1e3 * share * self.options.tokens / ms,
            "mfu": 1e3 * flops / ms / self.machine.peak_flops_per_second,
        }

    def _plain_median(self) -> float:
        """Plain steps of all turns so far, brought up to date in the findings."""
        plain = self.findings["arms"]["plain"]
        if self.plain_ms:
            plain |= {"ms": spread(self.plain_ms), "parts_ms": median_parts(self.plain_laps)}
            plain |= self._speed(plain["ms"]["median"])
        return float(plain["ms"]["median"])

    def _profiled(self, arm: Arm) -> Findings:
        return {"kernels": top_kernels(arm, self.watch)} if self.options.profile else {}

    def _rival(self, kind: type[Rival], plain_ms: float) -> Findings:
        """A few steps alone on the device; the ratio is of medians, counted by the sample."""
        found = measure_rival(kind, self.options, self.batches, self.device)
        share = found["num_samples"] / self.options.batch
        ratio = found["ms"] / share / plain_ms
        steps = found.pop("steps")
        found |= {"ms": spread([found["ms"]]) | {"steps": steps}, "ratio": {"median": ratio}}
        if found["peak_bytes"] is not None and self.plain_row.peak_bytes:
            found["memory_ratio"] = found["peak_bytes"] / self.plain_row.peak_bytes
        return found | self._speed(found["ms"]["median"], share)


COLUMNS = ("ms", "over plain", "extra ms", "floor ms", "memory", "tokens/s", "MFU")
SLOW_LAUNCH = 1.05  # in a row over in turns


def arm_table(findings: Findings) -> Table:
    """What was found, for a terminal: one row an arm."""
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
            continue
        parts = ", ".join(f"{part} {ms:.2f}" for part, ms in arm.get("parts_ms", {}).items())
        words = [text for text in (parts, arm.get("note", "")) if text]
        table.add_row(name, *_figures(name, arm), escape("; ".join(words)))
    return table


def _figures(name: str, arm: Findings) -> list[str]:
    ms, ratio = arm["ms"]["median"], arm.get("ratio", {})
    over = f"{ratio['median']:.3g}" if ratio else ""
    if "low" in ratio:
        over = f"{ratio['median']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"
    memory = "" if arm["peak_bytes"] is None else f"{arm['peak_bytes'] / 2**30:.1f} GiB"
    if memory and "memory_ratio" in arm:
        memory += f" ({arm['memory_ratio']:.2f})"
    return [
        f"{ms:.2f}",
        "1" if name == "plain" else over,
        f"{ms - arm['plain_ms']['median']:+.2f}" if "plain_ms" in arm else "",
        f"{arm['floor_ms']['total']:.2f} ({arm['floor_ratio']:.3f})" if "floor_ms" in arm else "",
        memory,
        f"{arm['tokens_per_second']:,.0f}",
        f"{arm['mfu']:.1%}",
    ]


def footnotes(findings: Findings) -> list[str]:
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

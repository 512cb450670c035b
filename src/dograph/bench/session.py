"""A whole measurement: one arm after another, each next to a plain arm that stays loaded.

The price in a run comes from segments of real training in the order plain, arm, arm, plain: loader
and metrics included. The price in turns comes from single steps that alternate with plain ones.
Results are passed to `save` after every arm, so that an interruption loses one arm at most.
"""

import gc
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from rich.markup import escape
from rich.table import Table

from dograph.bench import arms
from dograph.bench.arms import WARMUP_STEPS, Arm, BenchOptions
from dograph.eval.recorded import number_table
from dograph.sketch.gradients import multiplied
from dograph.stats import median_estimate, median_record
from dograph.train.assembly import open_shape
from dograph.train.distributed import describe_environment, keep_freed_memory
from dograph.train.forecast import Work, count_flops, extra_work
from dograph.train.step import Lap, Stopwatch, milliseconds

Findings = dict[str, Any]
# Dense bfloat16 TFLOP/s from the data sheets; the longest name that matches counts.
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
MACHINE_SECONDS = 0.2  # of each measurement of the machine
TURNS = 30  # at most
IN_A_ROW = 4  # steps
UNTIMED = 2  # alternations before those that are timed
COLUMNS = ("in a run", "in turns", "ms", "extra ms", "floor ms", "memory", "tokens/s", "MFU")


def seconds_of(work: Callable[[], object], times: int, watch: Stopwatch) -> float:
    """Seconds that some calls take; the device is idle before and after."""
    watch.wait()
    start = time.perf_counter()
    for _ in range(times):
        work()
    watch.wait()
    return time.perf_counter() - start


def measure_machine(device: torch.device, dtype: str) -> Findings:
    """Copy bandwidth and matmul rate of a device, in under a second, and its peak."""
    on_gpu, watch = device.type == "cuda", Stopwatch(device)

    def per_second(work: Callable[[], object]) -> float:
        seconds_of(work, 2, watch)
        times = max(int(MACHINE_SECONDS / max(seconds_of(work, 1, watch), 1e-4)), 1)
        return times / seconds_of(work, times, watch)

    source = torch.zeros(1 << (30 if on_gpu else 26), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = 2 * len(source) * per_second(lambda: target.copy_(source))  # read and written
    side = 8192 if on_gpu else 512
    kind = torch.bfloat16 if dtype == "bfloat16" else torch.float32
    # Zeros would draw less power than a model's numbers do, and run faster.
    draw = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(side, side, generator=draw, device=device).to(kind) for _ in range(2))
    matmul = 2.0 * side**3 * per_second(lambda: multiplied(a, b))  # as sketches are
    name = platform.processor() or platform.machine()
    if on_gpu:
        name = torch.cuda.get_device_name(device)
    elif (info := Path("/proc/cpuinfo")).exists():
        named = re.search(r"^model name\s*:\s*(.+)$", info.read_text(), re.MULTILINE)
        name = named[1] if named else name
    known = max((part for part in PEAKS if part in name), key=len, default=None)
    peak, origin = matmul, f"measured: a product of {side}^3 in {dtype}"
    if on_gpu and dtype == "bfloat16" and known is not None:
        peak, origin = 1e12 * PEAKS[known], "data sheet, dense bfloat16"
    return {
        "name": name,
        "copy_bytes_per_second": copy,
        "matmul_flops_per_second": matmul,
        "peak_flops_per_second": peak,
        "peak_from": origin,
    }


def floor_ms(
    work: Iterable[Work], bytes_per_second: float, flops_per_second: float
) -> dict[str, float]:
    """Lower bound of a mode's extra time over a plain step: milliseconds by kind, and their sum.

    Each piece of work takes bytes / bandwidth or FLOPs / rate, whichever is more, at rates measured
    on this device. Kernel launches, waiting and the computation of weights count as free.
    """
    total: dict[str, float] = {}
    for piece in work:
        seconds = max(piece.bytes / bytes_per_second, piece.flops / flops_per_second)
        total[piece.what] = total.get(piece.what, 0.0) + 1e3 * seconds
    return total | {"total": sum(total.values())}


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, quartiles and number of some values."""
    names = ("first_quartile", "median", "third_quartile")
    quartiles = np.percentile(values, [25, 50, 75]).tolist()
    return dict(zip(names, quartiles, strict=True)) | {"steps": len(values)}


def release(device: torch.device) -> None:
    """Free the memory of arms that are gone."""
    gc.unfreeze()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def steps_alone(arm: Arm, watch: Stopwatch, held_before: int) -> Findings:
    """Warm-up steps, compilation included, then some steps in a row, as in a run.

    Between them `gc.freeze()`, as in a run, so that garbage collections are not timed.
    `held_before` is what other arms had allocated when this arm was built and still have: the peak
    minus that is what the arm needs by itself.
    """
    warm_seconds = seconds_of(arm.step, WARMUP_STEPS, watch)
    gc.collect()
    gc.freeze()
    if watch.on_gpu:
        torch.cuda.empty_cache()  # what compiling and choosing kernels has left
        torch.cuda.reset_peak_memory_stats(watch.device)
    ms = 1e3 * seconds_of(arm.step, IN_A_ROW, watch) / IN_A_ROW
    peak = torch.cuda.max_memory_reserved(watch.device) if watch.on_gpu else 0
    return {
        "ms": spread([ms]),
        "row_ms": ms,
        "peak_bytes": peak - held_before if watch.on_gpu else None,
        "warmup_steps": WARMUP_STEPS,
        "warmup_seconds": warm_seconds,
        "compile_seconds": max(warm_seconds - WARMUP_STEPS * ms / 1e3, 0.0),
    }


def take_turns(arm: Arm, plain: Arm, steps: int, watch: Stopwatch) -> None:
    """Time `steps` pairs of steps, each step with its own marks; the order within pairs alternates.

    Nothing waits for the device between steps, so launches that are slower than the kernels can
    overlap with the other arm's step; the steps in a row show them.
    """
    for one in (plain, arm) * UNTIMED:  # memory that was freed since is allocated again
        one.step()
    watch.wait()
    timed: list[tuple[Arm, Lap]] = []
    for turn in range(steps):
        for one in (arm, plain) if turn % 2 else (plain, arm):
            start = watch.mark()
            one.laps.append(one.step())
            timed.append((one, ("step", start, watch.mark())))
    watch.wait()
    for one, whole in timed:
        one.ms.append(milliseconds([whole])["time/step_ms"])


def run_segments(
    arm: Arm, plain: Arm, steps: int, length: int, say: Callable[[str], None]
) -> Findings:
    """`steps` steps of each as in a run, in segments of `length`, with their metrics.

    The figures are medians; the ratio is that of neighbouring segments.
    """
    for one in (plain, arm):  # to where metrics are due, then untimed
        assert one.trainer is not None
        one.segment(length - one.trainer.done % length)
    spent: dict[int, list[float]] = {id(arm): [], id(plain): []}
    host_ms: list[float] = []
    for turn in range(steps // length):
        for one in (arm, plain) if turn % 2 else (plain, arm):
            ms, queued = one.segment(length)
            spent[id(one)].append(ms)
            host_ms += queued if one is arm else []
        say(f"{(turn + 1) * length} of {steps} steps")
    own, other = spent.values()
    ratios = [a / b for a, b in zip(own, other, strict=True)]
    ratio = median_record(median_estimate(ratios))
    return {
        "ratio": ratio | {"half_width": (ratio["high"] - ratio["low"]) / 2},
        "ratios": ratios,
        "ms": statistics.median(own),
        "plain_ms": statistics.median(other),
        "host_ms": statistics.median(host_ms),
        "steps": steps,
        "segment_steps": length,
    }


def median_parts(laps: list[list[Lap]]) -> dict[str, float]:
    """Median milliseconds of every part of a step, by its name."""
    steps, parts = [milliseconds(one) for one in laps], {}
    for name in dict.fromkeys(name for step in steps for name in step):
        part = name.removeprefix("time/").removesuffix("_ms")
        parts[part] = statistics.median(step.get(name, 0.0) for step in steps)
    return parts


class Session:
    """The plain arm, and the results so far."""

    def __init__(
        self,
        options: BenchOptions,
        device: torch.device,
        say: Callable[[str], None],
        save: Callable[[Findings], None],
    ) -> None:
        self.options, self.device, self.say, self.save = options, device, say, save
        self.watch, self.findings = Stopwatch(device), Findings()

    def run(self, *others: Callable[[], None]) -> None:
        """Measure the machine, a plain step, every mode, and what `others` measure."""
        options = self.options
        self.machine = measure_machine(self.device, options.run.train.dtype)
        self.say(
            f"{self.machine['name']}: copies {self.machine['copy_bytes_per_second'] / 1e9:,.0f} "
            f"GB/s, multiplies {self.machine['matmul_flops_per_second'] / 1e12:,.2f} TFLOP/s"
        )
        if self.device.type == "cpu":
            keep_freed_memory()  # as a run does
        with TemporaryDirectory(prefix="dograph-bench-") as folder:
            corpus, run = arms.open_corpus(options, Path(folder)), options.run
            model = open_shape(run, corpus)
            self.findings = {
                "complete": False,
                "environment": describe_environment(),
                "device": self.machine,
                "options": options.to_json(),
                "parameters": sum(p.numel() for p in model.parameters()),
                "flops_per_step": count_flops(model, run.batches.largest, run.data.seq_len).step,
                "arms": {},
            }
            self.say(f"batches: {options.corpus or 'random tokens, no data.corpus is prepared'}")
            for name in ("plain", *options.modes):
                mode = None if name == "plain" else name
                config = options.config(mode)
                data = config.data.model_copy(update={"corpus": str(corpus.directory)})
                place = str(Path(folder) / f"run-{name}")
                config = config.model_copy(update={"data": data, "run": place})
                opened = partial(arms.open_arm, config, self.device)
                self.measure(name, partial(self.beside_plain, name, opened))
            for measure in others:
                measure()
            self.plain.close()
        self.findings["complete"] = True
        self.save(self.findings)

    def measure(self, name: str, measure: Callable[[], Findings]) -> None:
        """Measure an arm; if it fails, keep the reason and go on with the others."""
        start, arms = time.perf_counter(), ("plain", *self.options.modes)
        position = f" ({arms.index(name) + 1} of {len(arms)})" if name in arms else ""
        self.say(f"{name}{position}: building and warming up")
        try:
            result = measure()
        except Exception as error:  # torch has one class for most of what can go wrong
            if name == "plain":  # without it there is nothing to compare with
                raise
            lines = str(error).strip().splitlines() or [""]
            result = {"error": f"{type(error).__name__}: {lines[0]}"}
        release(self.device)
        seconds = time.perf_counter() - start
        self.findings["arms"][name] = result | {"seconds_spent": seconds}
        summary = result.get("error") or f"{result['ms']['median']:.2f} ms a step"
        if "run" in result:
            summary += f", {result['run']['ratio']['median']:.3f} of plain in a run"
        self.say(f"{name}: {summary} ({seconds:.1f} s)")
        self.save(self.findings)

    def beside_plain(self, name: str, opened: Callable[[], Arm]) -> Findings:
        """An arm by itself, then, unless it is the plain one, alternating with the plain one."""
        options, held = self.options, torch.cuda.memory_reserved(self.device)  # CPU: 0
        arm = opened()
        result = steps_alone(arm, self.watch, held)
        if name == "plain":
            self.plain = arm
            return result | self.speed(result["row_ms"])
        warm = f"{name}: warm after {result['warmup_seconds']:.1f} s"
        turns = min(options.steps or TURNS, TURNS)
        if arm.trainer is not None:
            sizes = arms.segments(options.run, result["row_ms"] / 1e3, options.steps)
            self.say(f"{warm}; {sizes[0]} steps of a run, in segments with plain")
            result["run"] = run_segments(
                arm, self.plain, *sizes, lambda at: self.say(f"{name}: {at}")
            )
        self.say(f"{name}: {turns} turns with plain")
        take_turns(arm, self.plain, turns, self.watch)
        median = self.plain_median()
        plain_ms, result["ms"] = self.plain.ms[-turns:], spread(arm.ms)
        ratio = median_estimate([a / b for a, b in zip(arm.ms, plain_ms, strict=True)])
        result |= {
            **self.speed(result["ms"]["median"]),
            "plain_ms": spread(plain_ms),
            "ratio": median_record(ratio),
            "row_ratio": result["row_ms"] / self.findings["arms"]["plain"]["row_ms"],
            "parts_ms": median_parts(arm.laps),
            **self.memory_ratio(result["peak_bytes"]),
        }
        arm.close()
        if name in options.modes:
            work = extra_work(arm.model, options.config(name), options.run.batches.largest)
            rates = ("copy_bytes_per_second", "matmul_flops_per_second")
            least = floor_ms(work, *(self.machine[rate] for rate in rates))
            result |= {"floor_ms": least, "floor_ratio": (median + least["total"]) / median}
        return result

    def memory_ratio(self, peak: int | None) -> Findings:
        plain = self.findings["arms"]["plain"]["peak_bytes"]
        return {"memory_ratio": peak / plain} if peak is not None and plain else {}

    def speed(self, ms: float, share: float = 1.0) -> Findings:
        """Tokens per second and MFU of a step on this share of the batch."""
        flops, run = self.findings["flops_per_step"], self.options.run
        tokens = run.batches.largest * run.data.seq_len
        return {
            "tokens_per_second": 1e3 * share * tokens / ms,
            "mfu": 1e3 * share * flops / ms / self.machine["peak_flops_per_second"],
        }

    def plain_median(self) -> float:
        """Median of all plain steps so far, updated in the findings."""
        plain = self.findings["arms"]["plain"]
        if self.plain.ms:
            plain |= {"ms": spread(self.plain.ms), "parts_ms": median_parts(self.plain.laps)}
            plain |= self.speed(plain["ms"]["median"])
        return float(plain["ms"]["median"])


def arm_table(findings: Findings) -> Table:
    options, device = findings["options"], findings["device"]
    title = (
        f"{options['model']}, {options['batch']} x {options['seq_len']} tokens, "
        f"{options['dtype']}, {'compiled' if options['compile'] else 'eager'}, recipe "
        f"{options['recipe']}, on {device['name']}"
    )
    table = number_table(title, "arm", *COLUMNS, left=("arm",))
    table.add_column("where it goes")
    for name, arm in findings["arms"].items():
        if "error" in arm:
            table.add_row(name, *[""] * len(COLUMNS), escape(arm["error"]))
            continue
        ms, floor = arm["ms"]["median"], ""
        run, over = ("1" if name == "plain" else "" for _ in range(2))
        exact = "{median:.3f} [{low:.3f}, {high:.3f}]"
        if "run" in arm:
            run = exact.format(**arm["run"]["ratio"])
        if "ratio" in arm:  # of a few steps alone there is no interval
            over = (exact if "low" in arm["ratio"] else "{median:.3g}").format(**arm["ratio"])
        if "floor_ms" in arm:
            floor = f"{arm['floor_ms']['total']:.2f} ({arm['floor_ratio']:.3f})"
        memory = "" if arm["peak_bytes"] is None else f"{arm['peak_bytes'] / 2**30:.1f} GiB"
        if memory and "memory_ratio" in arm:
            memory += f" ({arm['memory_ratio']:.2f})"
        parts = ", ".join(f"{part} {ms:.2f}" for part, ms in arm.get("parts_ms", {}).items())
        table.add_row(
            name,
            run,
            over,
            f"{ms:.2f}",
            f"{ms - arm['plain_ms']['median']:+.2f}" if "plain_ms" in arm else "",
            floor,
            memory,
            f"{arm['tokens_per_second']:,.0f}",
            f"{arm['mfu']:.1%}",
            escape("; ".join(text for text in (parts, arm.get("note", "")) if text)),
        )
    return table


def footnotes(findings: Findings) -> list[str]:
    device = findings["device"]
    notes = [
        f"MFU: of {device['peak_flops_per_second'] / 1e12:,.4g} TFLOP/s ({device['peak_from']})",
        "in a run: median ratio to plain of segments of training, loader and metrics included",
        "in turns: median ratio to plain of single steps that alternate, which hides what the host",
        "  needs to launch them; both with 95 % intervals; the other columns are of steps in turns",
    ]
    for name, arm in findings["arms"].items():
        if (run := arm.get("run")) is None:
            continue
        notes.append(
            f"{name}: {run['ratio']['median']:.3f} +- {run['ratio']['half_width']:.3f} of plain in "
            f"a run ({run['steps']} steps in segments of {run['segment_steps']}), "
            f"{run['ms']:.2f} ms a step; plain {run['plain_ms']:.2f}"
        )
        if arm["peak_bytes"] is not None:  # a GPU, which works while the host launches
            host, device_ms = run["host_ms"], arm["ms"]["median"]
            slower = ", so that it waits for the host" if host > device_ms else ""
            notes.append(
                f"  the host launches a step in {host:.2f} ms, the device needs {device_ms:.2f} ms "
                f"for one{slower}"
            )
    return notes

"""A whole measurement: arms one after another, each in turns with a resident plain one.

What is known is handed to `save` after every arm, so that a run that is cut loses little.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch

from dograph.bench.arms import Arm, open_arm, open_model, release
from dograph.bench.batches import Batches, open_batches
from dograph.bench.floor import floor_ms
from dograph.bench.hand import open_hand
from dograph.bench.intervals import paired_ratio, spread
from dograph.bench.machine import Machine, measure_machine
from dograph.bench.options import LEAST_WARMUP_STEPS, BenchOptions
from dograph.bench.profiling import top_kernels
from dograph.bench.rival_opacus import open_opacus
from dograph.bench.rival_vmap import open_vmap
from dograph.bench.rivals import Opener, measure_rival, open_loop
from dograph.bench.timing import Row, Timer, in_a_row, median_parts, take_turns, warm_up
from dograph.models.presets import PRESETS
from dograph.train.environment import describe_environment
from dograph.train.step_work import Setting, count_flops, extra_work
from dograph.train.stopwatch import Lap

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
        setting = Setting(
            num_samples=options.batch,
            num_tokens=options.seq_len,
            half=options.dtype == "bfloat16",
            dim=options.dim,
            top_blocks=options.top_blocks,
            two_sweeps=options.accumulates == "two_sweeps",
        )
        parts = floor_ms(
            extra_work(arm.model, PRESETS[options.model], mode, setting),
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

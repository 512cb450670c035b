"""Equal time: every method beside a baseline that trains for as long as the method takes.

The price of a step is measured in segments of training that alternate with the baseline's, once,
before the runs. The baseline is also trained, to the end of its learning-rate schedule, for 1.05
and 1.12 times as many steps. Between these runs its loss is interpolated, linearly in log(steps):

    difference_s(m) = loss_s(method, N) - loss_s(baseline, m N),   m: time of the method's run

for each seed s. The price is one measurement for all seeds, so its error is shared by them: its
standard error times the slope of the baseline's curve is added to the error over seeds. Steps that
the weights are worth: the g at which the mean loss of the baseline at g N is the method's. A method
pays where g is above m.

OUT/prices.json              milliseconds over the baseline's, segment by segment, by method
OUT/cells/<baseline>-x1.05-s<seed>    the longer runs
OUT/tuning/cells/            runs that choose each method's learning rate
"""

import gc
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from pydantic import TypeAdapter

from dograph import stats
from dograph.bench.arms import WARMUP_STEPS, Arm, open_arm, segments
from dograph.bench.session import release, run_segments
from dograph.compare.arms import Ask
from dograph.compare.cells import Cell, Say
from dograph.compare.findings import CellFindings, Contrast, EqualTime, Findings
from dograph.config import merge, parse_config
from dograph.errors import ConfigError, RunError
from dograph.files import write_json
from dograph.records import read_record
from dograph.stats import METRICS, Estimate
from dograph.train.distributed import keep_freed_memory, pick_device

LENGTHS = (1.05, 1.12)  # of the baseline's longer runs, over N
PRICES = "prices.json"


def with_longer_runs(ask: Ask) -> Ask:
    """With the longer runs of the baseline, as methods that are not compared."""
    if ask.budget != "time":
        return ask
    baseline = ask.methods[0]
    longer = [replace(baseline, label=f"{baseline.label}-x{x:g}", length=x) for x in LENGTHS]
    if taken := {own.label for own in longer} & {method.label for method in ask.methods}:
        raise ConfigError(f"{min(taken)} is a longer run of {baseline.label}; choose another label")
    return replace(ask, methods=(*ask.methods, *longer))


def tuning(ask: Ask) -> Ask:
    """The comparison that chooses learning rates: every method at every rate, on one seed."""
    config = parse_config(merge(ask.config.model_dump(mode="json"), dict(ask.tune)), "--tune")
    if "warmup_steps" not in ask.tune.get("optim", {}):
        warmup = {"warmup_steps": ask.config.warmup_over(config.train.steps)}
        config = config.model_copy(update={"optim": config.optim.model_copy(update=warmup)})
    methods = [
        replace(method.at_rate(rate, config), label=f"{method.label}-lr{rate:g}")
        for method in ask.methods
        for rate in ask.rates
    ]
    ask = replace(ask, config=config, methods=tuple(methods), seeds=(config.seed,))
    return replace(ask, budget="tokens", rates=(), tune={}, out=ask.out / "tuning")


def with_best_rates(ask: Ask, found: Findings, say: Say) -> Ask:
    """Every method at the rate whose mean loss over sources was lowest in that comparison."""
    loss_of = {own.label: own.losses["mean"].mean for own in found.methods if own.losses}
    methods = []
    for method in ask.methods:
        losses = {rate: loss_of.get(f"{method.label}-lr{rate:g}", math.nan) for rate in ask.rates}
        if not any(map(math.isfinite, losses.values())):
            raise RunError(
                f"{method.label} has no finite loss at any of --rates; look at the logs of its "
                f"runs in {ask.out / 'tuning'}"
            )
        best = min(losses, key=lambda rate: (math.isnan(losses[rate]), losses[rate]))
        methods.append(method.at_rate(best, ask.config))
        if len(losses) > 1 and best in (ask.rates[0], ask.rates[-1]):
            say(
                f"warning: the best learning rate of {method.label}, {best:g}, is at the end of "
                "--rates; a wider grid may be fairer"
            )
    return replace(ask, methods=tuple(methods))


def measure_prices(ask: Ask, cells: Sequence[Cell], say: Say) -> dict[str, list[float]]:
    """Time of a step over one of the baseline, by method: a ratio for each pair of segments.

    Steps are the same, 1, if neither needs anything of its samples. A price that cannot be measured
    is missing.
    """
    file = ask.out / PRICES
    prices = read_record(file, TypeAdapter(dict[str, list[float]]).validate_python) or {}
    others = [method for method in ask.methods[1:] if method.length == 1]
    plain = {m.label: [1.0] for m in ask.methods if m.is_planned or not m.built().needs}
    plain = plain if ask.methods[0].label in plain else {}
    first = {cell.method: cell for cell in reversed(cells)}  # of the first seed
    todo = [first[m.label] for m in others if m.label not in prices | plain]
    if not todo:
        return prices | plain
    device, threads = pick_device(ask.config.train.device), torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)  # as in cells
        keep_freed_memory()
    baseline = first[ask.methods[0].label]
    try:
        with TemporaryDirectory(prefix=".prices-", dir=ask.out) as folder:
            with closing(_opened(baseline, folder, device, len(todo))) as other:
                other.segment(WARMUP_STEPS)
                sizes = segments(ask.config, other.segment(2)[0] / 1e3)
                for cell in todo:
                    say(f"price of {cell.method}: training in turns with {baseline.method}")
                    try:
                        prices[cell.method] = _ratios(cell, other, folder, device, sizes)
                    except Exception as error:  # no room for two runs, or a mixer's own
                        why = f"{type(error).__name__}: {error}"
                        say(f"warning: the price of {cell.method} cannot be measured: {why}")
                        continue
                    write_json(file, prices)
                    ratio = stats.mean_estimate(prices[cell.method]).text(".3f")
                    say(f"price of {cell.method}: {ratio} of a step of {baseline.method}")
            del other
            release(device)
    finally:
        torch.set_num_threads(threads)
    return prices | plain


def _ratios(
    cell: Cell, other: Arm, folder: str, device: torch.device, sizes: tuple[int, int]
) -> list[float]:
    """Segments of the cell's run over those of the other run."""
    try:
        with closing(_opened(cell, folder, device)) as arm:
            arm.segment(WARMUP_STEPS)
            gc.collect()
            gc.freeze()  # as a run does once it has settled
            ratios: list[float] = run_segments(arm, other, *sizes, lambda at: None)["ratios"]
            return ratios
    finally:
        release(device)


def _opened(cell: Cell, folder: str, device: torch.device, times: int = 1) -> Arm:
    """The run of a cell, in another folder, and long enough to be timed several times."""
    config = cell.config
    least = WARMUP_STEPS + 2 + times * sum(segments(config, 0.0))
    train = config.train.model_copy(update={"steps": max(config.train.steps, least)})
    log = config.log.model_copy(update={"sinks": []})
    own = {"train": train, "log": log, "run": str(Path(folder) / cell.label)}
    return open_arm(config.model_copy(update=own), device)


@dataclass(frozen=True, slots=True)
class Curve:
    """Losses of the baseline after 1, 1.05 and 1.12 times its steps, for one summary.

    Shapes: N seeds, L lengths.
    """

    length_L: np.ndarray  # over the steps of the comparison
    loss_NL: np.ndarray

    def difference(self, own_N: np.ndarray, time: float, price: Estimate, family: int) -> Estimate:
        """Losses of a method less those of a baseline that takes `time` as long as its own run.

        `price` is that of a step, whose error `time` contains. No value (of 0 seeds) beyond the
        longest run; a method cannot be faster than the baseline, so a time below 1 counts as 1.
        """
        if time > self.length_L[-1]:
            return Estimate(math.nan, num=0)
        at, log_L = math.log(max(time, 1.0)), np.log(self.length_L)
        loss_N = np.array([np.interp(at, log_L, loss_L) for loss_L in self.loss_NL])
        segment = min(int(np.searchsorted(log_L, at, side="right")), len(log_L) - 1)
        rise_L = np.diff(self.loss_NL.mean(axis=0)) / np.diff(log_L)
        freedom = price.num - 1
        error = 0.0  # of the price, in log(time)
        if price.interval is not None:
            half = (price.interval.high - price.interval.low) / 2
            error = half / stats.t_quantile(freedom) / time
        shared = abs(float(rise_L[segment - 1])) * error
        return stats.with_shared_error((own_N - loss_N).tolist(), shared, freedom, family)

    def length_of(self, loss: float) -> float | None:
        """The length after which the mean over seeds is `loss`, cut to the lengths measured.

        None if longer runs were not better, or if there is no loss.
        """
        mean_L = self.loss_NL.mean(axis=0)
        if math.isnan(loss) or not (np.diff(mean_L) < 0).all():
            return None
        return float(np.exp(np.interp(-loss, -mean_L, np.log(self.length_L))))


def with_equal_time(findings: Findings, prices: Mapping[str, list[float]]) -> Findings:
    """The findings, with every method beside the baseline at equal time."""
    cell_of: dict[str, dict[int, CellFindings]] = {own.label: {} for own in findings.methods}
    for cell in findings.finished:
        cell_of[cell.method][cell.seed] = cell
    names = [findings.baseline, *(f"{findings.baseline}-x{length:g}" for length in LENGTHS)]
    others = [label for label in cell_of if label not in names]
    made: dict[str, EqualTime] = {}
    tests: dict[tuple[str, str], Estimate] = {}
    for label in others:
        runs = [cell_of[name] for name in (label, *names)]
        seeds = [seed for seed in findings.seeds if all(seed in own for own in runs)]
        if not seeds or label not in prices:
            continue
        cells = [[own[seed] for own in runs] for seed in seeds]
        price = stats.mean_estimate(prices[label])
        pairs = ((method.seconds, plain.seconds) for method, plain, *_ in cells)
        time = price.value + statistics.fmean(a.plan / b.train for a, b in pairs if a and b)
        length_L = np.array([cell.tokens / cells[0][1].tokens for cell in cells[0][1:]])
        for metric in METRICS:
            loss_NL = np.array([[cell.summaries[metric] for cell in row] for row in cells])
            curve, own_N = Curve(length_L, loss_NL[:, 1:]), loss_NL[:, 0]
            tests[label, metric] = curve.difference(own_N, time, price, len(others))
            if metric == "mean":
                worth = curve.length_of(float(own_N.mean()))
                made[label] = EqualTime(price, time, {}, worth, float(length_L[-1]))
    for metric in METRICS:
        family = [tests.get((label, metric)) for label in others]
        adjusted = stats.holm([test.p_value if test else None for test in family])
        for label, test, p_holm in zip(others, family, adjusted, strict=True):
            if test is not None and test.num:
                over_seeds = (test.value, test.num, test.interval, test.simultaneous, test.p_value)
                contrast = Contrast(*over_seeds, p_holm, None, stats.claim(test, p_holm))
                made[label].differences[metric] = contrast
    methods = [replace(own, equal_time=made.get(own.label)) for own in findings.methods]
    findings = replace(findings, methods=methods)
    return replace(findings, notes=[*findings.notes, *_notes(findings)])


def _notes(findings: Findings) -> Iterator[str]:
    """What a reader of the table must know."""
    lengths = " and ".join(f"{length:g}" for length in LENGTHS)
    yield (
        f"equal time: {findings.baseline} also trained for {lengths} times as many steps, and its "
        "loss after the time that a method takes is interpolated between them; the interval "
        "includes the error of the measured price. A method pays where it is worth more than it "
        "takes"
    )
    for method in findings.methods:
        if (own := method.equal_time) and not own.differences:
            yield (
                f"{method.label} takes {own.time:.2f} times as long, beyond the longest run of "
                f"{findings.baseline}: no difference at equal time"
            )
        elif own and own.time < 1:
            yield f"{method.label} takes {own.time:.3f} times as long, counted as 1: equal steps"

"""From steps and validations to rows of metrics.jsonl, every number named with its unit.

`loss_nats` is the mean negative log likelihood per token, `ppl` its exponential, `bits_per_byte`
the same loss per byte of text. Per source, as the plain mean over sources (`mean`), weighted by
the sources' training tokens (`natural`), and of the worst source (`worst`).
"""

import json
import logging
import math
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import numpy as np
import torch
from torch import Tensor

from dograph.config import RunConfig
from dograph.data.corpus import Corpus, spaced_blocks
from dograph.errors import DographError, RunError, require
from dograph.files import write_text
from dograph.mixers.base import Mixer, read_together
from dograph.train.distributed import World
from dograph.train.run_dir import RunDirectory
from dograph.train.step import StepRecord, milliseconds

Row = dict[str, float]
SUMMARIES = ("mean", "natural", "worst")


def loss_row(prefix: str, nats: float, bytes_per_token: float | None) -> Row:
    """A loss under its three names."""
    row = {f"{prefix}/loss_nats": nats, f"{prefix}/ppl": math.exp(min(nats, 700.0))}
    if bytes_per_token:
        row[f"{prefix}/bits_per_byte"] = nats / bytes_per_token / math.log(2)
    return row


def step_rows(
    records: Sequence[StepRecord], sources: list[str], bytes_per_token: Mapping[str, float | None]
) -> list[Row]:
    """One row a step. What is on the device comes over for all steps together."""
    if not records:
        return []
    loss_NB = torch.stack([record.loss_B for record in records]).double().cpu().numpy()
    weight_NB = torch.stack([record.weight_B for record in records]).double().cpu().numpy()
    norm_N = torch.stack([record.grad_norm for record in records]).tolist()
    source_NB = torch.stack([record.source_B for record in records]).cpu().numpy()
    rows, reported = [], _report_rows(records)
    for n, record in enumerate(records):
        row: Row = {"step": record.step + 1}
        row |= loss_row("train", float(loss_NB[n].mean()), None)
        for s, source in enumerate(sources):
            own_B = source_NB[n] == s
            if own_B.any():
                mean = float(loss_NB[n][own_B].mean())
                row |= loss_row(f"train/{source}", mean, bytes_per_token[source])
        row["train/weighted_loss_nats"] = float((weight_NB[n] * loss_NB[n]).sum())
        row["weights/effective_samples"] = float(1 / (weight_NB[n] ** 2).sum())
        row["optim/lr"] = record.lr
        row["optim/grad_norm"] = norm_N[n]
        rows.append(row | reported[n] | milliseconds(record.laps))
    return rows


def _report_rows(records: Sequence[StepRecord]) -> list[Row]:
    """What the mixer reported, brought over in one transfer; a vector has one entry a domain.

    What it reported of single samples goes to samples.jsonl instead.
    """
    read_together(record.report for record in records)
    reports = [
        {name: value for name, value in record.report.items() if not name.startswith("samples/")}
        for record in records
    ]
    tensors = [v for report in reports for v in report.values() if isinstance(v, Tensor)]
    flat = torch.cat([t.detach().reshape(-1).double() for t in tensors]).tolist() if tensors else []
    numbers, rows = iter(flat), []
    for report in reports:
        row: Row = {}
        for name, value in report.items():
            if not isinstance(value, Tensor):
                row[name] = value
            elif value.dim() == 0:
                row[name] = next(numbers)
            else:
                area, _, quantity = name.partition("/")
                row |= {f"{area}/{j}/{quantity}": next(numbers) for j in range(len(value))}
        rows.append(row)
    return rows


def step_note(row: Mapping[str, float]) -> str:
    """What a row of metrics says in a line: loss, speed, and how many domains weigh how evenly."""
    note = f"loss {row['train/loss_nats']:.3f}  {row['time/tokens_per_second']:,.0f} tokens/s"
    sizes = [x for name, x in row.items() if re.fullmatch(r"domains/\d+/samples", name)]
    if sizes and "weights/entropy_nats" in row:
        note += f"  {sum(x > 0 for x in sizes)} domains, entropy {row['weights/entropy_nats']:.2f}"
    return note


def sample_rows(records: Sequence[StepRecord]) -> list[dict[str, Any]]:
    """Rows of samples.jsonl: what each sample counted, equal weights being 1, and its domain."""
    if not records:
        return []
    read_together(record.report for record in records)
    nowhere = torch.full_like(records[0].weight_B, -1.0)
    found = [record.report.get("samples/domain") for record in records]
    weight_NB = torch.stack([len(record.weight_B) * record.weight_B for record in records])
    domain_NB = torch.stack([x.to(nowhere) if isinstance(x, Tensor) else nowhere for x in found])
    weights, domains = torch.stack([weight_NB, domain_NB]).tolist()  # one transfer
    return [
        {
            "step": record.step + 1,
            "weight": [round(weight, 6) for weight in weight_B],
            "domain": None if domain_B[0] < 0 else [int(domain) for domain in domain_B],
        }
        for record, weight_B, domain_B in zip(records, weights, domains, strict=True)
    ]


# Validation: the mean NLL in nats of each source over held-out tokens.
#
# The blocks are a fixed, evenly spaced choice from each source, so every evaluation of every run on
# a corpus reads the same text, and the losses of two runs can be compared block by block.


def validation_blocks(corpus: Corpus, seq_len: int, most: int) -> dict[str, list[np.ndarray]]:
    """At most `most` blocks of each source; a text shorter than one block is one short block."""
    blocks_of = {}
    for source in corpus.sources:
        strata = [s for s in corpus.validation if s.entry.source == source]
        spaced = spaced_blocks(strata, seq_len, most)
        blocks_of[source] = [stratum.read_block(index, seq_len) for stratum, index in spaced]
        if not any(s.num_blocks(seq_len) for s in strata):
            short = [np.asarray(s.token_N) for s in strata if s.entry.tokens >= 2]
            blocks_of[source] = short[:most]
    return blocks_of


@torch.no_grad()
def validate(
    losses: Callable[[Tensor], Tensor],
    blocks_of: dict[str, list[np.ndarray]],
    at_once: int,
    world: World,
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Loss in nats of each source that has validation text, and of each of its blocks.

    Ranks share the blocks out. Where the model lies in shards they must call `losses` equally
    often, so those with fewer blocks repeat one.
    """
    sums_S2 = torch.zeros(len(blocks_of), 2, dtype=torch.float64)  # nats, predictions
    each = [torch.zeros(len(blocks), dtype=torch.float64) for blocks in blocks_of.values()]
    for s, blocks in enumerate(blocks_of.values()):
        shares = [blocks[rank :: world.size] for rank in range(world.size)]
        batches, done = _batches(shares[world.rank], at_once), 0
        own = each[s][world.rank :: world.size]
        for token_bT in batches:
            loss_b = losses(token_bT).double().cpu()
            own[done : done + len(loss_b)] = loss_b
            done += len(loss_b)
            predictions = token_bT.shape[1] - 1
            sums_S2[s, 0] += loss_b.sum() * predictions
            sums_S2[s, 1] += len(loss_b) * predictions
        if world.shards and blocks:
            most = max(len(_batches(share, at_once)) for share in shares)
            for _ in range(most - len(batches)):
                losses(_batches(blocks[:1], 1)[0])
    # One reduction for all: a block that a rank did not compute is 0 there.
    joined = torch.cat([sums_S2.flatten(), *each])
    sizes = [sums_S2.numel(), *map(len, each)]
    sums, *each = world.total(joined.to(world.device)).cpu().split(sizes)
    found = zip(blocks_of, sums.view(-1, 2).tolist(), strict=True)
    nats = {source: nats / predictions for source, (nats, predictions) in found if predictions}
    return nats, {s: loss_n.tolist() for s, loss_n in zip(blocks_of, each, strict=True)}


def _batches(blocks: list[np.ndarray], at_once: int) -> list[Tensor]:
    """Blocks of equal length stacked `at_once`; one each where lengths differ."""
    batches: list[Tensor] = []
    for first in range(0, len(blocks), at_once):
        rows = [torch.from_numpy(b.astype(np.int64)) for b in blocks[first : first + at_once]]
        alike = len({len(row) for row in rows}) == 1
        batches += [torch.stack(rows)] if alike else [row.unsqueeze(0) for row in rows]
    return batches


def validation_row(step: int, nats: Mapping[str, float], corpus: Corpus) -> Row:
    """Validation losses per source and their three summaries."""
    tokens, bytes_per_token = corpus.tokens_by_source(), corpus.bytes_per_token("validation")
    row: Row = {"step": step}
    for source, value in nats.items():
        row |= loss_row(f"valid/{source}", value, bytes_per_token[source])
    if not nats:
        return row
    total = sum(tokens[source] for source in nats)
    natural = sum(tokens[source] * value for source, value in nats.items()) / total
    worst = max(nats, key=lambda source: nats[source])
    known = {source: size for source in nats if (size := bytes_per_token[source])}
    width = None  # bytes of a token of all text together
    if len(known) == len(nats):
        width = sum(tokens[source] * size for source, size in known.items()) / total
    row |= loss_row("valid/mean", sum(nats.values()) / len(nats), None)
    row |= loss_row("valid/natural", natural, width)
    row |= loss_row("valid/worst", nats[worst], bytes_per_token[worst])
    if width is not None:
        bits = [row[f"valid/{source}/bits_per_byte"] for source in nats]
        row["valid/mean/bits_per_byte"] = sum(bits) / len(bits)
    return row


def read_metrics(path: Path) -> list[Row]:
    """The rows of a metrics file; a line that a kill cut short is left out."""
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


class RunFiles:
    """What a run appends to as it goes: metrics, samples, the domain graph; and its sinks.

    Only the first rank writes, whole lines. Whatever is written of a step is on disk before a
    checkpoint that holds this step, and is cut back to the checkpoint on resume, so a stopped run's
    files are those of one that was never stopped.
    """

    def __init__(self, config: RunConfig, run: RunDirectory, mixer: Mixer, *, main: bool) -> None:
        self.config, self.run, self.main = config, run, main
        self.paths = {"metrics": run.metrics_file}
        if mixer.needs:  # others weigh no sample by what it is
            self.paths["samples"] = run.samples_file
        if mixer.has_domains:
            self.paths["graph"] = run.graph_file
        self._files: dict[str, IO[str]] = {}
        self.sinks: list[Sink] = []

    def open(self, done: int) -> None:
        """Open the files of a run that has made `done` steps."""
        if not self.main:
            return
        for name, path in self.paths.items():
            self._files[name] = open(path, "a", encoding="utf-8")  # noqa: SIM115
        about = (self.run.path, self.run.path.name, self.config.model_dump(mode="json"), done + 1)
        self.sinks = [open_sink(sink, *about) for sink in self.config.log.sinks]

    def write(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append to one of the files, where this rank has it open."""
        if name in self._files:
            self._files[name].write("".join(json.dumps(row) + "\n" for row in rows))
            self._files[name].flush()

    def write_metrics(self, rows: Sequence[Row]) -> None:
        """Append to the metrics, here and in the sinks."""
        self.write("metrics", rows)
        for sink in self.sinks:
            for row in rows:
                sink.log(int(row["step"]), {k: v for k, v in row.items() if k != "step"})

    def sync(self) -> None:
        """Force what was written onto the disk."""
        for file in self._files.values():
            os.fsync(file.fileno())

    def close(self) -> None:
        for file in self._files.values():
            with suppress(OSError):  # what a full disk refused was told when it was written
                file.close()
        for sink in self.sinks:
            sink.close()


# Sinks: other places that metrics go to beside metrics.jsonl. Each is an extra.
#
# All of them write below the run's directory, and nothing leaves the machine unless the user has
# set up the tool to send it: W&B works offline where it knows no account, Trackio fills a local
# database.


PROJECT = "dograph"
Write = Callable[[int, Mapping[str, float]], None]
Backend = tuple[Write, Callable[[], None]]  # takes the metrics of a step; closes

log = logging.getLogger(__name__)


class Sink:
    """Takes metrics step by step; may fail without stopping the run: warns once, takes no more."""

    def __init__(self, name: str, write: Write, finish: Callable[[], None]) -> None:
        self.name, self.write, self.finish = name, write, finish
        self.is_open = True

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if not self.is_open:
            return
        try:
            self.write(step, metrics)
        except Exception as error:
            log.warning(
                "the sink %s failed at step %d and is closed; the run goes on, and metrics.jsonl "
                "has everything: %r",
                *(self.name, step, error),
            )
            self.close()

    def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        try:
            self.finish()
        except Exception as error:
            log.warning("the sink %s could not be closed: %r", self.name, error)


def open_sink(
    name: str, directory: Path, run_name: str, config: dict[str, Any], first_step: int
) -> Sink:
    """Open the sink of this name for a run that will log `first_step` next.

    A first step beyond 1 continues what the run logged before it was interrupted.
    """
    openers = {"tensorboard": _tensorboard, "wandb": _wandb, "trackio": _trackio}
    try:
        return Sink(name, *openers[name](directory, run_name, config, first_step))
    except DographError:
        raise
    except Exception as error:
        raise RunError(
            f"the sink {name} could not be opened: {error}. Fix its settings, or leave it out of "
            "log.sinks; metrics.jsonl is written in any case"
        ) from error


def _tensorboard(directory: Path, name: str, config: dict[str, Any], first_step: int) -> Backend:
    require("tensorboard", "tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    # What an interrupted run logged at later steps than its checkpoint is to be forgotten.
    writer = SummaryWriter(str(directory / "tensorboard"), purge_step=first_step)
    text = f"```json\n{json.dumps(config, indent=2)}\n```"  # shown as Markdown
    writer.add_text(f"{name}/config", text, first_step)

    def write(step: int, metrics: Mapping[str, float]) -> None:
        for key, value in metrics.items():
            writer.add_scalar(key, value, step)

    return write, writer.close


def _wandb(directory: Path, name: str, config: dict[str, Any], first_step: int) -> Backend:
    wandb = require("wandb", "wandb")
    id_file = directory / "wandb" / "run_id"
    if first_step <= 1 or not id_file.is_file():
        id_file.parent.mkdir(parents=True, exist_ok=True)
        write_text(id_file, secrets.token_hex(4))
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        dir=str(directory),
        id=id_file.read_text(),
        name=name,
        config=config,
        resume="allow",
        mode=None if _wandb_is_set_up() else "offline",
        settings=wandb.Settings(console="off"),  # the terminal belongs to our progress display
    )
    # W&B drops what is logged at an earlier step than the last; a metric as the axis may go back.
    run.define_metric("*", step_metric="step")
    return lambda step, metrics: run.log({"step": step, **metrics}), run.finish


def _wandb_is_set_up() -> bool:
    """Whether the user has said where W&B should send a run: otherwise it would ask, and wait."""
    if {"WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"} & os.environ.keys():
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    netrc_files = [Path(os.environ.get("NETRC", "~/.netrc")), Path("~/_netrc")]
    found = [path.expanduser() for path in netrc_files if path.expanduser().is_file()]
    return any(host in path.read_text(errors="replace") for path in found)


def _trackio(directory: Path, name: str, config: dict[str, Any], first_step: int) -> Backend:
    # Read by trackio when it is imported: the only way to choose where its database lies.
    os.environ.setdefault("TRACKIO_DIR", str(directory / "trackio"))
    trackio = require("trackio", "trackio")
    resume = "allow" if first_step > 1 else "never"
    run = trackio.init(project=PROJECT, name=name, config=config, resume=resume, embed=False)
    return lambda step, metrics: run.log(dict(metrics), step=step), run.finish

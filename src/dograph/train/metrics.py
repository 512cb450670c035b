"""The measurements of a run: metrics of its steps, validation losses, and probes.

Metrics carry their unit in their name. `loss_nats` is the mean negative log likelihood per token,
`ppl` its exponential, `bits_per_byte` the same loss per byte of text. Validation has them for each
source, as the plain mean over sources (`mean`), weighted by the sources' training tokens
(`natural`), and for the worst source (`worst`).

metrics.jsonl has a short row per step and a whole one where `is_logged`: a million whole rows would
be gigabytes.

A probe holds the sketches of fixed validation rows under one projection, that of (seed, step 0),
whatever projection the run trains with. So probes can be compared within a run, and across runs of
one seed and model shape. Probing changes nothing: no random number, no gradient, no mode.

Shapes: B samples of a step, b rows at once, N steps or probe rows, T tokens, K sketch, M domains.
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from typing import IO, Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from dograph.choices import TWO_SIDED, Mode
from dograph.config import DEFAULT_DIM, RunConfig
from dograph.data.corpus import Corpus, even_blocks, spaced_blocks
from dograph.domains.graph import DomainGraph
from dograph.files import write_bytes, write_json
from dograph.mixers.base import Mixer, read_together
from dograph.records import Row, unpacked
from dograph.sketch.gradients import undisturbed
from dograph.sketch.projection import Projection
from dograph.sketch.sketcher import Sketcher
from dograph.train.distributed import World
from dograph.train.run_dir import RunDirectory, Sink, open_sink
from dograph.train.step import StepRecord, TrainStep, milliseconds, open_sketcher

Blocks = dict[str, list[np.ndarray]]  # validation tokens by source
NEAREST = 8  # rows named for each domain
AT_ONCE = 16  # probe rows computed together if train.micro_batch_size is not set
SHORT = ("step", "train/loss_nats", "optim/grad_norm")  # in the row of every step
RARE = "weights/fallback"  # in the row of every step where it is not 0
DIGITS = 7  # significant ones, those of a float32, of what is recorded of a step


def loss_row(prefix: str, nats: float, bytes_per_token: float | None) -> Row:
    """A loss under two of its names; `unpacked` adds the perplexity."""
    row = {f"{prefix}/loss_nats": nats}
    if bytes_per_token:
        row[f"{prefix}/bits_per_byte"] = nats / bytes_per_token / math.log(2)
    return row


def step_rows(
    records: Sequence[StepRecord], sources: list[str], bytes_per_token: Mapping[str, float | None]
) -> list[dict[str, Any]]:
    """One whole row per step, `unpacked`; the tensors of all steps go to the host together.

    Vectors of the mixer's report have one entry per domain. Its values per sample go to
    samples.jsonl instead.
    """
    if not records:
        return []
    sizes = [len(record.loss_B) for record in records]
    every = ([getattr(r, name) for r in records] for name in ("loss_B", "weight_B", "source_B"))
    loss_NB, weight_NB, source_NB = (  # lists of arrays: sizes may differ
        [own_B.numpy() for own_B in torch.cat(own).double().cpu().split(sizes)] for own in every
    )
    norm_N = torch.stack([record.grad_norm for record in records]).tolist()
    read_together(report for record in records for report in (record.report, record.noise))
    reports = [
        {name: v for name, v in record.report.items() if not name.startswith("samples/")}
        | dict(record.noise)
        for record in records
    ]
    tensors = [v for report in reports for v in report.values() if isinstance(v, Tensor)]
    flat = [t.detach().reshape(-1).double() for t in tensors]
    parts = torch.cat(flat).cpu().split([len(part) for part in flat]) if flat else ()
    values = (part.view(t.shape).tolist() for part, t in zip(parts, tensors, strict=True))
    rows = []
    for n, record in enumerate(records):
        row: dict[str, Any] = {"step": record.step + 1}
        row["train/loss_nats"] = float(loss_NB[n].mean())
        own = {source: loss_NB[n][source_NB[n] == s] for s, source in enumerate(sources)}
        nats = {source: float(loss_b.mean()) for source, loss_b in own.items() if len(loss_b)}
        known = {source: size for source in nats if (size := bytes_per_token[source])}
        row["train/*/loss_nats"] = nats
        row["train/*/bits_per_byte"] = {s: nats[s] / known[s] / math.log(2) for s in known}
        row["train/weighted_loss_nats"] = float((weight_NB[n] * loss_NB[n]).sum())
        row["weights/effective_samples"] = float(1 / (weight_NB[n] ** 2).sum())
        row["optim/lr"] = record.lr
        row["optim/grad_norm"] = norm_N[n]
        for name, value in reports[n].items():
            row[name] = next(values) if isinstance(value, Tensor) else value
        rows.append(row | milliseconds(record.laps))
    return rows


def is_due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def is_end(config: RunConfig, step: int) -> bool:
    """Whether the run ends here, or did before it was extended: it can be repeated exactly."""
    return step in config.batches.ends


def is_logged(config: RunConfig, step: int) -> bool:
    """Whether everything is recorded of a step (from 1). Stopping and resuming must not matter."""
    intervals = (config.log.every, config.eval.every)
    return is_end(config, step) or any(is_due(step, every) for every in intervals)


def logged(row: dict[str, Any], config: RunConfig, *, whole: bool) -> dict[str, Any]:
    """What is written of a row: everything if `whole` or `is_logged`, else a few numbers."""
    if not whole and not is_logged(config, row["step"]):
        row = {name: row[name] for name in ((*SHORT, RARE) if row.get(RARE) else SHORT)}
    elif isinstance(config.train.batch_size, list):
        row = row | {"train/batch_size": config.batches.size(row["step"] - 1)}
    if not (is_due(row["step"], config.eval.every) or is_end(config, row["step"])):
        row = {name: row[name] for name in row if not name.startswith("noise/*/")}  # slow to change
    return rounded(row)


def rounded(values: dict[str, Any]) -> dict[str, Any]:
    """The same with the digits that are recorded, in nested values too."""
    text, short = json.dumps(values), f"{{:.{DIGITS}g}}"
    result: dict[str, Any] = json.loads(text, parse_float=lambda x: float(short.format(float(x))))
    return result


def graph_row(graph: DomainGraph) -> dict[str, Any]:
    """A line of graph.jsonl: a list for each field of the nodes and of the edges."""
    row = asdict(graph)
    for part in ("nodes", "edges"):
        fields = row[part][0] if row[part] else ()
        row[part] = rounded({name: [one[name] for one in row[part]] for name in fields})
    return row


def step_note(row: Mapping[str, Any]) -> str:
    """A row of metrics in one line: loss, speed, number of domains, entropy of their weights."""
    note = f"loss {row['train/loss_nats']:.3f}  {row['time/tokens_per_second']:,.0f} tokens/s"
    sizes = row.get("domains/samples")
    if sizes and "weights/entropy_nats" in row:
        note += f"  {sum(x > 0 for x in sizes)} domains, entropy {row['weights/entropy_nats']:.2f}"
    return note


def sample_rows(records: Sequence[StepRecord]) -> list[dict[str, Any]]:
    """Rows of samples.jsonl: each sample's weight, in units of 1 / B, and its domain."""
    read_together(record.report for record in records)
    rows = []
    for record in records:
        domain_B, weight_B = record.report.get("samples/domain"), record.weight_B
        relative = [round(weight, 6) for weight in (len(weight_B) * weight_B).tolist()]
        labels = [int(x) for x in domain_B.tolist()] if isinstance(domain_B, Tensor) else None
        rows.append({"step": record.step + 1, "weight": relative, "domain": labels})
    return rows


# Validation: the mean NLL in nats of each source over held-out tokens.
#
# Blocks are evenly spaced in each source, so every evaluation of every run on a corpus reads the
# same text, and the losses of two runs can be compared block by block.


def validation_blocks(corpus: Corpus, seq_len: int, most: int) -> Blocks:
    """At most `most` blocks of each source; a text shorter than one block is one short block."""
    blocks_of = {}
    for source in corpus.sources:
        strata = [s for s in corpus.validation if s.entry.source == source]
        spaced = spaced_blocks(strata, seq_len, most)
        blocks_of[source] = [own.stratum.read_block(own.index, seq_len) for own in spaced]
        if not any(s.num_blocks(seq_len) for s in strata):
            short = [np.asarray(s.token_N) for s in strata if s.entry.tokens >= 2]
            blocks_of[source] = short[:most]
    return blocks_of


@torch.no_grad()
def validate(
    losses: Callable[[Tensor], Tensor], blocks_of: Blocks, at_once: int, world: World
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Loss in nats of each source that has validation text, and of each of its blocks.

    Each rank computes a part of the blocks. With FSDP2 all must call `losses` equally often, so
    those with fewer blocks repeat one.
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
    totals = zip(blocks_of, sums.view(-1, 2).tolist(), strict=True)
    nats = {source: nats / predictions for source, (nats, predictions) in totals if predictions}
    return nats, {s: loss_n.tolist() for s, loss_n in zip(blocks_of, each, strict=True)}


def _batches(blocks: list[np.ndarray], at_once: int) -> list[Tensor]:
    """Stacks of `at_once` blocks; where lengths differ, one block each."""
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
    sizes = [tokens[source] * size for source in nats if (size := bytes_per_token[source])]
    width = sum(sizes) / total if len(sizes) == len(nats) else None  # bytes per token
    row |= loss_row("valid/mean", sum(nats.values()) / len(nats), None)
    row |= loss_row("valid/natural", natural, width)
    row |= loss_row("valid/worst", max(nats.values()), None)
    if width is not None:
        bits = [row[f"valid/{source}/bits_per_byte"] for source in nats]
        row["valid/mean/bits_per_byte"] = sum(bits) / len(bits)
        row["valid/worst/bits_per_byte"] = max(bits)  # perhaps not of the source of largest loss
    return row


class RunFiles:
    """The files that a run appends to (metrics, samples, domain graph) and its sinks.

    Only the first rank writes, whole lines. The rows of a step are on disk before the checkpoint
    of that step, and a resume cuts the files back to its checkpoint, so the files of a stopped run
    are those of one that never stopped.
    """

    def __init__(self, config: RunConfig, run: RunDirectory, mixer: Mixer, *, main: bool) -> None:
        self.config, self.run, self.main = config, run, main
        self.paths = {"metrics": run.metrics_file}
        if mixer.needs:  # other mixers give all samples the same weight
            self.paths["samples"] = run.samples_file
        if mixer.has_domains:
            self.paths["graph"] = run.graph_file
        if config.train.on_spike is not None:
            self.paths["watch"] = run.watch_file
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
        """Append to one of the files; other ranks than the first do nothing."""
        if name in self._files:
            lines = [json.dumps(row, separators=(",", ":")) + "\n" for row in rows]
            self._files[name].write("".join(lines))
            self._files[name].flush()

    def write_metrics(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append to the metrics, here and, under the names of docs/runs.md, in the sinks."""
        self.write("metrics", rows)
        for sink in self.sinks:
            for row in map(unpacked, rows):
                sink.log(row["step"], {k: v for k, v in row.items() if k != "step"})

    def sync(self) -> None:
        """Force what was written onto the disk."""
        for file in self._files.values():
            os.fsync(file.fileno())

    def close(self) -> None:
        for file in self._files.values():
            with suppress(OSError):  # a full disk was reported when the line was written
                file.close()
        for sink in self.sinks:
            sink.close()


class Probes:
    """Takes the probes of a run; none if the mixer needs no sketches."""

    def __init__(self, run: RunDirectory, corpus: Corpus, step: TrainStep) -> None:
        self.run, self.model, self.sources = run, step.loss, corpus.sources
        self.config, self.world, self.mixer = step.config, step.world, step.mixer
        self.sketcher, train, probe = step.sketcher, step.config.train, step.config.probe
        wanted = probe.rows if "sketch" in self.mixer.needs else 0
        self.blocks = even_blocks(corpus, "validation", self.config.data.seq_len, wanted)
        fractions = probe.at if self.blocks else []
        plans = [own for _, own in self.config.batch_plans()]
        self.steps = frozenset(
            own.step_at(round(part * own.counted(own.steps))) for part in fractions for own in plans
        )
        # Checkpointed activations are kept in full here (layers recompute in training mode only).
        saving = train.activation_checkpointing
        self.at_once = 1 if saving else train.micro_batch_size or AT_ONCE

    def take(self, step: int) -> float:
        """Write the probe after `step` steps if it is due and missing; return the seconds taken.

        The caller subtracts them from the training time. Only the first rank computes, except with
        FSDP2, where all must take part.
        """
        main, shards = self.world.is_main, self.world.shards
        if step not in self.steps or not (main or shards):
            return 0.0
        due = int(main and not self.run.probe(step).is_file())
        if not (self.world.agree(due) if shards else due):
            return 0.0
        if self.world.device.type == "cuda":
            torch.cuda.synchronize()  # the last step still runs, and is not part of the probe
        start, how = time.monotonic(), self.config.sketch
        token_NT = torch.from_numpy(np.stack([block.tokens() for block in self.blocks]))
        # The run's kind of projection at step 0; taps cannot take dense ones.
        fixed = Projection(dim=DEFAULT_DIM, kind="rademacher", seed=self.config.seed)
        if how.projection in TWO_SIDED:
            fixed = Projection(dim=how.dim, kind=how.projection, seed=self.config.seed)
        loss_N, sketch_NK = self.sketches(token_NT, "twopass", fixed, 0)
        located = self.located(token_NT, sketch_NK, fixed, step)
        if main:
            file, places = self.run.probe(step), [block.place() for block in self.blocks]
            label_N = torch.full((len(places),), -1) if located is None else located[0].cpu()
            source_N = [self.sources.index(block.stratum.entry.source) for block in self.blocks]
            tensors = {
                "sketch": sketch_NK.bfloat16().cpu(),
                "source": torch.tensor(source_N, dtype=torch.int32),
                "label": label_N.to(torch.int32),
                "loss": loss_N.float().cpu(),
            }
            domains = None if located is None else nearest_rows(*located, places)
            about = {"step": step, "sources": self.sources, "rows": places, "domains": domains}
            self.run.probes.mkdir(exist_ok=True)
            write_bytes(file.with_suffix(".safetensors"), save(tensors))
            write_json(file, about)  # last: with it the probe is complete
        return time.monotonic() - start

    def located(
        self, token_NT: Tensor, sketch_NK: Tensor, fixed: Projection, step: int
    ) -> tuple[Tensor, Tensor] | None:
        """label_N and closeness_NM in the mixer's present domains, None if it has none."""
        if not self.mixer.has_domains:
            return None
        if self.mixer.domains_last:  # its centroids are under the run's own projection
            assert self.sketcher is not None
            own, run_mode = self.sketcher.projection, self.config.sketch.mode
            epoch = own.epoch(max(step - 1, 0))
            if run_mode == "topdown" or epoch or replace(own, refresh="never") != fixed:
                mode: Mode = "twopass" if run_mode == "full" else run_mode
                _, sketch_NK = self.sketches(token_NT, mode, own, epoch)
        finite_N1 = torch.isfinite(sketch_NK).all(dim=1, keepdim=True)
        return self.mixer.locate(torch.where(finite_N1, sketch_NK, 0.0), step)

    def sketches(
        self, token_NT: Tensor, mode: Mode, projection: Projection, step: int
    ) -> tuple[Tensor, Tensor]:
        """Losses and sketches of the rows; in mode head of the output layer alone."""
        how, half = self.config.sketch, self.config.train.half
        mode = "head" if how.mode == "head" else mode
        sketcher = open_sketcher(self.model, self.model.head, how, mode, projection)
        with torch.compiler.set_stance("force_eager"):  # the shapes of probes vary
            looks = sketch_rows(sketcher, token_NT, at_once=self.at_once, step=step, half=half)
            losses, sketches = zip(*looks, strict=True)
        return torch.cat(losses), torch.cat(sketches)


def sketch_rows(
    sketcher: Sketcher, token_NT: Tensor, *, at_once: int, step: int = 0, half: bool = False
) -> Iterator[tuple[Tensor, Tensor]]:
    """Loss and sketch, `at_once` rows at a time; `half` runs the model in bfloat16.

    The model maps tokens to one loss per row. It is left unchanged: no gradients, no random numbers
    (dropout is off), and every layer back in its training or eval mode.
    """
    model, device = sketcher.model, next(iter(sketcher.parameters.values())).device
    with undisturbed(model), torch.enable_grad():
        model.eval()
        for token_bT in token_NT.split(at_once):
            token_bT = token_bT.to(device)
            with ExitStack() as taps:
                with torch.autocast(device.type, torch.bfloat16, enabled=half):
                    taps.enter_context(sketcher.record(token_bT, step))
                    loss_b = model(token_bT)
                result = sketcher.sketch(loss_b, keep=False)
            assert result.sketch_BK is not None
            yield loss_b.detach(), result.sketch_BK


def nearest_rows(
    label_N: Tensor, closeness_NM: Tensor, places: list[dict[str, str | int]]
) -> list[dict[str, Any]]:
    """For each domain, its number of rows and those nearest to its centroid."""
    labels, domains = label_N.tolist(), []
    for domain, closeness_N in enumerate(closeness_NM.T.tolist()):
        own = [n for n, label in enumerate(labels) if label == domain]
        near = sorted(own, key=lambda n: (-closeness_N[n], n))[:NEAREST]
        ids = [{k: places[n][k] for k in ("source", "row", "document")} for n in near]
        domains.append({"domain": domain, "samples": len(own), "nearest": ids})
    return domains

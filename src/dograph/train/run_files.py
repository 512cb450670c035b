"""What a run leaves behind as it goes: metrics, samples, the domain graph, probes; sinks.

Only the first rank writes. Whatever is written of a step is on disk before a checkpoint that
holds this step, and is cut back to the checkpoint on resume, so a stopped run's files are those
of one that was never stopped.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from safetensors.torch import save_file

from dograph.config import RunConfig
from dograph.data.corpus import Corpus
from dograph.data.loader import Loader
from dograph.data.sampler import Sampler
from dograph.errors import NonFiniteError
from dograph.files import write_json
from dograph.train.checkpoint import TrainingState
from dograph.train.metrics import MetricsFile, Row, Sink, open_sink, sample_rows, step_rows
from dograph.train.probes import Probes
from dograph.train.run_dir import RunDirectory
from dograph.train.signals import SignalCollector
from dograph.train.step import StepRecord


class RunFiles:
    """The files of one run in progress, and where else its metrics go."""

    def __init__(
        self,
        config: RunConfig,
        run: RunDirectory,
        corpus: Corpus,
        state: TrainingState,
        collector: SignalCollector,
        *,
        main: bool,
    ) -> None:
        self.config, self.run, self.mixer, self.main = config, run, state.mixer, main
        self.sources = corpus.sources
        self.bytes_per_token = corpus.bytes_per_token("train")
        self.probes = Probes(config, run, corpus, state.model, collector)
        self._files: dict[str, MetricsFile] = {}
        self.sinks: list[Sink] = []

    def open(self, done: int) -> None:
        """Open the files of a run that has made `done` steps."""
        if not self.main:
            return
        self._files["metrics"] = MetricsFile(self.run.metrics_file)
        if self.mixer.needs:  # others weigh no sample by what it is
            self._files["samples"] = MetricsFile(self.run.samples_file)
        if self.mixer.has_domains:
            self._files["graph"] = MetricsFile(self.run.graph_file)
        values, name = self.config.model_dump(mode="json"), self.run.path.name
        self.sinks = [
            open_sink(sink, self.run.path, name, values, done + 1) for sink in self.config.log.sinks
        ]

    def step_rows(self, steps: Sequence[StepRecord]) -> list[Row]:
        """What metrics.jsonl will say of these steps."""
        return step_rows(steps, self.sources, self.bytes_per_token)

    def write_samples(self, steps: Sequence[StepRecord]) -> None:
        """Append the samples of these steps."""
        self._write("samples", sample_rows(steps) if "samples" in self._files else [])

    def write_metrics(self, rows: Sequence[Row]) -> None:
        """Append to the metrics."""
        self._write("metrics", rows)
        for sink in self.sinks:
            for row in rows:
                sink.log(int(row["step"]), {k: v for k, v in row.items() if k != "step"})

    def write_graph(self, step: int) -> None:
        """Append the domain graph after `step` steps, where domains are known."""
        if "graph" in self._files:
            graph = self.mixer.graph(self.sources, step)
            self._write("graph", [] if graph is None else [graph.to_json()])

    def probe(self, step: int) -> float:
        """Take the probe that is due after `step` steps, if one is; return the seconds it took."""
        return self.probes.take(step, main=self.main)

    def sync(self) -> None:
        """Force what was written onto the disk."""
        for file in self._files.values():
            file.sync()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        for sink in self.sinks:
            sink.close()

    def _write(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        if name in self._files:
            self._files[name].write(rows)


# What to say when a loss stops being a number, and what to keep for whoever looks into it.


NAMED = 5  # samples named in the message; the file has them all


def stop_for_nonfinite(
    bad: StepRecord,
    run: RunDirectory,
    corpus: Corpus,
    sampler: Sampler,
    *,
    main: bool,
) -> NoReturn:
    """Save the first bad batch and stop. No update was made from it or after it."""
    number = bad.step + 1  # people count the steps made, as metrics.jsonl does
    # The sampler is a function of the step, so the whole world batch can be read again here.
    batch = Loader(corpus, sampler).load(bad.step, ahead=False)
    ids, loss_B = batch.ids, bad.loss_B.cpu()
    samples = []
    for row in range(len(ids)):
        stratum = sampler.strata[ids.stratum_B[row]]
        document = stratum.document(int(ids.document_B[row]))
        samples.append(
            {
                "source": stratum.entry.source,
                "stratum": stratum.entry.stratum,
                "document": document.index,
                "offset": int(ids.offset_B[row]),
                "input": corpus.manifest.inputs[document.input],
                "line": document.record + 1,
                "loss_nats": float(loss_B[row]),
                "finite": bool(torch.isfinite(loss_B[row])),
            }
        )
    worst = [sample for sample in samples if not sample["finite"]]
    stem = run.path / f"nonfinite-step-{number}"
    if main:
        save_file({"token_BT": batch.token_BT, "loss_B": loss_B}, f"{stem}.safetensors")
        report = {"step": number, "grad_norm": float(bad.grad_norm), "samples": samples}
        write_json(stem.with_suffix(".json"), report)
    if worst:
        sources = ", ".join(sorted({str(sample["source"]) for sample in worst}))
        named = "; ".join(
            f"{s['source']} document {s['document']} ({s['input']} line {s['line']})"
            for s in worst[:NAMED]
        )
        what = f"{len(worst)} of {len(samples)} losses are not finite, from {sources}: {named}"
    else:
        what = f"every loss is finite but the gradient norm is {float(bad.grad_norm)}"
    raise NonFiniteError(
        f"step {number}: {what}. No update was made. The batch is in {stem}.json and "
        f".safetensors. Lower optim.lr, lengthen optim.warmup_steps, or look at these documents."
    )

"""What a run leaves behind as it goes: metrics, samples, the domain graph, probes; sinks.

Only the first rank writes. Whatever is written of a step is on disk before a checkpoint that
holds this step, and is cut back to the checkpoint on resume, so a stopped run's files are those
of one that was never stopped.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from dograph.config import RunConfig
from dograph.data.corpus import Corpus
from dograph.mixers.dograph import DoGraph
from dograph.mixers.dograph_report import domain_graph
from dograph.train.checkpoint import TrainingState
from dograph.train.metrics import MetricsFile, Row, sample_rows, step_rows
from dograph.train.probes import Probes
from dograph.train.run_dir import RunDirectory
from dograph.train.signals import Eyes
from dograph.train.sinks import Sink, open_sink
from dograph.train.step import StepRecord


class RunFiles:
    """The files of one run in progress, and where else its metrics go."""

    def __init__(
        self,
        config: RunConfig,
        run: RunDirectory,
        corpus: Corpus,
        state: TrainingState,
        eyes: Eyes,
        *,
        main: bool,
    ) -> None:
        self.config, self.run, self.mixer, self.main = config, run, state.mixer, main
        self.sources = corpus.sources
        self.bytes_per_token = corpus.bytes_per_token("train")
        self.probes = Probes(config, run, corpus, state.model, eyes)
        self._files: dict[str, MetricsFile] = {}
        self.sinks: list[Sink] = []

    def open(self, done: int) -> None:
        """Open the files of a run that has made `done` steps."""
        if not self.main:
            return
        self._files["metrics"] = MetricsFile(self.run.metrics_file)
        if self.mixer.needs:  # others weigh no sample by what it is
            self._files["samples"] = MetricsFile(self.run.samples_file)
        if isinstance(self.mixer, DoGraph):
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
        if "graph" in self._files and isinstance(self.mixer, DoGraph):
            graph = domain_graph(self.mixer, self.sources, step)
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

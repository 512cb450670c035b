"""A user's own clustering mixer gets all that DoGraph gets: graph, probes, page, lagged weights."""

import json

import pytest
import torch

from corpora import write_corpus
from dograph.config import resolve_config
from dograph.errors import ConfigError
from dograph.eval.recorded import domains_last, explain_step, read_graph
from dograph.integrations.hf import attach
from dograph.mixers.base import Mixer
from dograph.report.domains import domains_of
from dograph.report.series import OpenRun
from dograph.testing import check_mixer
from dograph.train.distributed import World
from dograph.train.run_dir import RunDirectory
from dograph.train.trainer import start_run
from own_domains import NUM, Quadrants
from trainers import DIM, make, stacked

SETTINGS = (
    "data.seq_len=16",
    "model.preset=tiny",
    "train.steps=8",
    "train.batch_size=8",
    "eval.every=4",
    "eval.max_samples_per_source=2",
    "checkpoint.every=4",
    "optim.warmup_steps=2",
    "probe.rows=6",
    "probe.at=[0, 1]",
    "sketch.dim=64",
    "mixer.name=own_domains:Quadrants",
)
LAGGED = ("train.micro_batch_size=4", "sketch.accumulation=lagged")


def test_it_is_a_mixer():
    check_mixer(Quadrants())


@pytest.mark.parametrize("lagged", [False, True])
def test_a_run_keeps_its_domains(tmp_path, lagged):
    corpus, folder = write_corpus(tmp_path / "corpus"), tmp_path / "run"
    given = [f"data.corpus={corpus}", f"run={folder}", *SETTINGS, *(LAGGED if lagged else ())]
    config = resolve_config(None, given)
    start_run(config, World(0, 1, torch.device("cpu"))).train()
    graph = read_graph(folder, None)
    assert graph.step == 8
    assert sum(node.samples for node in graph.nodes) == 8
    assert domains_last(RunDirectory(folder).config())
    run = RunDirectory(folder)
    probe = json.loads(run.probe(8).read_text())
    assert len(probe["domains"]) == NUM
    assert sum(domain["samples"] for domain in probe["domains"]) == len(probe["rows"])
    told = explain_step(folder, 8)
    assert "has domains of its own" in told.reasons[0]
    assert sorted(set(told.domain_B)) == [node.domain for node in graph.nodes]
    opened = OpenRun(folder)
    opened.read()
    page = domains_of(opened, 10)
    assert not page.numbering  # a number is one domain
    assert [drawn.step for drawn in page.graphs] == [4, 8]
    assert {line.name for line in page.lines[0].series} == {f"domain {j}" for j in range(NUM)}
    assert [shown.step for shown in page.probes] == [0, 8]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_trainer_of_transformers_takes_it(tmp_path, accumulation):
    seen = []

    class Watched(Quadrants):
        def observe(self, signals, weight_B):
            seen.append((signals.num_samples, weight_B))
            super().observe(signals, weight_B)

    def collate(batch):
        return stacked(batch) | {"source": torch.tensor([row["source"] for row in batch])}

    trainer = make(
        tmp_path, collator=collate, gradient_accumulation_steps=accumulation, max_steps=3
    )
    with pytest.raises(ConfigError, match="needs the source of every sample"):
        attach(trainer, Watched(), dim=DIM)
    attach(trainer, Watched(), dim=DIM, sources="source")
    trainer.train()
    assert len(seen) == 3
    assert all(len(weight_B) == num for num, weight_B in seen)
    assert any("weights/effective_samples" in row for row in trainer.state.log_history)


def test_a_mixer_that_cannot_lag_is_refused_before_training(tmp_path):
    class Whole(Quadrants):
        weigh_lagged = Mixer.weigh_lagged

    with pytest.raises(ConfigError, match="Whole would have to weigh micro-batches"):
        attach(make(tmp_path, gradient_accumulation_steps=2), Whole(), sources="source")

"""A whole training step fits in the head: how many files it enters, with the logging of it."""

import sys
from pathlib import Path

import torch

import dograph
from corpora import write_corpus
from dograph.config import resolve_config
from dograph.train.distributed import World
from dograph.train.metrics import sample_rows, step_rows
from dograph.train.trainer import start_run

SOURCE = Path(dograph.__file__).parent
FEWER_THAN = 18  # files
WARM_UP = 12  # steps, by which domains are known and everything is built
SETTINGS = (
    "data.seq_len=16",
    "model.preset=tiny",
    "train.batch_size=8",
    "train.steps=40",
    "sketch.mode=full",
    "sketch.dim=64",
    "mixer.name=dograph",
    "mixer.num_domains=3",
    "probe.rows=0",
)


def test_a_step_and_its_log_enter_few_files(tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    place = (f"data.corpus={corpus}", f"run={tmp_path / 'run'}")
    world = World(rank=0, size=1, device=torch.device("cpu"))
    trainer = start_run(resolve_config(None, [*place, *SETTINGS]), world)
    loader = trainer.open_loader()
    trainer.files.open(0)
    for _ in range(WARM_UP):
        trainer.advance(loader)
    batch = loader.load(WARM_UP, ahead=False)
    entered = set()

    def note(frame, event, _):
        if event == "call":
            path = Path(frame.f_code.co_filename)
            if path.is_relative_to(SOURCE):
                entered.add(str(path.relative_to(SOURCE)))

    sys.setprofile(note)
    try:
        record = trainer.step(batch, WARM_UP)
        rows = step_rows([record], trainer.corpus.sources, trainer.bytes_per_token)
        trainer.files.write("samples", sample_rows([record]))
        trainer.files.write_metrics(rows)
    finally:
        sys.setprofile(None)
        trainer.files.close()
        loader.close()
    assert {"train/step.py", "sketch/sketcher.py", "mixers/dograph.py"} <= entered
    assert len(entered) < FEWER_THAN, sorted(entered)

"""A run whose regions are compiled: once each, for training alone, as its mode needs it."""

import functools
from unittest import mock

import pytest
import torch

from corpora import write_corpus
from dograph.config import resolve_config
from dograph.models.loss import regions
from dograph.sketch.rules import Rule
from dograph.train.trainer import start_run
from tiny_steps import ALONE, SETTINGS

RUN = (
    "train.compile=true",
    "train.micro_batch_size=3",
    "eval.max_samples_per_source=4",
    "probe.rows=5",
)


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c")


def refused(graph, inputs):
    raise AssertionError("a region ran compiled")


def compiled_run(corpus, folder, *options):
    """By a backend that refuses to; and what was given to torch.compile."""
    place = (f"data.corpus={corpus}", f"run={folder / 'run'}")
    config = resolve_config(None, [*place, *SETTINGS, *RUN, *options])
    tracing = mock.Mock(side_effect=functools.partial(torch.compile, backend=refused))
    with mock.patch.object(torch, "compile", tracing):
        return start_run(config, ALONE), tracing


def test_validation_and_probes_run_as_written(corpus, tmp_path):
    trainer, tracing = compiled_run(corpus, tmp_path)
    assert tracing.called
    trainer.files.open(0)
    trainer.write_validation()
    assert trainer.probes.take(0) > 0
    trainer.files.close()


def test_regions_are_compiled_once(corpus, tmp_path):
    trainer, tracing = compiled_run(corpus, tmp_path)
    parts = list(regions(trainer.state.model))
    compiled = [call.args[0] for call in tracing.call_args_list]
    own = [f for f in compiled if not isinstance(f.__self__, Rule)]  # taps are compiled as well
    assert len(own) == len(parts)
    assert all(f.__self__ is part for f, part in zip(own, parts, strict=True))

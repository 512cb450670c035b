"""What cannot be attached to a Trainer is refused by name, with what to do."""

import pytest
import torch
from accelerate.utils import DistributedType
from transformers import Trainer, TrainingArguments

from dograph.errors import ConfigError
from dograph.integrations.hf import attach
from dograph.mixers.base import Mixer
from dograph.mixers.dograph import DoGraph
from dograph.mixers.fixed import Uniform
from trainers import DIM, Softest, build, dograph, losses, make, stacked


def subclassed(tmp_path):
    class Own(Trainer):
        def compute_loss(self, *args, **kwargs):
            raise AssertionError

    return Own(build(), TrainingArguments(str(tmp_path), use_cpu=True, report_to=[]))


def with_loss(tmp_path):
    trainer = make(tmp_path)
    trainer.compute_loss_func = losses
    return trainer


def attached(tmp_path):
    trainer = make(tmp_path)
    attach(trainer, Mixer())
    return trainer


class Referring(Mixer):
    needs = frozenset({"reference_loss"})


class Sourced(Mixer):
    needs = frozenset({"source"})


@pytest.mark.parametrize(
    ("make_trainer", "mixer", "options", "said"),
    [
        (subclassed, dograph(), {}, "Own has a compute_loss of its own"),
        (with_loss, dograph(), {}, "has a compute_loss_func already"),
        (attached, dograph(), {}, "has a mixer attached already"),
        (make, dograph(), {"mode": "full"}, "mode='full' is not known here"),
        (make, dograph(), {"mode": "head", "exclude": ("lm_head",)}, "sketches the output layer"),
        (make, Uniform(), {}, "Uniform decides what to draw"),
        (make, DoGraph("safe", apply_weights_to="sampling"), {}, "decides what to draw"),
        (make, Referring(), {}, "reference_loss"),
        (make, Sourced(), {}, "to the input that holds it"),
    ],
)
def test_what_cannot_be_attached_is_refused_by_name(tmp_path, make_trainer, mixer, options, said):
    with pytest.raises(ConfigError, match=said):
        attach(make_trainer(tmp_path), mixer, **options)


@pytest.mark.parametrize(
    ("settings", "mixer", "options", "said"),
    [
        ({"label_smoothing_factor": 0.1}, dograph(), {}, "label_smoothing_factor=0.1"),
        ({"auto_find_batch_size": True}, dograph(), {}, "auto_find_batch_size"),
        ({"gradient_accumulation_steps": 2}, DoGraph("paper"), {}, "scope=stream or period"),
        ({}, DoGraph(keep_source_shares=True), {}, "DoGraph needs the source of every sample"),
        (
            {"gradient_accumulation_steps": 2},
            DoGraph("safe", keep_source_shares=True),
            {},
            "set mixer.keep_source_shares=false",
        ),
        ({"gradient_accumulation_steps": 2}, Softest(), {}, "Softest would have to weigh"),
        ({"remove_unused_columns": True}, dograph(), {"sources": "s"}, "remove_unused_columns"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(tmp_path, settings, mixer, options, said):
    with pytest.raises(ConfigError, match=said):
        attach(make(tmp_path, **settings), mixer, **options)


@pytest.mark.parametrize(
    ("owner", "name", "value", "said"),
    [
        ("args", "fp16", True, "use bf16=True"),
        ("args", "_n_gpu", 2, "2 GPUs in one process"),
        ("state", "distributed_type", DistributedType.FSDP, r"sharded over processes \(FSDP\)"),
        ("trainer", "model", torch.nn.Linear(2, 2), "Linear is not a causal language model"),
    ],
)
def test_what_this_machine_lacks_is_refused_by_name(
    tmp_path, monkeypatch, owner, name, value, said
):
    trainer = make(tmp_path)
    owners = {"args": trainer.args, "state": trainer.accelerator.state, "trainer": trainer}
    monkeypatch.setattr(owners[owner], name, value)
    with pytest.raises(ConfigError, match=said):
        attach(trainer, dograph())


def test_a_batch_without_labels_or_sources_is_refused(tmp_path):
    trainer = make(tmp_path, collator=lambda batch: {"input_ids": stacked(batch)["input_ids"]})
    attach(trainer, dograph(), dim=DIM)
    with pytest.raises(ConfigError, match="no labels"):
        trainer.train()
    trainer = make(tmp_path)
    attach(trainer, dograph(), dim=DIM, sources="source")
    with pytest.raises(ConfigError, match="no source, only"):
        trainer.train()

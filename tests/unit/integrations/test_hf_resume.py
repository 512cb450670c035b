"""A Trainer with a mixer that stops and goes on."""

import json

import pytest
import torch

from dograph.errors import RunError
from dograph.integrations.hf import attach
from dograph.mixers.dograph import DoGraph
from trainers import DIM, build, dograph, furthest, make, parameters


@pytest.mark.parametrize(("accumulation", "at"), [(1, 11), (2, 11)])
def test_a_resumed_run_is_the_uninterrupted_one_to_the_bit(tmp_path, accumulation, at):
    """The domains are found in step 10: they, and the last ten batches, come back."""
    settings = {
        "gradient_accumulation_steps": accumulation,
        "save_strategy": "steps",
        "save_steps": at,
        "max_steps": at + 3,
    }
    whole = make(tmp_path / "run", build(dropout=0.1), **settings)
    attach(whole, dograph(), dim=DIM)
    whole.train()
    folder = tmp_path / "run" / f"checkpoint-{at}"
    resumed = make(tmp_path / "run", build(dropout=0.1, seed=5), **settings)
    attach(resumed, dograph(), dim=DIM)
    resumed.train(resume_from_checkpoint=str(folder))
    assert furthest(parameters(resumed.model), parameters(whole.model)) == 0.0
    meters = [trainer.training_step.__self__.noise for trainer in (whole, resumed)]
    assert torch.equal(meters[0].state_R9, meters[1].state_R9)
    assert json.loads((folder / "dograph_mixer.json").read_text())["step"] == at


def test_a_longer_run_keeps_the_warm_up_of_its_start(tmp_path):
    mixers = [DoGraph("safe", num_domains=3, warmup_ratio=0.5) for _ in range(2)]
    settings = {"save_strategy": "steps", "save_steps": 2}
    for mixer, steps in zip(mixers, (2, 4), strict=True):
        trainer = make(tmp_path, max_steps=steps, **settings)
        attach(trainer, mixer, mode="head", dim=DIM)
        trainer.train(resume_from_checkpoint=steps > 2)
        assert mixer.warmup_steps == 1


def test_a_checkpoint_without_the_mixer_is_refused(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
    make(tmp_path, **settings).train()
    trainer = make(tmp_path, **settings)
    attach(trainer, dograph(), dim=DIM)
    with pytest.raises(RunError, match=r"checkpoint-4 has no complete state of a mixer"):
        trainer.train(resume_from_checkpoint=True)


def test_a_damaged_state_is_refused(tmp_path):
    trainer = make(tmp_path, save_strategy="steps", save_steps=2, max_steps=2)
    attach(trainer, dograph(), dim=DIM)
    trainer.train()
    path = tmp_path / "checkpoint-2" / "dograph_mixer.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match="damaged"):
        trainer.train(resume_from_checkpoint=str(path.parent))

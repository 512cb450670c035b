"""A mixer inside a Trainer of several processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from trainers import furthest

SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, {here!r})
from safetensors.torch import save_file
from dograph.integrations.hf import attach
from trainers import dograph, make, parameters, rows
world = int(sys.argv[1])
for accumulation in (1, 2):
    for mode in ("twopass", "head"):
        for resume in (False, True):
            folder = Path(sys.argv[2]) / f"{{mode}}-{{accumulation}}"
            trainer = make(
                folder, dataset=rows(32), gradient_accumulation_steps=accumulation,
                per_device_train_batch_size=4 // world, save_strategy="steps", save_steps=11,
            )
            attach(trainer, dograph(), mode=mode, dim=80)
            trainer.train(resume_from_checkpoint=str(folder / "checkpoint-11") if resume else None)
            if trainer.is_world_process_zero():
                name = f"{{folder.name}}{{'-resumed' if resume else ''}}.safetensors"
                save_file(parameters(trainer.model), folder.with_name(name))
"""


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path):
    """DDP through the Trainer: the same world batches, the same weights; resuming is exact."""
    script = tmp_path / "run.py"
    script.write_text(SCRIPT.format(here=str(Path(__file__).parents[2])))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for world, arguments in ((1, []), (2, launch)):
        (tmp_path / str(world)).mkdir()
        subprocess.run(
            [sys.executable, *arguments, str(script), str(world), str(tmp_path / str(world))],
            check=True,
            env=environment,
            timeout=280,
        )
    for path in sorted((tmp_path / "1").glob("*[12].safetensors")):
        one, two = load_file(path), load_file(tmp_path / "2" / path.name)
        assert furthest(two, one) < 1e-6, path.name
        for world, whole in ((1, one), (2, two)):
            resumed = load_file(tmp_path / str(world) / f"{path.stem}-resumed.safetensors")
            assert furthest(resumed, whole) == 0.0, path.name

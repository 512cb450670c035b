"""Run directories with probes of a known answer, written by hand."""

import json

import torch
from safetensors.torch import save_file

from dograph.config import resolve_config
from dograph.train.run_dir import RunDirectory

SOURCES = ["alpha", "beta", "gamma"]


def write_run(path, apart_of, *, rows=(9, 8, 10), seed=0, width=30, sources=SOURCES):
    """A run with probes of Gaussian sources, `apart_of[step]` from each other."""
    (path / "probes").mkdir(parents=True)
    (path / "config.yaml").write_text(resolve_config("planted", []).dump())
    generator = torch.Generator().manual_seed(seed)
    source_N = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(rows))
    base_NK = torch.randn(len(source_N), width, generator=generator)
    for step, apart in apart_of.items():
        noise_NK = torch.randn(len(source_N), width, generator=generator)
        sketch_NK = 0.8 * base_NK + 0.6 * noise_NK + apart * torch.eye(3, width)[source_N]
        tensors = {
            "sketch": sketch_NK.bfloat16(),
            "source": source_N.int(),
            "label": torch.full_like(source_N, -1).int(),
            "loss": torch.ones(len(source_N)),
        }
        file = RunDirectory(path).probe(step)
        save_file(tensors, file.with_suffix(".safetensors"))
        places = [{"row": n} for n in range(len(source_N))]
        about = {"step": step, "sources": sources, "rows": places, "domains": None}
        file.write_text(json.dumps(about))
    return path

"""What a run ran on: versions, machine, devices."""

import os
import platform
import sys
from importlib.metadata import version

import torch

from dograph import __version__

LIBRARIES = ("torch", "transformers", "tokenizers", "safetensors", "numpy", "pydantic")


def describe_environment() -> dict[str, object]:
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "dograph": __version__,
        "python": platform.python_version(),
        "libraries": {name: version(name) for name in LIBRARIES},
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "gpus": gpus,
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        "command": sys.argv[1:],
    }

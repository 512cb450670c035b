"""Kernels without a GPU: a test file run as a program under Triton's interpreter."""

import os
import subprocess
import sys

import torch


def interpreted_results(test_file, folder, *args):
    """What the file's `main` saves when every kernel is interpreted."""
    saved = folder / "found.pt"
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run(
        [sys.executable, test_file, str(saved), *args], check=True, env=environment, timeout=200
    )
    return torch.load(saved)

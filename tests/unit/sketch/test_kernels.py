"""Triton kernels and their plain twins: the same numbers, on a GPU or in Triton's interpreter."""

import os
import subprocess
import sys

import pytest
import torch

pytest.importorskip("triton")

pytestmark = pytest.mark.slow

CHECK = """
import torch
from dograph.sketch.gradients import scaled_plainly
from dograph.kernels.gradients import scaled_by_kernel
from dograph.sketch.projection import epoch_key, signs_plainly, start_words, words
from dograph.kernels.projection import signs_by_kernel

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
generator = torch.Generator().manual_seed(0)
for dtype in (torch.bfloat16, torch.float32):
    for shape in ((3, 5, 7), (2, 40, 128), (1, 1, 1)):
        value = torch.randn(shape, generator=generator).to(device, dtype)
        times_B = torch.rand(shape[0], generator=generator).to(device)
        got, expected = scaled_by_kernel(value, times_B), scaled_plainly(value, times_B)
        # The interpreter cuts bfloat16 off where hardware rounds: one place in the last digit.
        room = 2.0**-7 if dtype == torch.bfloat16 and device.type == "cpu" else 0.0
        assert got.dtype == dtype
        torch.testing.assert_close(got, expected, rtol=room, atol=0.0)
start_W = start_words([3, 1 << 63, 77], [70, 1, 5], device)
for epoch in (0, 1, 1000):
    for dtype in (torch.bfloat16, torch.float32):
        got = signs_by_kernel(start_W, epoch_key(9, epoch), 0.125, dtype)
        assert torch.equal(got, signs_plainly(words(start_W, 9, epoch), 0.125, dtype)), epoch
print("equal")
"""


def test_kernels_equal_their_twins():
    interpreted = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CHECK],
        env={**os.environ, **interpreted},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "equal", done.stderr

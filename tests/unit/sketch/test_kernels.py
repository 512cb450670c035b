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

from torch.nn.functional import cross_entropy
from dograph.kernels.cross_entropy import CrossEntropy, error_by_kernel, nll_by_kernel
from dograph.sketch.rules import hashed

for dtype in (torch.float16, torch.float32):
    for tokens, size, vocab in ((5, 37, 30), (140, 300, 300), (3, 5000, 4990)):
        logits_NV = (4 * torch.randn(tokens, size, generator=generator)).to(device, dtype)
        target_N = torch.randint(vocab, (tokens,), generator=generator).to(device)
        target_N[1] = -100
        grad_N = torch.rand(tokens, generator=generator).to(device)
        sign_V = torch.randint(2, (size,), generator=generator, dtype=torch.int8) * 2 - 1
        hashing = sign_V.to(device), 20
        wide_NV = logits_NV.double().requires_grad_()
        expected_N = cross_entropy(wide_NV[:, :vocab], target_N, reduction="none")
        expected_N.backward(grad_N.double())
        nll_N, norm_N = nll_by_kernel(logits_NV, target_N, vocab)
        torch.testing.assert_close(nll_N, expected_N.float(), rtol=1e-5, atol=1e-5)
        for given in (None, hashing):
            known = (norm_N, grad_N, vocab, given)
            error_NV, hash_Nq = error_by_kernel(logits_NV, target_N, *known)
            room = 2e-3 if dtype == torch.float16 else 1e-4
            torch.testing.assert_close(error_NV, wide_NV.grad.to(dtype), rtol=room, atol=1e-6)
            assert given is not None or hash_Nq is None
        expected_Nq = hashed(error_NV[None], *hashing)[0]
        torch.testing.assert_close(hash_Nq, expected_Nq, rtol=2e-3, atol=1e-5)
        given_NV, wide_NV = logits_NV.clone().requires_grad_(), wide_NV.detach().requires_grad_()
        CrossEntropy.apply(given_NV, target_N, vocab, None).sum().backward()  # one number, expanded
        cross_entropy(wide_NV[:, :vocab], target_N, reduction="sum").backward()
        torch.testing.assert_close(given_NV.grad, wide_NV.grad.to(dtype), rtol=room, atol=1e-6)

# A block of masked logits before the others, and a target in the padding.
logits_NV = torch.randn(2, 5000, generator=generator).to(device)
logits_NV[0, :4096] = -torch.inf
target_N = torch.tensor([4500, 4995], device=device)
nll_N, _ = nll_by_kernel(logits_NV, target_N, 4990)
logits_NV[:, 4990:] = -torch.inf
torch.testing.assert_close(nll_N, cross_entropy(logits_NV, target_N, reduction="none"))
print("equal")
"""


WHOLE = """
import torch
from dograph.kernels import choose
from dograph.models.build import build_model
from dograph.sketch import rules
from dograph.sketch.sketcher import Sketcher

# More tokens than positions, so that the vocabulary's side is the one that is hashed.
token_BT = torch.randint(600, (3, 16), generator=torch.Generator().manual_seed(1))
stock, calls = rules.hashed, []
rules.hashed = lambda *given: (calls.append(1), stock(*given))[1]
for mode in ("full", "head", "twopass"):
    found = []
    for kernels in (False, True):
        model = build_model("tiny", dropout=0.0, vocab_size=600, seq_len=16, seed=0)
        head = model.head if mode == "head" else None
        sketcher = Sketcher(model, mode=mode, dim=64, head=head)
        calls.clear()
        with choose(kernels), sketcher.record(token_BT):
            result = sketcher.sketch(model(token_BT))
            result.backward(torch.full((3,), 1 / 3))
        assert bool(calls) == (not kernels), "the kernel's hash takes the place of the other"
        assert not any(getattr(rule, "product", None) for rule in sketcher.rules)
        found.append(result.sketch_BK)
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)
print("equal")
"""


@pytest.mark.skipif(torch.cuda.is_available(), reason="the interpreter is for machines without")
def test_the_hash_of_the_loss_is_used_in_the_sketch():
    done = subprocess.run(
        [sys.executable, "-c", WHOLE],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "equal", done.stderr


def test_kernels_equal_their_twins():
    interpreted = {} if torch.cuda.is_available() else {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-c", CHECK],
        env={**os.environ, **interpreted},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "equal", done.stderr

"""Theorem 1 on a real decoder: its statement needs no linearised attention."""

import pytest
import torch
from torch.func import functional_call, grad, vmap
from torch.testing import assert_close
from transformers import GPT2Config, GPT2LMHeadModel

from dograph.rng import key64
from mmd_oracles import gradient_kernel, mmd_squared

VOCABULARY, TOKENS = 64, 10


def nll(logits_BTV, token_BT):
    return torch.nn.functional.cross_entropy(
        logits_BTV[:, :-1].flatten(0, 1), token_BT[:, 1:].flatten()
    )


@pytest.fixture(scope="module")
def model():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key64(0, "gpt2") >> 1)
        config = GPT2Config(
            vocab_size=VOCABULARY, n_positions=16, n_embd=32, n_layer=2, n_head=2, use_cache=False
        )
        config._attn_implementation = "eager"
        return GPT2LMHeadModel(config).double().eval()


@pytest.fixture(scope="module")
def groups():
    """Sequences over the lower and over the upper half of the vocabulary."""
    draw = torch.Generator().manual_seed(key64(0, "tokens") >> 1)
    half = VOCABULARY // 2
    return (
        torch.randint(0, half, (5, TOKENS), generator=draw),
        torch.randint(half, VOCABULARY, (7, TOKENS), generator=draw),
    )


@pytest.fixture(scope="module")
def per_sample(model, groups):
    """Gradient of every sample by torch.func, per group and parameter."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters, token_T):
        logits_1TV = functional_call(model, parameters, (token_T[None],)).logits
        return nll(logits_1TV, token_T[None])

    gradients = vmap(grad(loss), in_dims=(None, 0))
    return [
        {name: g.flatten(1) for name, g in gradients(parameters, token_BT).items()}
        for token_BT in groups
    ]


def test_mmd_is_the_distance_of_the_group_gradients(model, groups, per_sample):
    """The oracle is one plain backward pass per group, through the mean loss."""
    means = []
    for token_BT in groups:
        model.zero_grad()
        nll(model(token_BT).logits, token_BT).backward()
        means.append({name: p.grad.clone() for name, p in model.named_parameters()})
    total = 0.0
    for name in means[0]:
        expected = (means[0][name] - means[1][name]).square().sum()
        got = mmd_squared(per_sample[0][name], per_sample[1][name])
        assert_close(got, expected, rtol=1e-10, atol=1e-20)
        total += expected
    whole = [torch.cat(list(group.values()), dim=1) for group in per_sample]
    assert_close(mmd_squared(*whole), total, rtol=1e-10, atol=0)
    assert total > 1e-2


def test_the_kernel_is_positive_semidefinite(per_sample):
    for name in per_sample[0]:
        pooled = torch.cat([group[name] for group in per_sample])
        kernel = gradient_kernel(pooled, pooled)
        assert_close(kernel.diagonal(), pooled.norm(dim=1).square(), rtol=1e-10, atol=1e-20)
        eigenvalues = torch.linalg.eigvalsh(kernel)
        assert eigenvalues[0] >= -1e-12 * eigenvalues[-1]

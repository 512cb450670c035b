"""Learning rate and optimizer state."""

import pytest
import torch

from dograph.config import OptimConfig
from dograph.models.build import build_model
from dograph.train.checkpoint import optimizer_tensors, restore_optimizer
from dograph.train.step import build_optimizer, learning_rate

CONFIG = OptimConfig(lr=5e-4, lr_end=1e-4, lr_start=1e-7, warmup_steps=500)


def test_schedule_at_its_corners():
    assert learning_rate(0, CONFIG, 20_000) == 1e-7
    assert learning_rate(250, CONFIG, 20_000) == pytest.approx((5e-4 + 1e-7) / 2)
    assert learning_rate(500, CONFIG, 20_000) == 5e-4
    assert learning_rate(19_999, CONFIG, 20_000) == pytest.approx(1e-4)
    assert learning_rate(30_000, CONFIG, 20_000) == 1e-4  # it stays there
    middle = 500 + (19_999 - 500) / 2
    assert learning_rate(middle, CONFIG, 20_000) == pytest.approx(3e-4)


def test_schedule_is_torchs_own_cosine():
    """Against CosineAnnealingLR over the steps after the warm-up."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=5e-4)
    oracle = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=99, eta_min=1e-4)
    config = CONFIG.model_copy(update={"warmup_steps": 10})
    for step in range(10, 110):
        assert learning_rate(step, config, 110) == pytest.approx(oracle.get_last_lr()[0], rel=1e-9)
        optimizer.step()
        oracle.step()


def test_short_runs_have_a_schedule_too():
    config = CONFIG.model_copy(update={"warmup_steps": 0})
    assert learning_rate(0, config, 1) == 5e-4
    config = CONFIG.model_copy(update={"warmup_steps": 3})
    assert all(learning_rate(step, config, 3) <= 5e-4 for step in range(3))


def test_decay_spares_vectors():
    model = build_model("tiny", vocab_size=100, seq_len=16, dropout=0.0, seed=0)
    decayed, spared = build_optimizer(model, CONFIG).param_groups
    assert decayed["weight_decay"] == 0.01
    assert spared["weight_decay"] == 0.0
    assert all(p.ndim >= 2 for p in decayed["params"])
    assert all(p.ndim == 1 for p in spared["params"])
    assert len(decayed["params"]) + len(spared["params"]) == len(list(model.parameters()))


def test_state_round_trip_gives_the_same_next_step():
    token_BT = torch.randint(0, 100, (3, 16), generator=torch.Generator().manual_seed(0))

    def step(model, optimizer):
        optimizer.zero_grad()
        model(token_BT).mean().backward()
        optimizer.step()

    first = build_model("tiny", vocab_size=100, seq_len=16, dropout=0.0, seed=0)
    optimizer = build_optimizer(first, CONFIG)
    for _ in range(3):
        step(first, optimizer)
    second = build_model("tiny", vocab_size=100, seq_len=16, dropout=0.0, seed=5)
    second.load_state_dict(first.state_dict())
    other = build_optimizer(second, CONFIG)
    tensors = {k: v.clone() for k, v in optimizer_tensors(optimizer, first).items()}
    restore_optimizer(other, second, tensors, step=3)
    step(first, optimizer)
    step(second, other)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)

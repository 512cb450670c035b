"""The batch size of every step, against a loop that counts samples one step at a time."""

import json
import math
import random

import pytest

from dograph.config import parse_config, resolve_config
from dograph.errors import ConfigError
from dograph.eval.recorded import proposal, proposed_sizes
from dograph.files import load_yaml
from dograph.records import Skipped
from dograph.train.assembly import forked_sizes, with_steps
from dograph.train.step import rate_change, rate_of
from dograph.types import BatchSizes

RAMP = ("train.batch_size=[[0, 4], [1000, 8], [4e3, 32]]", "train.reference_batch_size=16")
SETTINGS = ("data.seq_len=10", "train.steps=60", "optim.warmup_steps=10")


def configured(*settings):
    return resolve_config(None, [*SETTINGS, *settings])


def sizes_by_hand(schedule, seq_len, reference, lengths):
    """The sizes of all steps: by the tokens drawn before each, never more than the run's own."""
    sizes, ends = [], set()
    for until, steps in lengths:
        while sum(sizes) < steps * reference and len(sizes) < until:
            tokens = sum(sizes) * seq_len
            now = [size for first, size in schedule if first <= tokens][-1]
            sizes.append(min(now, steps * reference - sum(sizes)))
        if sum(sizes) == steps * reference:
            ends.add(len(sizes))
    return sizes, ends


@pytest.mark.parametrize("seed", range(40))
def test_every_step_has_the_size_of_its_tokens(seed):
    rng = random.Random(seed)
    seq_len, reference = rng.randint(1, 9), rng.randint(1, 12)
    firsts = sorted({0, *(rng.randint(1, 1500) for _ in range(rng.randint(0, 4)))})
    schedule = [(first, rng.randint(1, 20)) for first in firsts]
    lengths = [(10**9, rng.randint(1, 40))]
    if rng.random() < 0.5:  # extended on the way, or when it was complete
        made = len(sizes_by_hand(schedule, seq_len, reference, lengths)[0])
        lengths = [(rng.choice([made, rng.randint(1, made)]), lengths[0][1])]
        lengths.append((10**9, lengths[0][1] + rng.randint(1, 20)))
    sizes, ends = sizes_by_hand(schedule, seq_len, reference, lengths)
    found = BatchSizes(schedule, seq_len, reference, lengths)
    assert [found.size(step) for step in range(found.steps)] == sizes
    assert [found.drawn(step) for step in range(found.steps + 1)] == [
        sum(sizes[:step]) for step in range(len(sizes) + 1)
    ]
    assert found.samples == lengths[-1][1] * reference  # the tokens of the run are kept
    assert found.ends == ends
    assert sum(own.steps for own in found.phases) == found.steps
    assert found.largest == max(sizes)
    assert min(found.scheduled) >= min(sizes)  # the last step may be smaller
    for count in range(lengths[-1][1] + 1):
        begun = [s for s in range(found.steps + 1) if sum(sizes[:s]) >= count * reference]
        assert found.step_at(count) == begun[0]


def test_the_tokens_of_a_run_do_not_depend_on_its_batch_sizes():
    fixed, ramp = configured("train.batch_size=16"), configured(*RAMP)
    assert ramp.tokens == fixed.tokens == 60 * 16 * 10
    assert (fixed.batches.steps, ramp.batches.steps) == (60, 25 + 38 + 17 + 1)
    assert [(x.step, x.drawn, x.size) for x in ramp.batches.phases] == [
        (0, 0, 4),
        (25, 100, 8),
        (63, 404, 32),
        (80, 948, 12),  # what is left
    ]
    assert str(ramp.batches) == "4 to 32"
    small = configured("train.batch_size=8", "train.reference_batch_size=16")
    assert (small.batches.steps, small.tokens) == (120, fixed.tokens)


def test_learning_rates_follow_tokens_and_the_root_of_the_size():
    config = configured(*RAMP)
    sizes = [config.batches.size(step) for step in range(81)]
    last = (960 - 12) / 16  # in steps of 16, before the last one
    for step, size in enumerate(sizes):
        at = sum(sizes[:step]) / 16
        rate = 1e-7 + (2e-3 - 1e-7) * at / 10
        if at >= 10:
            rate = 2e-4 + 1.8e-3 * (1 + math.cos(math.pi * (at - 10) / (last - 10))) / 2
        assert rate_of(step, config) == pytest.approx(rate * math.sqrt(size / 16), rel=1e-12)
    assert rate_of(80, config) == pytest.approx(2e-4 * math.sqrt(12 / 16), rel=1e-12)


def test_a_fixed_size_has_its_rates_bit_for_bit():
    fixed, listed = configured("train.batch_size=7"), configured("train.batch_size=[[0, 7]]")
    given = configured("train.batch_size=7", "train.reference_batch_size=7")
    for step in range(60):
        part = min((step - 10) / 49, 1.0)
        by_steps = 1e-7 + (2e-3 - 1e-7) * step / 10
        if step >= 10:
            by_steps = 2e-4 + (2e-3 - 2e-4) * (1 + math.cos(math.pi * part)) / 2
        assert rate_of(step, fixed) == rate_of(step, listed) == rate_of(step, given) == by_steps


def test_a_rate_that_rises_as_it_would_have_does_not_jump():
    config = configured("train.batch_size=7")
    longer = config.model_copy(update={"train": config.train.model_copy(update={"steps": 90})})
    text, jumps = rate_change(config, longer, 4)  # in the warm-up, by a third
    assert f"{rate_of(3, config):.3g} in step 4, {rate_of(4, longer):.3g} in step 5" in text
    assert not jumps
    assert rate_change(config, longer, 50)[1]


def test_steps_made_keep_their_rates_when_a_run_is_extended():
    config = configured(*RAMP)
    longer = config.model_copy(update={"train": with_steps(config, 90, 40)})
    assert [rate_of(s, longer) for s in range(40)] == [rate_of(s, config) for s in range(40)]
    assert rate_of(50, longer) > rate_of(50, config)
    assert longer.tokens == 90 * 16 * 10
    with pytest.raises(ConfigError, match=r"train.steps=13: the run has made 13.75; give more"):
        with_steps(config, 13, 40)  # 100 + 15 * 8 samples


@pytest.mark.parametrize(
    "given", ["0", "-3", "2.5", "x", "null", "[]", "[[5, 3]]", "[[0, 3], [0, 4]]", "[[0]]", "[3]"]
)
def test_what_is_no_size_and_no_schedule_is_refused(given):
    with pytest.raises(ConfigError, match=r"train.batch_size: got .*; give a whole number .* or a"):
        configured(f"train.batch_size={given}")


def test_a_schedule_needs_the_size_that_settings_are_for():
    with pytest.raises(ConfigError, match=r"as in train.reference_batch_size=32"):
        configured(RAMP[0])


def test_a_stored_configuration_gives_the_schedule_back():
    config = configured(*RAMP)
    assert parse_config(load_yaml(config.dump()), "stored") == config
    assert "reference_batch_size" not in configured("train.batch_size=16").dump()


def test_a_fork_keeps_the_past_of_its_parent():
    assert forked_sizes(16, [(0, 8), (5000, 32)], 3200) == [(0, 16), (3200, 8), (5000, 32)]
    assert forked_sizes([(0, 4), (1000, 8)], 64, 2000) == [(0, 4), (1000, 8), (2000, 64)]
    assert forked_sizes([(0, 4), (1000, 8)], [(0, 2), (900, 64)], 1000) == [(0, 4), (1000, 64)]


def test_a_proposal_is_a_quarter_of_the_scale_in_doublings():
    scales = [2, 4, 10, 26, 56, 113, 190, 280, 430]  # of a run with batches of 32
    points = [(1e5 * i, scale) for i, scale in enumerate(scales)]
    nearest = [max(2 ** round(math.log2(scale / 4)), 4) for scale in scales]
    expected = {0: 4} | {int(1e5 * nearest.index(size)): size for size in nearest if size > 4}
    assert proposed_sizes(points) == list(expected.items())
    assert proposed_sizes(reversed(points)) == proposed_sizes(points)
    assert proposed_sizes(points)[-1] == (800_000, 128)
    assert proposed_sizes([]) == proposed_sizes([(0, -3.0)]) == []


def test_one_noisy_scale_changes_no_proposal_and_sizes_never_fall():
    points = [(1e4 * i, 16.0 * 2 ** (i // 20)) for i in range(60)]
    calm = proposed_sizes(points)
    assert calm == [(0, 4), (200_000, 8), (400_000, 16)]
    noisy = [(t, 5 * s if t == 5e4 else s / 5 if t == 50e4 else s) for t, s in points]
    found = proposed_sizes(noisy)
    assert [size for _, size in found] == [4, 8, 16]
    for (tokens, _), (before, _) in zip(found, calm, strict=True):
        assert abs(tokens - before) <= 1e5


def test_a_run_proposes_sizes_for_another_one(tmp_path):
    """By the tokens that its own, changing batches had drawn."""
    config = configured(*RAMP)
    (tmp_path / "config.yaml").write_text(config.dump())
    scales = {5: None, 10: 3.0, 25: 20.0, 30: 33.0, 63: 70.0}
    rows = [{"step": step, "train/loss_nats": 2.0} for step in range(1, 70)]
    for step, scale in scales.items():
        if scale is not None:
            rows[step - 1]["noise/scale_samples"] = scale
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "metrics.jsonl").write_text(lines)
    (line,) = proposal(tmp_path, Skipped())
    tokens = (100 + 5 * 8) * 10, 404 * 10  # before step 31, and before step 64
    wanted = f"'train.batch_size=[[0, 4], [{tokens[0]}, 8], [{tokens[1]}, 16]]'"
    assert line.endswith(f": {wanted} train.reference_batch_size=16")
    (tmp_path / "metrics.jsonl").write_text(json.dumps(rows[0]) + "\n")
    assert proposal(tmp_path, Skipped()) == []

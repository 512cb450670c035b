"""Random architectures in every mode: the gradient of one backward a sample, or a refusal.

`make soak` draws 1,000 of them: DOGRAPH_RANDOM_MODELS says how many.

Shapes: B samples, T tokens.
"""

import os
from typing import Any

import pytest

from random_models import Plan, batches, build, drawn, tolerance, trains
from verdicts import EXACT, MODES, REFUSED, Verdict, verdict

FAST, SLOW = 12, 100


def judged(plan: Plan, mode: str, **options: Any) -> Verdict:
    options |= {"top_blocks": plan.top_blocks} if mode == "topdown" else {}
    return verdict(
        lambda: build(plan),
        mode,
        token_BT=batches(plan),
        tolerance=tolerance(plan),
        **options,
    )


def failures(seeds) -> tuple[list[str], dict[str, int]]:
    """Every silent error and false alarm of these models, and how often each verdict came."""
    found, counts = [], dict.fromkeys((EXACT, REFUSED), 0)
    for seed in seeds:
        plan = drawn(seed)
        if not trains(plan):
            continue
        for mode in MODES:
            got = judged(plan, mode)
            if got.kind not in counts:
                found.append(f"seed {seed}, mode {mode}: {got}\n  {plan}")
                continue
            counts[got.kind] += 1
            if got.kind == REFUSED and judged(plan, mode, check="never").kind == EXACT:
                found.append(f"seed {seed}, mode {mode}: a false alarm: {got}\n  {plan}")
    return found, counts


@pytest.mark.parametrize("seed", range(FAST))
def test_random_models(seed):
    found, _ = failures([seed])
    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_random_models():
    """Most run; a tool that refuses everything is never wrong either."""
    count = int(os.environ.get("DOGRAPH_RANDOM_MODELS", SLOW))
    found, counts = failures(range(FAST, FAST + count))
    assert not found, f"{len(found)} of {count} models:\n" + "\n".join(found[:20])
    assert counts[EXACT] > 0.6 * sum(counts.values()), counts


def test_the_draws_reach_every_choice():
    """A choice that is never drawn is a test that never runs."""
    plans = [drawn(seed) for seed in range(1000)]
    for name, least in (
        ("norm", 14),
        ("matrix", 7),
        ("positions", 6),
        ("gain", 4),
        ("rows", 5),
        ("skip", 5),
        ("tie", 3),
        ("head", 5),
        ("sizes", 49),
        ("depth", 4),
        ("dtype", 2),
    ):
        assert len({getattr(plan, name) for plan in plans}) == least, name

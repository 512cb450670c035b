"""Random inputs: 500 in `make test-slow`, 10,000 in `make soak` (DOGRAPH_FUZZ_INPUTS)."""

import os
from pathlib import Path

import pytest

from dograph.errors import ConfigError
from fuzz import harness
from fuzz.harness import Target, damaged, find_targets, try_case

INPUTS = int(os.environ.get("DOGRAPH_FUZZ_INPUTS", "500"))
SEED = int(os.environ.get("DOGRAPH_FUZZ_SEED", "0"))
SHOWN = 5  # failures in a report
NAMES = [file.stem for file in sorted(Path(__file__).parent.glob("inputs_*.py"))]


def cases_of(target: Target) -> int:
    return max(1, round(INPUTS * target.share / sum(t.share for t in find_targets().values())))


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", find_targets())
def test_no_input_ends_in_a_traceback_a_hang_or_a_wrong_result(name):
    target = find_targets()[name]
    tried = (try_case(target, number, SEED) for number in range(cases_of(target)))
    failures = [failure for failure in tried if failure is not None]
    assert not failures, f"{len(failures)} failures:\n\n" + "\n\n".join(failures[:SHOWN])


def crash(case, folder):
    raise IndexError("list index out of range")


def refuse_in_short(case, folder):
    raise ConfigError("no")


def refuse(case, folder):
    raise ConfigError('"no" is not a setting; allowed: yes')


def hang(case, folder):
    while True:
        pass


@pytest.mark.parametrize(
    ("run", "told"),
    [(crash, "IndexError"), (refuse_in_short, "too short"), (hang, "more than"), (refuse, None)],
)
def test_the_harness_finds_what_it_is_for(monkeypatch, run, told):
    monkeypatch.setattr(harness, "SECONDS", 0.05)
    found = try_case(Target("made-up", lambda rng: rng.random(), run, 1.0), 3, 7)
    assert (found is None) == (told is None)
    assert told is None or (told in found and found.startswith("made-up 3, seed 7: 0."))


def test_damage_changes_a_file():
    import random

    content = b'{"step": 1, "loss": 2.5}\n' * 9
    changed = [damaged(random.Random(number), content) for number in range(200)]
    assert sum(one != content for one in changed) > 180
    assert len(set(changed)) > 100

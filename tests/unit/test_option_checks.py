"""What options may be, and what is said of those that may not."""

import math

import pytest

from dograph.errors import ConfigError
from dograph.option_checks import require_known, require_number, require_one_of, require_whole


@pytest.mark.parametrize(
    ("bounds", "good", "bad", "told"),
    [
        ({}, [-1e9, 0, 2.5], [math.inf, math.nan, "1", None, True], ""),
        ({"above": 0}, [1e-9, 3], [0, -1, math.inf], " above 0"),
        ({"least": 0}, [0, 0.0, 3], [-1e-9, False, [1]], " of at least 0"),
        ({"above": 0, "most": 0.5}, [0.5, 0.1], [0, 0.6], " above 0 and at most 0.5"),
        ({"least": 1, "most": 1}, [1, 1.0], [0.999, 1.001], " of at least 1 and at most 1"),
    ],
)
def test_numbers(bounds, good, bad, told):
    for value in good:
        require_number("mixer.r", value, **bounds)
    for value in bad:
        with pytest.raises(ConfigError) as caught:
            require_number("mixer.r", value, **bounds)
        assert str(caught.value) == f"mixer.r={value!r}: give a finite number{told}"


@pytest.mark.parametrize("value", [0, 11, 1.0, 2.5, True, "3", None])
def test_whole_numbers(value):
    require_whole("objective.n", 1, least=1, most=10)
    require_whole("objective.n", 10, least=1, most=10)
    require_whole("objective.n", 10**9, least=1)
    with pytest.raises(ConfigError) as caught:
        require_whole("objective.n", value, least=1, most=10)
    expected = f"objective.n={value!r}: give a whole number of at least 1 and at most 10"
    assert str(caught.value) == expected


def refusal(check, *given):
    with pytest.raises(ConfigError) as caught:
        check(*given)
    return str(caught.value)


def test_words():
    words = ("batch", "stream")
    require_one_of("mixer.scope", "stream", words)
    told = refusal(require_one_of, "mixer.scope", "stram", words)
    assert told == "mixer.scope='stram'; did you mean \"stream\"?"
    assert refusal(require_one_of, "mixer.scope", 3, words) == (
        "mixer.scope=3; allowed: batch, stream"
    )


def test_names():
    require_known("mixer.", ["eta"], "doremi", ["eta", "rounds"])
    told = refusal(require_known, "mixer.", ["eta", "round"], "doremi", ["eta", "rounds"])
    assert told == 'mixer.round is not an option of doremi; did you mean "rounds"?'
    told = refusal(require_known, "mixer.", ["eta"], "natural", [])
    assert told == "mixer.eta is not an option of natural; it takes no options"

"""What options may be, and what is said of those that may not."""

import math
from typing import ClassVar, Literal

import pytest
from pydantic import Field

from dograph.config import Options
from dograph.errors import ConfigError


class Tried(Options):
    owner: ClassVar[str] = "tried"

    any: float = 0.0
    above: float = Field(1.0, gt=0)
    least: float = Field(0.0, ge=0)
    most: float = Field(0.5, gt=0, le=0.5)
    one: float = Field(1.0, ge=1, le=1)
    whole: int = Field(1, ge=1, le=10)
    free: int | None = Field(None, ge=1)
    flag: bool = False
    scope: Literal["batch", "stream"] = "stream"


class Nothing(Options):
    prefix: ClassVar[str] = "objective."


def refusal(kind, **given):
    with pytest.raises(ConfigError) as caught:
        kind(**given)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "good", "bad", "told"),
    [
        ("any", [-1e9, 0, 2.5], [math.inf, math.nan, "1", None, True], ""),
        ("above", [1e-9, 3], [0, -1, math.inf], " above 0"),
        ("least", [0, 0.0, 3], [-1e-9, False, [1]], " of at least 0"),
        ("most", [0.5, 0.1], [0, 0.6], " above 0 and at most 0.5"),
        ("one", [1, 1.0], [0.999, 1.001], " of at least 1 and at most 1"),
    ],
)
def test_numbers(name, good, bad, told):
    for value in good:
        assert getattr(Tried(**{name: value}), name) == value
    for value in bad:
        expected = f"mixer.{name}={value!r}: give a finite number{told}"
        assert refusal(Tried, **{name: value}) == expected


@pytest.mark.parametrize("value", [0, 11, 1.0, 2.5, True, "3", None])
def test_whole_numbers(value):
    assert [Tried(whole=number).whole for number in (1, 10)] == [1, 10]
    assert [Tried(free=number).free for number in (None, 10**9)] == [None, 10**9]
    expected = f"mixer.whole={value!r}: give a whole number of at least 1 and at most 10"
    assert refusal(Tried, whole=value) == expected


def test_words_and_flags():
    told = refusal(Tried, scope="stram")
    assert told == "mixer.scope='stram'; did you mean \"stream\"? allowed: batch, stream"
    assert refusal(Tried, scope=3) == "mixer.scope=3; allowed: batch, stream"
    for value in ("yes", 1, None):
        assert refusal(Tried, flag=value) == f"mixer.flag={value!r}: give true or false"


def test_names():
    told = refusal(Tried, wole=3)
    assert told == 'mixer.wole is not an option of tried; did you mean "whole"?'
    told = refusal(Nothing, eta=1)
    assert told == "objective.eta is not an option of nothing; it takes no options"


def test_everything_wrong_is_told_at_once():
    assert refusal(Tried, whole=0, scope="bath").count("\n") == 1

"""A table of accuracies says how many questions were asked."""

from dograph.reproduce.downstream import _notes

NINE = 9


def score(**items):
    tasks = {name: {"items": asked, "available": 100} for name, asked in items.items()}
    return {"tasks": tasks, "notes": []}


def test_a_limit_is_told():
    found = _notes({"a-s0": score(copa=4, sciq=100), "b-s0": score(copa=4, sciq=100)}, NINE)
    assert found == ["items asked, of those there are: copa 4 of 100"]


def test_without_a_limit_there_is_nothing_to_tell():
    assert _notes({"a-s0": score(copa=100)}, NINE) == []

"""What reproduce.json keeps of an artefact."""

import json
from dataclasses import replace

from dograph.eval.evaluate import EvalRequest
from dograph.reproduce import session


def test_the_record_has_what_speaks_against_its_numbers(by_hand, tmp_path):
    made = by_hand.findings(by_hand.levels({"uniform": 5.0, "dograph-paper": 4.9}))
    made = replace(made, failures={"doge-s10": "it broke"})
    study = by_hand.study("validation-loss", made)
    outcome = session.finish({"": study}, EvalRequest(), tmp_path, print)
    assert "warning: b was read through 5.0 times" in outcome.notes
    assert "a plain note" not in outcome.notes
    assert outcome.failures == {"doge-s10": "it broke"}
    stored = json.loads((tmp_path / "reproduce.json").read_text())["artefacts"]["validation-loss"]
    assert stored["evaluation"] is None
    assert stored["results"] == json.loads(json.dumps(outcome.data))
    assert (stored["notes"], stored["failures"]) == (outcome.notes, outcome.failures)


def test_models_are_scored_on_the_device_that_they_were_trained_on(by_hand, tmp_path, monkeypatch):
    cells = by_hand.levels({"uniform": 5.0, "dograph-paper": 4.9})
    task = {"acc": {"value": 0.5, "se": 0.1}, "primary": "acc"}
    score = {"tasks": {"copa": task}, "average": {"value": 0.5, "se": 0.1}, "notes": []}
    asked = []

    def scores(findings, request, corpus, report):
        asked.append(request)
        return {cell["label"]: score for cell in cells}

    monkeypatch.setattr(session, "evaluate_cells", scores)
    monkeypatch.setattr(session, "Corpus", str)
    settings = ("train.device=cpu",)
    study = by_hand.study("gpt2-medium", by_hand.findings(cells), settings=settings)
    request = EvalRequest(tasks=("copa",), limit=3, device="cuda")
    session.finish({"": study}, request, tmp_path, print)
    assert asked == [replace(request, device="cpu")]
    stored = json.loads((tmp_path / "reproduce.json").read_text())["artefacts"]["gpt2-medium"]
    assert (stored["evaluation"]["tasks"], stored["evaluation"]["limit"]) == (["copa"], 3)


def test_a_damaged_file_of_results_is_written_anew(tmp_path):
    file = tmp_path / "reproduce.json"
    for content in ("{", "[]", '{"format": "other", "artefacts": {"x": 1}}'):
        file.write_text(content)
        session.write_record(file, "cost", {"a": float("nan")})
        assert json.loads(file.read_text())["artefacts"] == {"cost": {"a": None}}
    session.write_record(file, "objectives", {})
    assert set(json.loads(file.read_text())["artefacts"]) == {"cost", "objectives"}
    session.write_record(file, "cost", {"a": 2})
    assert json.loads(file.read_text())["artefacts"] == {"cost": {"a": 2}, "objectives": {}}

"""Tables of accuracies from scores made by hand, and which scores on disk are kept."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import stats

from dograph.eval.evaluate import EvalRequest
from dograph.reproduce import paper
from dograph.reproduce.outcomes import downstream
from dograph.reproduce.session import stored_scores


def words(outcome):
    return {(v.of, v.says): v.verdict for v in outcome.verdicts}


COPA = {"acc": {"value": 0.5, "se": None}, "primary": "acc", "chance": 0.5, "items": 1}
AVERAGE = {"value": 0.5, "se": None, "chance": 0.5}
WHOLE = {"format": "dograph-eval", "tasks": {"copa": COPA}, "average": AVERAGE, "notes": []}


def rows(outcome, sheet=0):
    return {row[0]: row[1:] for row in outcome.tables[sheet].rows}


def score(accuracies, errors=0.02):
    """An eval.json with these accuracies; COPA, LAMBADA and WinoGrande have no acc_norm."""
    tasks = {}
    for task, value in accuracies.items():
        plain = task in ("copa", "lambada_openai", "winogrande")
        right, other = {"value": value, "se": errors}, {"value": 0.01, "se": errors}
        tasks[task] = {
            "acc": right if plain else other,
            "acc_norm": None if plain else right,
            "primary": "acc" if plain else "acc_norm",
        }
    mean = sum(accuracies.values()) / len(accuracies)
    return {"tasks": tasks, "average": {"value": mean, "se": errors / 3}, "notes": ["a note"]}


def test_downstream_tasks_beside_the_papers(by_hand):
    cells = by_hand.levels({"uniform": 5.0, "regmix": 5.0, "dograph-paper": 4.9})
    gain = {"uniform": 0.0, "regmix": 0.01, "dograph-paper": 0.02}
    scores = {}
    for index, one in enumerate(cells):
        base = {task: 0.3 + gain[one["method"]] for task in paper.TASKS}
        base["sciq"] += 3 * gain[one["method"]] + 1e-5 * index
        scores[one["label"]] = score(base)
    study = by_hand.study("gpt2-medium", by_hand.findings(cells), scores=scores)
    found = downstream(study)
    average, tasks = (rows(found, sheet) for sheet in range(2))
    assert average["dograph-paper"][1] == "0.67"  # standard error over items
    assert average["dograph-paper"][2].startswith("+2.67 [")
    assert average["dograph-paper"][3:] == ["37.9", "+2.5"]
    assert tasks["uniform"][0] == "30.0"
    assert tasks["  paper"][0] == "27.3"  # of the last method, which is DoGraph
    gain = found.data["methods"]["dograph-paper"]["sciq"]["less_uniform"]
    assert gain["mean"] == pytest.approx(8, abs=0.01)
    told = words(found)
    assert told["dograph-paper", "DoGraph above Uniform on average"] == "sign only"
    assert told["dograph-paper", "DoGraph best on average of the seven"] == "confirmed"
    assert found.notes == ["a note"]
    json.dumps(found.data)


@pytest.mark.parametrize(
    ("asked", "told"), [(4, ["not all items were scored: copa 4 of 100"]), (100, [])]
)
def test_how_many_questions_were_asked_is_told_where_it_is_not_all(by_hand, asked, told):
    cells = by_hand.levels({"uniform": 5.0, "dograph-paper": 4.9})
    one = score(dict.fromkeys(paper.TASKS, 0.3)) | {"notes": []}
    one["tasks"]["copa"] |= {"items": asked, "available": 100}
    one["tasks"]["sciq"] |= {"items": 100, "available": 100}
    scores = {cell["label"]: one for cell in cells}
    found = downstream(by_hand.study("gpt2-medium", by_hand.findings(cells), scores=scores))
    assert list(found.notes) == told


def test_an_error_over_items_is_the_mean_of_the_runs_and_none_if_one_has_none(by_hand):
    """All runs are asked the same questions: more seeds do not make it smaller."""
    cells = by_hand.levels({"uniform": 5.0, "dograph-paper": 4.9})
    errors = {10: 0.01, 11: 0.02, 12: 0.03, 13: 0.04, 14: 0.05}
    scores = {c["label"]: score({"copa": 0.5}, errors[c["seed"]]) for c in cells}
    scores["uniform-s12"]["tasks"]["copa"]["acc"]["se"] = None
    found = downstream(by_hand.study("gpt2-small", by_hand.findings(cells), scores=scores))
    own = {label: found.data["methods"][label]["copa"] for label in ("uniform", "dograph-paper")}
    assert own["dograph-paper"]["error_over_items"] == pytest.approx(3.0)
    assert own["uniform"]["error_over_items"] is None


def test_an_interval_of_accuracies_ends_where_they_do(by_hand):
    """Two seeds, 50 and 100 per cent: t reaches from -243 to 393, and no accuracy does."""
    cells = by_hand.levels({"uniform": 5.0, "dograph-paper": 4.9}, seeds=(10, 11))
    right = {"uniform-s10": 0.5, "uniform-s11": 1.0, "dograph-paper-s10": 0, "dograph-paper-s11": 1}
    scores = {c["label"]: score({"copa": right[c["label"]]}) for c in cells}
    found = downstream(by_hand.study("gpt2-small", by_hand.findings(cells), scores=scores))
    own = found.data["methods"]["uniform"]["copa"]["accuracy"]
    assert own["mean"] == pytest.approx(75.0)
    assert own["interval"] == {"low": 0.0, "high": 100.0}
    change = found.data["methods"]["dograph-paper"]["copa"]["less_uniform"]
    assert change["mean"] == pytest.approx(-25.0)
    assert change["interval"] == {"low": -100.0, "high": 100.0}
    assert rows(found)["uniform"][0] == "75.00 [0.00,100.00]"


def test_the_best_average_is_of_the_papers_methods_at_once(by_hand):
    """Bonferroni over the two rivals there are."""
    cells = by_hand.levels({"uniform": 5.0, "regmix": 5.0, "natural": 5.0, "dograph-paper": 4.9})
    gain = {"uniform": 0.0, "regmix": -0.3, "natural": 0.2, "dograph-paper": 0.03}
    waver = dict(zip(by_hand.SEEDS, (-0.02, 0.02, 0.0, 0.03, -0.03), strict=True))
    scores = {}
    for one in cells:
        own = waver[one["seed"]] if one["method"] == "dograph-paper" else 0.0
        scores[one["label"]] = score({"copa": 0.5 + gain[one["method"]] + own})
    found = downstream(by_hand.study("gpt2-small", by_hand.findings(cells), scores=scores))
    says = "DoGraph best on average of the seven"
    told = next(v for v in found.verdicts if (v.of, v.says) == ("dograph-paper", says))
    reach = stats.t.ppf(1 - 0.05 / 4, 4) * stats.sem([1.0, 5.0, 3.0, 6.0, 0.0])
    assert told.ours.simultaneous.low == pytest.approx(3 - reach)
    assert told.ours.value == pytest.approx(3)


def test_downstream_over_some_tasks_says_so(by_hand):
    cells = by_hand.levels({"uniform": 5.0, "dograph-paper": 4.9})
    scores = {one["label"]: score({"copa": 0.5, "piqa": 0.6}) for one in cells}
    study = by_hand.study("gpt2-small", by_hand.findings(cells), scores=scores)
    found = downstream(study)
    assert list(found.data["tasks"]) == ["piqa", "copa"]
    assert "averages are over 2 tasks here and nine in the paper" in found.notes


def test_a_score_is_kept_of_the_same_weights_alone(tmp_path):
    """A cell that was trained again in its folder is scored again."""
    model = tmp_path / "model"
    model.mkdir()
    request, file = EvalRequest(benchmarks=Path("here"), tasks=("copa",)), tmp_path / "eval.json"

    def store(**weights):
        made = {name: getattr(request, name) for name in ("limit", "dtype")}
        made |= {"scorer": request.using, "benchmarks": "here", "max_length": 512}
        file.write_text(json.dumps(WHOLE | {"provenance": made | weights}))

    def found():
        return stored_scores(file, request, 512, model) is not None

    shards = {f"model-{n}.safetensors": bytes([n]) * 9 for n in (1, 2)}
    for name, content in shards.items():
        (model / name).write_bytes(content)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in shards.items()}
    store(weights=digests)
    assert found()
    (model / "model-2.safetensors").write_bytes(bytes([3]) * 9)
    assert not found()
    (model / "model-2.safetensors").unlink()
    assert not found()
    store()  # a result that does not say what it was made of
    assert not found()
    (model / "model-1.safetensors").unlink()
    store(weights={})
    assert not found()


def test_a_score_is_kept_for_the_same_request_alone(tmp_path):
    model = tmp_path / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"weights")
    request = EvalRequest(benchmarks=Path("here"), tasks=("copa",), dtype="float32")
    made = {
        "scorer": request.using,
        "benchmarks": "here",
        "limit": request.limit,
        "dtype": "float32",
        "max_length": 512,
        "batch_size": 1,
        "device": "cuda:0",
        "weights": {"model.safetensors": hashlib.sha256(b"weights").hexdigest()},
    }
    whole = WHOLE | {"provenance": made}
    file = tmp_path / "eval.json"

    def found(asked=request, seq_len=512, **changes):
        file.write_text(json.dumps(whole | changes))
        return stored_scores(file, asked, seq_len, model) is not None

    assert found()
    for name, other in (
        ("scorer", "lm-eval" if request.using != "lm-eval" else "dograph"),
        ("benchmarks", None),
        ("limit", 7),
        ("dtype", "bfloat16"),
        ("max_length", 16),  # somebody's own `dograph eval`: the run was trained on 512
    ):
        assert not found(provenance=made | {name: other})
    assert found(replace(request, max_length=16), provenance=made | {"max_length": 16})
    assert not found(replace(request, max_length=16))
    assert not found(tasks={"copa": COPA, "piqa": COPA})
    assert not found(tasks={"copa": COPA | {"primary": "acc_norm"}})  # damaged
    assert not found(format="other")
    assert not stored_scores(tmp_path / "none.json", request, 512, model)
    del whole["average"]  # cut off
    assert not found()

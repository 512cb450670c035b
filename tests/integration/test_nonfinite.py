"""A loss that stops being a number: the run halts before the update and says where."""

import json

import pytest
import torch
from processes import SETTINGS, run
from safetensors.torch import load_file, save_file

from corpora import write_corpus
from dograph.train.run_dir import RunDirectory


@pytest.mark.slow
def test_the_run_stops_and_names_step_sources_and_samples(tmp_path, monkeypatch):
    corpus = write_corpus(tmp_path / "c")
    (tmp_path / "poison.py").write_text(
        "import torch\nfrom dograph import Mixer\n"
        "class Poison(Mixer):\n"
        "    needs = frozenset({'loss'})\n"
        "    def weigh(self, signals):\n"
        "        w = torch.full_like(signals.loss_B, 1 / len(signals.loss_B))\n"
        "        return w * float('nan') if signals.step == 6 else w\n"
    )
    monkeypatch.chdir(tmp_path)
    directory = tmp_path / "run"
    _, err = run(
        "train",
        f"data.corpus={corpus}",
        f"run={directory}",
        *SETTINGS,
        "mixer.name=poison:Poison",
        code=2,
    )
    assert "step 7" in err
    assert "No update was made" in err
    report = json.loads((directory / "nonfinite-step-7.json").read_text())
    assert len(report["samples"]) == 12
    assert {sample["source"] for sample in report["samples"]} <= {"alpha", "beta", "gamma"}
    assert load_file(directory / "nonfinite-step-7.safetensors")["token_BT"].shape == (12, 32)
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert "weights/effective_samples" in json.loads(lines[-1])  # of the last step, all is kept
    assert RunDirectory(directory).checkpoint_steps() == [5]


@pytest.mark.slow
def test_bad_weights_name_their_documents(tmp_path):
    """A model with NaN in one embedding row, as a damaged download would have."""
    corpus = write_corpus(tmp_path / "c")
    first = tmp_path / "first"
    run("train", f"data.corpus={corpus}", f"run={first}", *SETTINGS, "train.steps=5")
    weights = first / "model" / "model.safetensors"
    tensors = load_file(weights)
    tensors["transformer.wte.weight"][0] = torch.nan
    save_file(tensors, weights, metadata={"format": "pt"})
    second = tmp_path / "second"
    _, err = run(
        "train",
        f"data.corpus={corpus}",
        f"run={second}",
        *SETTINGS,
        "model.preset=null",
        f"model.path={first / 'model'}",
        code=2,
    )
    assert "step 1: " in err
    assert ".jsonl line " in err

"""torch.compile changes speed, not losses."""

import pytest
from processes import SETTINGS, rows, run

from corpora import write_corpus


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_compiled_losses_are_those_of_eager(tmp_path):
    corpus = write_corpus(tmp_path / "corpus")
    settings = [f"data.corpus={corpus}", *SETTINGS, "train.steps=10"]
    run("train", f"run={tmp_path / 'eager'}", *settings)
    run("train", f"run={tmp_path / 'compiled'}", *settings, "train.compile=true", seconds=500)
    for a, b in zip(rows(tmp_path / "eager"), rows(tmp_path / "compiled"), strict=True):
        for name in a:
            assert a[name] == pytest.approx(b[name], rel=1e-4), name

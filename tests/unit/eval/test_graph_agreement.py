"""Agreement with sources is read where it means something: see `agreement_table`."""

import json

import pytest
from rich.console import Console

from dograph.config import resolve_config
from dograph.eval.recorded import agreement_table
from dograph.train.run_dir import RunDirectory


@pytest.mark.parametrize(
    ("recipe", "said", "value"),
    [("safe", "over ten batches", "0.25"), ("paper", "in the step's batch", "0.75")],
)
def test_domains_of_a_batch_are_not_pooled(tmp_path, recipe, said, value):
    run = RunDirectory(tmp_path / "run")
    run.create(resolve_config("demo", ["mixer.name=dograph", f"mixer.recipe={recipe}"]), {})
    row = {"step": 1, "domains/nmi": 0.25, "domains/batch_nmi": 0.75}
    run.metrics_file.write_text(json.dumps(row) + "\n")
    table = agreement_table(run.path)
    console = Console(width=80)
    with console.capture() as captured:
        console.print(table)
    assert said in captured.get()
    assert value in captured.get()

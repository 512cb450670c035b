"""dograph show graph as it is typed: it says where numbers of domains are but ranks."""

import pytest
from typer.testing import CliRunner

from dograph.cli.main import app
from page_runs import write_graphs, write_run

RANKS = "note: domain numbers are ranks by weight in this step's batch"


@pytest.mark.parametrize(("recipe", "ranked"), [("recommended", True), ("safe", False)])
def test_numbers_that_are_ranks_are_called_so(tmp_path, recipe, ranked):
    run = write_run(tmp_path / "run", mixer="dograph", options={"recipe": recipe})
    write_graphs(run)
    shown = CliRunner().invoke(app, ["show", "graph", str(run), "--step", "40"])
    assert shown.exit_code == 0
    assert len([line for line in shown.output.splitlines() if line.startswith(RANKS)]) == ranked
    assert "domains after step 40" in shown.output


def test_a_mixer_that_is_not_at_hand_answers_for_its_own_domains(tmp_path):
    run = write_run(tmp_path / "run", mixer="nowhere_to_be_found:Mixer")
    write_graphs(run)
    found = CliRunner().invoke(app, ["show", "graph", str(run)])
    assert found.exit_code == 0
    assert "ranks" not in found.output


def test_a_graph_that_is_being_written_waits(tmp_path):
    run = write_run(tmp_path / "run", mixer="dograph", options={"recipe": "safe"})
    write_graphs(run)
    file = run / "graph.jsonl"
    file.write_text(file.read_text()[:-20])
    found = CliRunner().invoke(app, ["show", "graph", str(run)])
    assert "domains after step 40" in found.output

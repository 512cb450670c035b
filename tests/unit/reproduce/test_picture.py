"""The picture of gradient-pca: a panel a probe, a colour a source, the same axes throughout."""

import json
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
import typer
from matplotlib.colors import to_hex
from typer.testing import CliRunner

from corpora import write_corpus
from dograph.cli import reproduce as command
from dograph.eval.gradients import probe_pca
from dograph.report.figures import COLOURS, draw_components, picture_notes
from dograph.reproduce.seen import gradient_pca
from lab_runs import Here
from probed_runs import SOURCES, write_run

APART = {0: 4.0, 10: 2.0, 1000: 0.5}


@pytest.fixture
def points(by_hand, tmp_path):
    """pca.json of two methods, as `gradient_pca` writes it."""
    cells = by_hand.levels({"equal": 5.0, "dograph-paper": 5.0}, seeds=(10,))
    for seed, cell in enumerate(cells):
        cell["run"] = str(write_run(tmp_path / f"run-{seed}", APART, seed=seed))
    made = by_hand.findings(cells, baseline="equal")
    gradient_pca(by_hand.study("gradient-pca", made, out=tmp_path))
    return tmp_path / "pca.json"


def panels(figure):
    return [axis for axis in figure.axes if axis.collections]


def test_points_are_the_coordinates_of_every_source(points):
    shown = panels(draw_components(json.loads(points.read_text())))
    assert len(shown) == 6
    expected = probe_pca(points.parent / "run-1", basis="own")
    for axis, (step, found) in zip(shown[3:], expected.at.items(), strict=True):
        share = 100 * float(found.explained_C.sum())
        assert axis.get_title() == f"step {step:,}: {share:.0f} %"
        for index, dots in enumerate(axis.collections):
            own = found.coordinate_NC[expected.source_N == index]
            np.testing.assert_allclose(dots.get_offsets(), own, rtol=0, atol=1e-6)
            assert dots.get_label() == SOURCES[index]
            assert to_hex(dots.get_facecolor()[0]) == COLOURS[index]


def test_all_panels_have_the_same_axes_with_every_point_inside(points):
    shown = panels(draw_components(json.loads(points.read_text())))
    assert len({(axis.get_xlim(), axis.get_ylim()) for axis in shown}) == 1
    (left, right), (bottom, top) = shown[0].get_xlim(), shown[0].get_ylim()
    assert right - left == pytest.approx(top - bottom)
    for axis in shown:
        for dots in axis.collections:
            x_N, y_N = np.asarray(dots.get_offsets()).T
            assert left < x_N.min() <= x_N.max() < right
            assert bottom < y_N.min() <= y_N.max() < top


def test_the_file_is_svg_with_letters_and_the_same_every_time(points, tmp_path):
    file = tmp_path / "gradient-pca.svg"
    (note,) = picture_notes(points, file)
    assert note.endswith(str(file))
    content = file.read_bytes()
    words = " ".join(ElementTree.fromstring(content).itertext())
    for word in (*SOURCES, "equal", "dograph-paper", "step 0:", "step 1,000:"):
        assert word in words
    picture_notes(points, file)
    assert file.read_bytes() == content


def test_many_probes_go_on_in_another_row():
    steps = [str(step) for step in range(8)]
    one = {
        "sources": ["a", "b"],
        "source": [0, 1],
        "explained": {step: [0.1, 0.1] for step in steps},
        "coordinates": {step: [[0.0, 0.0], [0.0, 0.0]] for step in steps},  # all in one point
    }
    figure = draw_components({"equal": one})
    assert len(panels(figure)) == 8
    assert len(figure.axes) == 12
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b"]


def test_without_matplotlib_a_note_says_what_to_install(points, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    file = tmp_path / "gradient-pca.svg"
    (note,) = picture_notes(points, file)
    assert "pip install 'dograph[figures]'" in note
    assert not file.exists()


def test_nothing_is_drawn_of_nothing(tmp_path):
    (tmp_path / "pca.json").write_text("{}")
    assert picture_notes(tmp_path / "pca.json", tmp_path / "x.svg") == []
    assert not (tmp_path / "x.svg").exists()


def test_the_command_draws_and_names_the_picture(tmp_path, monkeypatch):
    corpus = write_corpus(tmp_path / "corpus", {"alpha": 4000, "beta": 4000})
    monkeypatch.setattr(command.console, "open_pool", lambda *_: Here())
    app = typer.Typer()
    app.command()(command.reproduce)
    settings = ("model.preset=tiny", "train.steps=1", "train.batch_size=6", "train.device=cpu")
    more = ("data.seq_len=16", "sketch.dim=80", "probe.rows=8", "probe.at=[0, 1]")
    options = (
        f"data.corpus={corpus}",
        "--out",
        tmp_path / "out",
        "--seeds",
        "1",
        "--methods",
        "equal",
    )
    arguments = ["gradient-pca", *settings, *more, "checkpoint.every=0", *options]
    result = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0
    file = tmp_path / "out" / "gradient-pca.svg"
    assert f"by source: {file}" in result.stdout
    ElementTree.parse(file)

"""Figures as files: all formats, paper sizes, the same bytes again."""

import matplotlib
import pytest

from dograph.report.collect import collect, open_subjects
from dograph.report.figures import FORMATS, STYLE, draw_curves, save, write_figures
from page_runs import dograph_run, hostile_corpus, write_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("figures")
    corpus = hostile_corpus(folder / "corpus")
    run = dograph_run(folder / "run", corpus)
    return folder, run, write_figures([run], folder / "out")


def test_every_figure_in_every_format(written):
    folder, _, names = written
    assert {"loss-train", "loss-valid", "pca", "weights", "graph"} <= set(names)
    assert sorted(path.name for path in (folder / "out").iterdir()) == sorted(
        f"{name}.{form}" for name in names for form in FORMATS
    )


def test_sizes_are_those_of_a_paper(written):
    folder, *_ = written
    head = (folder / "out" / "loss-train.svg").read_text()[:900]
    assert 'width="234pt"' in head  # 3.25 inches
    assert "/MediaBox [ 0 0 234 " in (folder / "out" / "loss-train.pdf").read_bytes().decode(
        "latin1"
    )


def test_letters_stay_letters(written):
    folder, *_ = written
    assert ">training loss (nats)</text>" in (folder / "out" / "loss-train.svg").read_text()


def test_the_same_run_gives_the_same_files(tmp_path):
    data = collect(open_subjects([write_run(tmp_path / "$run$ <b>")]))
    for folder in (tmp_path / "first", tmp_path / "second"):
        folder.mkdir()
        with matplotlib.rc_context(STYLE):
            names = [save(name, figure, folder) for name, figure in draw_curves(data)]
    assert names == ["loss-train", "loss-valid"]
    for path in (tmp_path / "first").iterdir():
        assert path.read_bytes() == (tmp_path / "second" / path.name).read_bytes(), path.name

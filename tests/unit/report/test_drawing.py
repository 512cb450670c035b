"""Many series can be told apart, by every eye, and legends leave the axes their room."""

import itertools
import re
import warnings

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from corpora import write_corpus
from dograph.report.collect import collect, open_subjects
from dograph.report.figures import (
    COLOURS,
    MARKS,
    STYLE,
    draw_curves,
    draw_run,
    face,
    mark,
)
from dograph.report.render import asset
from page_runs import wide_choice, write_graphs, write_probes, write_run

NINE = [f"source-{letter}" for letter in "abcdefghi"]
ELEVEN = 11
# What linear RGB becomes without cones of one kind: Machado, Oliveira and Fernandes 2009.
EYES = {
    "all cones": np.eye(3),
    "deutan": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "protan": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "tritan": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
XYZ = np.array(
    [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
)


def seen(shade, eye):
    """CIELAB of a colour, as an eye sees it."""
    rgb = np.array(to_rgb(shade))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    white = XYZ.sum(axis=1)
    part = XYZ @ np.clip(np.array(EYES[eye]) @ linear, 0, 1) / white
    f = np.where(part > 216 / 24389, np.cbrt(part), (841 / 108) * part + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("eye", EYES)
def test_series_of_one_mark_differ_in_colour(eye):
    """A difference of 10 in CIELAB is seen at a glance; a just visible one is about 2."""
    for i, j in itertools.combinations(range(16), 2):
        if mark(i) == mark(j):
            apart = np.linalg.norm(seen(face(i), eye) - seen(face(j), eye))
            assert apart > 10, (i, j)


def test_the_page_has_as_many_shapes_and_the_same_colours():
    shapes = re.search(r"const SHAPES = \[(.*?)\];", asset("dom.js"), re.DOTALL).group(1)
    assert shapes.count('"M') == len(MARKS)
    assert len(set(COLOURS)) == 8


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Nine sources and eleven domains, as the demo has."""
    folder = tmp_path_factory.mktemp("many")
    corpus = write_corpus(folder / "corpus", dict.fromkeys(NINE, 800))
    options = {f"domains/{j}/weight": lambda step, j=j: (j + 1) / 66 for j in range(ELEVEN)}
    mixer = {"num_domains": ELEVEN, "recipe": "safe"}
    run = write_run(
        folder / "run", mixer="dograph", options=mixer, corpus=corpus, sources=NINE, **options
    )
    write_probes(run, corpus, at=(0, 1, 2, 6, 20, 60), rows=36, num_domains=ELEVEN)
    write_graphs(run, num_domains=ELEVEN, sources=NINE)
    data = collect(open_subjects([run]))
    return figures(draw_run(data.runs[0], ""))


def figures(drawn):
    """By name, laid out as they would be on paper; a layout that fails is an error."""
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("error")
        found = dict(drawn)
        for figure in found.values():
            figure.draw_without_rendering()
    return found


@pytest.mark.parametrize(
    ("name", "legends", "least"),
    [
        ("pca", [NINE, [f"domain {j}" for j in range(ELEVEN)]], 0.9),
        ("sources", [NINE], 1.5),
        ("weights", [[f"domain {j}" for j in range(ELEVEN)]], 1.5),
    ],
)
def test_legends_take_nothing_from_the_axes(many, name, legends, least):
    figure = many[name]
    assert [[t.get_text() for t in one.get_texts()] for one in figure.legends] == legends
    boxes = [axis.get_tightbbox() for axis in figure.axes]
    for axis in figure.axes:
        assert axis.get_window_extent().height > least * figure.dpi
    for legend in figure.legends:
        box = legend.get_window_extent()
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
        assert not any(box.overlaps(other) for other in boxes)


def test_a_ninth_source_is_not_drawn_as_the_first(many):
    lines = many["sources"].axes[0].get_legend_handles_labels()[0]
    looks = {(line.get_color(), line.get_marker()) for line in lines}
    assert len(looks) == len(lines) == len(NINE)


def test_points_of_a_ninth_source_have_a_mark_of_their_own(many):
    """Not by their places: shapes and faces of all kinds."""
    dots = [d for d in many["pca"].axes[0].collections if d.get_label() in NINE]
    faces = [tuple(one.get_facecolor()[0].round(4)) for one in dots]
    shapes = [one.get_paths()[0].vertices.tobytes() for one in dots]
    assert len(set(zip(faces, shapes, strict=True))) == len(NINE)
    assert shapes[0] != shapes[8]
    assert faces[0] != faces[8]


@pytest.fixture(scope="module")
def ten(tmp_path_factory):
    """Ten methods with long names."""
    return collect(open_subjects(wide_choice(tmp_path_factory.mktemp("ten"))))


def test_long_names_of_many_methods_are_all_in_the_legend(ten):
    (legend,) = figures(draw_curves(ten))["loss-train"].legends
    told = [text.get_text().replace("\n", " ") for text in legend.get_texts()]
    assert told == list(ten.groups)
    assert len(told) == 10
    for text in legend.get_texts():
        box = text.get_window_extent()
        assert 0 <= box.x0 < box.x1 <= legend.figure.bbox.width


def test_steps_are_whole_numbers(tmp_path):
    short = collect(open_subjects([write_run(tmp_path / "run", steps=12)]))
    (axis,) = figures(draw_curves(short))["loss-train"].axes
    assert all(float(step).is_integer() for step in axis.get_xticks())

"""The three layouts, as the tools that write them leave them."""

import numpy as np
import pytest

from dograph.errors import CorpusError
from dograph.mixtures.tables import read_table
from planned_tables import PILE, PILE_TARGETS, regmix_files


def write(folder, mixtures, losses):
    (folder / "m.csv").write_bytes(mixtures.encode())
    (folder / "l.csv").write_bytes(losses.encode())
    return folder / "m.csv", folder / "l.csv"


def read(folder, mixtures, losses):
    return read_table(*write(folder, mixtures, losses))


LONG_MIXTURES = "run,source,weight\na,web,0.25\na,code,0.75\nb,web,1\nc,web,0.5\nc,code,0.5\n"
LONG_LOSSES = "run,target,loss\na,web,3\na,code,2\nb,web,2.5\nb,code,4\nc,web,2.75\nc,code,3\n"
WIDE_MIXTURES = "run,web,code\na,0.25,0.75\nb,1,0\nc,0.5,0.5\n"
WIDE_LOSSES = "run,web,code\na,3,2\nb,2.5,4\nc,2.75,3\n"
WEIGHTS = [[0.25, 0.75], [1, 0], [0.5, 0.5]]
LOSSES = [[3, 2], [2.5, 4], [2.75, 3]]


@pytest.mark.parametrize("first", [0, 1])
def test_regmix(tmp_path, first):
    weight_NS, loss_NV = regmix_files(tmp_path, first=first)
    table = read_table(tmp_path / "mixtures.csv", tmp_path / "losses.csv")
    assert table.sources == PILE
    assert table.targets == PILE_TARGETS
    assert table.runs == [str(n + first) for n in range(6)]
    np.testing.assert_allclose(table.weight_NS, weight_NS / weight_NS.sum(1, keepdims=True))
    np.testing.assert_array_equal(table.loss_NV, loss_NV)
    assert table.aliases["train_the_pile_pile_cc"] == "pile_cc"
    assert table.aliases["metric/the_pile_pile_cc_val_loss"] == "pile_cc"
    text = "\n".join(table.notes)
    worst = np.abs(weight_NS.sum(1) - 1).max()
    assert f"largest deviation is {worst:.3g}" in text


def test_regmix_of_another_corpus(tmp_path):
    table = read(
        tmp_path,
        "index,train_web,train_code\n1,0.4,0.6\n2,0.5,0.5\n",
        "index,metric/web_val_loss,metric/code_val_loss\n2,3,4\n1,5,6\n",
    )
    assert (table.sources, table.targets) == (["web", "code"], ["web", "code"])
    np.testing.assert_array_equal(table.loss_NV, [[5, 6], [3, 4]])  # joined by index, not by line


def test_olmix_as_published(tmp_path):
    """An unnamed pandas index, run, name and index before the domains; names with colons."""
    table = read(
        tmp_path,
        ",run,name,index,dclm:sports,pes2o\n0,hz0d,swarm-0000,0,0.25,0.75\n1,pj0h,swarm-0001,1,1,0\n",
        ",run,name,index,arc:rc::olmes,mbpp:3shot::none\n0,pj0h,swarm-0001,1,1.5,1.4\n"
        "1,hz0d,swarm-0000,0,1.6,1.7\n",
    )
    assert table.sources == ["dclm:sports", "pes2o"]
    assert table.targets == ["arc:rc::olmes", "mbpp:3shot::none"]
    assert table.runs == ["hz0d", "pj0h"]
    np.testing.assert_array_equal(table.loss_NV, [[1.6, 1.7], [1.5, 1.4]])


@pytest.mark.parametrize("column", ["run", "run_id", "name"])
def test_olmix_as_documented(tmp_path, column):
    table = read(
        tmp_path,
        WIDE_MIXTURES.replace("run", column, 1),
        WIDE_LOSSES.replace("run", column, 1),
    )
    np.testing.assert_array_equal(table.weight_NS, WEIGHTS)
    np.testing.assert_array_equal(table.loss_NV, LOSSES)
    assert not table.notes


def test_long_form(tmp_path):
    table = read(tmp_path, LONG_MIXTURES, LONG_LOSSES)
    assert (table.sources, table.targets, table.runs) == (
        ["web", "code"],
        ["web", "code"],
        ["a", "b", "c"],
    )
    np.testing.assert_array_equal(table.weight_NS, WEIGHTS)  # b does not name code: 0
    np.testing.assert_array_equal(table.loss_NV, LOSSES)


def test_the_two_files_may_have_different_layouts(tmp_path):
    np.testing.assert_array_equal(read(tmp_path, WIDE_MIXTURES, LONG_LOSSES).loss_NV, LOSSES)
    np.testing.assert_array_equal(read(tmp_path, LONG_MIXTURES, WIDE_LOSSES).weight_NS, WEIGHTS)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "\ufeff" + text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.replace("\n", "\r"),
        lambda text: text.replace(",", ", "),
        lambda text: text.replace("web", '"web"').replace("code", ' "code" '),
        lambda text: text.replace(",", ";"),
        lambda text: text.replace(",", "\t"),
        lambda text: "\n" + text.replace("\n", "\n\n"),
        lambda text: text.replace("\n", ",\n"),
        lambda text: text.rstrip("\n"),
    ],
    ids=["bom", "crlf", "cr", "spaces", "quotes", "semicolons", "tabs", "blank", "trailing", "end"],
)
def test_files_as_people_have_them(tmp_path, change):
    table = read(tmp_path, change(WIDE_MIXTURES), change(WIDE_LOSSES))
    assert (table.sources, table.targets) == (["web", "code"], ["web", "code"])
    np.testing.assert_array_equal(table.weight_NS, WEIGHTS)
    np.testing.assert_array_equal(table.loss_NV, LOSSES)


def test_names_with_commas_and_odd_line_characters(tmp_path):
    table = read(
        tmp_path,
        'run,"web, old",co\u2028de\na,0.5,0.5\nb,0.2,0.8\n',
        "run,t\na,1\nb,2\n",
    )
    assert table.sources == ["web, old", "co\u2028de"]


def test_pandas_index_that_is_the_run(tmp_path):
    table = read(tmp_path, WIDE_MIXTURES.removeprefix("run"), WIDE_LOSSES.removeprefix("run"))
    np.testing.assert_array_equal(table.weight_NS, WEIGHTS)
    assert sum("first column, which has no name" in note for note in table.notes) == 2


def test_unused_columns_of_the_long_form_are_named(tmp_path):
    first, *rest = LONG_LOSSES.splitlines()
    lines = [f"{first},step", *(f"{line},9" for line in rest)]
    table = read(tmp_path, LONG_MIXTURES, "\n".join(lines))
    np.testing.assert_array_equal(table.loss_NV, LOSSES)
    assert any("not used: step" in note for note in table.notes)


def refused(folder, mixtures, losses, *parts):
    with pytest.raises(CorpusError) as caught:
        read(folder, mixtures, losses)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


def test_an_unknown_header_shows_the_three_layouts(tmp_path):
    refused(
        tmp_path,
        "id,web,code\na,0.5,0.5\n",
        WIDE_LOSSES,
        "m.csv",
        "id, web, code",
        "index,train_the_pile_arxiv",
        "index,metric/the_pile_arxiv_val_loss",
        "run,name,index,wikipedia",
        "run,source,weight",
        "run,target,loss",
    )


@pytest.mark.parametrize("cell", ["-0.25", "x", "0,75", "inf", "1_0", "25%"])
def test_a_bad_weight_is_found(tmp_path, cell):
    bad = LONG_MIXTURES.replace("a,web,0.25", f'a,web,"{cell}"')
    refused(tmp_path, bad, LONG_LOSSES, 'm.csv, line 2, column "weight"', cell)


def test_a_bad_cell_of_a_wide_file_is_found(tmp_path):
    bad = WIDE_LOSSES.replace("4", "four")
    refused(tmp_path, WIDE_MIXTURES, bad, 'l.csv, line 3, column "code"', '"four"')
    bad = WIDE_LOSSES.replace("4", "inf")
    refused(
        tmp_path,
        WIDE_MIXTURES,
        bad,
        'l.csv, line 3, column "code"',
        "leave the cell of a missing loss empty",
    )


def test_an_empty_weight_is_refused_and_an_empty_loss_is_missing(tmp_path):
    refused(tmp_path, WIDE_MIXTURES.replace("b,1,0", "b,1,"), WIDE_LOSSES, "line 3", "write 0")
    for cell in ("", "nan", "NaN", "NA"):
        table = read(tmp_path, WIDE_MIXTURES, WIDE_LOSSES.replace("b,2.5", f"b,{cell}"))
        assert np.isnan(table.loss_NV[1, 0])
        assert np.isfinite(np.delete(table.loss_NV.ravel(), 2)).all()


def test_duplicates(tmp_path):
    refused(tmp_path, WIDE_MIXTURES + "a,1,0\n", WIDE_LOSSES, 'run "a"', "line 5", "line 2")
    refused(tmp_path, LONG_MIXTURES, LONG_LOSSES + "a,web,3\n", 'run "a" has "web" twice', "line 8")
    refused(tmp_path, WIDE_MIXTURES.replace("code", "web"), WIDE_LOSSES, 'both called "web"')
    refused(
        tmp_path,
        "index,train_the_pile_web,web\n1,0.5,0.5\n",
        "index,t\n1,2\n",
        '"train_the_pile_web" and "web" both mean "web"',
    )


def test_files_that_are_no_tables(tmp_path):
    refused(tmp_path, "", WIDE_LOSSES, "nothing in it")
    refused(tmp_path, "run,web\n", WIDE_LOSSES, "no rows")
    refused(tmp_path, "run,web\na\n", WIDE_LOSSES, "line 2: 1 cells, but the header has 2")
    refused(tmp_path, "run,web,,code\na,1,1,1\n", WIDE_LOSSES, "column 3 has no name")
    refused(tmp_path, "run\na\n", WIDE_LOSSES, "no column for any source")
    refused(tmp_path, "run,web\n,1\n", WIDE_LOSSES, "the run has no name")
    with pytest.raises(CorpusError, match="cannot read"):
        read_table(tmp_path / "absent.csv", tmp_path / "l.csv")
    (tmp_path / "m.csv").write_bytes(b"run,w\xff\n")
    with pytest.raises(CorpusError, match="not UTF-8"):
        read_table(tmp_path / "m.csv", tmp_path / "l.csv")


def test_swapped_files(tmp_path):
    refused(tmp_path, LONG_LOSSES, LONG_MIXTURES, "name the mixtures first")
    refused(tmp_path, WIDE_LOSSES, WIDE_MIXTURES, "are the two files swapped?")
    regmix_files(tmp_path)
    with pytest.raises(CorpusError, match="name the mixtures first"):
        read_table(tmp_path / "losses.csv", tmp_path / "mixtures.csv")

"""The plan command in this process: what it refuses, tells and writes."""

import csv
import re

import numpy as np
import pytest
import typer
import yaml
from typer.testing import CliRunner

from corpora import write_corpus
from dograph.cli.plan import plan, table_files
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError
from dograph.mixtures.proposals import generate_mixtures
from dograph.plan import pool as local
from dograph.rng import stream
from lab_runs import Here

app = typer.Typer()
app.command()(plan)
SOURCES = ("alpha", "beta", "gamma")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus") / "c")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """Losses that fall with the share of gamma, in the long form; and one more pair like it."""
    folder = tmp_path_factory.mktemp("tables")
    draws = stream(3, "tables")
    found = {}
    for name, number in (("fit", 40), ("test", 12)):
        weight_NS = draws.dirichlet(np.ones(3), size=number)
        mixtures, losses = folder / f"{name}-mixtures.csv", folder / f"{name}-losses.csv"
        with open(mixtures, "w", newline="") as one, open(losses, "w", newline="") as two:
            weights, measured = csv.writer(one), csv.writer(two)
            weights.writerow(["run", "source", "weight"])
            measured.writerow(["run", "target", "loss"])
            for n, weight_S in enumerate(weight_NS):
                for source, weight in zip(SOURCES, weight_S, strict=True):
                    weights.writerow([f"r{n}", source, weight])
                measured.writerow([f"r{n}", "C4", 2 + np.exp(-1 - 2 * weight_S[2])])
                measured.writerow([f"r{n}", "Book", 2 + np.exp(-1 - 2 * weight_S[0])])
        found[name] = [str(mixtures), str(losses)]
    return found


def invoke(*arguments):
    result = CliRunner().invoke(app, list(map(str, arguments)))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def settings(corpus):
    return [f"data.corpus={corpus}", "data.seq_len=32", "train.steps=8", "optim.warmup_steps=0"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["uniform"], r"uniform makes no plan; train with mixer\.name=uniform"),
        (["doremi", "mixer.name=doge"], r"mixer\.name is METHOD here"),
        (["doremi", "mixer.roundz=2"], r"mixer\.roundz is not an option of doremi"),
        (["doremi", "--proxy", "seed=3"], "seed is not a setting of proxies"),
        (["doremi", "--proxy", "train.stepz=3"], r"train\.stepz is not a setting"),
        (["doremi", "--on", "moon"], "--on=moon"),
        (["doremi", "--workers", "0"], "--workers=0"),
        (["doremi", "mixer.surrogate=ridge"], r"mixer\.surrogate is not an option of doremi"),
        (["regmix", "mixer.caps={alpha: 1}"], r"mixer\.caps is not an option of regmix"),
        (["regmix", "mixer.target=alfa"], 'not a source; did you mean "alpha"'),
        (["doremi", "--from-table", "a", "b"], "doremi cannot plan from a table"),
        (["olmix"], "olmix plans from a table"),
        (["olmix", "--from-table", "a", "b", "mixer.top=3"], r"mixer\.top is not an option of olm"),
        (["mixing-law", "--from-table", "a", "b", "mixer.top=3"], r"mixer\.top is not an option"),
        (["mixing-law", "--from-table", "a", "b", "mixer.law=transfer"], "removed.*: exponential"),
        (["regmix", "--from-table", "a", "b", "--proxy", "x=1"], "--proxy: no proxies"),
        (["regmix", "--from-table", "a", "b", "--on", "ray"], "--on: no proxies"),
        (
            ["regmix", "mixer.mu=3", "--from-table", "a", "b"],
            r"mixer\.mu is not an option of a plan",
        ),
        (["regmix", "--from-table", "a", "--force"], "--from-table takes two files.*is --force"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_what_is_wrong_is_told_before_anything_runs(corpus, folder, arguments, told):
    more = settings(corpus) if "--from-table" not in arguments else []
    with pytest.raises(ConfigError, match=told):
        invoke(arguments[0], *more, *arguments[1:])
    assert list(folder.iterdir()) == []


def test_a_file_is_not_written_over(corpus, folder):
    (folder / "mixture.yaml").write_text("mine")
    with pytest.raises(ConfigError, match="already exists; name another with --out"):
        invoke("doremi", *settings(corpus))
    (folder / "taken").mkdir()
    with pytest.raises(ConfigError, match="is a folder"):
        invoke("doremi", *settings(corpus), "--out", "taken", "--force")
    with pytest.raises(ConfigError, match="cannot be written"):
        invoke("doremi", *settings(corpus), "--out", "mixture.yaml/m.yaml")
    assert (folder / "mixture.yaml").read_text() == "mine"


def test_a_dry_run_makes_nothing(corpus, folder):
    (folder / "mixture.yaml").write_text("mine")
    result = invoke("lab_runs:Ladder", *settings(corpus), "mixer.number=5", "--dry-run")
    assert "5 proxies to train (tiny; 8 steps): 20,480 tokens" in result.stdout
    assert [path.read_text() for path in folder.iterdir()] == ["mine"]


def test_mixtures_for_another_trainer_and_back_with_its_losses(corpus, folder):
    """Wide losses of runs that follow a known law: the plan is the one that the law asks for."""
    asked = ("regmix", *settings(corpus))
    generated = (*asked, "mixer.num_proxies=24", "mixer.seed=3")
    said = invoke(*generated, "--write-mixtures", "in/mixtures.csv").stdout
    assert "24 mixtures are written to in/mixtures.csv" in said
    assert "--from-table in/mixtures.csv losses.csv" in said
    assert not (folder / "mixture.yaml").exists()
    with open("in/mixtures.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    tokens = Corpus(corpus).tokens_by_source()
    expected = generate_mixtures(tokens, 24, seed=3)
    for n, mixture in enumerate(expected, start=1):
        own = {r["source"]: float(r["weight"]) for r in rows if r["run"] == f"mixture {n}"}
        assert own == mixture.weights
    with open("losses.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", "C4"])
        for n, mixture in enumerate(expected, start=1):
            writer.writerow([f"mixture {n}", 3 - mixture.weights["gamma"]])
    invoke(*asked, "--from-table", "in/mixtures.csv", "losses.csv", "mixer.surrogate=linear")
    weights = yaml.safe_load((folder / "mixture.yaml").read_text())["weights"]
    assert max(weights, key=weights.get) == "gamma"
    with pytest.raises(ConfigError, match=r"mixtures.csv already exists; .*--write-mixtures"):
        invoke(*asked, "--write-mixtures", "in/mixtures.csv")


@pytest.mark.parametrize(
    ("method", "options", "told"),
    [
        ("doremi", (), "proxies of doremi decide themselves what they draw.*regmix, mixing-law"),
        ("lab_runs:Ladder", (), "methods that generate mixtures for proxies: regmix, mixing-law"),
        ("regmix", ("--proxy", "train.steps=3"), "--proxy: no proxies are trained with --write"),
        ("regmix", ("--dry-run",), "--dry-run: no proxies are trained with --write-mixtures"),
        ("regmix", ("--from-table", "a.csv", "b.csv"), "--from-table for finished ones"),
        ("regmix", ("mixer.num_proxies=3",), "num_proxies"),
    ],
)
def test_no_mixtures_are_written_where_there_are_none(corpus, folder, method, options, told):
    with pytest.raises(ConfigError, match=told):
        invoke(method, *settings(corpus), *options, "--write-mixtures", "m.csv")
    assert not (folder / "m.csv").exists()


def test_a_plan_from_proxies(corpus, folder, monkeypatch):
    monkeypatch.setattr(local, "LocalPool", lambda workers: Here())
    arguments = [*settings(corpus), "mixer.number=2", "--proxy", "train.steps=2"]
    result = invoke("lab_runs:Ladder", *arguments, "--out", "new/m.yaml")
    written = yaml.safe_load((folder / "new" / "m.yaml").read_text())
    assert written["provenance"]["proxy"]["number"] == 2
    assert written["provenance"]["settings"] == {"number": 2}
    rows = [line.split() for line in result.stdout.splitlines()]
    assert rows[0] == ["source", "natural", "planned", "epochs"]
    for row, source, natural in zip(rows[1:], SOURCES, (0.6, 0.3, 0.1), strict=False):
        planned = written["weights"][source]
        blocks = (10_000 * natural) // 32
        assert row[:3] == [source, f"{natural:.4f}", f"{planned:.4f}"]
        assert float(row[3]) == pytest.approx(8 * 16 * planned / blocks, abs=0.006)
    assert re.search(r"^cost: 2 proxies, \d+ s of training, ", result.stdout, re.MULTILINE)
    assert "mixer.name=static mixer.file=new/m.yaml" in result.stdout
    assert "mixer.number" not in result.stdout.splitlines()[-1]
    assert "advice: look twice" in result.stderr
    assert "2 proxies to train" in result.stderr


def test_repeats_are_warned_about(corpus, folder, monkeypatch):
    monkeypatch.setattr(local, "LocalPool", lambda workers: Here())
    many = [*settings(corpus), "mixer.number=1", "train.steps=80", "--proxy", "train.steps=2"]
    result = invoke("lab_runs:Ladder", *many)
    assert "warning: gamma would be read through" in result.stderr


@pytest.mark.parametrize("method", ["regmix", "mixing-law"])
def test_a_plan_from_a_table(folder, tables, method):
    option = "surrogate" if method == "regmix" else "law"  # the law is an old option
    chosen = ("mixer.target=C4", f"mixer.{option}=exponential")
    result = invoke(method, *chosen, "--from-table", *tables["fit"])
    written = yaml.safe_load((folder / "mixture.yaml").read_text())
    assert max(written["weights"], key=written["weights"].get) == "gamma"
    assert written["provenance"]["method"] == method
    assert written["provenance"]["settings"]["tables"] == tables["fit"]
    assert "epochs" not in result.stdout
    assert "surrogate: exponential" in result.stdout
    assert "Spearman 1.0000" in result.stdout  # the table follows an exponential law


NOISE = np.array([2.1, 2.9, 2.3, 2.8, 2.0, 2.7, 2.2, 2.6])


@pytest.fixture
def noise(folder):
    """Eight runs whose losses have nothing to do with their mixtures."""
    rows = [f"r{n},{n / 7},{1 - n / 7}" for n in range(8)]
    (folder / "m.csv").write_text("run,alpha,beta\n" + "\n".join(rows))
    (folder / "l.csv").write_text("run,C4\n" + "\n".join(f"r{n},{x}" for n, x in enumerate(NOISE)))
    return ["mixer.surrogate=linear", "--from-table", "m.csv", "l.csv"]


def test_a_plan_without_support_is_shown_and_not_written(folder, noise):
    run = CliRunner().invoke(app, ["regmix", *noise])
    assert isinstance(run.exception, ConfigError)
    told = str(run.exception)
    assert told.startswith(
        "mixture.yaml is not written, because the runs do not support it:\n- on "
    )
    assert re.search(r"Spearman correlation of -?0\.\d\d; at least 0\.62 is needed", told)
    assert re.search(r"runs nearest to it \(L1\): r\d \(0\.\d\d\), r\d \(", told)
    assert told.endswith("--force writes it all the same")
    assert run.stdout.split()[:3] == ["source", "prior", "planned"]
    assert "Spearman correlation" not in run.stderr  # it is in the error
    assert not (folder / "mixture.yaml").exists()
    result = invoke("regmix", *noise, "--force")
    assert "note: on the 8 runs, each left out of a fit, linear predicts" in result.stderr
    assert yaml.safe_load((folder / "mixture.yaml").read_text())["findings"]["support"]["problems"]


def test_proxies_of_a_plan_without_support_are_kept(corpus, folder, monkeypatch):
    """Four proxies of two steps tell nothing; their table is written, and nothing trained again."""
    monkeypatch.setattr(local, "LocalPool", lambda workers: Here())
    few = ["mixer.num_proxies=4", "mixer.surrogate=linear", "mixer.draws=200", "mixer.max_usage=2"]
    arguments = ["regmix", *settings(corpus), *few, "--proxy", "train.steps=2"]
    run = CliRunner().invoke(app, arguments)
    assert isinstance(run.exception, ConfigError), run.output
    assert "not written" in str(run.exception)
    assert str(run.exception).endswith("--force writes it all the same; no proxy is trained again")
    assert not (folder / "mixture.yaml").exists()
    table = [folder / "mixture.mixtures.csv", folder / "mixture.losses.csv"]
    assert "mixture 4,alpha," in table[0].read_text()
    assert "mixture 4,alpha," in table[1].read_text()
    result = invoke(*arguments, "--force")
    assert "4 proxies, all made before: nothing to train" in result.stderr
    assert (folder / "mixture.yaml").exists()
    again = ("--from-table", *table, "--out", "again.yaml", "--force")
    invoke("regmix", "mixer.surrogate=linear", *again)


def test_targets_and_caps(folder, tables):
    result = invoke(
        "mixing-law",
        *("--from-table", *tables["fit"]),
        *("mixer.target={C4: 3, Book: 1}", "mixer.caps={gamma: 0.4}"),
    )
    written = yaml.safe_load((folder / "mixture.yaml").read_text())
    assert written["weights"]["gamma"] == pytest.approx(0.4, abs=1e-9)
    assert written["findings"]["targets"] == {"C4": 0.75, "Book": 0.25}
    assert "exponential on left-out runs: Spearman" in result.stdout


def test_a_run_gives_its_prior_and_its_caps(corpus, folder, tables):
    # 12,800 tokens are drawn and gamma has 1,000: two epochs of it are 0.156 of the run
    run = [f"data.corpus={corpus}", "data.seq_len=32", "train.steps=25", "train.batch_size=16"]
    result = invoke(
        *("mixing-law", *run, "mixer.target=C4", "mixer.max_epochs=2"),
        *("--from-table", *tables["fit"]),
    )
    written = yaml.safe_load((folder / "mixture.yaml").read_text())
    assert written["weights"]["gamma"] == pytest.approx(2 * 1000 / 12_800)
    assert written["findings"]["prior"] == pytest.approx({"alpha": 0.6, "beta": 0.3, "gamma": 0.1})
    assert "epochs" in result.stdout.splitlines()[0]
    assert written["provenance"]["target_tokens"] == 12_800
    given = ("mixer.max_epochs=2", "mixer.caps={beta: 0.4, gamma: 0.1}")  # the lower of both
    invoke("mixing-law", *run, "mixer.target=C4", *given, "--from-table", *tables["fit"], "--force")
    again = yaml.safe_load((folder / "mixture.yaml").read_text())
    assert again["findings"]["caps"] == pytest.approx(
        {"alpha": 2 * 6000 / 12_800, "beta": 0.4, "gamma": 0.1}
    )


def test_a_corpus_may_have_sources_that_the_table_lacks(corpus, folder):
    shares = np.linspace(0.1, 0.9, 12)
    rows = [f"r{n},alpha,{x}\nr{n},beta,{1 - x}\n" for n, x in enumerate(shares)]
    (folder / "mixtures.csv").write_text("run,source,weight\n" + "".join(rows))
    losses = [f"r{n},C4,{2 + np.exp(-x)}\n" for n, x in enumerate(shares)]
    (folder / "losses.csv").write_text("run,target,loss\n" + "".join(losses))
    run = [f"data.corpus={corpus}", "data.seq_len=32", "train.steps=25", "train.batch_size=16"]
    invoke("olmix", *run, "--from-table", folder / "mixtures.csv", folder / "losses.csv")
    written = yaml.safe_load((folder / "mixture.yaml").read_text())
    assert list(written["weights"]) == ["alpha", "beta"]


def test_a_prior_file_must_name_every_source(folder, tables):
    (folder / "prior.yaml").write_text("weights: {alpha: 5, beta: 3}")
    with pytest.raises(ConfigError, match="the prior lacks gamma; give 0 to leave a source out"):
        invoke("mixing-law", "mixer.prior=prior.yaml", "--from-table", *tables["fit"])


def test_olmix_stays_near_the_prior_and_repeats_no_source_too_often(corpus, folder, tables):
    (folder / "prior.yaml").write_text("weights: {alpha: 5, beta: 3, gamma: 2}")
    table = ("--from-table", *tables["fit"])
    options = ("mixer.prior=prior.yaml", "mixer.target=C4")
    invoke("olmix", *options, *table)
    near = yaml.safe_load((folder / "mixture.yaml").read_text())
    assert 0.2 < near["weights"]["gamma"] < 0.9
    assert near["provenance"]["settings"]["kl"] == 0.1
    invoke("olmix", *options, "mixer.kl=1e6", *table, "--force")
    again = yaml.safe_load((folder / "mixture.yaml").read_text())
    assert again["weights"] == pytest.approx({"alpha": 0.5, "beta": 0.3, "gamma": 0.2}, abs=1e-5)
    # 12,800 tokens are drawn and gamma has 1,000: four epochs of it are 0.3125 of the run
    run = [f"data.corpus={corpus}", "data.seq_len=32", "train.steps=25", "train.batch_size=16"]
    invoke("olmix", *run, "mixer.kl=0", "mixer.target=C4", *table, "--force")
    most = yaml.safe_load((folder / "mixture.yaml").read_text())
    assert most["weights"]["gamma"] == pytest.approx(4 * 1000 / 12_800)


def test_olmix_reuses_a_mixture(folder, tables):
    (folder / "old.yaml").write_text("weights: {alpha: 3, beta: 1}")
    table = ("--from-table", *tables["fit"])
    reuse = ("mixer.reuse=old.yaml", "mixer.unchanged=[alpha, beta]")
    result = invoke("olmix", *reuse, "mixer.target=C4", *table)
    written = yaml.safe_load((folder / "mixture.yaml").read_text())
    weights = written["weights"]
    assert weights["alpha"] == pytest.approx(3 * weights["beta"])
    assert written["provenance"]["settings"]["unchanged"] == ["alpha", "beta"]
    assert "unchanged sources are not in the ratios of the earlier mixture" in result.stderr
    for wrong in (reuse[:1], reuse[1:], (reuse[0], "mixer.unchanged=[]")):
        with pytest.raises(ConfigError, match=r"mixer\.reuse=.*: give both"):
            invoke("olmix", *wrong, *table, "--force")


def test_epochs_need_a_run(folder, tables):
    with pytest.raises(ConfigError, match=r"mixer\.max_epochs needs the run"):
        invoke("regmix", "mixer.max_epochs=2", "--from-table", *tables["fit"])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["mixer.caps=gamma"], "mixer.caps=gamma: give shares from 0 to 1 by source"),
        (["mixer.caps={gamma: lots}"], "mixer.caps={'gamma': 'lots'}: give shares from 0 to 1"),
        (["mixer.caps={gamma: 20}"], "mixer.caps={'gamma': 20}: give shares from 0 to 1"),
        (["mixer.max_epochs=0"], "mixer.max_epochs=0: give a finite number above 0"),
        (["mixer.target=C5"], 'the table has no target "C5"; allowed: Book, C4'),
        (["mixer.top=0"], "top=0: of 100,000 simulated"),
        (["mixer.top=100001"], "top=100001: of 100,000 simulated"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_wrong_numbers_are_told(folder, tables, options, told):
    with pytest.raises(ConfigError, match=told):
        invoke("regmix", *options, "--from-table", *tables["fit"])


def test_a_table_without_a_run_is_for_no_corpus_in_particular(folder, tables):
    result = invoke("mixing-law", "--from-table", *tables["fit"], "--out", "eta0.1")
    assert "dograph train recipe.yaml mixer.name=static mixer.file=eta0.1" in result.stdout


def test_tables_beside_a_plan_are_not_written_over(corpus, folder):
    assert [file.name for file in table_files(folder / "a.yaml")] == [
        "a.mixtures.csv",
        "a.losses.csv",
    ]
    assert table_files(folder / "eta0.1") != table_files(folder / "eta0.2")
    (folder / "mixture.losses.csv").write_text("mine")
    with pytest.raises(ConfigError, match=r"mixture\.losses\.csv already exists"):
        invoke("regmix", *settings(corpus))


def test_a_lab_that_cannot_be_is_told(corpus, folder):
    (folder / "file").write_text("")
    with pytest.raises(ConfigError, match=r"proxies cannot be kept in .*file: .*; name another"):
        invoke("lab_runs:Ladder", *settings(corpus), "mixer.number=1", "--lab", "file")

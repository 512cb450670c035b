"""The cases of benchmarks.same_numbers: commands that both sides run, each in a folder of its own.

Only the command line is used, so modules may move. Settings differ from case to case beyond what
its name says, so that few runs try many of them.
"""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

CORPUS = "../corpus-jsonl/corpus"
SMALL = (
    *(f"data.corpus={CORPUS}", "data.seq_len=32", "model.preset=tiny", "train.device=cpu"),
    *("train.steps=4", "train.batch_size=8", "eval.every=2", "eval.max_blocks=2"),
    *("checkpoint.every=2", "checkpoint.keep=9", "log.every=2", "probe.rows=6", "sketch.dim=64"),
    "sketch.projection=rademacher",  # which older commits have by default
)
DOGRAPH = ("mixer.name=dograph", "mixer.num_domains=3", "mixer.restarts=4")
STREAM = (  # whose domains are known after 10 steps, and found again after 25
    *(*DOGRAPH, "mixer.recipe=safe", "mixer.warmup=0.25", "mixer.half_life=4"),
    *("train.steps=28", "eval.every=14", "checkpoint.every=14"),
)
COMPARE = ("compare", *SMALL, "--mixers", "ours=dograph[num_domains=3]", "--seeds", "2")
PLAN = (
    *SMALL,
    "train.steps=8",
    "--proxy",
    "train.steps=4",
    "--lab",
    "lab",
    "--workers",
    "1",
    "--force",
)


# How commits before `dograph show` spell a command, and settings that were options there.
OLD_COMMANDS = {
    ("show", "losses"): ("losses",),
    ("show", "graph"): ("graph",),
    ("show", "weights"): ("explain",),
    ("show", "samples"): ("data", "show"),
}
OLD_OPTIONS = {
    "inspect": {"data.corpus": "--corpus", "train.device": "--device"},
    "eval": {"train.device": "--device"},
    "plan": {"mixer.surrogate": "--surrogate", "mixer.caps": "--cap"},
}


def old_spelling(arguments: Sequence[str]) -> list[str]:
    """A command in the words of a commit that has no `dograph show`."""
    verb = tuple(arguments[:2])
    words = [*OLD_COMMANDS[verb], *arguments[2:]] if verb in OLD_COMMANDS else list(arguments)
    options = OLD_OPTIONS.get(words[0], {})
    if words[0] == "plan" and "--from-table" not in words:
        return words
    spelled = []
    for word in words:
        name, _, value = word.partition("=")
        if name in options:
            spelled += [options[name], value.strip("{}").replace(": ", "=")]
        else:
            spelled.append(word)
    return spelled


class Side:
    """Old or new code, where it works, and a process that runs its commands."""

    def __init__(self, name: str, source: Path, folder: Path) -> None:
        self.name, self.source, self.folder = name, source, folder
        own = {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        self.environment = os.environ | own | {"CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
        self._server: subprocess.Popen[str] | None = None

    def run(self, arguments: Sequence[str], folder: Path, out: Path, err: Path, ranks: int) -> int:
        """Run `dograph` and return its exit status. Commands with workers get a fresh process."""
        if not (self.source / "dograph" / "renamed.py").exists():
            arguments = old_spelling(arguments)
        if ranks > 1 or "--lab" in arguments or arguments[0] == "compare":
            several = ("torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks))
            words = ["-m", *((*several, "-m") if ranks > 1 else ()), "dograph", *arguments]
            with open(out, "w") as first, open(err, "w") as second:
                return subprocess.run(
                    [sys.executable, *words],
                    cwd=folder,
                    env=self.environment,
                    stdout=first,
                    stderr=second,
                ).returncode
        if self._server is None:
            self._server = self._started()
        order = {"arguments": arguments, "folder": folder, "out": out, "err": err}
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        print(json.dumps(order, default=str), file=self._server.stdin, flush=True)
        return int(self._server.stdout.readline())

    def _started(self) -> subprocess.Popen[str]:
        words = [sys.executable, str(Path(__file__).with_name("same_server.py"))]
        pipe = subprocess.PIPE
        return subprocess.Popen(words, env=self.environment, text=True, stdin=pipe, stdout=pipe)

    def close(self) -> None:
        if self._server is not None:
            self._server.communicate()


@dataclass
class Place:
    """Where one side plays one case. Commands run in its folder, so all names are relative."""

    side: Side
    old: Side
    folder: Path
    told: int = 0

    def dograph(self, *arguments: str, inside: str = ".", ranks: int = 1) -> None:
        """Run a command and keep what it prints, but for tables that hold seconds."""
        self.told += 1
        out = self.folder / f"printed-{self.told}.txt"
        err = out.with_suffix(".log")
        if self.side.run(arguments, self.folder / inside, out, err, ranks):
            said = " / ".join(err.read_text().strip().splitlines()[-3:])
            raise RuntimeError(f"{self.side.name} code: {' '.join(arguments[:2])} ...: {said}")
        if arguments[0] in ("plan", "compare"):
            out.unlink()

    def take(self, case: str, *, of: Side | None = None, as_: str | None = None) -> Path:
        """Copy what a case left, of this side or of another."""
        target = self.folder / (as_ or case)
        shutil.copytree((of or self.side).folder / case, target, symlinks=True)
        return target


def cut(run: Path, step: int) -> None:
    """As if the run had been killed after a step: later checkpoints are gone."""
    for checkpoint in run.glob("checkpoints/step-*"):
        if int(checkpoint.name.removeprefix("step-")) > step:
            shutil.rmtree(checkpoint)
    (run / "model").unlink()


@dataclass(frozen=True)
class Case:
    """What both sides do in a folder of that name, after the cases that it needs."""

    play: Callable[[Place], None]
    needs: tuple[str, ...] = ("corpus-jsonl",)


def trained(*settings: str, ranks: int = 1) -> Case:
    return Case(lambda place: place.dograph("train", *SMALL, "run=run", *settings, ranks=ranks))


def prepared(*arguments: str) -> Case:
    command = ("data", "prepare", *arguments, "--out", "corpus", "--workers", "1")
    return Case(lambda place: place.dograph(*command), needs=())


def planned(method: str, *options: str) -> Case:
    command = ("plan", method, *PLAN, *options, "--out", "mixture.yaml")
    return Case(lambda place: place.dograph(*command))


def jsonl_corpus(place: Place) -> None:
    """Three small sources of made-up text, each of two kinds of documents."""
    draw = random.Random(0)
    words = {"news": "the mayor said a vote rain city", "code": "def x y = + return : ( )"}
    words["song"] = "oh baby la love moon night blue"
    for number, (source, text) in enumerate(words.items()):
        kinds = text.split()[:4], text.split()[2:]
        lines = [
            json.dumps({"text": " ".join(draw.choices(kinds[n % 2], k=120))})
            for n in range(60 - 20 * number)
        ]
        (place.folder / f"{source}.jsonl").write_text("\n".join(lines) + "\n")
    files = [f"{source}.jsonl" for source in words]
    options = ("--strata", "2", "--vocab-size", "300", "--validation-fraction", "0.2")
    place.dograph("data", "prepare", *files, "--out", "corpus", "--workers", "1", *options)


def resumed(place: Place) -> None:
    """Killed after step 14 and gone on; then once more, with another mixture."""
    for name in ("plain", "edited"):
        cut(place.take("recipe-safe", as_=name) / "run", 14)
    place.dograph("train", "--resume", "plain/run")
    (place.folder / "other.yaml").write_text("weights: {news: 0.2, song: 0.8}\n")
    place.dograph("train", "--resume", "edited/run", "--mixture", "other.yaml")


def from_old(place: Place) -> None:
    """Corpus, run, comparison and proxies that old code made; each side goes on with them."""
    for case in ("corpus-jsonl", "recipe-safe", "compare", "plan-regmix"):
        place.take(case, of=place.old)
    cut(place.folder / "recipe-safe" / "run", 14)
    place.dograph("train", "--resume", "run", inside="recipe-safe")
    shutil.rmtree(place.folder / "compare" / "out" / "cells" / "ours-s1")
    place.dograph(*COMPARE, "--out", "out", "--workers", "1", inside="compare")
    place.dograph("plan", "regmix", *PLAN, *REGMIX, "--out", "again.yaml", inside="plan-regmix")
    look(place, "recipe-safe/run", "compare/out")


def look(place: Place, run: str, compared: str) -> None:
    """The commands that show a run; two of them read the corpus, so they run next to it."""
    folder, _, name = run.rpartition("/")
    place.dograph("show", "losses", run, f"{compared}/cells/natural-s0")
    place.dograph("show", "graph", run)
    place.dograph("show", "weights", name, "--step", "28", "--json", inside=folder)
    place.dograph("show", "samples", name, "--step", "3", "--json", inside=folder)
    place.dograph("report", run, compared, "--out", "page.html")


def looked(place: Place) -> None:
    look(place, "../recipe-safe/run", "../compare/out")
    measure = ("--rows", "12", "--domains", "3", "train.device=cpu", "--out", "inspected")
    place.dograph("inspect", "../recipe-safe/run", f"data.corpus={CORPUS}", *measure)
    tasks = {
        "piqa": {"goal": "a vote", "sol1": "the mayor said", "sol2": "oh baby", "label": 0},
        "copa": {"premise": "The rain.", "choice1": "A city.", "choice2": "La la."}
        | {"question": "cause", "label": 1},
        "lambada_openai": {"text": "oh baby la love moon"},
    }
    for task, document in tasks.items():
        split = "test" if task == "lambada_openai" else "validation"
        file = place.folder / "tasks" / task / f"{split}.jsonl"
        file.parent.mkdir(parents=True)
        file.write_text(2 * (json.dumps(document) + "\n"))
    place.dograph(
        *("eval", "../recipe-safe/run", "--benchmarks", "tasks", "--tasks", ",".join(tasks)),
        *("train.device=cpu", "--out", "eval.json"),
    )


def from_table(place: Place) -> None:
    """Every surrogate, on losses that fall with the share of one source or another."""
    draw = random.Random(1)
    mixtures, losses = ["run,news,code,song"], ["run,news,song"]
    for run in range(24):
        parts = [draw.expovariate(1) for _ in range(3)]
        news, code, song = (part / sum(parts) for part in parts)
        noise = draw.gauss(0, 0.01)
        mixtures.append(f"{run},{news},{code},{song}")
        losses.append(f"{run},{2 + 2.7 ** (-2 * news) + noise},{3 + 2.7 ** (-1 - song) - noise}")
    (place.folder / "mixtures.csv").write_text("\n".join(mixtures) + "\n")
    (place.folder / "losses.csv").write_text("\n".join(losses) + "\n")
    table = ("--from-table", "mixtures.csv", "losses.csv", "--force")
    place.dograph("plan", "regmix", *table, "--out", "regmix-best.yaml")
    for name in ("exponential", "ridge", "linear"):
        one = (f"mixer.surrogate={name}", *table, "--out", f"regmix-{name}.yaml")
        place.dograph("plan", "regmix", *one)
    capped = ("mixer.caps={news: 0.6}", *table)
    place.dograph("plan", "mixing-law", *capped, "--out", "law-exponential.yaml")


REGMIX = ("mixer.num_proxies=6", "mixer.draws=1000", "mixer.top=16")
SIZES = ("mixer.nest=sizes", "mixer.sizes=[tiny, demo, llama-tiny]", "train.steps=8")
LAST = ("recipe-safe", "compare")
CASES: dict[str, Case] = {
    "corpus-jsonl": Case(jsonl_corpus, needs=()),
    "corpus-demo": prepared("demo"),
    "corpus-bigram": prepared("bigram", "--noise"),
    "corpus-unigram": prepared("unigram", "--keep", "0.5", "--seed", "1"),
    "mixer-natural": trained("mixer.name=natural", "model.preset=llama-tiny"),
    "mixer-uniform": trained("mixer.name=uniform", "train.micro_batch_size=4"),
    "mixer-unimax": trained("mixer.name=unimax", "mixer.max_epochs=0.05"),
    "mixer-scheduled": trained(
        "mixer.name=scheduled", "mixer.stages={0: {news: 1}, 2: {song/0: 1, code: 3}}"
    ),
    "mixer-dynamic-loss": trained("mixer.name=dynamic-loss", "mixer.warmup_steps=1"),
    "mixer-group-dro": trained("mixer.name=group-dro", "mixer.eta=0.5", "mixer.adjustment=1"),
    "recipe-recommended": trained(*DOGRAPH),
    "recipe-safe": trained(*STREAM),
    "recipe-paper": trained(*DOGRAPH, "mixer.recipe=paper", "sketch.refresh=step"),
    "recipe-inverse-norm": trained(*DOGRAPH, "mixer.recipe=inverse-norm", "mixer.norm_from=all"),
    **{
        f"objective-{name}": trained(*DOGRAPH, f"mixer.objective={{name: {name}, {options}}}", more)
        for name, options, more in (
            ("variance", "lambda_: 0.5, variance: weighted", "seed=2"),
            ("robust", "tau: 0.5", "seed=3"),
            ("alignment", "iterations: 20", "mixer.normalise=true"),
            ("uncertainty", "beta: 2, sigma: mean", "mixer.effective_floor=0.9"),
            ("precision", "q: 0.5, gamma: 0.1", "mixer.keep_shares=true"),
        )
    },
    "scope-batch": trained(*DOGRAPH, "mixer.scope=batch", "seed=1"),
    "scope-epoch": trained(*DOGRAPH, "mixer.scope=epoch", "mixer.every=2", "mixer.warmup=0"),
    "scope-stream": trained(*STREAM, "mixer.realise=sampling", "mixer.remix_every=12"),
    **{
        f"mode-{mode}": trained(*DOGRAPH, f"sketch.mode={mode}", more)
        for mode, more in (
            ("full", "model.preset=llama-tiny"),
            ("twopass", "sketch.exclude=[model.transformer.wpe.weight]"),
            ("topdown", "sketch.top_blocks=1"),
            ("head", "model.dropout=0.1"),
            ("exact", "sketch.projection=gaussian"),
            ("reference", "sketch.refresh=never"),
        )
    },
    **{
        f"accumulation-{name}": trained(
            *recipe, f"sketch.accumulation={name}", "train.micro_batch_size=3"
        )
        for name, recipe in (("keep", DOGRAPH), ("two_sweeps", DOGRAPH), ("lagged", STREAM))
    },
    "bfloat16": trained(*DOGRAPH, "train.dtype=bfloat16", "train.activation_checkpointing=true"),
    "ranks-ddp": trained(*DOGRAPH, "train.micro_batch_size=2", ranks=2),
    "ranks-ddp-loss": trained("mixer.name=dynamic-loss", ranks=2),
    **{
        f"ranks-shard-{mode}": trained(*DOGRAPH, "train.shard=true", f"sketch.mode={mode}", ranks=2)
        for mode in ("twopass", "head")
    },
    "resume": Case(resumed, needs=("corpus-jsonl", "recipe-safe")),
    "plan-doremi": planned("doremi", "mixer.rounds=2"),
    "plan-doge": planned("doge", "sketch.mode=exact", "sketch.projection=none"),
    "plan-regmix": planned("regmix", *REGMIX),
    "plan-mixing-law": planned("mixing-law", "mixer.num_proxies=6", "mixer.nest=steps"),
    "plan-sizes": planned("mixing-law", "mixer.num_proxies=4", *SIZES),
    "plan-table": Case(from_table, needs=()),
    "compare": Case(lambda place: place.dograph(*COMPARE, "--out", "out", "--workers", "1")),
    "look": Case(looked, needs=("corpus-jsonl", *LAST)),
    "from-old": Case(from_old, needs=("corpus-jsonl", *LAST, "plan-regmix")),
}

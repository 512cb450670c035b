"""Artefacts made of tiny runs, in this process."""

import json

from rich.console import Console

from dograph.data.corpus import Corpus
from dograph.eval.evaluate import EvalRequest
from dograph.models.build import build_model
from dograph.reproduce import session
from dograph.reproduce.artefacts import Wanted, build_asks, find_artefact
from dograph.reproduce.session import print_outcome
from dograph.train.checkpoint import save_model
from lab_runs import Here
from text_inputs import prepare, text, write_jsonl

TINY = (
    "model.preset=tiny",
    "train.steps=2",
    "train.batch_size=6",
    "train.device=cpu",
    "data.seq_len=16",
    "eval.max_samples_per_source=4",
    "checkpoint.every=0",
    "sketch.dim=80",
)
LONGER = (*TINY, "train.steps=4", "data.seq_len=32")
FIVE = {"text": ["rain", "snow", "ice", "fog"], "label": ["A", "B", "C", "D"]}
QUESTIONS = {
    "hellaswag/validation": {
        "activity_label": "Alpha",
        "ctx_a": "beta",
        "ctx_b": "gamma",
        "endings": ["delta", "zero", "alpha beta", "tab"],
        "label": "1",
    },
    "piqa/validation": {"goal": "alpha", "sol1": "beta", "sol2": "gamma", "label": 0},
    "openbookqa/test": {"question_stem": "alpha", "choices": FIVE, "answerKey": "C"},
    "lambada_openai/test": {"text": "alpha beta gamma"},
    "sciq/test": {
        "support": "alpha",
        "question": "beta",
        "distractor1": "rain",
        "distractor2": "snow",
        "distractor3": "ice",
        "correct_answer": "fog",
    },
    "arc_easy/test": {"question": "alpha", "choices": FIVE, "answerKey": "B"},
    "copa/validation": {
        "premise": "Alpha.",
        "choice1": "Beta.",
        "choice2": "Gamma.",
        "question": "cause",
        "label": 1,
    },
    "logiqa/test": {
        "context": "alpha",
        "question": "beta",
        "options": ["w", "x", "y", "z"],
        "label": "a",
    },
    "winogrande/validation": {
        "sentence": "Ann beat Eve, so _ was glad.",
        "option1": "Ann",
        "option2": "Eve",
        "answer": "1",
    },
}


def write_place(folder):
    """A corpus of two sources with its tokenizer, and four questions of each task."""
    model = build_model("tiny", vocab_size=300, seq_len=32, dropout=0.0, seed=0)
    for number, source in enumerate(("one", "two")):
        texts = [text(1000 * number + n, words=60) for n in range(60)]
        write_jsonl(folder / "in" / f"{source}.jsonl", texts)
    prepare(
        folder / "corpus",
        folder / "in",
        tokenizer="bpe",
        vocab_size=300,
        validation_fraction=0.2,
        workers=1,
    )
    for name, document in QUESTIONS.items():
        file = folder / "benchmarks" / f"{name}.jsonl"
        file.parent.mkdir(parents=True)
        file.write_text(f"{json.dumps(document)}\n" * 4)
    # Imports what every run would.
    save_model(model, folder / "warm", Corpus(folder / "corpus").tokenizer)


def wanted(place, name, out, **more):
    settings = (*LONGER, f"data.corpus={place / 'corpus'}", *more.pop("settings", ()))
    return Wanted(
        artefact=find_artefact(name),
        settings=settings,
        out=place / out,
        lab=place / "lab",
        command=f"dograph reproduce {name}",
        **more,
    )


def silent(*_):
    pass


def made(asked, request=None):
    """The outcome, what is stored of it, the text of the page, and what was trained."""
    pool, request, asks = Here(), request or EvalRequest(), build_asks(asked)
    session.check(asked, next(iter(asks.values())), request, silent)
    studies = session.train(asked, asks, pool, silent)
    outcome = session.finish(studies, request, asked.folder, silent)
    console = Console(width=120, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    print_outcome(console, asked.artefact, outcome)
    stored = json.loads((asked.folder / "reproduce.json").read_text())
    return outcome, stored, console.export_text(), [job.label for job in pool.asked]

"""dograph eval: what a model can do, on nine downstream tasks and on its own sources."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dograph.cli import console
from dograph.cli.console import argument, ensured, option, options_as, say, stages
from dograph.errors import CorpusError

if TYPE_CHECKING:
    from dograph.eval.evaluate import EvalRequest


def evaluate(
    run: str = argument(..., "a run, a checkpoint's model, any Hugging Face model folder or name"),
    benchmarks: Path | None = option(
        None, "folder of the tasks' data, <task>/<split>.jsonl or .jsonl.xz; else the hub"
    ),
    tasks: str | None = option(None, "some of the nine, with commas between"),
    limit: str | None = option(
        None, "items of each task, evenly spaced: 200, or 200,hellaswag=1000"
    ),
    using: str = option("builtin", "builtin, or lm-eval, which the extra eval installs", "--with"),
    batch_size: int = option(32, "texts computed at once", min=1),
    device: str = option("auto", "auto, cpu, cuda, cuda:1, ..."),
    dtype: Literal["float32", "bfloat16"] = option(
        "float32", "of the weights; log p is in float32"
    ),
    max_length: int | None = option(
        None, "tokens shown at once; a run: as many as it was trained on, else all positions", min=2
    ),
    out: Path | None = option(None, "file for the result; of a run: RUN/eval.json"),
) -> None:
    """Evaluate a model on nine downstream tasks, and a run's model on its own sources.

    hellaswag, piqa, openbookqa, lambada_openai, sciq, arc_easy, copa, logiqa, winogrande: asked as
    lm-evaluation-harness asks them, without examples in the prompt. acc: the right answer is the
    likeliest; acc_norm: the likeliest per character; chance: what guessing scores; bits/B: how
    many bits a byte of the right answer costs, the measure that moves first in small models.
    The average is the paper's: acc_norm where there is one, else acc.

    \b
    dograph eval runs/mine --benchmarks data/benchmarks
    dograph eval runs/mine --limit 200                       a first look, from the hub
    dograph eval runs/mine --tasks piqa,sciq --with lm-eval  the same numbers from the harness
    dograph eval gpt2 --device cuda --dtype bfloat16 --batch-size 128 --out gpt2.json
    """  # noqa: D301
    from dograph.eval.evaluate import EvalRequest

    _evaluate(run, out, options_as(EvalRequest, locals(), tasks=console.split_names(tasks)))


def _evaluate(run: str, out: Path | None, request: "EvalRequest") -> None:
    """Ask the model, keep the result and show it."""
    from dograph.data.corpus import Corpus
    from dograph.eval.evaluate import evaluate as evaluated
    from dograph.eval.evaluate import find_subject, source_table, task_table
    from dograph.files import write_json

    subject, corpus = find_subject(run), None
    if subject.run is not None:
        try:
            corpus = Corpus(ensured(subject.run.config().data.corpus))
        except CorpusError as error:  # there are tasks, but no sources
            say(f"warning: no loss per source: {error}")
    file = out or subject.result_file
    if file is not None:
        console.require_writable(file)
    with stages("texts", live=request.using == "builtin") as report:
        found = evaluated(subject, request, corpus, report)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, found)
    console.open_console().print(task_table(found))
    print("accuracies in per cent ± standard error over items; average: acc_norm, else acc")
    if found["sources"]:
        console.open_console().print(source_table(found))
    for note in found["notes"]:
        print(f"note: {note}")
    print("the result was not kept; give --out FILE" if file is None else f"result: {file}")

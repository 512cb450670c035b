"""dograph eval: what a model can do, on nine downstream tasks and on its own sources."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dograph.cli.console import ensured, open_console, require_writable, say, stages
from dograph.errors import CorpusError

if TYPE_CHECKING:
    from dograph.eval.evaluate import Evaluation

Subjects = Annotated[
    str,
    typer.Argument(
        help="a run, a checkpoint's model, any Hugging Face model folder or name",
        show_default=False,
    ),
]
Benchmarks = Annotated[
    Path | None,
    typer.Option(
        help="folder of the tasks' data, <task>/<split>.jsonl or .jsonl.xz; else the hub",
        show_default=False,
    ),
]
Tasks = Annotated[
    str | None, typer.Option(help="some of the nine, with commas between", show_default=False)
]
Limit = Annotated[
    str | None,
    typer.Option(
        help="items of each task, evenly spaced: 200, or 200,hellaswag=1000", show_default=False
    ),
]
Using = Annotated[
    str, typer.Option("--with", help="builtin, or lm-eval, which the extra eval installs")
]
Dtype = Annotated[
    Literal["float32", "bfloat16"], typer.Option(help="of the weights; log p is in float32")
]
MaxLength = Annotated[
    int | None,
    typer.Option(
        min=2,
        help="tokens shown at once; a run: as many as it was trained on, else all positions",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(help="file for the result; of a run: RUN/eval.json", show_default=False),
]


def evaluate(
    run: Subjects,
    benchmarks: Benchmarks = None,
    tasks: Tasks = None,
    limit: Limit = None,
    using: Using = "builtin",
    batch_size: Annotated[int, typer.Option(min=1, help="texts computed at once")] = 32,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")] = "auto",
    dtype: Dtype = "float32",
    max_length: MaxLength = None,
    out: Out = None,
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
    from dograph.data.corpus import Corpus
    from dograph.eval.evaluate import EvalRequest, find_subject
    from dograph.eval.evaluate import evaluate as evaluated
    from dograph.files import write_json

    subject, corpus = find_subject(run), None
    if subject.run is not None:
        try:
            corpus = Corpus(ensured(subject.run.config().data.corpus))
        except CorpusError as error:  # there are tasks, but no sources
            say(f"warning: no loss per source: {error}")
    request = EvalRequest(
        benchmarks=benchmarks,
        tasks=tuple(name.strip() for name in tasks.split(",")) if tasks else (),
        limit=limit,
        using=using,
        batch_size=batch_size,
        device=device,
        dtype=dtype,
        max_length=max_length,
    )
    file = out or subject.result_file
    if file is not None:
        require_writable(file)
    with stages("texts", live=using == "builtin") as report:
        found = evaluated(subject, request, corpus, report)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, found)
    _print(found)
    print("the result was not kept; give --out FILE" if file is None else f"result: {file}")


def _print(found: "Evaluation") -> None:
    from dograph.eval.evaluate import source_table, task_table

    console = open_console()
    console.print(task_table(found))
    print("accuracies in per cent ± standard error over items; average: acc_norm, else acc")
    if found["sources"]:
        console.print(source_table(found))
    for note in found["notes"]:
        print(f"note: {note}")

"""dograph eval: a model on nine downstream tasks and on its own sources."""

from pathlib import Path

from dograph.cli import console
from dograph.cli.console import argument, ensured, option, options_as, say, stages, warn
from dograph.errors import CorpusError

SETTINGS = {"train.device": "device", "train.dtype": "dtype", "data.seq_len": "max_length"}


def evaluate(
    run: str = argument(..., "a run, a model folder, or a Hugging Face name"),
    settings: list[str] | None = argument(
        None,
        "train.device (auto), train.dtype of the weights (float32), data.seq_len: tokens per text "
        "(of a run: those it was trained with, else all positions)",
        "[NAME=VALUE]...",
    ),
    benchmarks: Path | None = console.BENCHMARKS,
    tasks: str | None = console.TASKS,
    limit: int | None = console.LIMIT,
    using: str = console.USING,
    batch_size: int = console.BATCH_SIZE,
    out: Path | None = option(None, "file for the result (default for a run: RUN/eval.json)"),
) -> None:
    """Evaluate a model on nine downstream tasks.

    hellaswag, piqa, openbookqa, lambada_openai, sciq, arc_easy, copa, logiqa and winogrande, with
    the prompts of lm-evaluation-harness, zero-shot. acc: the correct answer is the likeliest.
    acc_norm: the likeliest per character. chance: the score of guessing. bits/B: bits per byte of
    the correct answer, which improves first in small models. The average is the paper's: acc_norm
    where there is one, else acc.

    \b
    dograph eval runs/mine --benchmarks data/benchmarks
    dograph eval runs/mine --limit 200                       a first look, from the hub
    dograph eval runs/mine --tasks piqa,sciq --with lm-eval  the same numbers from the harness
    dograph eval gpt2 train.device=cuda train.dtype=bfloat16 --batch-size 128 --out gpt2.json
    """  # noqa: D301
    given = locals() | console.chosen_settings(settings, SETTINGS)
    from dograph.data.corpus import Corpus
    from dograph.eval import evaluate as scoring
    from dograph.files import write_json

    request = options_as(scoring.EvalRequest, given, tasks=console.split_names(tasks))
    subject, corpus = scoring.find_subject(run), None
    if subject.run is not None:
        try:
            corpus = Corpus(ensured(subject.run.config().data.corpus))
        except CorpusError as error:
            say(f"warning: the tokenizer's own end of text is used, not the corpus': {error}")
    file = out or subject.result_file
    if file is not None:
        console.require_writable(file)
    with stages("texts", live=request.using == "builtin") as report:
        result = scoring.evaluate(subject, request, corpus, report)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, result)
    console.open_console().print(scoring.task_table(result))
    print("accuracies in per cent ± standard error over items; average: acc_norm, else acc")
    warn(result["notes"], "note")
    print("not written to a file; name one with --out" if file is None else f"result: {file}")

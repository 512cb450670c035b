"""dograph data show: which documents a step saw."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

PREVIEW = 60  # characters of text shown on a terminal


def show(
    run: Annotated[Path, typer.Argument(help="a run directory", show_default=False)],
    step: Annotated[int, typer.Option(help="a step, counted from 1 as in metrics.jsonl")],
    as_json: Annotated[bool, typer.Option("--json", help="one JSON object a sample")] = False,
) -> None:
    """Show which documents one training step saw: text, source, input file and line.

    Nothing is trained or replayed: the weight log and the seed say it all.

    \b
    dograph data show runs/mine --step 100           a table of the samples
    dograph data show runs/mine --step 100 --json    whole texts, an object a line
    """  # noqa: D301
    rows = samples_of_step(run, step)
    if as_json:
        for row in rows:
            json.dump(row, sys.stdout, ensure_ascii=False)
            print()
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{run}, step {step}: {len(rows)} samples")
    for column in ("sample", "source", "epoch", "document", "offset", "input", "text"):
        table.add_column(column, justify="right" if column in ("sample", "epoch") else "left")
    for row in rows:
        where = f"{row['input']}:{row['line']}"
        cells = (row["sample"], row["source"], row["epoch"], row["document"], row["offset"], where)
        text = " ".join(str(row["text"] or "").split())[:PREVIEW]
        table.add_row(*(str(cell).replace("[", "\\[") for cell in (*cells, text)))
    Console().print(table)


def samples_of_step(run_path: Path, step: int) -> list[dict[str, object]]:
    """Every sample of a step, in its order in the world batch."""
    from dograph.corpus.corpus import Corpus
    from dograph.corpus.weight_log import WeightLog
    from dograph.errors import RunError
    from dograph.training.assembly import open_sampler
    from dograph.training.metrics import read_metrics
    from dograph.training.run_dir import RunDirectory

    run = RunDirectory.open(run_path)
    config = run.config()
    made = max((int(row["step"]) for row in read_metrics(run.metrics_file)), default=0)
    if not 1 <= step <= made:
        raise RunError(f"{run_path} has made steps 1 to {made}; step {step} is not one of them")
    corpus = Corpus(config.data.corpus)
    sampler = open_sampler(config, corpus)
    sampler.log = WeightLog.load(run.weights_file, sampler.names)
    ids = sampler.draw(step - 1)
    has_text = corpus.manifest.tokenizer.file is not None
    rows: list[dict[str, object]] = []
    for i in range(len(ids)):
        stratum = corpus.train[ids.stratum_B[i]]
        document = stratum.document(int(ids.document_B[i]))
        start = int(ids.block_B[i]) * config.data.seq_len
        text = corpus.text(stratum, start, start + config.data.seq_len) if has_text else None
        rows.append(
            {
                "sample": i,
                "source": stratum.entry.source,
                "stratum": stratum.entry.stratum,
                "epoch": int(ids.epoch_B[i]),
                "document": document.index,
                "offset": int(ids.offset_B[i]),
                "input": corpus.manifest.inputs[document.input],
                "line": document.record + 1,
                "text": text,
            }
        )
    return rows

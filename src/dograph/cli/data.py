"""dograph data: corpora, from text to memory-mapped tokens."""

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dograph.cli.console import open_console, open_table, preparing, say

if TYPE_CHECKING:
    from dograph.data.corpus import Manifest

app = typer.Typer(
    help="Prepare corpora and look into them.", no_args_is_help=True, add_completion=False
)

# A backslash joins lines into one paragraph; before a bracket it keeps rich from reading it.
_HELP = """\
Turn text into a corpus: memory-mapped tokens per source, and a manifest.

\b
dograph data prepare demo --out data/demo
dograph data prepare slimpajama-6b --tokenizer gpt2 --out data/spj
dograph data prepare slimpajama-6b --tokenizer gpt2 --keep 0.006 --out data/spj-mini
dograph data prepare c4.jsonl.zst 'wiki=dump/*.parquet' --out data/web
dograph data prepare texts/ --strata 8 --out data/texts
dograph data prepare 'pile/*.jsonl.zst' --recipe pile --out data/pile
dograph data prepare 'fw_train_*.bin' --validation fw_val_000000.bin --out data/fw

An INPUT is one of: demo, unigram, bigram (embedded, no download); slimpajama-6b, pile (recipes, \
from the Hugging Face hub); .jsonl or .json, plain or .gz, .xz, .zst; .parquet; a folder of such \
files or a quoted pattern, with train/ and validation/ (or val, or test; folders or files) inside \
if you like; a folder with a subfolder of text files for each source; a dataset saved with \
save_to_disk; \
hf:NAME\\[:CONFIG]\\[@SPLIT]; Megatron .bin with .idx; nanoGPT or llm.c .bin. Write ./demo for a \
folder of that name.

A source is named after its file (without shard numbers and words like train or val), its folder, \
NAME= before the input, or --source-field. A stopped preparation goes on when the command is \
repeated.
"""

_Inputs = Annotated[
    list[str],
    typer.Argument(metavar="[NAME=]INPUT...", help="what to read; NAME names its source"),
]
_Out = Annotated[Path, typer.Option(help="folder for the corpus")]
_Tokenizer = Annotated[
    str,
    typer.Option(help="a tokenizer.json, a Hugging Face name, or bpe: trained on the input"),
]
_VocabSize = Annotated[
    int | None,
    typer.Option(help="of bpe (4096 if not given), or of tokens made elsewhere"),
]
_Eot = Annotated[
    str | None, typer.Option(help="token that ends a document, where it cannot be told")
]
_EotId = Annotated[
    int | None, typer.Option(help="its id in tokens made elsewhere, without --tokenizer")
]
_Recipe = Annotated[
    str | None, typer.Option(help="slimpajama-6b or pile: their labels and the paper's shares")
]
_TextField = Annotated[str, typer.Option(help="dotted path of the text in a record")]
_SourceField = Annotated[
    str | None, typer.Option(help="dotted path of the source's name, such as meta.set_name")
]
_Validation = Annotated[
    list[str] | None, typer.Option(metavar="INPUT", help="validation text; may be repeated")
]
_ValidationFraction = Annotated[
    float | None,
    typer.Option(help="of the documents, held out by hash; 0.01 (embedded corpora: 0.05)"),
]
_Strata = Annotated[int, typer.Option(help="groups of like documents to divide each source into")]
_Keep = Annotated[
    float,
    typer.Option(
        metavar="FRACTION",
        help="of the training documents, by a hash of the text: a slice of a big corpus; "
        "validation text that is given stays whole",
    ),
]
_Seed = Annotated[int, typer.Option(help="of --keep, the split, the strata and planted corpora")]
_Noise = Annotated[bool, typer.Option("--noise", help="add a source of noise to unigram or bigram")]
_BadRecords = Annotated[
    Literal["refuse", "repair"],
    typer.Option(help="stop at a bad record, or mend or skip it and count it"),
]
_Workers = Annotated[
    int | None, typer.Option(help="processes that encode; as many as cores if not given")
]
_Overwrite = Annotated[bool, typer.Option("--overwrite", help="replace another corpus in --out")]
_Restart = Annotated[
    bool, typer.Option("--restart", help="forget an unfinished preparation in --out")
]


@app.callback()
def data() -> None:
    """Prepare corpora and look into them."""


@app.command(help=_HELP)
def prepare(
    inputs: _Inputs,
    out: _Out,
    tokenizer: _Tokenizer = "bpe",
    vocab_size: _VocabSize = None,
    eot: _Eot = None,
    eot_id: _EotId = None,
    recipe: _Recipe = None,
    text_field: _TextField = "text",
    source_field: _SourceField = None,
    validation: _Validation = None,
    validation_fraction: _ValidationFraction = None,
    strata: _Strata = 1,
    keep: _Keep = 1.0,
    seed: _Seed = 0,
    noise: _Noise = False,
    bad_records: _BadRecords = "refuse",
    workers: _Workers = None,
    overwrite: _Overwrite = False,
    restart: _Restart = False,
) -> None:
    """Turn text into a corpus: memory-mapped tokens per source, and a manifest."""
    from dograph.data import pipeline
    from dograph.data.options import PrepareOptions

    given = locals() | {"inputs": tuple(inputs), "validation": tuple(validation or ())}
    options = PrepareOptions(**{field.name: given[field.name] for field in fields(PrepareOptions)})
    try:
        with preparing() as report:
            manifest, already = pipeline.prepare(options, report)
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on where it stopped", err=True)
        raise typer.Exit(130) from None
    if already:
        typer.echo(f"{out} is already prepared like this; nothing to do")
    print_composition(manifest)


def print_composition(manifest: "Manifest") -> None:
    """The table that a preparation ends with, and what a reader should know beside it."""
    from dograph.data.options import absent_sources, composition
    from dograph.data.staging import REPAIRS

    rows, options = composition(manifest), manifest.options
    by_bytes = all(row.bytes is not None for row in rows)
    compared = by_bytes and manifest.recipe is not None
    titles = ["source", "documents", "tokens", *(["MB"] if by_bytes else []), "share"]
    titles += [*(["paper"] if compared else []), "held out"]
    table = open_table(*titles, left=("source",), box=None, pad_edge=False, collapse_padding=True)
    for row in rows:
        cells = [row.source, f"{row.documents:,}", f"{row.tokens:,}"]
        cells += [f"{(row.bytes or 0) / 1e6:,.2f}"] if by_bytes else []
        for share in (row.share, *([row.paper_share] if compared else [])):
            cells.append("" if share is None else f"{100 * share:.1f} %")
        table.add_row(*cells, f"{row.validation_tokens:,}")
    open_console().print(table, highlight=False)
    paper = "; paper: the same in the paper's data table" if compared else ""
    print(f"share: of the {'bytes' if by_bytes else 'tokens'}{paper}; held out: validation tokens")
    if absent := absent_sources(manifest):
        print(f"absent from this corpus, in the paper's table: {', '.join(absent)}")
    if options.get("unkept_documents"):
        size = int(options["unkept_bytes"] or 0) / 1e6
        print(
            f"--keep {options['keep']} left out {options['unkept_documents']:,} training "
            f"documents, {size:,.2f} MB"
        )
    if untested := [row.source for row in rows if not row.validation_tokens]:
        print(f"without validation text: {', '.join(untested)}")
    if untrained := [row.source for row in rows if not row.tokens]:
        print(f"validation text only: {', '.join(untrained)}")
    if options.get("eot_guessed"):
        print(
            f"documents were taken to end at token {manifest.tokenizer.eot_id}, GPT-2's end of "
            "text; --eot-id names another"
        )
    if (left_out := options.get("left_out")) is not None:
        print(f"not read: {left_out} (name it as an input, or with --validation, to take it)")
    if manifest.repairs:
        counts = ", ".join(f"{kind}: {n:,}" for kind, n in sorted(manifest.repairs.items()))
        print(f"records mended or left out: {counts} (listed in {REPAIRS}, exclusions apart)")
    if (lost := options.get("unkept_sources")) is not None:
        say(
            f"warning: --keep {options['keep']} left nothing to train on of these "
            f"sources: {lost}; a larger fraction or another --seed may keep some"
        )

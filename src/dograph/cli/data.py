"""dograph data: corpora, from text to memory-mapped tokens."""

from pathlib import Path
from typing import Annotated, Literal

import typer

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
    from dograph.cli.console import print_composition, shown
    from dograph.data import pipeline as preparing
    from dograph.data.options import PrepareOptions

    options = PrepareOptions(
        inputs=tuple(inputs),
        out=out,
        validation=tuple(validation or ()),
        validation_fraction=validation_fraction,
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        eot=eot,
        eot_id=eot_id,
        recipe=recipe,
        text_field=text_field,
        source_field=source_field,
        strata=strata,
        keep=keep,
        seed=seed,
        noise=noise,
        bad_records=bad_records,
        workers=workers,
        overwrite=overwrite,
        restart=restart,
    )
    try:
        with shown() as report:
            manifest, already = preparing.prepare(options, report)
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on where it stopped", err=True)
        raise typer.Exit(130) from None
    if already:
        typer.echo(f"{out} is already prepared like this; nothing to do")
    print_composition(manifest)

"""dograph data: corpora, from text to memory-mapped tokens."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from dograph.cli.console import argument, option, options_as, preparing, print_table, warn

if TYPE_CHECKING:
    from dograph.data.corpus import Manifest

# A backslash joins lines into one paragraph; before a bracket it keeps rich from reading it.
HELP = """\
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


def prepare(
    inputs: list[str] = argument(..., "what to read; NAME names its source", "[NAME=]INPUT..."),
    out: Path = option(..., "folder for the corpus"),
    tokenizer: str = option(
        "bpe", "a tokenizer.json, a Hugging Face name, or bpe: trained on the input"
    ),
    vocab_size: int | None = option(
        None, "of bpe (4096 if not given), or of tokens made elsewhere"
    ),
    eot: str | None = option(
        None, "token that ends a document, if not known; of tokens made elsewhere: its id"
    ),
    recipe: str | None = option(None, "slimpajama-6b or pile: their labels and the paper's shares"),
    text_field: str = option("text", "dotted path of the text in a record"),
    source_field: str | None = option(
        None, "dotted path of the source's name, such as meta.set_name"
    ),
    validation: list[str] | None = option(
        None, "validation text; may be repeated", metavar="INPUT"
    ),
    validation_fraction: float | None = option(
        None, "of the documents, held out by hash; 0.01 (embedded corpora: 0.05)"
    ),
    strata: int = option(1, "groups of like documents to divide each source into"),
    keep: float = option(
        1.0,
        "of the training documents, by a hash of the text: a slice of a big corpus; "
        "validation text that is given stays whole",
        metavar="FRACTION",
    ),
    seed: int = option(0, "of --keep, the split, the strata and planted corpora"),
    noise: bool = option(False, "add a source of noise to unigram or bigram", "--noise"),
    bad_records: Literal["refuse", "repair"] = option(
        "refuse", "stop at a bad record, or mend or skip it and count it"
    ),
    workers: int | None = option(None, "processes that encode; as many as cores if not given"),
    overwrite: bool = option(False, "replace another corpus in --out", "--overwrite"),
    restart: bool = option(False, "forget an unfinished preparation in --out", "--restart"),
) -> None:
    """Turn text into a corpus: memory-mapped tokens per source, and a manifest."""
    from dograph.data import pipeline
    from dograph.data.options import PrepareOptions

    given = locals()
    if eot is not None and eot.isdecimal():
        given |= {"eot": None, "eot_id": int(eot)}
    options = options_as(PrepareOptions, given)
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
    lines = []
    for row in rows:
        cells = [row.source, f"{row.documents:,}", f"{row.tokens:,}"]
        cells += [f"{(row.bytes or 0) / 1e6:,.2f}"] if by_bytes else []
        for share in (row.share, *([row.paper_share] if compared else [])):
            cells.append("" if share is None else f"{100 * share:.1f} %")
        lines.append([*cells, f"{row.validation_tokens:,}"])
    print_table(titles, lines, box=None, pad_edge=False, collapse_padding=True)
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
            "text; name another with --eot ID"
        )
    if (left_out := options.get("left_out")) is not None:
        print(f"not read: {left_out} (name it as an input, or with --validation, to take it)")
    if manifest.repairs:
        counts = ", ".join(f"{kind}: {n:,}" for kind, n in sorted(manifest.repairs.items()))
        print(f"records mended or left out: {counts} (listed in {REPAIRS}, exclusions apart)")
    if (lost := options.get("unkept_sources")) is not None:
        kept = f"--keep {options['keep']} left nothing to train on of these sources: {lost}"
        warn([f"{kept}; a larger fraction or another --seed may keep some"])

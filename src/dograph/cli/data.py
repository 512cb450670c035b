"""dograph data: from text to a corpus of memory-mapped tokens, and the check of one."""

from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import typer

from dograph.cli import console
from dograph.cli.console import argument, option, warn

if TYPE_CHECKING:
    from dograph.data.corpus import Manifest


def prepare(
    inputs: list[str] = argument(..., "what to read; NAME names its source", "[NAME=]INPUT..."),
    out: Path = option(..., "folder for the corpus"),
    tokenizer: str = option("bpe", "a tokenizer.json, a Hugging Face name, or bpe: train one"),
    vocab_size: int | None = option(None, "of bpe (default: 4096), or of token files"),
    eot: str | None = option(None, "token that ends a document; for token files its id"),
    recipe: str | None = option(None, "slimpajama-6b or pile: their labels and the paper's shares"),
    text_field: str = option("text", "dotted path of the text in a record"),
    source_field: str | None = option(None, "dotted path of the source's name: meta.set_name"),
    validation: list[str] | None = option(None, "an INPUT for validation; may be repeated"),
    validation_fraction: float | None = option(None, "held out (default: 0.01; embedded: 0.05)"),
    strata: int = option(1, "groups of similar documents to divide each source into"),
    toward: list[str] | None = option(None, "an INPUT of trusted text: score every document by it"),
    keep: float = option(1.0, "share of training documents to keep, chosen by a hash of the text"),
    seed: int = option(0, "of --keep, the held-out documents, the strata and embedded corpora"),
    noise: bool = option(False, "add a source of noise to unigram or bigram", "--noise"),
    bad_records: Literal["refuse", "repair"] = option(
        "refuse", "refuse: stop at the first one; repair: repair or skip them"
    ),
    workers: int | None = option(None, "encoding threads (default: one per core)"),
) -> None:
    """Turn text into a corpus: memory-mapped tokens per source, and a manifest.

    \b
    dograph data prepare demo --out data/demo
    dograph data prepare slimpajama-6b --tokenizer gpt2 --out data/spj
    dograph data prepare slimpajama-6b --tokenizer gpt2 --keep 0.006 --out data/spj-mini
    dograph data prepare c4.jsonl.zst 'wiki=dump/*.parquet' --out data/web
    dograph data prepare texts/ --strata 8 --out data/texts
    dograph data prepare 'pile/*.jsonl.zst' --recipe pile --out data/pile
    dograph data prepare 'fw_train_*.bin' --validation fw_val_000000.bin --out data/fw

    An INPUT is one of: demo, junk, unigram, bigram (embedded, no download); slimpajama-6b, pile
    (recipes, from the Hugging Face hub); .jsonl or .json, plain or .gz, .xz, .zst; .parquet; a
    folder of such files or a quoted pattern, optionally with train/ and validation/ (or val, or
    test; folders or files) inside; a folder with a subfolder of text files for each source; a
    dataset saved with save_to_disk; hf:NAME\\[:CONFIG]\\[@SPLIT]; Megatron .bin with .idx; nanoGPT
    or llm.c .bin. Write ./demo for a folder of that name.

    A source is named after its file (without shard numbers and words like train or val), its
    folder, NAME= before the input, or --source-field. To continue an interrupted preparation,
    repeat the command.
    """  # noqa: D301
    from dograph.data import pipeline
    from dograph.data.inputs import PrepareOptions

    given = locals()
    if eot is not None and eot.isdecimal():
        given |= {"eot": None, "eot_id": int(eot)}
    try:
        with console.preparing() as report:
            manifest, already = pipeline.prepare(console.options_as(PrepareOptions, given), report)
    except KeyboardInterrupt:
        typer.echo("stopped; the same command continues where it stopped", err=True)
        raise typer.Exit(130) from None
    if already:
        typer.echo(f"{out} is already prepared with these options; nothing to do")
    print_composition(manifest)


def verify(corpus: Path = argument(..., "folder of a prepared corpus")) -> None:
    """Compare every byte of a corpus with the digests made when it was prepared.

    \b
    dograph data verify data/demo
    dograph data verify data/mine && dograph train data.corpus=data/mine run=runs/mine

    Damage is listed by file and place, and the exit status is then 1. Every start of a run makes a
    cheap check by itself: sizes and sampled pages.
    """  # noqa: D301
    from dograph.data import digests

    with console.stages("MB") as show:
        found = digests.verify(
            corpus, lambda done, total: show("reading", done // 10**6, total // 10**6)
        )
    warn(found.damage, "damage")
    if found.damage:
        console.say(f"{corpus} is damaged; restore these files from a copy, or prepare it again")
        raise typer.Exit(1)
    size = f"{found.num_files} files, {found.num_bytes / 1e6:,.1f} MB"
    print(f"{corpus} is as it was prepared: {size}")


class SourceRow(NamedTuple):
    """One source of a corpus, with its share in the paper's table if there is one."""

    source: str
    documents: int  # in training
    tokens: int
    bytes: int | None  # None if those of any source are unknown
    share: float  # of the training bytes; of the tokens if bytes are unknown
    paper_share: float | None  # of bytes; None if the corpus has no bytes to compare
    validation_tokens: int


def composition(manifest: "Manifest") -> list[SourceRow]:
    """The sources, largest first."""
    from dograph.data.inputs import RECIPES

    recipe = RECIPES.get(manifest.recipe or "")
    by_bytes = all(entry.bytes is not None for entry in manifest.train)
    # shares of tokens and of bytes are not comparable
    paper = recipe.shares() if recipe and by_bytes else {}
    total = sum((entry.bytes or 0) if by_bytes else entry.tokens for entry in manifest.train)
    rows = []
    for source in dict.fromkeys(e.source for e in (*manifest.train, *manifest.validation)):
        train = [entry for entry in manifest.train if entry.source == source]
        documents, tokens = sum(e.documents for e in train), sum(e.tokens for e in train)
        size = sum(entry.bytes or 0 for entry in train) if by_bytes else None
        share = (tokens if size is None else size) / total
        held_out = sum(entry.tokens for entry in manifest.validation if entry.source == source)
        rows.append(SourceRow(source, documents, tokens, size, share, paper.get(source), held_out))
    return sorted(rows, key=lambda row: (-row.tokens, row.source))


def print_composition(manifest: "Manifest") -> None:
    """The table of sources at the end of a preparation, and notes below it."""
    from dograph.data.inputs import RECIPES
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
    console.print_table(titles, lines, box=None, pad_edge=False, collapse_padding=True)
    paper = "; paper: the same in the paper's data table" if compared else ""
    print(f"share: of the {'bytes' if by_bytes else 'tokens'}{paper}; held out: validation tokens")
    recipe = RECIPES.get(manifest.recipe or "")
    table = recipe.table if recipe else ()
    trained, keep = {row.source for row in rows if row.tokens}, f"--keep {options.get('keep')}"
    absent = ", ".join(source for source in table if source not in trained)
    unkept, size = (int(options.get(f"unkept_{of}") or 0) for of in ("documents", "bytes"))
    untested = ", ".join(row.source for row in rows if not row.validation_tokens)
    untrained = ", ".join(row.source for row in rows if not row.tokens)
    end, guessed = manifest.tokenizer.eot_id, options.get("eot_guessed")
    left_out = options.get("left_out")
    repairs = ", ".join(f"{kind}: {n:,}" for kind, n in sorted(manifest.repairs.items()))
    notes = [
        (absent, f"in the paper's table, but not in this corpus: {absent}"),
        (unkept, f"{keep} left out {unkept:,} training documents, {size / 1e6:,.2f} MB"),
        (untested, f"without validation text: {untested}"),
        (untrained, f"validation text only: {untrained}"),
        (guessed, f"assumed end of documents: token {end}, as in GPT-2; change it with --eot ID"),
        (left_out, f"not read: {left_out} (to read it, name it as an input or with --validation)"),
        (repairs, f"records repaired or left out: {repairs} (see {REPAIRS}; without exclusions)"),
    ]
    for applies, note in notes:
        if applies:
            print(note)
    if (lost := options.get("unkept_sources")) is not None:
        kept = f"{keep} left nothing to train on of these sources: {lost}"
        warn([f"{kept}; a larger fraction or another --seed may keep some"])

"""dograph bench: the price of training in each sketch mode, relative to plain training."""

from pathlib import Path

import typer

from dograph.cli import console
from dograph.cli.console import argument, option, say
from dograph.errors import ConfigError


def bench(
    settings: list[str] | None = argument(
        None,
        "the run whose step is measured, as in `dograph train`. Without CONFIG: recipe paper; on a "
        "GPU gpt2-small with 48 x 512 tokens, bfloat16, compiled; on a CPU demo with 8 x 128 "
        "tokens. Batches are those of data.corpus if it is a prepared corpus, otherwise of random "
        "tokens. Never with train.shard or train.activation_checkpointing",
        console.CONFIG,
    ),
    modes: str = option("full,topdown,head,exact,twopass", "sketch modes; none: only plain"),
    steps: int | None = option(
        None,
        "timed steps of each mode in a run (default: 200; 60 where one takes over 0.5 s)",
        min=10,
    ),
    vocab_size: int | None = option(None, "of random tokens (default: 50257; CPU 4096)", min=2),
    out: Path = option(Path("bench.json"), "file for the results, written after every mode"),
) -> None:
    """Measure the time and memory of training in each sketch mode, relative to plain training.

    Segments of a run in every mode alternate with those of a plain run of the same model and
    batches, loader and metrics included: the table has the median ratio with its interval. Beside
    it: that of single steps in turns, and the lower bound that bytes and FLOPs set.

    \b
    dograph bench                                     minutes on a laptop CPU
    dograph bench model.preset=gpt2-mini --modes full,head
    dograph bench recipe.yaml train.micro_batch_size=8 mixer.recipe=safe
    dograph bench --modes full --out full.json

    What the columns mean: docs/cost.md.
    """  # noqa: D301
    from dograph.bench.arms import resolve_options
    from dograph.bench.session import Session, arm_table, footnotes
    from dograph.config import resolve_config
    from dograph.files import write_json
    from dograph.train.distributed import pick_device

    config, own = console.split_settings(settings or [])
    device = pick_device(resolve_config(config, own).train.device)
    names = () if modes == "none" else console.split_names(modes)
    options = resolve_options(device, names, own, config=config, vocab_size=vocab_size, steps=steps)
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: {out.parent} is not a folder; make it, or name another")
    console.require_writable(out)
    if out.exists():
        say(f"{out} exists and will be replaced")
    session = Session(options, device, say, lambda findings: write_json(out, findings))
    try:
        session.run()
    except KeyboardInterrupt:
        finished = ", ".join(session.findings.get("arms", {})) or "nothing"
        say(f"interrupted; finished so far: {finished}")
    results = session.findings
    if results.get("arms"):
        console.open_console().print(arm_table(results))
        print(*footnotes(results), sep="\n")
        print(f"results: {out}")
    if not results.get("complete"):
        raise typer.Exit(130)

"""dograph bench: what each mode of the sketch costs beside a plain step."""

from pathlib import Path
from typing import Any

import typer

from dograph.cli.console import ensured, open_console, option, require_writable, say
from dograph.errors import ConfigError


def bench(
    model: str | None = option(None, "a preset's shape; gpt2-small, on a CPU demo"),
    batch: int | None = option(None, "samples of a step; 48, CPU 8", min=2),
    seq_len: int | None = option(None, "tokens of a sample; 512, CPU 128", min=2),
    vocab_size: int | None = option(None, "tokens there are; 50257, CPU 4096", min=2),
    micro_batch: int | None = option(None, "samples computed at once; all", min=1),
    accumulation: str | None = option(
        None, "of micro-batches: lagged (recipe safe), two_sweeps or keep"
    ),
    dtype: str | None = option(None, "bfloat16 or float32; on a CPU float32"),
    compile: bool | None = option(None, "torch.compile; on a CPU not", "--compile/--no-compile"),
    modes: str = option(
        "full,topdown,head,exact,twopass", "of the sketch, by commas; none: only plain"
    ),
    top_blocks: int | None = option(
        None, "blocks that topdown sketches; 4, or all there are", min=1
    ),
    recipe: str = option("paper", "of DoGraph: recommended, safe, paper or inverse-norm"),
    dim: int | None = option(None, "numbers in a sketch; that of sketch.dim", min=1),
    steps: int = option(30, "turns with plain; fewer: a wider interval", min=10),
    corpus: str | None = option(None, "a prepared corpus, in place of random tokens"),
    hand: bool = option(True, "also a plain loop written by hand"),
    hand_compile: str = option("blocks", "that loop's graphs: blocks, or whole (a minute)"),
    rivals: bool = option(True, "also what one would do otherwise, a few steps"),
    profile: bool = option(False, "the ten longest kernels, into the file", "--profile"),
    peak_tflops: float | None = option(
        None, "what MFU is of; known for common GPUs, else measured"
    ),
    seed: int = option(0, "of weights, tokens and projections", min=0),
    device: str = option("auto", "auto, cpu, cuda, ..."),
    out: Path = option(Path("bench.json"), "file for the figures"),
) -> None:
    """Measure what each mode of the sketch costs beside a plain step, and where the time goes.

    Every mode takes turns with a plain step of the same model, batch and precision: the figure is
    the median of the ratios, with its interval. Beside it stands the least that the mode could
    cost on this device, from bytes and FLOPs. Without options: what suits the machine.

    \b
    dograph bench                                     minutes on a laptop CPU
    dograph bench --model gpt2-mini --modes full,head --no-rivals
    dograph bench --model llama-1.1b --batch 32 --seq-len 2048 --micro-batch 8 --recipe safe
    dograph bench --modes full --profile --out full.json

    What the columns mean: docs/cost.md.
    """  # noqa: D301
    given = {name: value for name, value in locals().items() if name not in ("device", "out")}
    _measure(given, device, out)


def _measure(given: dict[str, Any], device: str, out: Path) -> None:
    """Measure what `given` asks for; `out` has all that is known, arm by arm."""
    from dograph.bench.options import resolve_options
    from dograph.bench.session import Session, arm_table, footnotes
    from dograph.files import write_json
    from dograph.train.distributed import pick_device

    place, modes = pick_device(device), given.pop("modes")
    if given["corpus"] is not None:
        given["corpus"] = str(ensured(given["corpus"]))
    names = [] if modes == "none" else [mode.strip() for mode in modes.split(",")]
    options = resolve_options(place, names, **given)
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: {out.parent} is not a folder; make it, or name another")
    require_writable(out)
    if out.exists():
        say(f"{out} is there and will be replaced")
    known: dict[str, Any] = {}

    def save(found: dict[str, Any]) -> None:
        known.update(found)
        write_json(out, found)

    try:
        Session(options, place, say, save).run()
    except KeyboardInterrupt:
        say(f"interrupted; finished so far: {', '.join(known.get('arms', {})) or 'nothing'}")
    if known.get("arms"):
        open_console().print(arm_table(known))
        for note in footnotes(known):
            print(note)
        print(f"figures: {out}")
    if not known.get("complete"):
        raise typer.Exit(130)

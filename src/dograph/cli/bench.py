"""dograph bench: what each mode of the sketch costs beside a plain step."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dograph.cli.console import ensured, open_console, require_writable, say
from dograph.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from dograph.bench.options import BenchOptions


def _option(*names: str, help: str, at_least: int | None = None) -> Any:
    return typer.Option(*names, help=help, min=at_least)


Model = Annotated[str | None, _option(help="a preset's shape; gpt2-small, on a CPU demo")]
Batch = Annotated[int | None, _option(help="samples of a step; 48, CPU 8", at_least=2)]
SeqLen = Annotated[int | None, _option(help="tokens of a sample; 512, CPU 128", at_least=2)]
VocabSize = Annotated[int | None, _option(help="tokens there are; 50257, CPU 4096", at_least=2)]
MicroBatch = Annotated[int | None, _option(help="samples computed at once; all", at_least=1)]
Accumulation = Annotated[
    str | None, _option(help="of micro-batches: lagged (recipe safe), two_sweeps or keep")
]
Dtype = Annotated[str | None, _option(help="bfloat16 or float32; on a CPU float32")]
Compile = Annotated[
    bool | None, _option("--compile/--no-compile", help="torch.compile; on a CPU not")
]
Modes = Annotated[str, _option(help="of the sketch, by commas; none: only plain")]
TopBlocks = Annotated[
    int | None, _option(help="blocks that topdown sketches; 4, or all there are", at_least=1)
]
Recipe = Annotated[str, _option(help="of DoGraph: recommended, safe, paper or inverse-norm")]
Dim = Annotated[int | None, _option(help="numbers in a sketch; that of sketch.dim", at_least=1)]
Steps = Annotated[int, _option(help="turns with plain; fewer: a wider interval", at_least=10)]
Corpus = Annotated[str | None, _option(help="a prepared corpus, in place of random tokens")]
Hand = Annotated[bool, _option("--hand/--no-hand", help="also a plain loop written by hand")]
HandCompile = Annotated[str, _option(help="that loop's graphs: blocks, or whole (a minute)")]
Rivals = Annotated[
    bool, _option("--rivals/--no-rivals", help="also what one would do otherwise, a few steps")
]
Profile = Annotated[bool, _option("--profile", help="the ten longest kernels, into the file")]
PeakTflops = Annotated[
    float | None, _option(help="what MFU is of; known for common GPUs, else measured")
]
Seed = Annotated[int, _option(help="of weights, tokens and projections", at_least=0)]
Device = Annotated[str, _option(help="auto, cpu, cuda, ...")]
Out = Annotated[Path, _option(help="file for the figures")]


def bench(
    model: Model = None,
    batch: Batch = None,
    seq_len: SeqLen = None,
    vocab_size: VocabSize = None,
    micro_batch: MicroBatch = None,
    accumulation: Accumulation = None,
    dtype: Dtype = None,
    compile: Compile = None,
    modes: Modes = "full,topdown,head,exact,twopass",
    top_blocks: TopBlocks = None,
    recipe: Recipe = "paper",
    dim: Dim = None,
    steps: Steps = 30,
    corpus: Corpus = None,
    hand: Hand = True,
    hand_compile: HandCompile = "blocks",
    rivals: Rivals = True,
    profile: Profile = False,
    peak_tflops: PeakTflops = None,
    seed: Seed = 0,
    device: Device = "auto",
    out: Out = Path("bench.json"),
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
    given = {name: value for name, value in locals().items() if name not in ("modes", "out")}
    del given["device"]
    from dograph.bench.options import resolve_options
    from dograph.train.distributed import pick_device

    place = pick_device(device)
    if corpus is not None:
        given["corpus"] = str(ensured(corpus))
    names = [] if modes == "none" else [mode.strip() for mode in modes.split(",")]
    options = resolve_options(place, names, **given)
    if not out.parent.is_dir():
        raise ConfigError(f"--out {out}: {out.parent} is not a folder; make it, or name another")
    require_writable(out)
    if out.exists():
        say(f"{out} is there and will be replaced")
    _measure(options, place, out)


def _measure(options: "BenchOptions", place: "torch.device", out: Path) -> None:
    from dograph.bench.session import Session, arm_table, footnotes
    from dograph.files import write_json

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

"""dograph inspect: the domains that a model forms in a corpus, without training."""

from pathlib import Path
from typing import TYPE_CHECKING

from dograph.cli import console
from dograph.cli.console import argument, option, options_as, print_table, stages, warn
from dograph.errors import ConfigError

if TYPE_CHECKING:
    from dograph.eval.inspect import Inspection

LEVEL = 0.05  # corrected p-value below which two sources count as told apart
MOST_PAIRS = 30  # shown; the file has them all
SETTINGS = {"data.corpus": "corpus", "data.seq_len": "seq_len", "sketch.exclude": "exclude"}
SETTINGS |= {"seed": "seed", "train.device": "device"}


def inspect(
    model: str = argument(..., "a causal LM: a folder, a Hugging Face name, a run or a preset"),
    settings: list[str] | None = argument(
        None,
        "data.corpus (must be given), data.seq_len (of a run: its own, else at most 256), seed, "
        "sketch.exclude=\\[NAME, ...]: parameters left out, train.device",
        "data.corpus=DIR [NAME=VALUE]...",
    ),
    rows: int = option(256, "samples in all, the same number from every source"),
    domains: int = option(11, "domains to cluster them into"),
    toward: list[str] | None = option(None, "trusted text, as in data prepare: what would help it"),
    out: Path = option(Path("inspect"), "folder for the results"),
) -> None:
    """Show which sources of a corpus a model tells apart, and the domains it forms itself.

    Nothing is trained: gradients of held-out samples are sketched and compared. Two sources are
    told apart if their MMD is larger than under random labels (permutation test).

    \b
    dograph inspect runs/mine data.corpus=data/mine
    dograph inspect gpt2 data.corpus=data/spj --rows 512 --domains 7
    dograph inspect runs/mine data.corpus=data/mine --toward trusted.jsonl --rows 2048
    """  # noqa: D301
    from dograph.eval.inspect import InspectRequest, inspect_model
    from dograph.files import plain, write_json

    chosen = console.chosen_settings(settings, SETTINGS)
    if "corpus" not in chosen:
        raise ConfigError("give the corpus to inspect, as in data.corpus=data/mine")
    chosen["corpus"] = console.ensured(chosen["corpus"])
    request = options_as(InspectRequest, locals() | chosen)
    file = out / "inspection.json"
    console.require_writable(file)
    with stages("rows") as report:
        inspection = inspect_model(request, report)
    out.mkdir(parents=True, exist_ok=True)
    write_json(file, plain(inspection))
    _print(inspection)
    warn(inspection.notes, "note")
    print(f"results: {out}")


def _print(result: "Inspection") -> None:
    """Losses, separation of sources, the domains, and samples of each."""
    from rich.box import SIMPLE_HEAD

    from dograph.eval.recorded import agreement_line, edge_table, node_table

    def show(title: str, columns: str, rows: list[list[str]]) -> None:
        words = ("source", "sources", "text")
        style = {"title": title, "box": SIMPLE_HEAD, "padding": (0, 1)}
        print_table(columns.split(", "), rows, words, **style)

    counts = [[s, str(count), f"{result.loss_nats[s]:.4f}"] for s, count in result.rows.items()]
    show(f"{result.split} rows of {result.seq_len} tokens", "source, rows, loss nats", counts)
    if result.pairs:
        apart = sum(pair.p_value <= LEVEL for pair in result.pairs)
        print(f"told apart: {apart} of {len(result.pairs)} pairs of sources (p <= {LEVEL:g}, Holm)")
        pairs = []
        for pair in result.pairs[:MOST_PAIRS]:
            sizes = [f"{pair.mmd_squared:.4g}", f"{pair.separation:.4g}", f"{pair.p_value:.4f}"]
            pairs.append([f"{pair.first} - {pair.second}", *sizes])
        if len(result.pairs) > MOST_PAIRS:
            pairs.append([f"{len(result.pairs) - MOST_PAIRS} more in inspection.json"])
        show("sources, farthest first", "sources, MMD^2, separation, p", pairs)
    shown = console.open_console()
    shown.print(node_table(result.graph, "domains of the model"))
    shown.print(edge_table(result.graph))
    examples = []
    for one in result.examples:
        text = "(no tokenizer: text cannot be shown)" if one.text is None else one.text
        examples.append([str(one.domain), one.source, str(one.document), text])
    show("samples nearest each domain's centre", "domain, source, document, text", examples)
    print(agreement_line(result.graph))
    if result.scored:
        groups = []
        for own in result.toward:
            sizes = [f"{own.help:+.3f}", own.interval.text("+.3f"), f"{own.text_score:+.3f}"]
            groups.append([own.name, str(own.rows), *sizes])
        title = "help for the trusted text: 1 is that of its own rows, with 95 % intervals"
        show(title, "source, rows, help, interval, text score", groups)
        rows = [[r.stratum, str(r.document), f"{r.score:+.3f}", str(r.text)] for r in result.scored]
        show("rows most and least like it", "source, document, text score, text", rows)

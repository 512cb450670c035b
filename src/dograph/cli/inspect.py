"""dograph inspect: what a model perceives as domains in a corpus, without training."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dograph.cli.console import ensured, open_console, open_table, require_writable, stages

if TYPE_CHECKING:
    from dograph.eval.inspect import Inspection

LEVEL = 0.05  # corrected p-value at which two sources count as told apart
MOST_PAIRS = 30  # shown; the file has them all


def inspect(
    model: Annotated[
        str,
        typer.Argument(
            help="a causal LM: folder, Hugging Face name, run, or preset", show_default=False
        ),
    ],
    corpus: Annotated[str, typer.Option(help="a prepared corpus, or demo, unigram, bigram")],
    rows: Annotated[int, typer.Option(help="rows in all, shared equally among the sources")] = 256,
    domains: Annotated[int, typer.Option(help="domains to divide them into")] = 11,
    out: Annotated[Path, typer.Option(help="folder for the findings")] = Path("inspect"),
    seq_len: Annotated[
        int | None, typer.Option(min=2, help="tokens of a row; those of the run, else 256 or fewer")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option(help="a parameter to leave out; may be repeated")
    ] = None,
    seed: Annotated[int, typer.Option(help="of projection, tests and clustering")] = 0,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
) -> None:
    """Show what a model perceives in a corpus: which sources it tells apart, and its own domains.

    Nothing is trained: gradients of held-out rows are sketched and compared. Two sources are told
    apart where their MMD is larger than relabelling explains.

    \b
    dograph inspect runs/mine --corpus data/mine
    dograph inspect gpt2 --corpus data/spj --rows 512 --domains 7
    """  # noqa: D301
    from dograph.eval.inspect import InspectRequest, inspect_model

    request = InspectRequest(
        model=model,
        corpus=ensured(corpus),
        rows=rows,
        domains=domains,
        seq_len=seq_len,
        seed=seed,
        device=device,
        exclude=tuple(exclude or ()),
    )
    require_writable(out / "inspection.json")
    with stages("rows") as report:
        found = inspect_model(request, report)
        found.save(out)
    _print(found)
    for note in found.notes:
        print(f"note: {note}")
    print(f"findings: {out}")


def _print(found: "Inspection") -> None:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape

    from dograph.eval.recorded import edge_table, node_table

    console = open_console()

    def show(title: str, columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
        words = ("source", "sources", "part", "farthest", "text")
        table = open_table(*columns, left=words, title=title, box=SIMPLE_HEAD, padding=(0, 1))
        for row in rows:
            table.add_row(*row)
        console.print(table)

    def figure(value: float | None) -> str:
        return "" if value is None else f"{value:.4g}"

    rows = [
        (escape(source), str(count), f"{found.loss_nats[source]:.4f}")
        for source, count in found.rows.items()
    ]
    title = f"{found.split} rows of {found.seq_len} tokens"
    show(title, ("source", "rows", "loss nats"), rows)
    if found.pairs:
        apart = sum(pair.p_value <= LEVEL for pair in found.pairs)
        print(f"told apart: {apart} of {len(found.pairs)} pairs of sources (p <= {LEVEL:g}, Holm)")
        pairs: list[tuple[str, ...]] = [
            (
                escape(f"{pair.first} - {pair.second}"),
                figure(pair.mmd_squared),
                figure(pair.separation),
                f"{pair.p_value:.4f}",
            )
            for pair in found.pairs[:MOST_PAIRS]
        ]
        if len(found.pairs) > MOST_PAIRS:
            pairs.append((f"{len(found.pairs) - MOST_PAIRS} more in inspection.json",))
        show("sources, farthest first", ("sources", "MMD^2", "separation", "p"), pairs)
        parts = [
            (part.name, figure(part.mean_separation), escape(" - ".join(part.farthest)))
            for part in found.parts
        ]
        title = "where in the model sources lie apart"
        show(title, ("part", "mean separation", "farthest"), parts)
    console.print(node_table(found.graph, "domains that the model perceives"))
    console.print(edge_table(found.graph))
    absent = "(no tokenizer: text cannot be shown)"
    examples = [
        (
            str(one.domain),
            escape(one.source),
            str(one.document),
            escape(absent if one.text is None else one.text),
        )
        for one in found.examples
    ]
    title = "samples nearest each domain's centre"
    show(title, ("domain", "source", "document", "text"), examples)
    print(f"domains against sources: NMI {found.nmi:.3f}, purity {found.purity:.3f}")

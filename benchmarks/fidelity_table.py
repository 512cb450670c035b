"""The figures of one stop as text."""

from typing import Any

# Title and metric. L1 and cosines: own domains; giv: the domains of the exact Gram.
COLUMNS = (
    ("dist std", "distance_std"),
    ("dist max", "distance_max"),
    ("norm std", "square_norm_std"),
    ("gram cor", "gram_correlation"),
    ("excess", "excess"),
    ("exc. sph", "excess_spherical"),
    ("L1 papr", "l1_paper"),
    ("L1 vari", "l1_variance"),
    ("L1 prec", "l1_precision"),
    ("giv papr", "l1_paper_given"),
    ("giv vari", "l1_variance_given"),
    ("giv prec", "l1_precision_given"),
    ("cos papr", "cosine_paper"),
    ("cos vari", "cosine_variance"),
    ("cos prec", "cosine_precision"),
)


def table(rows: dict[str, dict[str, dict[str, float]]]) -> str:
    """One line a row, medians in columns; a dash where a row has no such figure."""
    width = max(len(row) for row in rows)
    lines = [" " * width + "".join(f"{title:>9}" for title, _ in COLUMNS)]
    for row, metrics in rows.items():
        cells = [
            f"{metrics[metric]['median']:9.4f}" if metric in metrics else f"{'-':>9}"
            for _, metric in COLUMNS
        ]
        lines.append(f"{row:<{width}}" + "".join(cells))
    return "\n".join(lines)


def print_table(step: int, stop: dict[str, Any]) -> None:
    gradients = stop["gradients"]
    print(f"\nstep {step}, loss {gradients['loss_nats']['median']:.3f} nats, medians")
    print(table(stop["rows"]))
    for kind in ("energy", "energy of differences", "r_eff", "r_eff of differences"):
        medians = {
            name.split("/")[1].removeprefix("model.").removesuffix(".weight"): found["median"]
            for name, found in gradients.items()
            if name.startswith(f"{kind}/")
        }
        print(f"{kind}: " + ", ".join(f"{name} {value:.3g}" for name, value in medians.items()))
    print(flush=True)

"""How far apart the sources' losses are: the balance that the paper speaks of."""

from dograph.compare.findings import Findings
from dograph.eval.balance import balance as balance_of
from dograph.reproduce.figures import Values, less, level, losses, present, values_of
from dograph.reproduce.methods import BASELINE, displayed
from dograph.reproduce.study import Outcome, Sheet, Study
from dograph.reproduce.verdicts import SUBJECTS, Verdict, judge, untested


def balance(study: Study) -> Outcome:
    """Losses over sources: their standard deviation and the gap from best to worst."""
    findings = study.only
    figures: dict[str, Values] = {
        "spread": values_of(findings, lambda cell: balance_of(cell["losses"]).spread),
        "gap": values_of(findings, lambda cell: balance_of(cell["losses"]).gap),
        "worst": losses(findings, "worst"),
    }
    rows, data = [], {}
    for label in displayed([m["label"] for m in findings["methods"]]):
        levels = {name: level(values, label) for name, values in figures.items()}
        changes = {name: less(values, label, BASELINE) for name, values in figures.items()}
        cells = [label]
        for name in ("spread", "gap"):
            told = "" if label == BASELINE else changes[name].change(".3f")
            cells += [levels[name].level(".3f"), told]
        rows.append([*cells, levels["worst"].level(".3f")])
        data[label] = {name: figure.record() for name, figure in levels.items()} | {
            f"{name}_less_uniform": figure.record() for name, figure in changes.items()
        }
    change = "less uniform [95 %]"
    columns = ("method", "spread ± 95 %", change, "gap ± 95 %", change, "worst ± 95 %")
    title = "losses over sources in nats: deviation, worst less best, worst"
    sheet = Sheet(title, columns, rows)
    notes = [
        "sources differ in how well any model can predict them: what counts is the difference "
        "to uniform",
        "the paper speaks of balance and prints no figure of it",
    ]
    return Outcome([sheet], {"methods": data}, _verdicts(findings, figures), notes)


def _verdicts(findings: Findings, figures: dict[str, Values]) -> list[Verdict]:
    found = []
    for label in SUBJECTS:
        for name in ("spread", "gap"):
            says = f"DoGraph more balanced over sources than Uniform ({name})"
            if len(present(findings, [label, BASELINE])) < 2:
                found.append(untested(says, f"no finished run of {label}", label))
                continue
            change = less(figures[name], label, BASELINE)
            found.append(judge(says, change, sign=-1, of=label))
    return found

"""fig:efficiency_h200: what methods cost."""

from collections.abc import Mapping

from dograph.compare.findings import Findings
from dograph.reproduce import paper
from dograph.reproduce.figures import Values, level, more_per_cent, present, values_of
from dograph.reproduce.methods import BASELINE, displayed
from dograph.reproduce.study import Outcome, Sheet, Study
from dograph.reproduce.verdicts import SUBJECTS, Verdict, judge, untested


def cost(study: Study) -> Outcome:
    """Seconds and FLOPs with plans counted, over uniform and over RegMix."""
    findings = study.only
    labels = displayed([m["label"] for m in findings["methods"]])
    seconds = {part: _spent(findings, "seconds", part) for part in ("train", "plan", "total")}
    flops = {m["label"]: m["flops"] for m in findings["methods"]}
    rows, data = [], {}
    for label in labels:
        over = more_per_cent(seconds["total"], label, BASELINE)
        ratio = 100 * (flops[label]["total"] / flops[BASELINE]["total"] - 1)
        trained = level(seconds["train"], label)
        hours = _hours(findings, trained.mean) if trained.seeds else None
        rows.append(
            [
                label,
                trained.level(".1f"),
                level(seconds["plan"], label).plain(".1f"),
                "" if label == BASELINE else over.change(".1f"),
                f"{flops[label]['total']:.3g}",
                "" if label == BASELINE else f"{ratio:+.1f}",
                "" if hours is None else f"{hours:.1f}",
            ]
        )
        data[label] = {
            "seconds": {part: level(seconds[part], label).record() for part in seconds},
            "over_uniform_per_cent": over.record(),
            "over_regmix_per_cent": more_per_cent(seconds["total"], label, "regmix").record(),
            "training_over_regmix_per_cent": more_per_cent(
                seconds["train"], label, "regmix"
            ).record(),
            "flops": flops[label],
            "flops_over_uniform_per_cent": ratio,
            "hours_for_the_papers_tokens": hours,
        }
    columns = ("method", "training s ± 95 %", "plan s", "% over uniform [95 %]", "FLOPs")
    sheet = Sheet(
        "what a run takes; per cent with plans counted",
        (*columns, "% over", f"h for {paper.BUDGET_TOKENS / 1e9:.0f}B tokens"),
        rows,
    )
    notes = [
        f"paper: {paper.HOURS} h for {paper.BUDGET_TOKENS / 1e9:.0f}B tokens on two H200 with "
        "DoGraph; the last column is training alone on this machine's device, at the speed seen",
        "times are what training took beside whatever else ran; for clean ones give --workers 1 on "
        "an idle machine",
    ]
    return Outcome([sheet], {"methods": data}, _cost_verdicts(findings, seconds), notes)


def _cost_verdicts(findings: Findings, seconds: Mapping[str, Values]) -> list[Verdict]:
    found = []
    for label in SUBJECTS:
        for part, told in (("train", "training alone"), ("total", "RegMix's plan counted")):
            says = f"DoGraph takes more time than RegMix ({told})"
            if len(present(findings, [label, "regmix"])) < 2:
                found.append(untested(says, f"no finished run of {label} or of regmix", label))
                continue
            over = more_per_cent(seconds[part], label, "regmix")
            found.append(
                judge(says, over, sign=1, paper=paper.OVER_REGMIX, shape=".2f", unit=" %", of=label)
            )
    return found


def _spent(findings: Findings, kind: str, part: str) -> Values:
    return values_of(findings, lambda cell: float(cell[kind][part]))


def _hours(findings: Findings, seconds: float) -> float:
    """To train on the paper's tokens at the speed of these runs."""
    train, data = findings["config"]["train"], findings["config"]["data"]
    tokens = train["steps"] * train["batch_size"] * data["seq_len"]
    return float(paper.BUDGET_TOKENS / tokens * seconds / 3600)

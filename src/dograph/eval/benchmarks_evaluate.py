"""Score tasks with either scorer; both give the same structure, and the same numbers."""

from collections.abc import Callable, Sequence
from typing import Literal, get_args

from dograph.errors import ConfigError, require
from dograph.eval.documents import Documents
from dograph.eval.harness import harness_scores
from dograph.eval.likelihood import Scorer
from dograph.eval.scores import TaskScore, score_task

With = Literal["builtin", "lm-eval"]
Report = Callable[[str, int, int], None]  # stage, done, total


def check_with(name: str) -> With:
    """The scorer of that name; one that is not installed is missed before any work is done."""
    for known in get_args(With):
        if name == known:
            if known == "lm-eval":
                require("lm_eval", "eval")
            found: With = known
            return found
    raise ConfigError(f'there is no scorer "{name}"; allowed: {", ".join(get_args(With))}')


def evaluate_tasks(
    scorer: Scorer, documents: Sequence[Documents], using: With, report: Report
) -> list[TaskScore]:
    """One score a task, in the order given."""
    if using == "lm-eval":
        report("lm-eval", 0, 0)
        return harness_scores(scorer, documents)
    scores = []
    for found in documents:

        def shown(done: int, total: int, stage: str = found.task.name) -> None:
            report(stage, done, total)

        items = found.items
        pairs = [pair for item in items for pair in item.pairs]
        scores.append(score_task(found.task, items, scorer.score(pairs, shown)))
    return scores

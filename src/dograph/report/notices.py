"""What a reader should be warned of, from what the run recorded."""

import numpy as np

from dograph.config import RunConfig
from dograph.report.series import Columns
from dograph.train.edit_record import edits_of
from dograph.train.run_dir import RunDirectory

UNSOLVED = 1e-3  # a residual above this: the weights are not what the objective asks for


def warnings_of(run: RunDirectory, config: RunConfig, columns: Columns) -> list[str]:
    """One line each; none where all is well."""
    return [
        *_unfinished(run, config, columns),
        *_edits(run),
        *_repeats(config, columns),
        *_fallbacks(columns),
        *_unsolved(columns),
        *_gaps(columns),
    ]


def _unfinished(run: RunDirectory, config: RunConfig, columns: Columns) -> list[str]:
    told = []
    stopped = sorted(path.stem for path in run.path.glob("nonfinite-step-*.json"))
    if stopped:
        told.append(
            f"a loss was not a number: {', '.join(stopped)}; docs/runs.md says what is kept"
        )
    if columns.last_step < config.train.steps:
        told.append(
            f"not complete: {columns.last_step} of {config.train.steps} steps. "
            f"If it has stopped, go on: dograph train --resume {run.path}"
        )
    return told


def _edits(run: RunDirectory) -> list[str]:
    return [
        f"edited on the way, so config.yaml alone does not make it again: {edit.line} "
        f"(from {edit.given}, {edit.time})"
        for edit in edits_of(run)
    ]


def _repeats(config: RunConfig, columns: Columns) -> list[str]:
    most, told = config.data.warn_epochs, []
    for source in columns.middles("data/", "/epochs"):
        epochs = columns.last(f"data/{source}/epochs")
        if epochs is not None and epochs > most:
            told.append(
                f"{source} was read through {epochs:.1f} times, more than data.warn_epochs={most:g}"
            )
    return told


def _fallbacks(columns: Columns) -> list[str]:
    step_N, fell_N = columns.get("weights/fallback")
    at = step_N[fell_N > 0]
    if not len(at):
        return []
    return [
        f"equal weights in {len(at)} of {len(step_N)} steps, because a gradient was not finite or "
        f"the problem had no solution (first in step {int(at[0])})"
    ]


def _unsolved(columns: Columns) -> list[str]:
    step_N, residual_N = columns.get("weights/solver_residual")
    at = step_N[residual_N > UNSOLVED]
    if not len(at):
        return []
    return [
        f"solves that did not converge: residual above {UNSOLVED:g} in {len(at)} of {len(step_N)} "
        f"steps, at most {float(np.max(residual_N)):.2g} (first in step {int(at[0])})"
    ]


def _gaps(columns: Columns) -> list[str]:
    told = []
    if columns.damaged:
        told.append(f"{columns.damaged} lines of metrics.jsonl could not be read")
    if columns.last_step and not columns.middles("valid/", "/loss_nats"):
        told.append("no validation yet, or no validation text: there is no loss to judge by")
    return told

"""A comparison from start to end: plans, cells trained in a pool, findings. Resumable throughout.

OUT/ask.json       the request; the same command continues it
OUT/plans/         mixtures of the planned methods, and their cost
OUT/cells/         one run directory per method and seed
OUT/tuning/, OUT/prices.json   learning rates and time (dograph.compare.equal_time)
OUT/compare.json   all findings
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dograph.compare import equal_time
from dograph.compare.arms import Ask
from dograph.compare.cells import Cell, Say, lay_out, make_plans
from dograph.compare.findings import REPORT, Findings, build_findings
from dograph.data.corpus import Corpus
from dograph.errors import ConfigError, DographError, RunError
from dograph.files import plain, write_json
from dograph.mixers.registry import PROXIES, build_mixer
from dograph.plan.jobs import Job, JobProgress, Result, read_result
from dograph.plan.lab import forecast_plan
from dograph.plan.pool import JobError, Pool
from dograph.progress import duration
from dograph.train.assembly import CorpusLab, open_sampler
from dograph.train.forecast import measure_speed, start_warnings
from dograph.train.run_dir import RunDirectory


def run_compare(ask: Ask, pool: Pool, say: Say, *, shares_folder: bool = False) -> Findings:
    """Train what is missing; write and return the findings.

    A plan or cell that fails is named in the findings, and all others are trained. A shared folder
    may hold more methods and seeds; compare.json has those of the newest request.
    """
    # These refuse what is wrong before the folder is made, so that a corrected command may use it.
    trials = equal_time.tuning(ask) if ask.rates else None
    equal_time.with_longer_runs(ask)
    corpus = open_corpus(ask, say)
    ask.take_folder(corpus, shared=shares_folder)
    if trials is not None:
        ask = equal_time.with_best_rates(ask, run_compare(trials, pool, say), say)
    cells = lay_out(ask := equal_time.with_longer_runs(ask), corpus, make_plans(ask, pool, say))
    prices = equal_time.measure_prices(ask, cells, say) if ask.budget == "time" else {}
    findings = build_findings(ask, corpus, cells, *train_cells(cells, corpus, pool))
    if prices:
        findings = equal_time.with_equal_time(findings, prices)
    write_json(ask.out / REPORT, plain(findings))
    return findings


def without_unable(ask: Ask, say: Say) -> Ask:
    """Without the methods of `all` that cannot run with these settings; says why each cannot."""
    kept = []
    open_corpus(replace(ask, methods=()))  # an error of the corpus is not one of every method
    for method in ask.methods:
        try:
            if method.of_all and method.mixer["name"] in PROXIES:
                raise ConfigError("it only trains the proxies of a plan")
            if method.of_all:
                open_corpus(replace(ask, methods=(method,)))
            if method.of_all and method.is_planned and ask.proxy is not None:
                forecast_plan(method.config(ask.config), ask.proxy, lab=ask.lab)
            kept.append(method)
        except DographError as error:
            why = str(error).removeprefix(f"{method.label}: ")
            say(f"{method.label} is left out of all: {why}")
    return replace(ask, methods=tuple(kept))


def open_corpus(ask: Ask, say: Say = lambda text: None) -> Corpus:
    """The corpus, after checks that it has validation text and that every method can draw from it.

    A misspelt source would otherwise fail only in the cell that uses it, perhaps days later.
    Warnings are given once, with the methods that they hold for.
    """
    warnings: dict[str, list[str]] = {}
    corpus = Corpus(ask.config.data.corpus)
    if not corpus.validation:
        raise ConfigError(
            f"{corpus.directory} has no validation text, so there is no loss to compare; prepare "
            "it with some text held out"
        )
    for method in ask.methods:
        if method.is_planned:
            continue
        config = method.config(ask.config)
        mixer = build_mixer(config.mixer.name, config.mixer.options)
        sampler = open_sampler(config, corpus)
        try:
            sampler.remix(0, mixer.plan(CorpusLab(config, corpus)), reason="plan")
            for text in start_warnings(config, corpus, sampler, mixer):  # checks later stages, too
                warnings.setdefault(text, []).append(method.label)
        except DographError as error:
            raise ConfigError(f"{method.label}: {error}") from error
    for text, labels in warnings.items():
        say(f"warning ({', '.join(labels)}): {text}")
    return corpus


def train_cells(
    cells: Sequence[Cell],
    corpus: Corpus,
    pool: Pool,
    on_done: Callable[[Cell, Result], None] = lambda cell, result: None,
) -> tuple[dict[str, Result], dict[str, str]]:
    """Train every cell without a stored result: results and failures, by label.

    A cell that fails does not stop the others. `on_done` is called for each that is trained now.
    """
    failures = {cell.label: cell.problem for cell in cells if cell.problem}
    todo = {cell.label: cell for cell in cells if not cell.problem}
    stored = {label: read_result(Path(cell.config.run), corpus) for label, cell in todo.items()}
    results = {label: result for label, result in stored.items() if result is not None}
    for label in results:
        run, optim = RunDirectory(Path(todo[label].config.run)), todo[label].config.optim
        if run.config().optim != optim:
            raise RunError(
                f"{run.path} was trained at another learning rate than the best of --rates now; "
                "remove the cells of its method, or use another --out"
            )
    if len(results) == len(todo):
        return results, failures
    with JobProgress("cells", total=len(todo), cached=len(results)) as progress:

        def on_result(job: Job, result: Result) -> None:
            results[job.label] = result
            progress.on_done(job, result)
            on_done(todo[job.label], result)

        while left := todo.keys() - results.keys() - failures.keys():
            jobs = [Job(label, cell.config) for label, cell in todo.items() if label in left]
            try:
                pool.run(jobs, on_result, progress.on_start, progress.on_death)
            except JobError as error:
                failures[error.job.label] = str(error)
                progress.on_failure(str(error))
    return results, failures


def forecast_lines(ask: Ask, corpus: Corpus, flag: str = "--mixers") -> Iterator[str]:
    """The expected cost: cells, FLOPs, an estimate of the time; plans by their first proxies."""
    plans: dict[str, str] = {}
    refused: dict[str, ConfigError] = {}
    for method in ask.methods:  # before any line is printed: all refusals in one error
        if method.is_planned:
            assert ask.proxy is not None
            try:
                target = method.config(ask.config)
                plans[method.label] = forecast_plan(target, ask.proxy, lab=ask.lab)
            except ConfigError as error:
                refused[method.label] = error
    if refused:
        errors = "\n".join(f"{label}: {error}" for label, error in refused.items())
        raise ConfigError(f"{errors}\nOr leave {', '.join(refused)} out of {flag}")
    trials = lay_out(equal_time.tuning(ask), corpus, {}) if ask.rates else []
    cells = lay_out(ask := equal_time.with_longer_runs(ask), corpus, {})
    methods, seeds = len(ask.methods), len(ask.seeds)
    listed = ", ".join(map(str, ask.seeds))
    yield f"{len(cells)} cells: {methods} methods x {seeds} seeds ({listed})"
    if trials:
        yield f"  {len(trials)} more runs choose the learning rates"
    more = " or more" if ask.budget == "compute" else ""
    number = f"{seeds} plans, each" if ask.replan else "one plan for all seeds"
    for cell in cells[:methods]:
        steps = cell.config.batches.steps
        yield f"  {cell.method}: {steps:,} steps{more}, {cell.flops:.3g} FLOPs per run"
        if cell.method in plans:
            yield f"    {number}: {plans[cell.method]}"
    if plans:
        yield "  plans are estimated by their first proxies; later ones may depend on their results"
    flops = sum(cell.flops for cell in (*cells, *trials))
    seconds = flops / measure_speed(ask.config, corpus)
    yield (
        f"total: {flops:.3g} FLOPs without plans, about {duration(seconds)} of one worker here, "
        "at the speed measured on a layer of the model"
    )

"""How large the page is, and how soon it is there: python -m benchmarks.page.

Synthetic metrics of 20 runs (4 methods, 5 seeds, 7 sources, 20,000 steps), two of the methods with
11 domains, probes of 512 rows and a graph every 1000 steps. Loaded from disk in headless Chromium.

python -m benchmarks.page --long 1000000: a single run of so many steps, as written by
tests/long_runs.py: its size on disk, memory and time of every command that reads it, its page.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors.torch import save_file

from benchmarks import measure
from dograph.config import RunConfig
from dograph.report.collect import collect, open_subjects
from dograph.report.render import render

METHODS = ("natural", "uniform", "dograph", "paper")
SOURCES = [f"source-{k}" for k in range(7)]
DOMAINS, ROWS, SKETCH = 11, 512, 640
PROBES = (0, 200, 600, 2000, 6000, 20_000)
TESTS = Path(__file__).resolve().parents[1] / "tests"
# Runs a command after everything is imported, and prints what it took.
COMMAND = """
import json, resource, sys, time
import dograph.report.render, dograph.train.trainer, dograph.eval.recorded
from dograph.cli.main import main
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before, cpu, start = peak(), time.process_time(), time.monotonic()
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
figures = peak() - before, time.process_time() - cpu, time.monotonic() - start
print(json.dumps([round(x, 1) for x in figures]), file=sys.stderr)
"""
LOADED = """
  const [navigation] = performance.getEntriesByType('navigation');
  const paint = performance.getEntriesByName('first-contentful-paint')[0];
  const drawn = [...document.querySelectorAll('.plot')].filter((p) => p.firstChild).length;
  return [navigation.loadEventEnd, paint ? paint.startTime : 0,
    Number(document.documentElement.dataset.firstChart || 0), drawn];
"""


def write_run(folder: Path, method: str, seed: int, steps: int) -> None:
    folder.mkdir(parents=True)
    mixer = {"name": "dograph", "recipe": "paper"} if method == "paper" else {"name": method}
    config = RunConfig.model_validate(
        {
            "seed": seed,
            "run": str(folder),
            "data": {"corpus": "nowhere"},
            "mixer": mixer,
            "train": {"steps": steps},
        }
    )
    (folder / "config.yaml").write_text(config.dump())
    has_domains = mixer["name"] == "dograph"
    rng = np.random.default_rng(seed)
    with open(folder / "metrics.jsonl", "w") as file:
        for step in range(1, steps + 1):
            file.write(json.dumps(step_row(step, rng, has_domains)) + "\n")
            if step % 1000 == 0:
                file.write(json.dumps(valid_row(step, rng)) + "\n")
    if has_domains:
        write_domains(folder, steps)


def step_row(step: int, rng: np.random.Generator, has_domains: bool) -> dict[str, float]:
    loss = 3 + 8 / (1 + step / 300)
    drawn = rng.standard_normal(40)
    row = {"step": step, "train/loss_nats": loss + 0.05 * drawn[0], "optim/lr": 5e-4}
    row |= {f"train/{s}/loss_nats": loss + 0.1 * drawn[k] for k, s in enumerate(SOURCES)}
    row |= {"weights/effective_samples": 48 - abs(drawn[8]), "optim/grad_norm": 1 + abs(drawn[9])}
    row |= {f"time/{part}_ms": 10 + abs(drawn[10]) for part in ("forward", "backward", "update")}
    if has_domains:
        row |= {f"domains/{j}/weight": 0.09 + 0.01 * drawn[11 + j] for j in range(DOMAINS)}
        row |= {f"domains/{j}/share": 0.09 + 0.01 * drawn[22 + j] for j in range(DOMAINS)}
        row |= {"domains/nmi": 0.4 + 0.05 * drawn[33], "weights/solver_residual": 1e-8}
        row |= {"weights/entropy_nats": 2.3 + 0.01 * drawn[34]}
        row |= {"weights/gradient_norm_ratio": 1 + 0.02 * drawn[35]}
        row |= {"weights/max_relative_weight": 1.5 + 0.1 * drawn[36]}
    if step % 10 == 0:
        row |= {"time/step_seconds": 0.1, "time/tokens_per_second": 2.4e5 + 1e3 * drawn[37]}
    return row


def valid_row(step: int, rng: np.random.Generator) -> dict[str, float]:
    nats = {s: 3 + 8 / (1 + step / 300) + 0.02 * rng.standard_normal() for s in SOURCES}
    row = {"step": step} | {f"valid/{s}/loss_nats": value for s, value in nats.items()}
    mean = sum(nats.values()) / len(nats)
    named = {"mean": mean, "natural": mean, "worst": max(nats.values())}
    return row | {f"valid/{name}/loss_nats": value for name, value in named.items()}


def write_domains(folder: Path, steps: int) -> None:
    (folder / "probes").mkdir()
    generator = torch.Generator().manual_seed(0)
    source_N = (torch.arange(ROWS) % len(SOURCES)).int()
    places = [
        {"source": SOURCES[s], "stratum": SOURCES[s], "row": n, "document": n, "offset": 0}
        for n, s in enumerate(source_N.tolist())
    ]
    for step in (min(step, steps) for step in PROBES):
        stem = folder / "probes" / f"step-{step:08d}"
        label_N = (torch.arange(ROWS) % DOMAINS).int()
        tensors = {"sketch": torch.randn(ROWS, SKETCH, generator=generator).bfloat16()}
        tensors |= {"source": source_N, "label": label_N, "loss": torch.ones(ROWS)}
        save_file(tensors, f"{stem}.safetensors")
        about = {"step": step, "sources": SOURCES, "rows": places, "domains": []}
        stem.with_suffix(".json").write_text(json.dumps(about))
    nodes = [
        {"domain": j, "share": 1 / DOMAINS, "weight": 1 / DOMAINS, "norm": 1.0, "samples": 480}
        | {"gradient_norm": 1.0, "spread": 1.0, "sources": dict.fromkeys(SOURCES, 68)}
        for j in range(DOMAINS)
    ]
    edges = [
        {"first": i, "second": j, "cosine": 0.1 * (i - j) / DOMAINS, "mmd_squared": 1.0 + i + j}
        for i in range(DOMAINS)
        for j in range(i + 1, DOMAINS)
    ]
    with open(folder / "graph.jsonl", "w") as file:
        for step in range(1000, steps + 1, 1000):
            file.write(json.dumps({"step": step, "nodes": nodes, "edges": edges}) + "\n")


def load_times(page: Path, times: int) -> list[dict[str, float]]:
    """Milliseconds from the start of navigation, each in a window that never saw the page."""
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    options = ChromeOptions()
    options.binary_location = os.environ.get("DOGRAPH_CHROMIUM") or shutil.which("chromium") or ""
    for argument in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{argument}")
    driver = os.environ.get("DOGRAPH_CHROMEDRIVER") or shutil.which("chromedriver")
    found = []
    for _ in range(times):
        with Chrome(options=options, service=Service(driver)) as window:
            window.set_window_size(1280, 900)
            window.get(page.as_uri())
            time.sleep(3)  # charts that nobody sees are drawn when the browser is idle
            load, paint, chart, drawn = window.execute_script(LOADED)
            found.append({"load": load, "paint": paint, "first_chart": chart, "charts": drawn})
    return found


def measured(folder: Path, runs: int, steps: int, times: int) -> dict[str, Any]:
    paths = []
    for seed in range(runs // len(METHODS)):
        for method in METHODS:
            paths.append(folder / f"{method}-{seed}")
            write_run(paths[-1], method, seed, steps)
    start = time.perf_counter()
    data = collect(open_subjects(paths))
    collected = time.perf_counter() - start
    page = folder / "page.html"
    page.write_text(render(data))
    start = time.perf_counter()
    render(collect(open_subjects(paths[2:3])))
    of_one = time.perf_counter() - start
    found = load_times(page, times)
    return {
        "page_megabytes": round(page.stat().st_size / 1e6, 2),
        "seconds_to_make": round(collected, 1),
        "seconds_to_make_of_one_run": round(of_one, 1),
        "loaded_ms": [round(row["load"]) for row in found],
        "first_paint_ms": [round(row["paint"]) for row in found],
        "first_chart_ms": [round(row["first_chart"]) for row in found],
        "charts_drawn": [row["charts"] for row in found],
        "target": "first chart under 2000 ms",
    }


def long_comparison(run: Path, out: Path, environment: dict[str, str]) -> tuple[str, ...]:
    """Arguments of a comparison of two methods whose runs are complete: copies of `run`.

    The comparison is begun and interrupted, which leaves the record of what it compares, and
    finished with the copies.
    """
    mixers = ",".join(f"{label}=dograph[recipe=safe,num_domains=11]" for label in ("one", "two"))
    config = str(run / "config.yaml")
    asked = (config, "--mixers", mixers, "--baseline", "one", "--seeds", "1", "--out", str(out))
    words = [sys.executable, "-m", "dograph", "compare", *asked, "--workers", "1"]
    with subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL) as begun:
        while not (out / "cells" / "one-s0" / "config.yaml").is_file():
            assert begun.poll() is None
            time.sleep(0.1)
        begun.send_signal(signal.SIGINT)
    for label in ("one", "two"):
        cell = out / "cells" / f"{label}-s0"
        shutil.rmtree(cell, ignore_errors=True)
        shutil.copytree(run, cell, symlinks=True)
        settings = RunConfig.model_validate(yaml.safe_load((cell / "config.yaml").read_text()))
        (cell / "config.yaml").write_text(settings.model_copy(update={"run": str(cell)}).dump())
    subprocess.run(words, check=True, env=environment, stdout=subprocess.DEVNULL)
    return asked


def long_run(folder: Path, steps: int, times: int) -> dict[str, Any]:
    """Megabytes above those of the imports, and seconds of CPU and wall-clock, by command."""
    run, page, last = folder / "run", folder / "page.html", str(steps)
    written = [sys.executable, str(TESTS / "long_runs.py"), str(run), str(steps)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*sys.path[1:], str(TESTS)])}
    subprocess.run(written, check=True, env=environment)
    grown = sum(file.stat().st_size for file in run.glob("*.jsonl"))
    commands = {
        "show losses": (str(run),),
        "show graph": (str(run),),
        "show weights": (str(run), "--step", last),
        "show samples": (str(run), "--step", last),
        "report": (str(run), "--out", str(page)),
        "train --resume": (str(run),),
        "inspect": (str(run), f"data.corpus={folder / 'corpus'}", "--out", str(folder / "seen")),
        "compare": long_comparison(run, folder / "compared", environment),
    }
    costs = {}
    for name, more in commands.items():
        words = [sys.executable, "-c", COMMAND, *name.split(), *more]
        done = subprocess.run(words, capture_output=True, text=True, env=environment)
        assert not done.returncode, done.stdout + done.stderr
        figures = json.loads(done.stderr.splitlines()[-1])
        costs[name] = dict(zip(("megabytes", "cpu_seconds", "seconds"), figures, strict=True))
    found = load_times(page, times)
    return {
        "megabytes_on_disk": round(grown / 1e6, 1),
        "commands": costs,
        "page_megabytes": round(page.stat().st_size / 1e6, 2),
        "first_chart_ms": [round(row["first_chart"]) for row in found],
        "loaded_ms": [round(row["load"]) for row in found],
        "target": "400 MB on disk; 600 MB and 20 s a command; first chart under 2000 ms",
    }


def main(runs: int, steps: int, times: int, long: int) -> None:
    torch.set_num_threads(1)
    if long:
        with tempfile.TemporaryDirectory() as folder:
            result = long_run(Path(folder), long, times)
        command = f"python -m benchmarks.page --long {long} --times {times}"
        measure.write("long-run", command, {"steps": long, "sources": 7, "batch_size": 48}, result)
        return
    with tempfile.TemporaryDirectory() as folder:
        result = measured(Path(folder), runs, steps, times)
    command = f"python -m benchmarks.page --runs {runs} --steps {steps} --times {times}"
    measure.write("page", command, {"runs": runs, "steps": steps, "sources": 7}, result)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--long", type=int, default=0, metavar="STEPS")
    main(**vars(parser.parse_args()))

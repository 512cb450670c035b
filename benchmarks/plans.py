"""How long plans take: a RegMix plan of 64 tiny proxies whose workers are killed, and a large fit.

python -m benchmarks.plans            both, on two idle cores; about eight minutes
python -m benchmarks.plans --only fit
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks import measure
from dograph.mixtures.proposals import generate_mixtures
from dograph.mixtures.surrogates import SURROGATES, choose_surrogate, fit_objective

SOURCES, TARGETS, RUNS = 17, 13, 512


def fit() -> dict[str, Any]:
    """All surrogates on a table of the published size, cross-validation included."""
    draws = np.random.default_rng(0)
    prior = {f"source {s}": float(w) for s, w in enumerate(draws.dirichlet(np.ones(SOURCES)))}
    mixtures = generate_mixtures(prior, RUNS)
    weight_NS = np.array([list(mixture.weights.values()) for mixture in mixtures])
    t_VS = -draws.uniform(0, 0.6, (TARGETS, SOURCES))
    t_VS[np.arange(TARGETS), np.arange(TARGETS)] -= 2
    loss_NV = 2.2 + np.exp(0.6 + weight_NS @ t_VS.T) + 0.01 * draws.normal(size=(RUNS, TARGETS))
    share_V = np.full(TARGETS, 1 / TARGETS)
    wall, cpu = time.perf_counter(), time.process_time()
    choice = choose_surrogate(weight_NS, loss_NV, share_V)
    for surrogate in SURROGATES.values():
        fit_objective(surrogate, weight_NS, loss_NV, share_V, seed=0)
    return {
        "seconds": round(time.perf_counter() - wall, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "shape": [RUNS, SOURCES, TARGETS],
        "chosen": choice.name,
        "spearman": {name: v.spearman for name, v in choice.validated.items()},
    }


def workers_of(parent: int) -> list[int]:
    """Processes whose parent it is and that train."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            line = (stat.parent / "cmdline").read_bytes()
        except OSError:  # it has just ended
            continue
        if int(fields[1]) == parent and b"dograph.plan.pool" in line:
            found.append(int(stat.parent.name))
    return found


def plan(proxies: int, kills: int) -> dict[str, Any]:
    """`dograph plan regmix` on the demo corpus; a worker is killed now and then."""
    with tempfile.TemporaryDirectory() as folder:
        dograph = [sys.executable, "-m", "dograph"]
        prepare = [*dograph, "data", "prepare", "demo", "--out", "demo"]
        subprocess.run(prepare, cwd=folder, check=True)
        start, killed = time.perf_counter(), []
        settings = ["data.corpus=demo", f"mixer.num_proxies={proxies}"]
        process = subprocess.Popen(
            [*dograph, "plan", "regmix", *settings, "--force"],  # few proxies support no plan
            cwd=folder,
            stderr=subprocess.DEVNULL,
        )
        while process.poll() is None:
            time.sleep(1)
            due = 30 * (len(killed) + 1)
            if len(killed) == kills or time.perf_counter() - start < due:
                continue
            if workers := workers_of(process.pid):
                os.kill(workers[0], signal.SIGKILL)
                killed.append(round(time.perf_counter() - start, 1))
        seconds = time.perf_counter() - start
        assert process.returncode == 0, f"the plan ended with {process.returncode}"
        file = yaml.safe_load((Path(folder) / "mixture.yaml").read_text())
    return {
        "seconds": round(seconds, 1),
        "proxies": proxies,
        "workers_killed_after_seconds": killed,
        "surrogate": file["findings"]["surrogate"]["name"],
        "weights": {name: round(weight, 4) for name, weight in file["weights"].items()},
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--proxies", type=int, default=64)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--only", choices=["fit", "plan"])
    args = parser.parse_args()
    results: dict[str, Any] = {}
    if args.only != "plan":
        results["fit"] = fit()
    if args.only != "fit":
        results["plan"] = plan(args.proxies, args.kills)
    measure.write("plans", "python -m benchmarks.plans", vars(args), results)

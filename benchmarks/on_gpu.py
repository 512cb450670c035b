"""Everything that is measured on a GPU, in parts that can be stopped and go on.

    python -m benchmarks.on_gpu OUT [--parts tests prices ...] [--seconds 560] [--corpus DIR]
                                    [--old SRC] [--state FILE]

Parts run one after another, as separate processes. What ended well is not run again with the same
OUT. What --seconds cuts off keeps what it has written (OUT/<name>.json, OUT/<name>.log); with the
next call a comparison goes on and all else starts anew. OUT/parts.json says how each part ended.
With --state, FILE (a .tar.xz) takes finished runs of comparisons, without models and metrics, to
the same folder of another machine: it is unpacked at the start and written at the end.

part     what it shows
tests    the tests that need a GPU: steps that never wait, CUDA graphs, ranks, kernels
prices   the price of every mode in a run, for the shapes of docs/cost.md
solve    device time from sketches to weights, up to 1,024 samples and 64 domains
worth    plain training beside weights, at equal tokens and equal time (docs/compare.md)
online   methods that learn during the run, and ours, beside natural and equal sampling
old      the price of every mode before and after, in turns: --old is `src` of an older commit
"""

import argparse
import json
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TESTS = (
    *("tests/integration/test_cuda.py", "tests/integration/test_cuda_graphs.py"),
    *("tests/integration/test_cuda_ranks.py", "tests/unit/test_simplex_kernel.py"),
    *("tests/unit/domains/test_kmeans_kernel.py", "tests/unit/domains/test_kernel_sizes.py"),
    "tests/unit/sketch/test_kernels.py",
)
MODES = "head,topdown,full"
SHAPES: dict[str, list[str]] = {
    "mini-48": ["model.preset=gpt2-mini", "train.batch_size=48", "data.seq_len=512"],
    "small-48": ["model.preset=gpt2-small", "train.batch_size=48", "data.seq_len=512"],
    "mini-192": ["model.preset=gpt2-mini", "train.batch_size=192", "data.seq_len=512"],
    "mini-1024": [
        *("model.preset=gpt2-mini", "train.batch_size=1024", "data.seq_len=512"),
        "train.micro_batch_size=128",
    ],
    "llama": ["model.preset=llama-1.1b", "train.batch_size=16", "data.seq_len=2048"],
}
# The weights, what they cost less, what they are without domains, and domains without sense.
ARMS = (
    "full=dograph[recipe=recommended,sketch.mode=full]",
    "head=dograph[recipe=recommended,sketch.mode=head]",
    "inverse=dograph[recipe=inverse-norm,sketch.mode=head]",
    "permuted=benchmarks.permuted:PermutedLabels[recipe=recommended,sketch.mode=full]",
)
RUN = [
    *("model.preset=gpt2-mini", "data.seq_len=512", "train.batch_size=48", "seed=10"),
    *("train.dtype=bfloat16", "train.compile=true", "eval.every=0", "probe.rows=0"),
    *("eval.max_samples_per_source=128", "checkpoint.every=0", "optim.warmup_steps=100"),
]
ONLINE = "uniform,dynamic-loss,group-dro,ado,odm,rb,dograph"
WORKERS = "3"  # one run starts and compiles while others train; prices are measured before, alone
COMPARISONS = ("worth", "online")  # folders of OUT
SERIES = ("metrics.jsonl", "samples.jsonl", "graph.jsonl", "weights.jsonl")  # of single steps


def commands(
    part: str, out: Path, corpus: str | None, old: str | None
) -> Iterator[tuple[str, list[str]]]:
    """The commands of a part, by name."""
    python, dograph = sys.executable, [sys.executable, "-m", "dograph"]
    if part in ("worth", "online") and corpus is None:
        raise SystemExit(f"{part} needs --corpus: a folder that dograph data prepare has written")
    if part == "tests":
        plain = ["-o", "addopts=--import-mode=importlib", "-p", "no:cacheprovider", "-q", "-rs"]
        yield "tests", [python, "-m", "pytest", *plain, *TESTS]
    if part == "prices":
        for name, shape in SHAPES.items():
            own = ["mixer.recipe=recommended", "train.dtype=bfloat16", "train.compile=true", *shape]
            file = str(out / f"bench-{name}.json")
            yield f"bench-{name}", [*dograph, "bench", *own, "--modes", MODES, "--out", file]
    if part == "solve":
        file = str((out / "solve").resolve())
        yield "solve", [python, "-m", "benchmarks.solve", "--device", "cuda", "--name", file]
    if part == "worth":
        own = [*RUN, "train.steps=400", f"data.corpus={corpus}", "--mixers", ",".join(ARMS)]
        rates = ["--match", "time", "--rates", "7e-4,1e-3,1.4e-3"]
        tune = ["--tune", "seed=0", "--tune", "train.steps=250"]
        folder = ["--seeds", "10,11,12,13,14", "--workers", WORKERS, "--out", str(out / "worth")]
        yield "worth", [*dograph, "compare", *own, *rates, *tune, *folder]
    if part == "online":
        own = [*RUN, "train.steps=400", f"data.corpus={corpus}", "--mixers", ONLINE]
        folder = ["--seeds", "10,11,12", "--workers", WORKERS, "--out", str(out / "online")]
        yield "online", [*dograph, "compare", *own, *folder]
    if part == "old":
        if old is None:
            raise SystemExit("old needs --old: the folder `src` of an older commit")
        file = ["--out", str(out / "price-old-new.json")]
        options = ["--steps", "30", "--old-options", "--no-rivals --no-hand"]
        yield "old", [python, "-m", "benchmarks.price_since", old, *options, *file]


def run(name: str, command: list[str], out: Path, seconds: float) -> int | None:
    """The exit status, or None where the time was over and the command was asked to stop."""
    with open(out / f"{name}.log", "a", encoding="utf-8") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            return process.wait(max(seconds, 1))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    return None


def pack(out: Path, state: Path) -> None:
    """What comparisons in `out` have measured: their records, and those of finished runs."""
    with tarfile.open(state, "w:xz") as archive:
        for file in sorted(file for name in COMPARISONS for file in (out / name).rglob("*.*")):
            is_record = file.suffix in (".json", ".jsonl", ".yaml") and file.is_file()
            run = file.parent
            stopped = (run / "config.yaml").exists() and not (run / "result.json").exists()
            inside = "checkpoints" in file.relative_to(out).parts or file.name in SERIES
            if is_record and not stopped and not inside:
                archive.add(file, str(file.relative_to(out)))


def unpack(out: Path, state: Path) -> None:
    """The same in another folder. Runs whose models stayed behind have empty files in their place.

    A comparison trains a run again if its model is missing, and does not read it if it is there.
    """
    with tarfile.open(state) as archive:
        archive.extractall(out, filter="data")
    for result in (file for name in COMPARISONS for file in (out / name).rglob("result.json")):
        model = result.parent / json.loads(result.read_text())["model"]
        model.mkdir(parents=True, exist_ok=True)
        (model / "model.safetensors").touch()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--parts", nargs="+", default=["tests", "prices", "solve", "worth"])
    parser.add_argument("--seconds", type=float, default=560)
    parser.add_argument("--corpus", help="of the parts worth and online")
    parser.add_argument("--old", help="of the part old")
    parser.add_argument("--state", type=Path, help="finished runs, from and for another machine")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    if given.state and given.state.exists():
        unpack(given.out, given.state)
    file, end = given.out / "parts.json", time.monotonic() + given.seconds
    ended: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    todo = [
        own for part in given.parts for own in commands(part, given.out, given.corpus, given.old)
    ]
    for name, command in todo:
        if ended.get(name, {}).get("status") == 0:
            continue
        if (left := end - time.monotonic()) < 20:
            break
        start = time.monotonic()
        status = run(name, command, given.out, left - 15)
        spent = round(time.monotonic() - start, 1)
        ended[name] = {"status": status, "seconds": spent, "command": command[1:]}
        file.write_text(json.dumps(ended, indent=1) + "\n")
        print(f"{name}: {'stopped' if status is None else status} after {spent} s", flush=True)
    if given.state:
        pack(given.out, given.state)


if __name__ == "__main__":
    main()

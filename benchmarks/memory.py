"""Memory does not grow with the corpus: python -m benchmarks.memory.

The demo corpus, and the same text 50 times over, are prepared and sampled in processes of their
own; the peaks of these processes are compared.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import measure
from dograph.data.embedded import demo_documents

PREPARE = """
import json, resource, sys
from pathlib import Path
from dograph.data.inputs import PrepareOptions
from dograph.data.pipeline import prepare
options = dict(inputs=(sys.argv[1],), out=Path(sys.argv[2]), source_field="source", workers=2)
prepare(PrepareOptions(**options))
print(json.dumps([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))
"""
SAMPLE = """
import json, resource, sys
from dograph.data.corpus import Corpus
from dograph.data.loader import Loader
from dograph.data.sampler import Sampler
from dograph.types import Mixture
import torch
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
corpus = Corpus(sys.argv[1])
sampler = Sampler(corpus.train, seq_len=512, batch_size=48, seed=0)
tokens = {name: float(count) for name, count in corpus.tokens_by_source().items()}
sampler.remix(0, Mixture.normalised(tokens), "plan")
loader = Loader(corpus, sampler)
for step in range(1000):
    loader.load(step)
lines = dict(l.split(":") for l in open("/proc/self/status") if ":" in l)
anonymous = int(lines["RssAnon"].split()[0]) / 1024
print(json.dumps([anonymous, sum(corpus.tokens_by_source().values())]))
"""


def run(code: str, *arguments: str) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], check=True, capture_output=True, text=True
    )
    values: list[float] = json.loads(done.stdout.splitlines()[-1])
    return values


def main(times: int) -> None:
    result, texts = {}, list(demo_documents())
    with tempfile.TemporaryDirectory() as name:
        for label, copies in (("demo", 1), (f"demo x {times}", times)):
            file = Path(name) / f"{copies}.jsonl"
            with open(file, "w") as out:
                for copy in range(copies):
                    for source, text in texts:
                        line = {"source": source, "text": f"{copy}\n{text}"}
                        out.write(json.dumps(line) + "\n")
            folder = str(Path(name) / f"out-{copies}")
            (peak,) = run(PREPARE, str(file), folder)
            sampling, tokens = run(SAMPLE, folder)
            result[label] = {
                "megabytes": file.stat().st_size / 1e6,
                "training_tokens": tokens,
                "prepare_peak_mib": peak,
                "sampling_anonymous_mib": sampling,
            }
    small, large = result.values()
    growth = {f"{key}_growth": large[key] / small[key] for key in small if key.endswith("_mib")}
    measure.write(
        "memory",
        f"python -m benchmarks.memory --times {times}",
        {"times": times, "unit": "MiB; sampling counts private memory, not mapped files"},
        {**result, **growth},
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=50)
    main(parser.parse_args().times)

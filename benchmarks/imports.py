"""What `import dograph` adds to `import torch`: python -m benchmarks.imports."""

import argparse
import subprocess
import sys

from benchmarks import measure

CODE = """
import time
import torch
start = time.perf_counter()
import dograph
bare = time.perf_counter() - start
dograph.Mixer, dograph.Corpus, dograph.Sampler, dograph.Mixture, dograph.Signals
print(bare, time.perf_counter() - start)
"""


def main(blocks: int) -> None:
    rows = []
    for _ in range(blocks):
        done = subprocess.run([sys.executable, "-c", CODE], check=True, capture_output=True)
        rows.append([float(part) for part in done.stdout.split()])
    measure.write(
        "imports",
        f"python -m benchmarks.imports --blocks {blocks}",
        {"beyond": "torch", "unit": "seconds"},
        {
            "import_dograph": measure.median_interval([row[0] for row in rows]),
            "and_every_public_name": measure.median_interval([row[1] for row in rows]),
            "target": "under 0.3",
        },
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--blocks", type=int, default=12)
    main(parser.parse_args().blocks)

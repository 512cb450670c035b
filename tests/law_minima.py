"""What 200 starts of scipy's L-BFGS-B find for the law's tables: law_minima.json, kept since it
takes minutes. `python tests/law_minima.py` in the project's folder computes it again."""

import json
import sys
from itertools import product
from multiprocessing import Pool
from pathlib import Path

STORED = Path(__file__).with_suffix(".json")
SIZES = [(64, 7, 0), (24, 4, 1), (30, 6, 2)]  # runs, sources, seed


def stored_minimum(kind: str, runs: int, sources: int, seed: int) -> float:
    minima = json.loads(STORED.read_text())
    return minima[f"{kind}, {runs} runs, {sources} sources, seed {seed}"]


def search(case):
    kind, (runs, sources, seed) = case
    import test_exponential

    data = test_exponential.table(kind, runs, sources, seed)
    best = test_exponential.long_search(*data, 0.05, starts=200)
    print(kind, runs, best, flush=True)
    return f"{kind}, {runs} runs, {sources} sources, seed {seed}", best


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parent / "unit" / "mixtures"))
    import test_exponential

    with Pool(2) as pool:
        found = pool.map(search, product(test_exponential.KINDS, SIZES), chunksize=1)
    STORED.write_text(json.dumps(dict(found), indent=1) + "\n")

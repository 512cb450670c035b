"""What 200 starts of scipy's L-BFGS-B find for the laws' tables: law_minima.json, kept since it
takes 20 minutes. `python tests/law_minima.py` in the project's folder computes it again."""

import json
import sys
from itertools import product
from multiprocessing import Pool
from pathlib import Path

STORED = Path(__file__).with_suffix(".json")
SIZES = [(64, 7, 0), (24, 4, 1), (30, 6, 2)]  # runs, sources, seed


def stored_minimum(law: str, kind: str, runs: int, sources: int, seed: int) -> float:
    minima = json.loads(STORED.read_text())
    return minima[f"{law}, {kind}, {runs} runs, {sources} sources, seed {seed}"]


def search(case):
    law, kind, (runs, sources, seed) = case
    import test_exponential
    import test_transfer

    module = {"exponential": test_exponential, "transfer": test_transfer}[law]
    best = module.long_search(*module.table(kind, runs, sources, seed), 0.05, starts=200)
    print(law, kind, runs, best, flush=True)
    return f"{law}, {kind}, {runs} runs, {sources} sources, seed {seed}", best


if __name__ == "__main__":
    sys.path.append(str(Path(__file__).parent / "unit" / "mixtures"))
    import test_exponential
    import test_transfer

    kinds = [("exponential", kind) for kind in test_exponential.KINDS]
    kinds += [("transfer", kind) for kind in test_transfer.KINDS]
    cases = [(*kind, size) for kind, size in product(kinds, SIZES)]
    with Pool(2) as pool:
        STORED.write_text(json.dumps(dict(pool.map(search, cases, chunksize=1)), indent=1) + "\n")

"""Preparing text against a bare `tokenizers` batch encode: python -m benchmarks.prepare INPUT...

The bare arm encodes texts that are already parsed and in memory, with the library's own threads.
Ours reads the compressed files, parses, encodes, splits, writes and digests; same cores and texts.
"""

import argparse
import json
import lzma
import os
import shutil
import tempfile
import time
from pathlib import Path

from tokenizers import Tokenizer

from benchmarks import measure
from dograph.data.inputs import PrepareOptions
from dograph.data.pipeline import prepare


def read(paths: list[Path], limit: int) -> dict[str, list[str]]:
    """Texts by file, up to `limit` bytes in all."""
    texts: dict[str, list[str]] = {}
    left = limit
    for path in paths:
        with lzma.open(path, "rt", encoding="utf-8") as lines:
            for line in lines:
                text = json.loads(line)["text"]
                texts.setdefault(path.name, []).append(text)
                left -= len(text.encode())
                if left < 0:
                    return texts
    return texts


def main(args: argparse.Namespace) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "true"
    texts = read(sorted(args.inputs), args.megabytes * 1_000_000)
    size = sum(len(text.encode()) for part in texts.values() for text in part)
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    flat = [text for part in texts.values() for text in part]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, part in texts.items():
            with lzma.open(folder / file, "wt", encoding="utf-8", preset=1) as out:
                out.writelines(json.dumps({"text": text}) + "\n" for text in part)
        inputs = tuple(str(folder / file) for file in texts)
        seconds: dict[str, list[float]] = {"ours": [], "encode_batch": []}
        for block in range(args.blocks):
            arms = list(seconds) if block % 2 == 0 else list(reversed(seconds))
            for arm in arms:
                out = folder / "out"
                shutil.rmtree(out, ignore_errors=True)
                start = time.perf_counter()
                if arm == "ours":
                    options = PrepareOptions(
                        inputs=inputs, out=out, tokenizer=str(args.tokenizer), workers=args.workers
                    )
                    prepare(options)
                else:
                    tokenizer.encode_batch(flat, add_special_tokens=False)
                seconds[arm].append(time.perf_counter() - start)
    measure.write(
        "prepare",
        f"python -m benchmarks.prepare INPUTS --megabytes {args.megabytes} --blocks {args.blocks}",
        {
            "inputs": [path.name for path in sorted(args.inputs)],
            "megabytes": size / 1e6,
            "documents": len(flat),
            "tokenizer": "GPT-2",
            "workers": args.workers,
        },
        {
            "speed_over_encode_batch": measure.ratio(seconds["encode_batch"], seconds["ours"]),
            "ours_megabytes_per_second": measure.median_interval(
                [size / 1e6 / s for s in seconds["ours"]]
            ),
            "target": "speed_over_encode_batch at least 0.8",
        },
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("inputs", type=Path, nargs="+")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--megabytes", type=int, default=40)
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    main(parser.parse_args())

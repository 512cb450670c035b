"""Which samples a step saw, from the weight log and the seed."""

from pathlib import Path

from dograph.data.corpus import Corpus
from dograph.data.weight_log import WeightLog
from dograph.errors import RunError
from dograph.train.assembly import open_sampler
from dograph.train.metrics import read_metrics
from dograph.train.run_dir import RunDirectory


def samples_of_step(run_path: Path, step: int) -> list[dict[str, object]]:
    """Every sample of a step, in its order in the world batch."""
    run = RunDirectory.open(run_path)
    config = run.config()
    made = max((int(row["step"]) for row in read_metrics(run.metrics_file)), default=0)
    if not 1 <= step <= made:
        raise RunError(f"{run_path} has made steps 1 to {made}; step {step} is not one of them")
    corpus = Corpus(config.data.corpus)
    sampler = open_sampler(config, corpus)
    sampler.log = WeightLog.load(run.weights_file, sampler.names)
    ids = sampler.draw(step - 1)
    has_text = corpus.manifest.tokenizer.file is not None
    rows: list[dict[str, object]] = []
    for i in range(len(ids)):
        stratum = corpus.train[ids.stratum_B[i]]
        document = stratum.document(int(ids.document_B[i]))
        start = int(ids.block_B[i]) * config.data.seq_len
        text = corpus.text(stratum, start, start + config.data.seq_len) if has_text else None
        rows.append(
            {
                "sample": i,
                "source": stratum.entry.source,
                "stratum": stratum.entry.stratum,
                "epoch": int(ids.epoch_B[i]),
                "document": document.index,
                "offset": int(ids.offset_B[i]),
                "input": corpus.manifest.inputs[document.input],
                "line": document.record + 1,
                "text": text,
            }
        )
    return rows

"""What to say when a loss stops being a number, and what to keep for whoever looks into it."""

from typing import NoReturn

import torch
from safetensors.torch import save_file

from dograph.data.corpus import Corpus
from dograph.data.loader import Loader
from dograph.data.sampler import Sampler
from dograph.errors import NonFiniteError
from dograph.files import write_json
from dograph.train.run_dir import RunDirectory
from dograph.train.step import StepRecord

NAMED = 5  # samples named in the message; the file has them all


def stop_for_nonfinite(
    bad: StepRecord,
    run: RunDirectory,
    corpus: Corpus,
    sampler: Sampler,
    *,
    main: bool,
) -> NoReturn:
    """Save the first bad batch and stop. No update was made from it or after it."""
    number = bad.step + 1  # people count the steps made, as metrics.jsonl does
    # The sampler is a function of the step, so the whole world batch can be read again here.
    batch = Loader(corpus, sampler).load(bad.step, ahead=False)
    ids, loss_B = batch.ids, bad.loss_B.cpu()
    samples = []
    for row in range(len(ids)):
        stratum = sampler.strata[ids.stratum_B[row]]
        document = stratum.document(int(ids.document_B[row]))
        samples.append(
            {
                "source": stratum.entry.source,
                "stratum": stratum.entry.stratum,
                "document": document.index,
                "offset": int(ids.offset_B[row]),
                "input": corpus.manifest.inputs[document.input],
                "line": document.record + 1,
                "loss_nats": float(loss_B[row]),
                "finite": bool(torch.isfinite(loss_B[row])),
            }
        )
    worst = [sample for sample in samples if not sample["finite"]]
    stem = run.path / f"nonfinite-step-{number}"
    if main:
        save_file({"token_BT": batch.token_BT, "loss_B": loss_B}, f"{stem}.safetensors")
        report = {"step": number, "grad_norm": float(bad.grad_norm), "samples": samples}
        write_json(stem.with_suffix(".json"), report)
    if worst:
        sources = ", ".join(sorted({str(sample["source"]) for sample in worst}))
        named = "; ".join(
            f"{s['source']} document {s['document']} ({s['input']} line {s['line']})"
            for s in worst[:NAMED]
        )
        what = f"{len(worst)} of {len(samples)} losses are not finite, from {sources}: {named}"
    else:
        what = f"every loss is finite but the gradient norm is {float(bad.grad_norm)}"
    raise NonFiniteError(
        f"step {number}: {what}. No update was made. The batch is in {stem}.json and "
        f".safetensors. Lower optim.lr, lengthen optim.warmup_steps, or look at these documents."
    )

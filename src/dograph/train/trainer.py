"""A run from start to end: the loop around the training step.

Step, log, take another mixture, validate, probe, save; stop on a signal; resume exactly.
"""

import gc
import json
import math
import os
import shutil
import signal
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, Self

import torch
from safetensors.torch import save_file
from torch import Tensor

from dograph.config import RunConfig
from dograph.data.corpus import Corpus, refuse_summary
from dograph.data.digests import require_unchanged
from dograph.data.loader import Loader
from dograph.data.sampler import WeightEntry, sample_origin, sample_place
from dograph.errors import ConfigError, NonFiniteError, RunError, require
from dograph.files import sha256_of, sync_file, write_json, write_text
from dograph.mixers.registry import build_mixer, require_compatible
from dograph.models.loss import compile_regions
from dograph.progress import Progress
from dograph.records import checked_step, read_lines
from dograph.train import assembly, checkpoint, metrics
from dograph.train.assembly import CorpusLab, facts_of, open_model, open_sampler, settled
from dograph.train.checkpoint import TrainingState
from dograph.train.distributed import World, at_rest, describe_environment, peak_bytes
from dograph.train.edits import Edits, read_request
from dograph.train.forecast import memory_problem
from dograph.train.metrics import is_due, is_end, is_logged
from dograph.train.noise import NoiseScale
from dograph.train.run_dir import FORK, RunDirectory
from dograph.train.step import StepRecord, TrainStep, build_optimizer, rate_change
from dograph.train.watch import spike_lines

SETTLED_AFTER = 3  # steps; then everything is built and compiled
UNMIXED = ("step", "train", "valid", "data", "optim", "time", "memory")  # metrics of every mixer
NAMED = 5  # samples named in the message of a non-finite loss; the file has all


def start_run(config: RunConfig, world: World) -> "Trainer":
    """A new run. Its directory is created after everything in the settings has been loaded."""
    config = settled(config)
    run = RunDirectory(Path(config.run))
    run.refuse_existing()
    trainer = Trainer(config, run, world)
    trainer.begin()
    world.barrier()
    if world.is_main:
        run.create(config, describe_environment())
    world.barrier()
    return trainer


def resume_run(
    config: RunConfig, world: World, mixture: str | None = None, *, strict: bool = False
) -> "Trainer":
    """A stopped run at its newest whole checkpoint, from there on with what is given anew.

    That may be a mixture, and another train.steps, which config.yaml has from then on. A damaged
    checkpoint is skipped with a warning, or refused if `strict`.
    """
    run = RunDirectory.open(Path(config.run))
    if world.is_main:
        run.lock()
    stored, (whole, damage) = run.config(), checkpoint.newest_whole(run, world, strict=strict)
    train = assembly.with_steps(stored, config.train.steps, whole or 0)
    own = config.train.model_copy(update={"extended": train.extended})
    config = config.model_copy(update={"train": own})
    trainer, request = Trainer(config, run, world), None
    if mixture is not None:
        request = read_request(mixture, facts_of(config, trainer.corpus))
        trainer.edits.check(request, whole or 0)
    if train != stored.train and world.is_main:
        write_text(run.config_file, stored.model_copy(update={"train": train}).dump())
    trainer.resume(whole, damage)
    if train != stored.train:
        text, rises = rate_change(stored, config, trainer.done)
        (trainer.warnings if rises else trainer.notes).append(text)
    if request is not None:
        trainer.edits.make(trainer.done, request)
        trainer.write_weights()
    return trainer


def fork_run(config: RunConfig, parent: RunDirectory, step: int, given: list[str]) -> str:
    """Make a run that starts from a checkpoint of `parent`, for `resume_run`; returns a note.

    `given`: the settings that differ. The folder appears complete or not at all.
    """
    run, old, corpus = RunDirectory(Path(config.run)), parent.config(), Corpus(config.data.corpus)
    run.refuse_existing()
    state, config = checkpoint.check_checkpoint(parent.checkpoint(step)), settled(config)
    if not (same_corpus := state["corpus"] == corpus.digest):
        before, now = Corpus(old.data.corpus).manifest.tokenizer, corpus.manifest.tokenizer
        if (before.sha256, before.vocab_size) != (now.sha256, now.vocab_size):
            raise ConfigError(  # the same token numbers would mean other text
                f"data.corpus={corpus.directory} has the tokenizer {now.name}, but {old.run} was "
                f"trained with {before.name}. Prepare the corpus with --tokenizer {before.name}"
            )
    drawn = [(c.seed, c.data.seq_len, c.data.skip, c.batches.drawn(step)) for c in (old, config)]
    same_data = same_corpus and drawn[0] == drawn[1]
    mixers = [(own.mixer, own.sketch) for own in (settled(old), config)]
    same_mixer = same_data and mixers[0] == mixers[1]
    new = RunDirectory(run.path.with_name(f".{run.path.name}.fork.tmp"))
    folder, source = new.checkpoint(step), parent.checkpoint(step)
    try:
        shutil.rmtree(new.path, ignore_errors=True)
        shutil.copytree(source, folder)
        for name, is_same in ((checkpoint.MIXER, same_mixer), (checkpoint.WEIGHT_LOG, same_data)):
            if not is_same:
                (folder / name).unlink()
        checkpoint.seal(folder, step, corpus.digest, state["mixer"] if same_mixer else None)
        with open(new.metrics_file, "w", encoding="utf-8") as file:
            rows = read_lines(parent.metrics_file, lambda row: (checked_step(row), row))
            for row in (row for made, row in rows if made <= step):
                kept = {name: x for name, x in row.items() if name.partition("/")[0] in UNMIXED}
                file.write(json.dumps(kept) + "\n")
        facts = {"parent": str(parent.path.resolve()), "step": step, "settings": given}
        write_json(new.path / FORK, facts | {"state_sha256": sha256_of(source / checkpoint.STATE)})
        write_json(new.path / "env.json", describe_environment())
        write_text(new.config_file, config.dump())
        os.rename(new.path, run.path)
        sync_file(run.path.parent)
    except OSError as error:
        shutil.rmtree(new.path, ignore_errors=True)
        raise RunError(f"run={config.run} cannot be made: {error.strerror or error}") from error
    if same_mixer:
        return f"mixer {config.mixer.name} goes on with its state of step {step}"
    draws = "draws go on" if same_data else "draws start anew, so text may come again"
    return f"mixer {config.mixer.name} starts anew after step {step}; {draws}"


class Trainer:
    """A run in progress."""

    def __init__(self, config: RunConfig, run: RunDirectory, world: World) -> None:
        world = replace(world, shards=config.train.shard and (world.size > 1 or world.shards))
        self.config, self.run, self.world, self.batches = config, run, world, config.batches
        mixer = build_mixer(config.mixer.name, config.mixer.options)
        require_compatible(config, mixer, world.size)
        for name in config.log.sinks:
            require(name, name)
        self.corpus = Corpus(config.data.corpus)
        require_unchanged(self.corpus)
        has_tokenizer = self.corpus.manifest.tokenizer.file is not None
        # opened now, so that a corpus that is deleted later costs no checkpoint
        self.tokenizer = self.corpus.tokenizer if has_tokenizer else None
        for source in self.corpus.sources:  # of a corpus made by another tool
            refuse_summary(source)
        if config.train.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS requires it
        torch.use_deterministic_algorithms(config.train.deterministic)
        for problem in memory_problem(config, self.corpus, world.device, world.size):
            raise ConfigError(problem)
        model = open_model(config, self.corpus)
        if config.train.activation_checkpointing:
            model.model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
        world.place(model)
        optimizer, sampler = build_optimizer(model, config.optim), open_sampler(config, self.corpus)
        self.state = TrainingState(model, optimizer, mixer, sampler, self.corpus.digest)
        self.edits = Edits(config, run, world, self.state)
        if config.train.compile:
            compile_regions(model)
        self.step = TrainStep(config, world, world.wrap(model), optimizer, mixer)
        self.noise = NoiseScale(self.corpus.sources)
        if self.step.sketcher is not None:
            self.state.meters["noise"] = self.noise
        if self.step.samples_watch is not None:
            self.state.meters["watch"] = self.step.samples_watch
        self.probes = metrics.Probes(run, self.corpus, self.step)
        self.files = metrics.RunFiles(config, run, mixer, main=world.is_main)
        self.progress = Progress(silent=True)  # until `train`
        self.bytes_per_token = self.corpus.bytes_per_token("train")
        length, most = config.data.seq_len, config.eval.max_samples_per_source
        self.validation_blocks = metrics.validation_blocks(self.corpus, length, most)
        self.unwritten: list[StepRecord] = []  # steps that are not in the metrics yet
        self.due: tuple[int, Any] | None = None  # steps made when metrics were due, and a mark
        self.reader = torch.cuda.Stream() if world.device.type == "cuda" else None
        self.done = 0  # steps made
        self.lap_start = time.monotonic()  # when metrics were last written, plus time of probes
        self.last_weights: WeightEntry | None = None  # the newest one on disk
        self.notes: list[str] = []  # on how it was resumed, for the user
        self.warnings: list[str] = []

    def begin(self) -> None:
        """Plan: at step 0, and where a fork with another mixer starts."""
        mixture = self.state.mixer.plan(CorpusLab(self.config, self.corpus, self.done))
        for step, later in sorted(self.state.mixer.schedule().items()):
            self.state.sampler.weights_of(later)  # refuse a wrong name now
            mixture = later if self.batches.step_at(step) <= self.done else mixture
        self.state.sampler.remix(self.done, mixture, reason="plan")

    def resume(self, whole: int | None, damage: list[str]) -> None:
        """Start from a checkpoint, or from step 0 if there is none yet (None)."""
        self.done = whole or 0
        if whole is None or not checkpoint.read_checkpoint(self.run, whole, self.state):
            self.begin()
        self.edits.open(self.done)
        if self.world.is_main:
            self.run.clean()
            aside = ", ".join(self.run.set_aside(self.done))
            last, self.warnings = self.run.cut(self.done)
            again = f"goes on from step {self.done}; {last - self.done} steps are repeated"
            if damage:
                self.warnings.insert(0, f"{'; '.join(damage)}. The run {again}. Kept as {aside}")
            elif last > self.done:
                self.notes.append(f"{self.run.path} {again}")
            if not self.is_over:
                self.run.reopen(self.batches.steps)
            self.write_weights()
            self.tidy()
        self.world.barrier()

    def train(self) -> int:
        """Train to the end, or until a signal asks to stop; return the signal, or 0."""
        config, on_cpu = self.config, self.world.device.type == "cpu"
        asked, first, loader = 0, self.done, self.open_loader()
        total, silent, work = self.batches.steps, not self.world.is_main, self.batches.drawn
        count = "step {done}/{total}"
        self.progress = Progress(count, total, done=first, silent=silent, steady=True, work=work)
        self.lap_start = time.monotonic()
        try:
            self.files.open(first)
            self.lap_start += self.probes.take(self.done)
            with Interrupts() as interrupts:
                while self.done < total and not asked:
                    record = self.advance(loader)
                    self.progress.tick(self.done)
                    if self.done - first == SETTLED_AFTER:
                        # Models, compiled graphs and their guards are hundreds of thousands of
                        # objects: a garbage collection over them takes tens of milliseconds.
                        gc.collect()
                        gc.freeze()
                    asked = self.stop_asked(interrupts)
                    validates = is_end(config, self.done) or is_due(self.done, config.eval.every)
                    saves = self.is_over or asked or is_due(self.done, config.checkpoint.every)
                    # Reading `halted` is free on a CPU. On a GPU it would wait for the step, and
                    # no update is made in any case.
                    halted = on_cpu and bool(record.halted)
                    if is_logged(config, self.done) or halted or saves:
                        self.due = (self.done, self.step.watch.mark())
                        if on_cpu or validates or saves:
                            self.write_metrics()  # before a checkpoint of the same steps
                        if (edit := self.edits.look(self.done)) is not None:
                            self.write_weights()
                            for line in (edit.line, *self.edits.answer(edit)):
                                self.progress.say(line)
                    if validates:
                        self.write_validation()
                    self.lap_start += self.probes.take(self.done)
                    if saves:
                        self.save()
        except OSError as error:
            raise RunError(
                f"{error.filename or self.run.path}: {error.strerror or error}. Fix it (for "
                f"example, free disk space), then run: dograph train --resume {self.run.path}"
            ) from error
        finally:
            gc.unfreeze()
            self.progress.close()
            loader.close()
            self.files.close()
        return asked

    def open_loader(self) -> Loader:
        world, pin = self.world, self.world.device.type == "cuda"
        given = (self.corpus, self.state.sampler)
        return Loader(*given, rank=world.rank, world_size=world.size, pin=pin)

    def advance(self, loader: Loader) -> StepRecord:
        """One step: draw, compute, update; then change the mixture if the mixer asks for it.

        On a GPU metrics that are due are written meanwhile: the device need not wait for them.
        """
        batch = loader.load(self.done, ahead=self.done + 1 < self.batches.steps)
        record = self.step(batch, self.done)
        if self.due is not None:
            self.write_metrics()
        if "noise" in self.state.meters:
            with self.reading(self.step.watch.mark()):  # while the next step runs
                self.noise.observe(record.signals, batch.source_B)
            record = replace(record, noise=self.noise.report())
        self.unwritten.append(record)
        self.done += 1
        mixture = self.state.mixer.remix(record.signals)
        if mixture is not None:
            self.state.sampler.remix(self.done, mixture, reason=self.config.mixer.name)
        self.edits.apply(self.done)
        return record

    def stop_asked(self, interrupts: "Interrupts") -> int:
        """The signal that any rank got; several GPUs ask only every log.every steps: it waits."""
        several_gpus = self.world.size > 1 and self.world.device.type == "cuda"
        if several_gpus and self.done % self.config.log.every:
            return 0
        return self.world.agree(interrupts.asked)

    @property
    def is_over(self) -> bool:
        return self.done == self.batches.steps

    def write_metrics(self) -> None:
        """Copy the steps since the last call to the host, check and write them."""
        done, mark = self.due or (self.done, self.step.watch.mark())
        self.due = None
        records = [record for record in self.unwritten if record.step < done]
        self.unwritten = self.unwritten[len(records) :]
        with self.reading(mark):
            halted = bool(records[-1].halted)  # once it is set, it stays
            good = [x for x in records if not bool(x.halted)] if halted else records
            if self.world.is_main and self.state.mixer.needs:
                kept = [x for x in good if halted or is_logged(self.config, x.step + 1)]
                self.files.write("samples", metrics.sample_rows(kept))
            self.write_watched(good)
            steps = metrics.step_rows(good, self.corpus.sources, self.bytes_per_token)
        rows = [metrics.logged(row, self.config, whole=halted) for row in steps]
        if not halted:
            now = time.monotonic()
            seconds, self.lap_start = now - self.lap_start, now
            samples = self.batches.drawn(done) - self.batches.drawn(done - len(rows))
            totals: dict[str, Any] = {
                "time/step_seconds": seconds / len(rows),
                "time/tokens_per_second": samples * self.config.data.seq_len / seconds,
                "memory/peak_bytes": peak_bytes(self.world.device),
            }
            # Not when the run stops early: its rows must equal those of an unstopped run.
            if is_due(done, self.config.log.every) or is_end(self.config, done):
                drawn_S = self.state.sampler.drawn(done)
                totals["data/*/epochs"] = self.state.sampler.epochs(drawn_S)
            rows[-1] |= metrics.rounded(totals)
        self.files.write_metrics(rows)
        self.write_weights()
        if halted:
            self.stop_for_nonfinite(records[len(good)])
        self.progress.update(done, metrics.step_note(rows[-1]))

    def reading(self, mark: Any) -> AbstractContextManager[object]:
        """Inside it tensors are read as soon as the device has reached the mark, a CUDA event."""
        if self.reader is None:
            return nullcontext()
        self.reader.wait_event(mark)
        return torch.cuda.stream(self.reader)

    def write_watched(self, records: list[StepRecord]) -> None:
        """Record samples with far too large gradients, and say which steps are spikes."""
        rows = [row for x in records if x.watched is not None and (row := x.watched.row())]
        self.files.write("watch", [metrics.rounded(row) for row in rows])
        for row in (row for row in rows if row["spike"] and self.world.is_main):
            ids, length = self.state.sampler.draw(row["step"] - 1), self.config.data.seq_len
            for line in spike_lines(row, self.corpus, ids, length):
                self.progress.say(line)

    def write_weights(self) -> None:
        """Write weights.jsonl if it has changed: rarely, as each write waits for the disk."""
        log = self.state.sampler.log.cut(self.done)
        if self.world.is_main and log.entries[-1] is not self.last_weights:
            write_text(self.run.weights_file, log.dump())
            self.last_weights = log.entries[-1]

    def stop_for_nonfinite(self, bad: StepRecord) -> NoReturn:
        """Save the first bad batch and stop. No update was made with it or after it."""
        number = bad.step + 1  # counted from 1, as in metrics.jsonl
        norm, loss_B = float(bad.grad_norm), bad.loss_B.cpu()
        # The sampler is a function of the step, so the world batch can be loaded again.
        batch = Loader(self.corpus, self.state.sampler).load(bad.step, ahead=False)
        samples = [
            sample_origin(self.corpus, batch.ids, row)
            | {"loss_nats": loss, "finite": math.isfinite(loss)}
            for row, loss in enumerate(loss_B.tolist())
        ]
        stem = self.run.path / f"nonfinite-step-{number}"
        if self.world.is_main:
            save_file({"token_BT": batch.token_BT, "loss_B": loss_B}, f"{stem}.safetensors")
            report = {"step": number, "grad_norm": norm, "samples": samples}
            write_json(stem.with_suffix(".json"), report)
        what = f"every loss is finite but the gradient norm is {norm}"
        if worst := [row for row, sample in enumerate(samples) if not sample["finite"]]:
            sources = ", ".join(sorted({str(samples[row]["source"]) for row in worst}))
            named = "; ".join(sample_place(self.corpus, batch.ids, row) for row in worst[:NAMED])
            what = f"{len(worst)} of {len(samples)} losses are not finite, from {sources}: {named}"
        raise NonFiniteError(
            f"step {number}: {what}. No update was made. The batch is in {stem}.json and "
            ".safetensors. Lower optim.lr, lengthen optim.warmup_steps, or look at these documents."
        )

    def write_validation(self) -> None:
        """Losses on held-out text and, for mixers with domains, their graph."""
        model, world, train = self.state.model, self.world, self.config.train
        blocks_of = self.validation_blocks

        def losses(token_bT: Tensor) -> Tensor:
            with self.step.autocast():
                loss_b: Tensor = model(token_bT.to(world.device))
            return loss_b

        model.eval()
        with torch.compiler.set_stance("force_eager"):  # shapes vary
            nats, each = metrics.validate(losses, blocks_of, train.micro_batch_size or 16, world)
        at_rest(model)
        model.train()
        if world.is_main and self.is_over:
            lines = ""
            for source, blocks in blocks_of.items():
                if blocks:
                    sizes = [len(block) - 1 for block in blocks]
                    about = {"step": self.done, "source": source, "predictions": sizes}
                    lines += json.dumps(about | {"loss_nats": each[source]}) + "\n"
            write_text(self.run.validation_file, lines)
        row = metrics.validation_row(self.done, nats, self.corpus)
        self.files.write_metrics([row])
        if nats:
            mean = row["valid/mean/loss_nats"]
            self.progress.say(f"step {self.done}: validation loss {mean:.4f} nats")
        if world.is_main and self.state.mixer.has_domains:
            graph = self.state.mixer.graph(self.corpus.sources, self.done)
            self.files.write("graph", [] if graph is None else [metrics.graph_row(graph)])

    def save(self) -> None:
        main = self.world.is_main
        self.files.sync()
        if self.reader is not None:
            self.reader.synchronize()  # the noise scale of the last step
        checkpoint.write_checkpoint(self.run, self.done, self.state, self.tokenizer, main=main)
        if main:
            self.tidy()
        self.world.barrier()

    def tidy(self) -> None:
        """Runs after each checkpoint, and on resume in case a kill came in between."""
        self.run.rotate(self.config.checkpoint.keep)
        if self.is_over:
            self.run.link_model(self.done)


class Interrupts:
    """Catches Ctrl-C and SIGTERM: the run finishes its step, saves and ends; a second kills it."""

    asked = 0  # the signal

    def __enter__(self) -> Self:
        numbers = (signal.SIGINT, signal.SIGTERM)
        self._old = {number: signal.signal(number, self._note) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = number

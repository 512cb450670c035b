"""What `dograph inspect` looks at: a model by any name, and rows of a corpus."""

from dataclasses import dataclass
from pathlib import Path

from dograph.data.blocks import Block, blocks_by_source, even_blocks
from dograph.data.corpus import Corpus
from dograph.data.manifest import Split
from dograph.errors import ConfigError, CorpusError
from dograph.models.build import build_model, load_model
from dograph.models.loss import PerSampleLoss
from dograph.models.presets import PRESETS
from dograph.train.distributed import pick_device
from dograph.train.run_dir import run_of_model

SEQ_LEN = 256  # where none is asked for, no run tells, and the model has as many positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to inspect."""

    model: str  # a preset, or any causal LM by path or Hugging Face name
    corpus: Path
    rows: int = 256  # in all, shared equally among the sources
    domains: int = 11
    seq_len: int | None = None
    seed: int = 0
    device: str = "auto"
    exclude: tuple[str, ...] = ()


def open_subject(request: Request, corpus: Corpus) -> tuple[PerSampleLoss, int, list[str]]:
    """The model, how many tokens a row has, and what a reader should know of both."""
    device, notes = pick_device(request.device), []
    folder = Path(request.model)
    if request.model in PRESETS:
        seq_len = request.seq_len or min(SEQ_LEN, PRESETS[request.model].positions)
        model = build_model(
            request.model,
            vocab_size=corpus.vocab_size,
            seq_len=seq_len,
            dropout=0.0,
            seed=request.seed,
        )
        notes.append(f"{request.model} is a preset: untrained, its weights are random")
        return model.to(device), seq_len, notes
    if (folder / "config.yaml").is_file():  # a run stands for the model it made
        folder = folder / "model"
        if not folder.is_dir():
            raise ConfigError(
                f"{request.model} is a run that is not complete; name one of its checkpoints: "
                f"{request.model}/checkpoints/step-.../model"
            )
    is_path = request.model.startswith(("/", ".")) or len(folder.parts) > 2
    if is_path and not folder.is_dir():  # a name of the hub has one slash at most
        raise ConfigError(
            f"there is no folder {request.model}; give one saved by save_pretrained, a run, a "
            f"Hugging Face name, or a preset: {', '.join(PRESETS)}"
        )
    model = load_model(
        str(folder), vocab_size=corpus.vocab_size, seed=request.seed, pretrained=True
    )
    positions = getattr(model.model.config, "max_position_embeddings", SEQ_LEN)
    made = run_of_model(folder)  # positions beyond its rows were never trained
    usual = SEQ_LEN if made is None else made[0].config().data.seq_len
    seq_len = request.seq_len or min(usual, positions)
    if seq_len > positions:
        raise ConfigError(
            f"seq-len {seq_len}, but {request.model} has {positions} positions; give at most that"
        )
    if model.vocab_size > 1.1 * corpus.vocab_size:
        notes.append(
            f"the model knows {model.vocab_size} tokens, the corpus' tokenizer {corpus.vocab_size}:"
            " unless they number tokens alike, the model reads nonsense; prepare the corpus with "
            "the model's tokenizer"
        )
    return model.to(device), seq_len, notes


def choose_rows(
    corpus: Corpus, seq_len: int, request: Request
) -> tuple[Split, list[Block], list[str]]:
    """Rows of one split, two or more from each source that has them; and what to know of them."""
    split: Split = "validation"
    for split in ("validation", "train"):
        have = blocks_by_source(corpus, split, seq_len)
        usable = [source for source, count in have.items() if count >= 2]
        if len(usable) >= min(2, len(have)):
            break
    if not usable:
        raise CorpusError(
            f"{corpus.directory} has no source with two rows of {seq_len} tokens; give a smaller "
            "--seq-len, or prepare more text"
        )
    if request.rows < 2 * len(usable):
        raise ConfigError(
            f"--rows {request.rows} is too few for {len(usable)} sources: a spread needs two rows "
            f"a source; give at least {2 * len(usable)}, better {32 * len(usable)}"
        )
    blocks = even_blocks(corpus, split, seq_len, request.rows, least=2)
    if not 1 <= request.domains <= len(blocks):
        raise ConfigError(
            f"--domains {request.domains}, but there are {len(blocks)} rows to divide; give 1 to "
            f"{len(blocks)}, or more --rows"
        )
    notes = []
    if split == "train":
        notes.append(
            "rows are of training text, which the model may have seen: too little is held out for "
            f"rows of {seq_len} tokens"
        )
    notes += [
        f"{source} is left out: {count} rows of {seq_len} tokens ({split} text)"
        for source, count in have.items()
        if source not in usable
    ]
    return split, blocks, notes

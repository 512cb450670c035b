"""From a configuration to the parts of a run."""

from dograph.corpus.corpus import Corpus
from dograph.corpus.sampler import Sampler
from dograph.models.build import build_model, load_model
from dograph.models.loss import PerSampleLoss
from dograph.training.config import RunConfig


def open_model(config: RunConfig, corpus: Corpus) -> PerSampleLoss:
    if config.model.path is not None:
        return load_model(
            config.model.path,
            vocab_size=corpus.vocab_size,
            seed=config.seed,
            pretrained=config.model.pretrained,
        )
    assert config.model.preset is not None
    return build_model(
        config.model.preset,
        vocab_size=corpus.vocab_size,
        seq_len=config.data.seq_len,
        dropout=config.model.dropout,
        seed=config.seed,
    )


def open_sampler(config: RunConfig, corpus: Corpus) -> Sampler:
    return Sampler(
        corpus.train,
        seq_len=config.data.seq_len,
        batch_size=config.train.batch_size,
        seed=config.seed,
    )

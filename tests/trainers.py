"""Tiny Trainers of transformers, and what is compared of them.

Shapes: B samples, T tokens, V vocabulary.
"""

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
)

from dograph.mixers.base import Mixer
from dograph.mixers.dograph import DoGraph

VOCABULARY, LENGTH, BATCH, DIM, STEPS = 61, 12, 4, 80, 13
RATE = 0.2  # of SGD: Adam would blow rounding up
ROWS = 22  # the last batch of an epoch has 2 rows of 4


def build(dropout=0.0, seed=0):
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        n_embd=32,
        n_layer=2,
        n_head=4,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(seed)
    return GPT2LMHeadModel(config)


AFTER_THE_HEAD = {  # families that cap or scale the logits of their output layer
    "gemma2": {"final_logit_softcapping": 30.0},
    "cohere": {"logit_scale": 0.25},
    "granite": {"logits_scaling": 8.0},
    "recurrent_gemma": {"logits_soft_cap": 30.0, "lru_width": 32, "attention_window_size": 8},
    "falcon_h1": {
        **{"lm_head_multiplier": 0.5, "mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8},
        **{"mamba_d_state": 8, "mamba_n_groups": 1, "mamba_chunk_size": 8},
    },
}


def tiny_model(family):
    """A random model of any family of transformers."""
    config = AutoConfig.for_model(
        family,
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=8,
        max_position_embeddings=32,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id")),
        **AFTER_THE_HEAD.get(family, {}),
    )
    return AutoModelForCausalLM.from_config(config)


def rows(num=ROWS):
    """Four kinds of rows, some padded at the end, one all padding."""
    draw = torch.Generator().manual_seed(1)
    found = []
    for i in range(num):
        low = 15 * (i % 4)
        token_T = torch.randint(low, low + 15, (LENGTH,), generator=draw)
        label_T = token_T.clone()
        if i % 5 == 0:
            label_T[LENGTH - i % 7 :] = -100
        if i == 9:
            label_T[:] = -100
        found.append({"input_ids": token_T, "labels": label_T, "source": i % 4})
    return found


def stacked(batch):
    return {
        name: torch.stack([torch.as_tensor(row[name]) for row in batch])
        for name in ("input_ids", "labels")
    }


class Collator:
    """Keeps every batch that it makes."""

    def __init__(self):
        self.batches = []

    def __call__(self, batch):
        self.batches.append(stacked(batch))
        return dict(self.batches[-1])


def make(folder, model=None, *, collator=stacked, dataset=None, **settings):
    settings = {
        "max_steps": STEPS,
        "per_device_train_batch_size": BATCH,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "logging_steps": 2,
        "save_strategy": "no",
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "remove_unused_columns": False,
        **settings,
    }
    model = build() if model is None else model
    return Trainer(
        model,
        TrainingArguments(str(folder), **settings),
        optimizers=(torch.optim.SGD(model.parameters(), lr=RATE), None),
        train_dataset=rows() if dataset is None else dataset,
        eval_dataset=rows(10),
        data_collator=collator,
    )


def dograph():
    return DoGraph("safe", num_domains=3, warmup_steps=1, objective={"name": "precision", "q": 4.0})


def parameters(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def furthest(got, expected):
    assert got.keys() == expected.keys()
    return max((got[name] - expected[name]).abs().max().item() for name in expected)


def losses(logits_BTV, label_BT):
    """Mean NLL of each row over its own labels; 0 where it has none."""
    found = []
    for logits_TV, label_T in zip(logits_BTV[:, :-1], label_BT[:, 1:], strict=True):
        kept = label_T != -100
        nll_T = -logits_TV.log_softmax(dim=-1)[kept, label_T[kept]]
        found.append(nll_T.mean() if kept.any() else 0.0 * logits_TV.sum())
    return torch.stack(found)


class Softest(Mixer):
    """Easy samples count more; keeps what it gave."""

    needs = frozenset({"loss"})

    def __init__(self):
        self.given = []

    def weigh(self, signals):
        self.given.append(torch.softmax(-5 * signals.loss_B, dim=0))
        return self.given[-1]

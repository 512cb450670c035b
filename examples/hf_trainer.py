"""DoGraph in the Trainer of transformers; first `dograph data prepare demo`.

torchrun --nproc-per-node 2 examples/hf_trainer.py
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from dograph import CorpusDataset, DoGraph
from dograph.integrations.hf import attach


def collate(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    token_BT = torch.stack([row["input_ids"] for row in rows])
    return {"input_ids": token_BT, "labels": token_BT}


dataset = CorpusDataset("data/demo", seq_len=64)
config = GPT2Config(vocab_size=dataset.corpus.vocab_size, n_embd=64, n_layer=2, n_head=2)
model = GPT2LMHeadModel(config)
settings = {"max_steps": 40, "per_device_train_batch_size": 8, "learning_rate": 3e-3}
log = {"logging_steps": 5, "report_to": [], "disable_tqdm": True, "save_strategy": "no"}
arguments = TrainingArguments("out", use_cpu=True, remove_unused_columns=False, **settings, **log)
trainer = Trainer(model, arguments, train_dataset=dataset, data_collator=collate)
attach(trainer, DoGraph())
trainer.train()

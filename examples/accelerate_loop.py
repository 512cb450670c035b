"""DoGraph in a loop of accelerate, samples drawn by a mixture; first `dograph data prepare demo`.

torchrun --nproc-per-node 2 examples/accelerate_loop.py
"""

import torch
from accelerate import Accelerator
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

from dograph import CorpusDataset, DoGraph, Mixture, MixtureSampler, Sketcher

accelerator = Accelerator(cpu=True)  # without it: the GPU
dataset, mixture = CorpusDataset("data/demo", seq_len=64), Mixture({"code": 0.5, "tests": 0.5})
own = {"rank": accelerator.process_index, "world_size": accelerator.num_processes}
sampler = MixtureSampler(dataset, mixture, batch_size=16, steps=40, **own)
loader = DataLoader(dataset, sampler.local_batch_size, sampler=sampler)  # not to be prepared
config = GPT2Config(vocab_size=dataset.corpus.vocab_size, n_embd=64, n_layer=2, n_head=2)
model = GPT2LMHeadModel(config)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=3e-3))
sketcher, mixer = Sketcher(model), DoGraph()
accelerator.register_for_checkpointing(mixer, sampler)  # for save_state and load_state
for step, batch in enumerate(loader, start=sampler.next_step):
    token_BT = batch["input_ids"].to(accelerator.device)
    with sketcher.record(token_BT, step):
        logits_BTV = model(token_BT).logits[:, :-1]
        loss_B = cross_entropy(logits_BTV.mT, token_BT[:, 1:], reduction="none").mean(dim=1)
        sketcher.backward(loss_B, mixer)  # in place of accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()
    accelerator.print(f"step {step + 1} loss {loss_B.mean().item():.6f}")

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torchrun --nproc_per_node 2 deepspeed_save.py STAGE DIR: save_checkpoint of a GPT-2 124M run in bf16, three times."""
import os, sys, time
os.environ.setdefault("DS_ACCELERATOR", "cpu")
import torch, deepspeed, torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel
stage, out = int(sys.argv[1]), sys.argv[2]
torch.manual_seed(0)
m = GPT2LMHeadModel(GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False))
eng, *_ = deepspeed.initialize(model=m, model_parameters=m.parameters(), config={
    "train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}, "bf16": {"enabled": True},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}}, "steps_per_print": 10**9})
x = torch.randint(0, 50257, (1, 32))
loss = eng(input_ids=x, labels=x).loss; eng.backward(loss); eng.step()
for i in range(3):
    dist.barrier(); t = time.time(); eng.save_checkpoint(out, tag="t"); dist.barrier()
    if dist.get_rank() == 0: print(f"DS stage {stage} save {time.time() - t:.2f} s", flush=True)
dist.barrier(); dist.destroy_process_group()

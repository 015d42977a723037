# SPDX-License-Identifier: Apache-2.0
"""Record a checkpoint of DeepSpeed's and how the run went on: record_deepspeed.py NAME STAGE float32|bfloat16|float16 OUT.

Two ranks on the CPU train the llama of ../model for three steps, save, and train three more. OUT/NAME gets the checkpoint,
`expected.txt` (name, shape and hash of the fp32 weights as they were when it was saved) and resumed.json. fp16 begins with a scale
that overflows, so that it is in motion when it is saved. Needs torch, transformers and deepspeed:
    torchrun --nproc_per_node 2 record_deepspeed.py stage2_fp16 2 float16 .
"""
import glob
import json
import os
import sys

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import deepspeed
import torch
import torch.distributed as dist
import transformers
from safetensors.torch import load_file

HERE = os.path.dirname(os.path.abspath(__file__))
name, stage, dtype, out = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
MODEL, STEPS, SAVED = "llama", 6, 3
with open(os.path.join(HERE, "stage2_bf16", "resumed.json"), encoding="utf-8") as f:
    recorded = json.load(f)  # the rows and their order
torch.manual_seed(0)
config = json.loads(recorded["ds_config"])
config.update(zero_optimization={"stage": stage}, bf16={"enabled": dtype == "bfloat16"}, gradient_clipping=0.5)
if dtype == "float16":
    config["fp16"] = {"enabled": True, "loss_scale": 0, "initial_scale_power": 20, "hysteresis": 1, "loss_scale_window": 2}
folder = os.path.join(HERE, "..", "model", MODEL)
model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder), dtype=torch.float32)
weights = glob.glob(os.path.join(folder, "*.safetensors"))
if weights:
    model.load_state_dict(load_file(weights[0]), strict=False)
model.train()
engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=list(model.parameters()), config=config)
rank, root = dist.get_rank(), os.path.join(out, name)


def fnv(data):
    h = 0xcbf29ce484222325
    for byte in data:
        h = (h ^ byte) * 0x100000001b3 % 2**64
    return h


def masters():
    """The fp32 weights by name, from whatever the optimizer keeps."""
    from deepspeed.utils import safe_get_full_fp32_param
    found, flats, at = {}, getattr(engine.optimizer, "fp32_groups_flat", None), 0
    for key, p in engine.module.named_parameters():
        if stage == 0 and flats is not None:  # one group, in the order of the module
            full, at = flats[0].detach()[at:at + p.numel()].view(p.shape), at + p.numel()
        else:
            full = safe_get_full_fp32_param(p)
        found[key] = (full if full is not None else p.detach()).float()
    return found


records = []
for step in range(1, STEPS + 1):
    rows = [recorded["samples"][str(i)] for i in recorded["order"][(step - 1) * 4:step * 4]]
    ids = torch.tensor(rows[2 * rank:2 * rank + 2])
    before = engine.optimizer.cur_scale if hasattr(engine.optimizer, "cur_scale") else 1.0
    lr = engine.get_lr()[0]
    loss = engine(input_ids=ids, labels=ids).loss
    engine.backward(loss)
    engine.step()
    losses = [None, None]
    dist.all_gather_object(losses, loss.item())
    norm = engine.get_global_grad_norm()
    records.append({"step": step, "lr": lr, "loss_mean": sum(losses) / 2, "grad_norm": None if norm is None else float(norm),
                    "loss_scale": float(before), "loss_scale_after": float(getattr(engine.optimizer, "cur_scale", 1.0)),
                    "skipped": engine.skipped_steps})
    if step == SAVED:
        weights = masters()
        engine.save_checkpoint(root, tag=f"global_step{step}")
        if rank == 0:
            with open(os.path.join(root, "expected.txt"), "w", encoding="utf-8") as f:
                for key, value in sorted(weights.items()):
                    shape = "x".join(map(str, value.shape))
                    f.write(f"{key} {shape} {fnv(value.contiguous().numpy().tobytes()):016x}\n")
if rank == 0:
    for extra in glob.glob(os.path.join(root, "zero_to_fp32.py")):
        os.remove(extra)
    with open(os.path.join(root, "resumed.json"), "w", encoding="utf-8") as f:
        json.dump({"model": MODEL, "ranks": 2, "micro_batch": 2, "steps": STEPS, "dtype": dtype, "ds_config": json.dumps(config),
                   "samples": recorded["samples"], "order": recorded["order"], "records": records[SAVED:], "before": records[:SAVED]}, f)
dist.barrier()
dist.destroy_process_group()

# SPDX-License-Identifier: Apache-2.0
"""The two model shapes that every peer trains from random weights, without dropout, and what they all report."""
import json
import os
import time

GPT2 = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 50257, "n_embd": 768, "n_layer": 12,
    "n_head": 12, "n_positions": 1024, "activation_function": "gelu_new", "resid_pdrop": 0.0, "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
}
SMOLLM2 = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 49152, "hidden_size": 576,
    "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "tie_word_embeddings": True,
    "hidden_act": "silu",
}
SHAPES = {"gpt2": GPT2, "smollm2": SMOLLM2}


def arguments(parser):
    """What all peers are asked for."""
    parser.add_argument("--model", choices=sorted(SHAPES), default="gpt2")
    parser.add_argument("--folder", help="a model of Hugging Face's form to load instead of random weights")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--rows", type=int, default=4, help="micro-batch of a rank")
    parser.add_argument("--tokens", type=int, default=256, help="of a row")
    parser.add_argument("--steps", type=int, default=3, help="measured; one more warms up")
    parser.add_argument("--threads", type=int, default=2, help="of a rank")


def torch_model(name, dtype, folder=None):
    """The model of transformers, in training mode; of random weights unless a folder has some."""
    import torch
    import transformers

    if folder:
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype), use_cache=False).train()
    torch.manual_seed(0)
    values = dict(SHAPES[name])
    kind = values.pop("model_type")
    values.pop("architectures")
    config = transformers.AutoConfig.for_model(kind, **values)
    config.use_cache = False
    model = transformers.AutoModelForCausalLM.from_config(config)
    return model.to(getattr(torch, dtype)).train()


def peak_mib():
    """The most memory this process has held, in MiB."""
    with open("/proc/self/status", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM")) / 1024


def report(who, args, ranks, walls, first_step, peak):
    """One JSON object. first_step: time.time() when it was done; PEER_T0 (pair.py sets it) when the command began.
    peak: MiB of all ranks together."""
    began = os.environ.get("PEER_T0")
    print(json.dumps({"who": who, "model": args.model, "ranks": ranks, "threads": args.threads,
                      "tokens": ranks * args.rows * args.tokens, "step_s": walls, "peak_mib": round(peak),
                      "first_step_s": round(first_step - float(began), 2) if began else None}), flush=True)


def realtime(on):
    """All threads of this process before every other one, where PEER_REALTIME asks for that (root)."""
    if os.environ.get("PEER_REALTIME"):
        for thread in os.listdir("/proc/self/task"):
            os.sched_setscheduler(int(thread), os.SCHED_RR if on else os.SCHED_OTHER, os.sched_param(int(on)))


def timed_steps(step, n):
    """Seconds of n calls of step after one that warms up, and when that one was done."""
    step()
    first, walls = time.time(), []
    realtime(True)
    for _ in range(n):
        start = time.perf_counter()
        step()
        walls.append(time.perf_counter() - start)
    realtime(False)
    return walls, first

# SPDX-License-Identifier: Apache-2.0
"""A ds_config as a dict, and what libzinc is told: the same, with the optimizer of the script."""
import base64
import copy
import json
import os

import torch

# What torch's optimizers have and libzinc does not, with the value that asks for nothing.
_TORCH_FLAGS = {"amsgrad": False, "maximize": False, "lr_decay": 0, "initial_accumulator_value": 0}


def _without_comments(text):
    """JSON with //, # and /* */ comments and trailing commas as plain JSON, length kept."""
    out, i, n = list(text), 0, len(text)
    last_comma = None  # a comma after which nothing has come yet
    while i < n:
        c = text[i]
        if c == '"':
            end = i + 1
            while end < n and text[end] != '"':
                end += 2 if text[end] == "\\" else 1
            i, last_comma = end + 1, None
            continue
        if c == "#" or text.startswith("//", i) or text.startswith("/*", i):
            block = text.startswith("/*", i)
            end = text.find("*/" if block else "\n", i)
            end = n if end < 0 else end + (2 if block else 0)
            out[i:end] = [x if x == "\n" else " " for x in text[i:end]]
            i = end
            continue
        if c in "}]" and last_comma is not None:
            out[last_comma] = " "
        if not c.isspace():
            last_comma = i if c == "," else None
        i += 1
    return "".join(out)


def _no_doubles(pairs):
    out = {}
    for key, value in pairs:
        if key in out:
            raise ValueError(f"zinc: the key \"{key}\" is there twice in the configuration")
        out[key] = value
    return out


def as_dict(config):
    """A dict, a path, a JSON text or that in base64; an own copy."""
    if isinstance(config, dict):
        return copy.deepcopy(config)
    if not isinstance(config, (str, os.PathLike)):
        raise ValueError(f"zinc: a configuration is a dict or the path of a file, not {type(config).__name__}")
    text = str(config)
    if os.path.exists(text):
        with open(text, encoding="utf-8") as f:
            text = f.read()
    elif not text.lstrip().startswith("{"):
        try:
            text = base64.urlsafe_b64decode(text).decode("utf-8")
        except ValueError:
            raise FileNotFoundError(f"zinc: there is no configuration file {config}") from None
    return json.loads(_without_comments(text), object_pairs_hook=_no_doubles)


def is_on(config, block):
    """Whether fp16 or bf16 is enabled; an "auto" that nobody filled is absent."""
    return (config.get(block) or {}).get("enabled", False) is True


def dtype_of(config):
    if is_on(config, "fp16"):
        return torch.float16
    return torch.bfloat16 if is_on(config, "bf16") or is_on(config, "bfloat16") else torch.float32


def stage_of(config):
    stage = (config.get("zero_optimization") or {}).get("stage", 0)
    return 0 if stage == "auto" else stage


def _optimizer_block(optimizer):
    """A torch optimizer as the block that asks libzinc for the same update."""
    name = type(optimizer).__name__
    given = optimizer.param_groups[0]
    params = {k: given[k] for k in ("lr", "eps", "weight_decay") if k in given}
    if "betas" in given:
        params["betas"] = list(given["betas"])
    params = {k: float(v) if torch.is_tensor(v) else v for k, v in params.items()}
    for group in optimizer.param_groups:
        for flag, plain in _TORCH_FLAGS.items():
            if group.get(flag, plain) != plain:
                raise NotImplementedError(f"zinc: {name}({flag}={group[flag]}) is not supported")
    if name in ("AdamW", "Adam", "DeepSpeedCPUAdam", "FusedAdam"):
        w_mode = getattr(optimizer, "adam_w_mode",
                         name == "AdamW" or given.get("decoupled_weight_decay", False))
        params["adam_w_mode"] = bool(w_mode)
        if "bias_correction" in given:
            params["bias_correction"] = given["bias_correction"]
        return {"type": "AdamW" if w_mode else "Adam", "params": params}
    if name == "SGD":
        params.update(momentum=given["momentum"], dampening=given["dampening"],
                      nesterov=given["nesterov"])
        return {"type": "SGD", "params": params}
    if name in ("Adagrad", "DeepSpeedCPUAdagrad"):
        return {"type": "Adagrad", "params": params}
    if name in ("Lion", "DeepSpeedCPULion", "FusedLion"):
        params.pop("eps", None)
        return {"type": "Lion", "params": params}
    raise NotImplementedError(f"zinc: the optimizer {type(optimizer).__module__}.{name} is not supported: use "
                              "AdamW, Adam, SGD, Adagrad or Lion, or the configuration's \"optimizer\"")


def check_processes(config, world_size):
    """accelerate fills batch sizes in for the processes it counted, one if it saw no device."""
    parts = [config.get(key) for key in ("train_batch_size", "train_micro_batch_size_per_gpu",
                                         "gradient_accumulation_steps")]
    if world_size == 1 or os.environ.get("ACCELERATE_USE_DEEPSPEED") != "true" or \
            not all(isinstance(part, int) for part in parts):
        return
    if parts[0] == parts[1] * parts[2]:
        raise ValueError(f"accelerate counted one process where {world_size} run: train_batch_size "
                         f"{parts[0]} is that of one. On a machine without a GPU call "
                         "PartialState(cpu=True) before Accelerator() (docs/huggingface.md)")


def for_library(config, optimizer, most_live):
    """What libzinc is given. optimizer: the script's torch optimizer, or None. most_live: gathered
    elements that are enough, whatever more the configuration allows."""
    out = copy.deepcopy(config)
    zero = out.get("zero_optimization")
    if isinstance(zero, dict) and stage_of(config) == 3:
        given = zero.get("stage3_max_live_parameters")
        zero["stage3_max_live_parameters"] = min(
            given if isinstance(given, (int, float)) else most_live, most_live)
    if optimizer is not None:
        out["optimizer"] = _optimizer_block(optimizer)
    return out

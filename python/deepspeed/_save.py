# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the Python front-end, and consolidated weights.

    DIR/latest                  the tag that was saved last
    DIR/TAG/                    one of Zinc's checkpoints, as `zinc train` writes and reads them
                                (docs/formats.md), with two files of this front-end's own:
    DIR/TAG/zinc_client.pt      client_state, buffers, schedule, parameter groups
    DIR/TAG/config.json         of a model that has one, where DIR has none
    DIR/zero_to_fp32.py         as DeepSpeed leaves it, for scripts that call it

Any number of ranks, and any stage, reads what any other wrote."""
import collections
import ctypes
import json
import os
import pickle

import torch
import torch.distributed as dist
import zinc

from ._keep import Kept
from ._stage3 import hold, let_go

CLIENT = "zinc_client.pt"
_TO_FP32 = """#!/usr/bin/env python
# zero_to_fp32.py CHECKPOINT_DIR OUTPUT [--tag TAG]: the fp32 weights of a checkpoint as a torch file.
from deepspeed.utils.zero_to_fp32 import main

main()
"""


def plain_groups(groups):
    return [{k: v for k, v in g.items() if k != "params"} for g in groups]


def set_groups(groups, saved):
    if len(groups) != len(saved):
        raise ValueError(f"zinc: {len(saved)} parameter groups were saved, there are {len(groups)}")
    for group, values in zip(groups, saved):
        group.update({k: v for k, v in values.items() if k != "params"})


def _agree(engine, error):
    """Every rank raises if one does: what follows is collective."""
    if engine.world_size > 1:
        texts = [None] * engine.world_size
        dist.all_gather_object(texts, None if error is None else f"{type(error).__name__}: {error}")
        for rank, text in enumerate(texts):
            if text is not None and error is None:
                error = RuntimeError(f"zinc: rank {rank} failed: {text}")
    if error is not None:
        raise error


def _together(engine, work):
    """Do something on every rank, and fail on all if it fails on one."""
    error = None
    try:
        work()
    except Exception as caught:
        error = caught
    _agree(engine, error)


def _client(engine, client_state):
    """What the engine does not know. Shapes: of what libzinc has under another one."""
    schedule = engine.lr_scheduler
    labels = {name: shape for name, _n, shape, _trains in engine.zinc.params}
    shapes = {place[1]: tuple(place[2]) for place in
              (p._zinc_place for u in engine._units for p in u.params)}
    names = [name for name, _n, _shape, _trains in engine.zinc.params]
    return {
        "client_state": client_state or {},
        "buffers": {k: v.detach().clone() for k, v in engine.module.named_buffers()},
        "lr_scheduler": schedule.state_dict() if schedule is not None else None,
        "param_groups": plain_groups(engine.optimizer.param_groups) if engine.optimizer else None,
        "micro_steps": engine.micro_steps,
        "frozen": [name for name, _n, _shape, trains in engine.zinc.params if not trains],
        "shapes": {names[i]: list(s) for i, s in shapes.items() if s != labels[names[i]]},
    }


def _read_client(path, what=None):
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(f"zinc: {what or path} holds more than plain data (numbers, texts, tensors, lists, dicts), in "
                         f"client_state or in the scheduler's state: {str(error).splitlines()[0]}") from None


def _write_config(module, folder):
    """config.json of a Hugging Face model, which makes the checkpoint a model that `zinc export`
    completes. An adapter's base is not what the checkpoint holds."""
    config = getattr(module, "config", None)
    if not hasattr(config, "to_json_string") or hasattr(module, "peft_config"):
        return
    about = json.loads(config.to_json_string())
    about["architectures"] = about.get("architectures") or [type(module).__name__]
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(about, f, indent=2)


def save(engine, save_dir, tag, client_state, save_latest, exclude_frozen):
    """Collective. True, as DeepSpeed returns."""
    tag = str(tag) if tag is not None else f"global_step{engine.global_steps}"

    def write_files(folder):
        path = os.path.join(folder, CLIENT)
        torch.save(_client(engine, client_state), path)
        _read_client(path, "the checkpoint")  # what cannot be read back must not be found out then
        if not os.path.exists(os.path.join(save_dir, "config.json")):
            _write_config(engine.module, folder)
        script = os.path.join(save_dir, "zero_to_fp32.py")
        if not os.path.exists(script):
            with open(script, "w", encoding="utf-8") as f:
                f.write(_TO_FP32)
            os.chmod(script, 0o755)

    try:
        engine.zinc.save_checkpoint(save_dir, tag, exclude_frozen, not save_latest,
                                    engine.global_steps * engine.train_batch_size(), write_files)
    except zinc.Error as error:
        if error.__cause__ is not None:  # write_files has failed on this rank
            raise error.__cause__ from None
        raise
    return True


def _open(load_dir, tag):
    """The checkpoint, or None if no tag was given and there is no `latest`."""
    latest = os.path.join(load_dir, "latest")
    if tag is None and not os.path.isfile(latest):
        return None
    named = tag
    if tag is None:
        with open(latest, encoding="utf-8") as f:
            named = f.read().strip()
    folder = os.path.join(load_dir, str(named))
    if os.path.isdir(folder) and any(f.endswith("_states.pt") for f in os.listdir(folder)):
        raise ValueError(f"zinc: {folder} is one of DeepSpeed's own checkpoints, which are not resumed from: `zinc "
                         "export` writes its weights as a model folder")
    return zinc.Checkpoint(load_dir if tag is None else folder)


def _check_fit(engine, checkpoint, strict, with_states):
    """(number in the checkpoint of each parameter that it has, number of each state)."""
    shapes, found = checkpoint.shapes(), {}
    for index, (name, _n, shape, trains) in enumerate(engine.zinc.params):
        if name not in shapes:
            if trains and strict:
                raise ValueError(f"zinc: {checkpoint.folder} has no {name}")
            continue
        found[index], there = shapes[name]
        if there != tuple(shape):
            raise ValueError(f"zinc: {name} has shape {there} in {checkpoint.folder}, {tuple(shape)} in the model")
    states = engine.zinc.state_names() if with_states else []
    if any(name not in checkpoint.states for name in states):
        raise ValueError(f"zinc: {checkpoint.folder} holds the state of the optimizer "
                         f"{checkpoint.info.optimizer.decode()} ({', '.join(checkpoint.states) or 'none'}); this "
                         f"one needs {', '.join(states)}. load_optimizer_states=False takes the weights alone")
    return found, [checkpoint.states.index(name) for name in states]


def _restore(engine, checkpoint, found, states, progress):
    kept = Kept()  # masters of what the checkpoint does not have: frozen ones that were left out
    lacking = {i for i in range(len(engine.zinc.params)) if i not in found}

    def keep(index, at, n, address):
        if index in lacking:
            kept.take(zinc.MASTERS, index, at, n, address)

    if lacking:
        engine.zinc.visit(zinc.MASTERS, keep)

    def give(what, index, at, n, address):
        if what == zinc.MASTERS and index in lacking:
            kept.give(what, index, at, n, address)
        elif what == zinc.MASTERS:
            checkpoint.read(found[index], what, at, n, address)
        elif index in found and states:
            checkpoint.read(found[index], states[what], at, n, address)
        else:
            ctypes.memset(address, 0, 4 * n)

    engine.zinc.restore(give, progress)


def load(engine, load_dir, tag, strict, with_optimizer, with_schedule):
    """Collective. (folder, client_state); (None, {}) if there is no checkpoint."""
    got = {}

    def look():
        checkpoint = got["checkpoint"] = _open(load_dir, tag)
        if checkpoint is None:
            return
        got["fit"] = _check_fit(engine, checkpoint, strict, with_optimizer)
        path = os.path.join(checkpoint.folder, CLIENT)
        got["client"] = _read_client(path) if os.path.exists(path) else {}

    try:
        _together(engine, look)
        if got["checkpoint"] is None:
            from .utils import logger
            logger.warning("there is no `latest` in %s, and no tag was given: nothing is loaded", load_dir)
            return None, {}
        progress = got["checkpoint"].progress()
        fresh = {"n_applied": 0, "n_skipped": 0, "loss_scale": 0.0, "hysteresis_left": 0,
                 "scale_steps": 0, "last_overflow": -1}
        if engine._dtype != torch.float16:
            progress["loss_scale"] = 0.0  # of an fp16 run: none here
        _restore(engine, got["checkpoint"], *got["fit"], progress if with_optimizer else fresh)
        folder = got["checkpoint"].folder
    finally:
        if got.get("checkpoint"):
            got["checkpoint"].close()
    client = got["client"]
    engine.global_steps = progress["n_applied"] + progress["n_skipped"]
    engine.skipped_steps = progress["n_skipped"]
    micro = client.get("micro_steps", engine.global_steps * engine._gas)
    engine.micro_steps = micro - micro % engine._gas
    engine._ready = False
    _set_client(engine, client, progress["n_applied"], with_optimizer, with_schedule)
    engine._publish()
    return folder, client.get("client_state", {})


@torch.no_grad()
def _set_client(engine, client, n_applied, with_optimizer, with_schedule):
    buffers = dict(engine.module.named_buffers())
    for name, value in client.get("buffers", {}).items():
        if name in buffers and buffers[name].shape == value.shape:
            buffers[name].copy_(value)
    if with_optimizer and engine.optimizer is not None and client.get("param_groups") is not None:
        set_groups(engine.optimizer.param_groups, client["param_groups"])
    schedule = engine.lr_scheduler
    if schedule is None or not with_schedule:
        return
    if engine._scheduled:
        schedule._show()
    elif client.get("lr_scheduler") is not None:
        schedule.load_state_dict(client["lr_scheduler"])
    elif not client:  # of `zinc train`: the rate of its step
        for _ in range(n_applied):
            schedule.step()


def read_masters(checkpoint_dir, tag, exclude_frozen):
    """All weights of a checkpoint, fp32, on this process alone."""
    checkpoint = _open(checkpoint_dir, tag)
    if checkpoint is None:
        raise FileNotFoundError(f"zinc: there is no `latest` in {checkpoint_dir}: give a tag")
    out = collections.OrderedDict()
    try:
        path = os.path.join(checkpoint.folder, CLIENT)
        client = _read_client(path) if os.path.exists(path) else {}
        frozen = set(client.get("frozen", ())) if exclude_frozen else ()
        for name, (i, shape) in checkpoint.shapes().items():
            if name not in frozen:
                out[name] = torch.empty(client.get("shapes", {}).get(name, shape), dtype=torch.float32)
                checkpoint.read(i, zinc.MASTERS, 0, out[name].numel(), out[name].data_ptr())
    finally:
        checkpoint.close()
    return out


def _persistent_buffers(module):
    for path, child in module.named_modules():
        for name, buffer in child.named_buffers(recurse=False):
            if name not in child._non_persistent_buffers_set:
                yield f"{path}.{name}" if path else name, buffer


@torch.no_grad()
def consolidated(engine, exclude_frozen):
    """Whole weights on rank 0, None elsewhere; one unit exists on the other ranks at a time.
    Collective."""
    first = engine.global_rank == 0
    whole = {}
    for unit in engine._units:
        hold(unit.parts)
        try:
            for param in unit.params:
                if first:
                    whole[param] = param.data.detach().clone()
        finally:
            let_go(unit.parts)
    if not first:
        return None
    out = collections.OrderedDict()
    for name, param in engine.module.named_parameters(remove_duplicate=False):
        if not (exclude_frozen and not param.requires_grad):
            out[name] = whole[param] if param in whole else param.data.detach().clone()
    for name, buffer in _persistent_buffers(engine.module):
        out[name] = buffer.detach().clone()
    return out


def save_16bit_model(engine, save_dir, name, exclude_frozen):
    """A torch file of the weights in the training type, written by rank 0. False where stage 3 may
    not gather. Collective."""
    if engine.zero_optimization_stage() == 3 and not engine.zero_gather_16bit_weights_on_model_save():
        from .utils import logger
        logger.warning("nothing is saved: stage3_gather_16bit_weights_on_model_save is false")
        return False
    weights = consolidated(engine, exclude_frozen)

    def write():
        if weights is not None:
            os.makedirs(save_dir, exist_ok=True)
            torch.save(weights, os.path.join(save_dir, name))

    _together(engine, write)
    return True

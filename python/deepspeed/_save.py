# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the Python front-end, and consolidated weights.

    DIR/latest                          the tag that was saved last
    DIR/TAG/zinc_checkpoint.json        written last: without it the folder is no checkpoint
    DIR/TAG/zinc_state/*.safetensors    masters under "master/NAME", optimizer states under
                                        "STATE/NAME", fp32, whole: every rank writes its ranges
    DIR/TAG/zinc_client.pt              rank 0: client_state, buffers, schedule, parameter groups

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

FORMAT = "zinc-python-checkpoint"
VERSION = 1
_MAX_FILE_BYTES = 4 << 30


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


def _plan(engine, exclude_frozen):
    """(tensors of the files, number of each by (what, parameter))."""
    tensors, number = [], {}
    kinds = [(zinc.MASTERS, "master")] + list(enumerate(engine.zinc.state_names()))
    for what, kind in kinds:
        for index, (name, _n, shape, trains) in enumerate(engine.zinc.params):
            if trains or (what == zinc.MASTERS and not exclude_frozen):
                number[what, index] = len(tensors)
                tensors.append((f"{kind}/{name}", shape))
    return tensors, number


def _write_states(engine, folder, exclude_frozen):
    tensors, number = _plan(engine, exclude_frozen)
    writer = zinc.Writer(folder, tensors, _MAX_FILE_BYTES)
    try:
        _together(engine, lambda: writer.begin() if engine.global_rank == 0 else None)

        def write():
            for what in sorted({w for w, _p in number}):
                def take(index, at, n, address, what=what):
                    if (what, index) in number:
                        writer.write(number[what, index], at, n, address)
                engine.zinc.visit(what, take)
            writer.flush()

        _together(engine, write)
        _together(engine, lambda: writer.commit() if engine.global_rank == 0 else None)
    finally:
        writer.close()


def _write_text(path, text):
    with open(path + ".tmp", "w", encoding="utf-8") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    os.replace(path + ".tmp", path)


def _client(engine, client_state):
    schedule = engine.lr_scheduler
    return {
        "client_state": client_state or {},
        "buffers": {k: v.detach().clone() for k, v in engine.module.named_buffers()},
        "lr_scheduler": schedule.state_dict() if schedule is not None else None,
        "param_groups": plain_groups(engine.optimizer.param_groups) if engine.optimizer else None,
    }


def _read_client(path):
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(f"zinc: {path} holds more than plain data (numbers, texts, tensors, lists, dicts), in "
                         f"client_state or in the scheduler's state: {str(error).splitlines()[0]}") from None


def save(engine, save_dir, tag, client_state, save_latest, exclude_frozen):
    """Collective. True, as DeepSpeed returns."""
    tag = str(tag) if tag is not None else f"global_step{engine.global_steps}"
    folder = os.path.join(save_dir, tag)
    states = os.path.join(folder, "zinc_state")
    manifest = os.path.join(folder, "zinc_checkpoint.json")
    first = engine.global_rank == 0

    def prepare():
        if not first:
            return
        os.makedirs(states, exist_ok=True)
        if os.path.exists(manifest):
            os.remove(manifest)
        for name in os.listdir(states):  # of a checkpoint with this tag before
            os.remove(os.path.join(states, name))

    _together(engine, prepare)
    _write_states(engine, states, exclude_frozen)

    def finish():
        if not first:
            return
        path = os.path.join(folder, "zinc_client.pt")
        torch.save(_client(engine, client_state), path)
        _read_client(path)  # what cannot be read back must not be found out then
        about = {"format": FORMAT, "version": VERSION, "progress": engine.zinc.progress(),
                 "global_steps": engine.global_steps, "skipped_steps": engine.skipped_steps,
                 "micro_steps": engine.micro_steps, "n_ranks": engine.world_size,
                 "stage": engine.zero_optimization_stage(), "states": engine.zinc.state_names(),
                 "frozen": [] if exclude_frozen else
                           [n for n, _e, _s, trains in engine.zinc.params if not trains]}
        _write_text(manifest, json.dumps(about, indent=1) + "\n")
        if save_latest:
            _write_text(os.path.join(save_dir, "latest"), tag)

    _together(engine, finish)
    return True


def _find(load_dir, tag):
    """Folder of a checkpoint, or None if there is no `latest`."""
    if tag is None:
        latest = os.path.join(load_dir, "latest")
        if not os.path.isfile(latest):
            return None
        with open(latest, encoding="utf-8") as f:
            tag = f.read().strip()
    return os.path.join(load_dir, str(tag))


def _manifest(folder):
    path = os.path.join(folder, "zinc_checkpoint.json")
    if not os.path.isfile(path):
        theirs = os.path.isdir(folder) and any(f.endswith("_states.pt") for f in os.listdir(folder))
        why = "it is one of DeepSpeed's own: `zinc export` writes its weights as a model folder" \
            if theirs else "zinc_checkpoint.json is missing"
        raise FileNotFoundError(f"zinc: {folder} is no checkpoint of Zinc's Python front-end: {why}")
    with open(path, encoding="utf-8") as f:
        about = json.load(f)
    if about.get("format") != FORMAT or about.get("version") != VERSION:
        raise ValueError(f"zinc: {path} is {about.get('format')} {about.get('version')}; this reads {FORMAT} "
                         f"{VERSION}")
    return about


def _check_fit(engine, reader, strict, with_states):
    """Tensors in the files that fit, by (what, parameter); None is kept as it is."""
    shapes, found = reader.shapes(), {}
    kinds = [(zinc.MASTERS, "master")] + \
        (list(enumerate(engine.zinc.state_names())) if with_states else [])
    for index, (name, n, shape, trains) in enumerate(engine.zinc.params):
        for what, kind in kinds:
            if what != zinc.MASTERS and not trains:
                continue
            key = f"{kind}/{name}"
            if key not in shapes:
                if trains and (strict or what != zinc.MASTERS):
                    raise ValueError(f"zinc: the checkpoint has no {key}")
                continue
            if tuple(shapes[key]) != tuple(shape):
                raise ValueError(f"zinc: {key} has shape {tuple(shapes[key])} in the checkpoint, {tuple(shape)} in "
                                 "the model")
            found[what, index] = reader.find(key)
    return found


def _restore(engine, reader, found, progress):
    kept = Kept()  # masters of what the files do not have: frozen parameters that were left out
    lacking = {i for i in range(len(engine.zinc.params)) if (zinc.MASTERS, i) not in found}

    def keep(index, at, n, address):
        if index in lacking:
            kept.take(zinc.MASTERS, index, at, n, address)

    if lacking:
        engine.zinc.visit(zinc.MASTERS, keep)

    def give(what, index, at, n, address):
        if (what, index) in found:
            reader.read(found[what, index], at, n, address)
        elif what == zinc.MASTERS:
            kept.give(what, index, at, n, address)
        else:
            ctypes.memset(address, 0, 4 * n)

    engine.zinc.restore(give, progress)


def load(engine, load_dir, tag, strict, with_optimizer, with_schedule):
    """Collective. (folder, client_state); (None, {}) if there is no checkpoint."""
    folder = _find(load_dir, tag)
    if folder is None:
        from .utils import logger
        logger.warning("there is no `latest` in %s, and no tag was given: nothing is loaded", load_dir)
        return None, {}
    got = {}

    def look():
        got["about"] = _manifest(folder)
        got["client"] = _read_client(os.path.join(folder, "zinc_client.pt"))
        got["reader"] = zinc.Reader(os.path.join(folder, "zinc_state"))
        got["found"] = _check_fit(engine, got["reader"], strict, with_optimizer)

    try:
        _together(engine, look)
        about, client = got["about"], got["client"]
        fresh = {"n_applied": 0, "n_skipped": 0, "loss_scale": 0.0, "hysteresis_left": 0,
                 "scale_steps": 0, "last_overflow": -1}
        _restore(engine, got["reader"], got["found"], about["progress"] if with_optimizer else fresh)
    finally:
        if "reader" in got:
            got["reader"].close()
    _set_client(engine, client, with_optimizer, with_schedule)
    engine.global_steps, engine.skipped_steps = about["global_steps"], about["skipped_steps"]
    engine.micro_steps = about["micro_steps"] - about["micro_steps"] % engine._gas
    engine._ready = False
    engine._publish()
    return folder, client["client_state"]


@torch.no_grad()
def _set_client(engine, client, with_optimizer, with_schedule):
    buffers = dict(engine.module.named_buffers())
    for name, value in client["buffers"].items():
        if name in buffers and buffers[name].shape == value.shape:
            buffers[name].copy_(value)
    if with_optimizer and engine.optimizer is not None and client["param_groups"] is not None:
        set_groups(engine.optimizer.param_groups, client["param_groups"])
    if engine.lr_scheduler is None or client["lr_scheduler"] is None or not with_schedule:
        return
    if engine._scheduled:
        engine.lr_scheduler._show()
    else:
        engine.lr_scheduler.load_state_dict(client["lr_scheduler"])


def read_masters(checkpoint_dir, tag, exclude_frozen):
    """All weights of a checkpoint, fp32, on this process alone."""
    folder = _find(checkpoint_dir, tag)
    if folder is None:
        raise FileNotFoundError(f"zinc: there is no `latest` in {checkpoint_dir}: give a tag")
    frozen = set(_manifest(folder)["frozen"])
    reader = zinc.Reader(os.path.join(folder, "zinc_state"))
    out = collections.OrderedDict()
    try:
        for key, shape in reader.shapes().items():
            kind, name = key.split("/", 1)
            if kind != "master" or (exclude_frozen and name in frozen):
                continue
            out[name] = torch.empty(shape, dtype=torch.float32)
            reader.read(reader.find(key), 0, out[name].numel(), out[name].data_ptr())
    finally:
        reader.close()
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

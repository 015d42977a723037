# SPDX-License-Identifier: Apache-2.0
"""Make the small checkpoints made_stage*/ in DeepSpeed's layout, with neither torch nor DeepSpeed.

They hold what the recorded ones do not: three ranks, two parameter groups, sizes that do not divide,
sub-groups, frozen parameters, buffers, shared parameters, a stage 0. Weight number k is
[1000 k, 1000 k + 1, ...]. Run in this folder: python3 make_checkpoints.py
"""
import io
import os
import pickle
import struct
import sys
import types
import zipfile
from collections import OrderedDict

RANKS = 3


def module(name, **members):
    m = types.ModuleType(name)
    for key, value in members.items():
        value.__module__ = name
        value.__qualname__ = value.__name__ = key
        setattr(m, key, value)
    sys.modules[name] = m
    return m


def _rebuild_tensor_v2(*args):
    pass


class FloatStorage:
    pass


class HalfStorage:
    pass


class Size(tuple):
    def __reduce__(self):
        return Size, (tuple(self),)


class ZeroStageEnum:
    def __init__(self, n):
        self.n = n

    def __reduce__(self):
        return ZeroStageEnum, (self.n,)


class LossScaler:
    def __init__(self):
        self.cur_scale = 1.0


for package in ("deepspeed", "deepspeed.runtime"):
    module(package)
module("torch", FloatStorage=FloatStorage, HalfStorage=HalfStorage, Size=Size)
module("torch._utils", _rebuild_tensor_v2=_rebuild_tensor_v2)
module("deepspeed.runtime.zero", ZeroStageEnum=ZeroStageEnum, LossScaler=LossScaler)


class Storage:
    def __init__(self, values, kind):
        self.values, self.kind = values, kind


class Tensor:
    def __init__(self, values, shape=None, kind=FloatStorage, lead=0):
        """lead: elements of the storage before the first one."""
        self.values, self.shape = values, tuple(shape if shape is not None else (len(values),))
        self.lead, self.storage = lead, Storage([9.0] * lead + values, kind)

    def __reduce__(self):
        strides, n = [], 1
        for dim in reversed(self.shape):
            strides.insert(0, n)
            n *= dim
        return _rebuild_tensor_v2, (self.storage, self.lead, self.shape, tuple(strides), False, OrderedDict())


def save(path, value):
    storages, out = [], io.BytesIO()

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            if not isinstance(obj, Storage):
                return None
            storages.append(obj)
            return "storage", obj.kind, str(len(storages) - 1), "cpu", len(obj.values)

    Pickler(out, protocol=2).dump(value)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    name = os.path.basename(path)[:-3]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as z:
        def put(entry, data):
            z.writestr(zipfile.ZipInfo(f"{name}/{entry}", (1980, 1, 1, 0, 0, 0)), data)
        put("data.pkl", out.getvalue())
        put("byteorder", "little")
        for i, s in enumerate(storages):
            code = "f" if s.kind is FloatStorage else "e"
            put(f"data/{i}", struct.pack(f"<{len(s.values)}{code}", *s.values))
        put("version", "3\n")


def size(shape):
    n = 1
    for dim in shape:
        n *= dim
    return n


def numbers(k, n):
    return [float(1000 * k + i) for i in range(n)]


GROUPS = [[("a.weight", (5, 3)), ("b.weight", (7,))], [("c.bias", (2, 1, 4)), ("d.scale", ())]]
FROZEN = ("frozen.weight", (11,))
BUFFER = ("e.buffer", (3,))
SHARED = {"alias.weight": "a.weight"}
WEIGHTS = {}
for _name, _shape in [p for g in GROUPS for p in g] + [FROZEN, BUFFER]:
    WEIGHTS[_name] = numbers(len(WEIGHTS), size(_shape))


def model_states(module_dict, fragments):
    return {
        "module": module_dict, "buffer_names": [BUFFER[0], "gone.buffer"],
        "param_shapes": [OrderedDict((n, Size(s)) for n, s in g) for g in GROUPS],
        "frozen_param_shapes": OrderedDict({FROZEN[0]: Size(FROZEN[1])}),
        "frozen_param_fragments": fragments, "shared_params": SHARED, "global_steps": 7,
    }


def whole_module():
    shapes = dict([p for g in GROUPS for p in g] + [FROZEN, BUFFER])
    return OrderedDict((n, Tensor(w, shapes[n], lead=4)) for n, w in WEIGHTS.items())


def stage0(root):
    half = whole_module()
    half["b.weight"] = Tensor([0.5, -2.0, 65504.0, 0.0, 1.0, 2.0, 3.0], (7,), HalfStorage)
    save(f"{root}/global_step7/mp_rank_00_model_states.pt", {"module": half, "optimizer": None})


def stage2(root):
    flat = []
    for group in GROUPS:
        all_ = [x for n, _ in group for x in WEIGHTS[n]]
        padded = -(-len(all_) // (2 * RANKS)) * 2 * RANKS
        part = padded // RANKS
        flat.append([all_[r * part:(r + 1) * part] for r in range(RANKS)])   # padding stripped
    save(f"{root}/global_step7/mp_rank_00_model_states.pt",
         model_states(whole_module(), {FROZEN[0]: Tensor(WEIGHTS[FROZEN[0]], FROZEN[1])}))
    for r in range(RANKS):
        save(f"{root}/global_step7/zero_pp_rank_{r}_mp_rank_00_optim_states.pt", {"optimizer_state_dict": {
            "loss_scaler": LossScaler(), "zero_stage": ZeroStageEnum(2), "partition_count": [RANKS, RANKS],
            "single_partition_of_fp32_groups": [Tensor(f[r], lead=r) for f in flat]}})


def stage3(root):
    def piece(name, r):
        w = WEIGHTS[name]
        part = -(-len(w) // RANKS)
        return (w + [0.0] * (part * RANKS - len(w)))[r * part:(r + 1) * part]
    names = [n for g in GROUPS for n, _ in g]
    for r in range(RANKS):
        sub_groups = [names[:1], names[1:3], names[3:]]
        save(f"{root}/global_step7/zero_pp_rank_{r}_mp_rank_00_optim_states.pt", {"optimizer_state_dict": {
            "zero_stage": ZeroStageEnum(3), "loss_scaler": LossScaler(), "partition_count": RANKS,
            "fp32_flat_groups": [Tensor([x for n in s for x in piece(n, r)]) for s in sub_groups]}})
        empty = OrderedDict((n, Tensor([])) for n in names)
        empty[BUFFER[0]] = Tensor(WEIGHTS[BUFFER[0]], BUFFER[1])
        save(f"{root}/global_step7/zero_pp_rank_{r}_mp_rank_00_model_states.pt",
             model_states(empty, {FROZEN[0]: Tensor(piece(FROZEN[0], r))}))


for make in (stage0, stage2, stage3):
    folder = "made_" + make.__name__
    make(folder)
    with open(f"{folder}/latest", "w") as f:
        f.write("global_step7")

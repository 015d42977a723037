# SPDX-License-Identifier: Apache-2.0
"""deepspeed.utils: the logger, and looking at parameters of an engine."""
from . import groups
from .._refuse import refuse
from ..comm import is_initialized
from ..runtime.dataloader import RepeatingLoader
from .logging import log_dist, logger

__all__ = ["RepeatingLoader", "get_z3_leaf_modules", "groups", "is_initialized", "logger", "log_dist",
           "safe_get_full_fp32_param", "safe_get_full_grad", "safe_get_full_optimizer_state",
           "safe_set_full_fp32_param", "safe_set_full_optimizer_state", "set_z3_leaf_module",
           "set_z3_leaf_modules", "unset_z3_leaf_modules"]


def _read(param, what):
    """The whole of one parameter's masters, state or gradient on every rank; None if no engine
    has it. Collective."""
    import torch
    place = getattr(param, "_zinc_place", None)
    if place is None or place[0] is None:
        return None
    engine, index, shape = place
    out = torch.empty(shape, dtype=torch.float32)
    engine.read(what, index, out.data_ptr())
    return out


def _write(param, what, value):
    from .._keep import rewrite
    place = getattr(param, "_zinc_place", None)
    if place is None or place[0] is None:
        raise ValueError("zinc: the parameter belongs to no engine")
    if value.shape != place[2]:
        raise ValueError(f"zinc: a value of shape {tuple(value.shape)} for a parameter of {tuple(place[2])}")
    rewrite(place[0], {(what, place[1]): value})


def _state_number(param, name):
    """Of an optimizer state by torch's name; None if the optimizer has none such."""
    place = getattr(param, "_zinc_place", None)
    if place is None or place[0] is None or not place[0].params[place[1]][3]:
        return None
    names = place[0].state_names()
    return names.index(name) if name in names else None


def safe_get_full_fp32_param(param):
    """The whole fp32 master of one parameter, on every rank; None if no engine has it.
    Collective."""
    from zinc import MASTERS
    return _read(param, MASTERS)


def safe_set_full_fp32_param(param, value):
    """A new fp32 master, equal on every rank. Copies what the rank has: for now and then.
    Collective, between steps."""
    from zinc import MASTERS
    _write(param, MASTERS, value)


def safe_get_full_optimizer_state(param, optim_state_key):
    """"exp_avg", "exp_avg_sq", … of one parameter, on every rank; None if there is none.
    Collective."""
    number = _state_number(param, optim_state_key)
    return None if number is None else _read(param, number)


def safe_set_full_optimizer_state(param, value, optim_state_key):
    """Collective, between steps."""
    number = _state_number(param, optim_state_key)
    if number is None:
        raise ValueError(f"zinc: this parameter has no optimizer state {optim_state_key}")
    _write(param, number, value)


def safe_get_full_grad(param):
    """The gradient of the step that comes, mean over ranks, on every rank: after the backward of a
    boundary and before the step, None otherwise. Collective."""
    from zinc import GRADS, Error
    from zinc._lib import E_INVALID
    place = getattr(param, "_zinc_place", None)
    if place is None or place[0] is None or not place[0].params[place[1]][3]:
        return None
    try:
        return _read(param, GRADS) / (place[0].grad_divisor * place[0].loss_scale)
    except Error as error:
        if error.status != E_INVALID:  # which says that there are none now, on every rank
            raise
        return None


safe_set_full_grad = refuse("safe_set_full_grad", "libzinc owns reduced gradients; scale the loss instead")
safe_get_local_fp32_param = refuse("safe_get_local_fp32_param", "a rank's part is not a torch tensor; use "
                                   "safe_get_full_fp32_param")
safe_get_local_grad = refuse("safe_get_local_grad", "a rank's part is not a torch tensor; use safe_get_full_grad")
safe_get_local_optimizer_state = refuse("safe_get_local_optimizer_state", "a rank's part is not a torch tensor; "
                                        "use safe_get_full_optimizer_state")


def _of_classes(model, classes):
    return [m for m in model.modules()
            if any(type(m).__name__ == c if isinstance(c, str) else isinstance(m, c) for c in classes)]


def set_z3_leaf_modules(model, leaf_module_classes):
    """Modules of these classes, or class names, are gathered whole. Returns them."""
    found = _of_classes(model, leaf_module_classes)
    if not found:
        raise ValueError(f"no module of type {leaf_module_classes} in the model")
    for module in found:
        module._z3_leaf = True
    return found


def set_z3_leaf_module(model, flag):
    model._z3_leaf = bool(flag)


def unset_z3_leaf_modules(model, leaf_module_classes):
    found = _of_classes(model, leaf_module_classes)
    for module in found:
        module._z3_leaf = False
    return found


def get_z3_leaf_modules(model):
    return [m for m in model.modules() if getattr(m, "_z3_leaf", False)]

# SPDX-License-Identifier: Apache-2.0
"""deepspeed.utils: the logger, and looking at parameters of an engine."""
import logging
import sys

from . import groups
from ..comm import is_initialized

__all__ = ["groups", "is_initialized", "logger", "log_dist", "safe_get_full_fp32_param",
           "set_z3_leaf_modules"]


def _make_logger():
    out = logging.getLogger("DeepSpeed")
    if not out.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("[%(asctime)s] [%(levelname)s] [zinc] %(message)s"))
        out.addHandler(handler)
        out.setLevel(logging.WARNING)
        out.propagate = False
    return out


logger = _make_logger()


def log_dist(message, ranks=None, level=logging.INFO):
    from ..comm import get_rank
    if not ranks or -1 in ranks or get_rank() in ranks:
        logger.log(level, message)


def safe_get_full_fp32_param(param):
    """The whole fp32 master of one parameter, on every rank; None if no engine has it.
    Collective."""
    import torch
    from zinc import MASTERS
    place = getattr(param, "_zinc_place", None)
    if place is None or place[0] is None:
        return None
    engine, index, shape = place
    out = torch.empty(shape, dtype=torch.float32)
    engine.read(MASTERS, index, out.data_ptr())
    return out


def set_z3_leaf_modules(model, leaf_module_classes):
    """Modules of these classes, or class names, are gathered whole. Returns them."""
    found = [m for m in model.modules()
             if any(type(m).__name__ == c if isinstance(c, str) else isinstance(m, c)
                    for c in leaf_module_classes)]
    if not found:
        raise ValueError(f"no module of type {leaf_module_classes} in the model")
    for module in found:
        module._z3_leaf = True
    return found

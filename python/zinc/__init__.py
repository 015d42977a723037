# SPDX-License-Identifier: Apache-2.0
"""Zinc from Python: ZeRO by libzinc. `import deepspeed` is the front for Hugging Face scripts; this
package is the library beneath it (docs/library.md has the calls, in C)."""
from ._lib import BACKWARD, BF16, EVAL, F16, F32, FORWARD, GRADS, KEEP, MASTERS, Error, Group, lib
from .comm import Comm
from .engine import Checkpoint, Config, Engine, Reader, Writer

__all__ = ["BACKWARD", "BF16", "Checkpoint", "Comm", "Config", "EVAL", "Engine", "Error", "F16", "F32", "FORWARD", "GRADS",
           "Group", "KEEP", "MASTERS", "Reader", "Writer", "group", "version"]


def version():
    """Version of the library that is loaded."""
    return lib.version().decode()


def group(**values):
    """Hyper-parameters of one group; what is not given stays as configured."""
    fields = {name: KEEP for name, _type in Group._fields_[1:]}
    fields.update(values)
    return Group(**fields)

# SPDX-License-Identifier: Apache-2.0
"""Whole parameters in memory that is torch's, so that tensors show libzinc's values without a copy.

libzinc asks for blocks. One that it puts back loses its bytes and keeps its storage, which gets
bytes again when the block is asked for next: views that autograd saved in between are right again
when backward reads them."""
import ctypes
import os

import torch

_M_MMAP_THRESHOLD = -3
_LARGE = 4 << 20


def return_large_blocks():
    """Have malloc give large blocks back to the system when they are freed. By itself glibc keeps
    blocks as large as the largest that was freed, up to 32 MiB: where parameters, gradients and the
    buffers of collectives come and go, holes of all their sizes stay in the process. What the
    environment says about it is left as it is."""
    if "MALLOC_MMAP_THRESHOLD_" in os.environ or "mmap_threshold" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE)


class Blocks:
    """zinc.Engine's `memory`."""

    def __init__(self):
        self._flat = {}  # number -> [n_bytes] uint8, for its whole life

    def get(self, block, n_bytes):
        flat = self._flat.get(block)
        if flat is None:
            flat = self._flat[block] = torch.empty(n_bytes, dtype=torch.uint8)
        else:
            flat.untyped_storage().resize_(n_bytes)
        return flat.data_ptr()

    def put(self, block):
        if block >= 0:
            self._flat[block].untyped_storage().resize_(0)
        # all of stages 0 to 2: what shows it may live longer than the engine

    def view(self, address, shape, dtype):
        """The parameter at `address` of a block that has its bytes; None if it lies in none."""
        n_bytes = shape.numel() * dtype.itemsize
        for flat in self._flat.values():
            at = address - flat.data_ptr() if flat.untyped_storage().size() else -1
            if 0 <= at and at + n_bytes <= flat.numel():
                return flat[at:at + n_bytes].view(dtype).view(shape)
        return None

    def bytes(self):
        """What there is now."""
        return sum(flat.untyped_storage().size() for flat in self._flat.values())

# SPDX-License-Identifier: Apache-2.0
"""Ranks: this process alone, or those of a torch.distributed job.

torch.distributed moves bytes; libzinc adds numbers up. A gloo group of its own is used, so that
collectives of the program and of libzinc cannot be taken for one another."""
import atexit
import ctypes
import datetime
import functools
import os
import time
import weakref
from ctypes import byref, c_void_p

from ._lib import (AllGather, Abort, Broadcast, Close, CommHost, CommParams, E_COMM, Split, Test, Wait,
                   guarded, lib)


PEER_ENDS_S = 3.0  # from closing its connections to its exit, for a process that takes torch down


def _peers_first(collective):
    """A collective that fails because a peer is gone fails a little later: a peer that ends by an error
    of its own closes its connections before it exits, and whoever watches the ranks names the first
    that exits as the cause."""
    @functools.wraps(collective)
    def wrapped(*args):
        try:
            return collective(*args)
        except RuntimeError:
            time.sleep(PEER_ENDS_S)
            raise

    return guarded(wrapped, E_COMM)


def local_threads():
    """Compute threads of one rank: the machine's cores, shared by its ranks."""
    n_local = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or 1)
    return max(1, len(os.sched_getaffinity(0)) // max(1, n_local))


def _bytes_at(address, n_bytes):
    import torch
    return torch.frombuffer((ctypes.c_char * n_bytes).from_address(address), dtype=torch.uint8)


def gather_function(dist):
    """The all-gather of one tensor by the name that this torch has for it."""
    return getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


def _leave(transport_of):
    """At exit, before Python is taken down: a thread of gloo that lets go of the last collective's
    tensor afterwards would end the process, because such a tensor belongs to Python. A collective
    that hangs is left alone."""
    transport = transport_of()
    if transport is not None and not transport._works:
        transport.close()


class _Transport:
    """The functions of a zinc_comm_host over one gloo group; those of its groups hang on it."""

    def __init__(self, ranks, timeout_s):
        """ranks: global ones, in order; None: all."""
        import torch.distributed as dist
        self.group = dist.new_group(ranks, backend="gloo", timeout=datetime.timedelta(seconds=timeout_s),
                                    use_local_synchronization=ranks is not None)
        self.ranks = ranks or list(range(dist.get_world_size()))
        self._timeout_s = timeout_s
        self._works = {}
        self._n = 0
        self._groups = []
        # Kept: the library calls these as long as the comm lives.
        self.host = CommHost(rank=self.ranks.index(dist.get_rank()), n_ranks=len(self.ranks), check_calls=1,
                             all_gather=AllGather(_peers_first(self._all_gather)),
                             all_to_all=AllGather(_peers_first(self._all_to_all)),
                             broadcast=Broadcast(_peers_first(self._broadcast)),
                             wait=Wait(_peers_first(self._wait)), test=Test(), abort=Abort(),
                             split=Split(guarded(self._split, E_COMM)), close=Close())
        atexit.register(_leave, weakref.ref(self))

    def _started(self, work, token, *tensors):
        self._n += 1
        self._works[self._n] = (work, tensors)  # tensors live until the wait
        token[0] = self._n

    def _all_gather(self, _ctx, send, recv, n_bytes, token):
        import torch.distributed as dist
        all_gather = gather_function(dist)
        out, mine = _bytes_at(recv, n_bytes * len(self.ranks)), _bytes_at(send, n_bytes)
        self._started(all_gather(out, mine, group=self.group, async_op=True), token,
                      out, mine)

    def _all_to_all(self, _ctx, send, recv, n_bytes, token):
        import torch.distributed as dist
        out = _bytes_at(recv, n_bytes * len(self.ranks))
        mine = _bytes_at(send, n_bytes * len(self.ranks))
        self._started(dist.all_to_all_single(out, mine, group=self.group, async_op=True), token, out,
                      mine)

    def _broadcast(self, _ctx, buf, n_bytes, root, token):
        import torch.distributed as dist
        data = _bytes_at(buf, n_bytes)
        root = self.ranks[root]
        self._started(dist.broadcast(data, root, group=self.group, async_op=True), token, data)

    def _wait(self, _ctx, token, timeout_ms):
        work, _tensors = self._works.pop(token)
        work.wait(datetime.timedelta(milliseconds=timeout_ms))

    def _split(self, _ctx, ranks, n, out):
        group = _Transport([self.ranks[ranks[i]] for i in range(n)], self._timeout_s)
        self._groups.append(group)
        ctypes.memmove(out, byref(group.host), ctypes.sizeof(CommHost))

    def close(self):
        """Its groups go first."""
        for group in self._groups:
            group.close()
        group, self.group = self.group, None
        if group is not None:
            import torch.distributed as dist
            if dist.is_initialized():
                dist.destroy_process_group(group)


class Comm:
    """handle: the zinc_comm. Collective: every rank makes and closes its own."""

    def __init__(self, timeout_s=1800.0, n_threads=0):
        import torch.distributed as dist
        self.handle = c_void_p()
        self._transport = None
        params = CommParams(timeout_ms=int(timeout_s * 1000), n_threads=n_threads or local_threads())
        if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
            lib.comm_create_self(byref(params), byref(self.handle))
            self.rank, self.n_ranks = 0, 1
            return
        self.rank, self.n_ranks = dist.get_rank(), dist.get_world_size()
        self._transport = _Transport(None, timeout_s)
        lib.comm_create_host(byref(self._transport.host), byref(params), byref(self.handle))

    def barrier(self, tag):
        lib.comm_barrier(self.handle, tag.encode())

    def close(self):
        """Not an error twice. After the engines that use it."""
        if not self.handle:
            return
        handle, self.handle = self.handle, c_void_p()
        lib.comm_destroy(handle)
        if self._transport is not None:
            self._transport.close()

# SPDX-License-Identifier: Apache-2.0
"""deepspeed.comm: torch.distributed by another name. Before that is up, ranks are answered from the
environment: zero.Init asks for them then."""
import datetime
import os

import torch.distributed as _dist

DEFAULT_TIMEOUT = datetime.timedelta(minutes=30)


def _from_environment(*names, default):
    for name in names:
        if os.environ.get(name):
            return int(os.environ[name])
    return default


def is_available():
    return _dist.is_available()


def is_initialized():
    return _dist.is_available() and _dist.is_initialized()


def get_rank(group=None):
    if is_initialized():
        return _dist.get_rank(group)
    return _from_environment("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", default=0)


def get_world_size(group=None):
    if is_initialized():
        return _dist.get_world_size(group)
    return _from_environment("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", default=1)


def get_local_rank():
    return _from_environment("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", default=0)


def init_distributed(dist_backend=None, auto_mpi_discovery=True, distributed_port=29500,
                     verbose=True, timeout=DEFAULT_TIMEOUT, init_method=None,
                     dist_init_required=None, config=None, rank=-1, world_size=-1, **kwargs):
    """Bring torch.distributed up unless it is."""
    import torch
    del verbose, config
    if dist_init_required is False or is_initialized():
        return
    rank = rank if rank >= 0 else get_rank()
    world_size = world_size if world_size > 0 else get_world_size()
    backend = dist_backend or ("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    if backend in ("ccl", "mpi") and not _dist.is_backend_available(backend):
        backend = "gloo"
    known = {k: v for k, v in kwargs.items() if k in ("store", "group_name", "pg_options", "device_id")}
    if world_size == 1 and init_method is None and "MASTER_ADDR" not in os.environ:
        known.setdefault("store", _dist.HashStore())
    elif init_method is None and "MASTER_ADDR" not in os.environ:
        raise RuntimeError(f"zinc: rank {rank} of {world_size}: MASTER_ADDR is not set. Start the script with "
                           "torchrun, accelerate launch or zinc launch")
    else:
        os.environ.setdefault("MASTER_PORT", str(distributed_port))
        if "store" not in known:
            init_method = init_method or "env://"
    _dist.init_process_group(backend, init_method=None if "store" in known else init_method,
                             timeout=timeout, rank=rank, world_size=world_size, **known)


def __getattr__(name):
    return getattr(_dist, name)

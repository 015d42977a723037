# SPDX-License-Identifier: Apache-2.0
"""zinc_config, zinc_engine, checkpoints, and the safetensors reader and writer, as Python
objects."""
import ctypes
import json
import os
from ctypes import byref, c_char_p, c_int, c_void_p

from . import _lib
from ._lib import EVAL, Fill, Param, Progress, Restore, StepResult, Tensor, guarded, lib


class Config:
    """A ds_config, given as text or as a dict, resolved for n_ranks."""

    def __init__(self, config, n_ranks, name="config", hidden_size=0):
        text = (config if isinstance(config, str) else json.dumps(config)).encode()
        self.handle = c_void_p()
        try:
            lib.config_parse(text, len(text), name.encode(), byref(self.handle))
            facts = _lib.ConfigFacts(world_size=n_ranks, hidden_size=hidden_size,
                                     ranks_per_node=int(os.environ.get("LOCAL_WORLD_SIZE") or 0))
            lib.config_resolve(self.handle, byref(facts))
        except _lib.Error as error:
            others = [lib.config_error(self.handle, i).decode()
                      for i in range(1, lib.config_n_errors(self.handle))] if self.handle else []
            self.close()
            if others:
                error.args = ("\n".join([str(error)] + others),)
            raise

    def get(self, key):
        text = c_void_p()
        lib.config_get(self.handle, key.encode(), byref(text))
        try:
            return json.loads(ctypes.string_at(text).decode())
        finally:
            lib.free(text)

    def notes(self):
        return [lib.config_note(self.handle, i).decode()
                for i in range(lib.config_n_notes(self.handle))]

    def close(self):
        lib.config_destroy(self.handle)
        self.handle = c_void_p()


def _shape(n_elems, shape):
    """At most MAX_DIMS sizes; a shape with more is two: it is a label, the order is the same."""
    if len(shape) == 0:
        return (1,)
    return tuple(shape) if len(shape) <= _lib.MAX_DIMS else (shape[0], n_elems // shape[0])


class Engine:
    """A zinc_engine. Methods are the functions of zinc/engine.h; values come and go through
    functions that take and give torch-free addresses."""

    def __init__(self, comm, config, groups=None, optimizer=True, grad_divisor=1.0, memory=None,
                 unscale_grown=False):
        """memory: whole parameters lie where memory.get(block, n_bytes) says, an address, until
        memory.put(block); see zinc_param_memory. unscale_grown: see zinc_engine_params."""
        self.comm, self.handle = comm, c_void_p()
        self.blocks = memory
        self._memory = memory and _lib.ParamMemory(
            get=_lib.GetMemory(lambda _ctx, block, n: _lib.kept_error(memory.get, block, n)),
            put=_lib.PutMemory(lambda _ctx, block, _ptr: memory.put(block)))
        self.n_params = self.n_units = 0
        self.grad_divisor = grad_divisor
        self.params = []  # (name, n_elems, shape, trainable)
        array = (_lib.Group * len(groups))(*groups) if groups else None
        params = _lib.EngineParams(comm=comm.handle, config=config.handle,
                                   optimizer=0 if optimizer else 1,
                                   groups=ctypes.cast(array, c_void_p) if array else None,
                                   n_groups=len(groups) if groups else 0, grad_divisor=grad_divisor,
                                   share_parameters=0,
                                   param_memory=ctypes.addressof(self._memory) if memory else None,
                                   unscale_grown=int(unscale_grown))
        lib.engine_create(byref(params), byref(self.handle))

    def add_unit(self, name):
        out = c_int()
        lib.engine_add_unit(self.handle, name.encode(), byref(out))
        self.n_units += 1
        return out.value

    def add_param(self, name, unit, shape, n_elems, trainable=True, group=0):
        out, sizes = c_int(), _shape(n_elems, shape)
        param = Param(name=name.encode(), unit=unit, n_dims=len(sizes), trainable=int(trainable),
                      group=group)
        for i in range(_lib.MAX_DIMS):
            param.shape[i] = sizes[i] if i < len(sizes) else 1
        lib.engine_add_param(self.handle, byref(param), byref(out))
        self.params.append((name, n_elems, sizes, trainable))
        self.n_params += 1
        return out.value

    def build(self):
        lib.engine_build(self.handle)

    def fill(self, give):
        """give(param, offset, n, address): write n floats at address."""
        lib.engine_fill(self.handle, Fill(guarded(
            lambda _ctx, p, at, n, out: give(p, at, n, ctypes.addressof(out.contents)))), None)

    def restore(self, give, progress):
        """give(what, param, offset, n, address); progress: a dict of zinc_progress."""
        lib.engine_restore(self.handle, Restore(guarded(
            lambda _ctx, what, p, at, n, out: give(what, p, at, n,
                                                   ctypes.addressof(out.contents)))),
                           None, byref(Progress(**progress)))

    def visit(self, what, take):
        """take(param, offset, n, address) sees each range that this rank keeps."""
        lib.engine_visit(self.handle, what, Fill(guarded(
            lambda _ctx, p, at, n, values: take(p, at, n, ctypes.addressof(values.contents)))),
                         None)

    def progress(self):
        out = Progress(last_overflow=-1)
        lib.engine_get_progress(self.handle, byref(out))
        return {name: getattr(out, name) for name, _type in Progress._fields_[1:]}

    def state_names(self):
        return [lib.engine_state_name(self.handle, k).decode()
                for k in range(lib.engine_n_states(self.handle))]

    def set_boundary(self, boundary):
        lib.engine_set_boundary(self.handle, int(boundary))

    def acquire(self, unit, kind=EVAL):
        lib.engine_acquire(self.handle, unit, kind)

    def release(self, unit):
        lib.engine_release(self.handle, unit)

    def data(self, param):
        out = c_void_p()
        lib.engine_data(self.handle, param, byref(out))
        return out.value

    def grad_ready(self, param, address, dtype):
        lib.engine_grad_ready(self.handle, param, address, dtype)

    def reduce(self, unit):
        lib.engine_reduce(self.handle, unit)

    def backward_end(self):
        lib.engine_backward_end(self.handle)

    def step(self, groups=None):
        out = StepResult(bad_rank=-1)
        array = (_lib.Group * len(groups))(*groups) if groups else None
        lib.engine_step(self.handle, array, byref(out))
        return out

    def read(self, what, param, address):
        lib.engine_read(self.handle, what, param, address)

    def save(self, folder, dtype=_lib.F32, max_shard_bytes=0):
        lib.engine_save(self.handle, str(folder).encode(), dtype, max_shard_bytes)

    def save_checkpoint(self, folder, name, leave_frozen=False, keep_latest=False, n_samples=0,
                        write_files=None):
        """write_files(path) puts files of the program's own into the checkpoint, on rank 0."""
        write = _lib.WriteFiles(guarded(lambda _ctx, path: write_files(os.fsdecode(path)))) \
            if write_files else _lib.WriteFiles()
        params = _lib.SaveParams(dir=os.fsencode(folder), name=name.encode(),
                                 leave_frozen=int(leave_frozen), keep_latest=int(keep_latest),
                                 n_samples=n_samples, write_files=write)
        lib.engine_save_checkpoint(self.handle, byref(params))

    def stats(self):
        out = _lib.Stats()
        lib.engine_get_stats(self.handle, byref(out))
        return {name: getattr(out, name) for name, _type in _lib.Stats._fields_[1:]}

    def memory(self, place=0):
        out = _lib.Memory()
        lib.engine_memory(self.handle, place, byref(out))
        return {"total": out.total_now, "peak": out.total_peak, "now": list(out.now)}

    loss_scale = property(lambda self: lib.engine_loss_scale(self.handle))
    lr = property(lambda self: lib.engine_lr(self.handle))
    dtype = property(lambda self: lib.engine_param_dtype(self.handle))

    def __reduce__(self):
        """A saved or copied parameter has no engine."""
        return type(None), ()

    def close(self):
        if self.handle:
            handle, self.handle = self.handle, c_void_p()
            lib.engine_destroy(handle)


class Checkpoint:
    """A checkpoint's folder, or the one that PATH/latest names, to be read by range as fp32."""

    def __init__(self, path):
        self.handle = c_void_p()
        lib.checkpoint_open(os.fsencode(path), byref(self.handle))
        self.info = _lib.CheckpointInfo()
        lib.checkpoint_get_info(self.handle, byref(self.info))
        self.folder = os.fsdecode(self.info.folder)
        self.states = [lib.checkpoint_state_name(self.handle, k).decode()
                       for k in range(self.info.n_states)]

    def progress(self):
        out = Progress(last_overflow=-1)
        lib.checkpoint_get_progress(self.handle, byref(out))
        return {name: getattr(out, name) for name, _type in Progress._fields_[1:]}

    def shapes(self):
        """{name: (number, shape)} of all parameters."""
        out = {}
        for i in range(self.info.n_params):
            t = Tensor()
            lib.checkpoint_get(self.handle, i, byref(t))
            out[t.name.decode()] = (i, tuple(t.shape[:t.n_dims]))
        return out

    def read(self, i, what, offset, n, address):
        lib.checkpoint_read(self.handle, i, what, offset, n, address)

    def close(self):
        handle, self.handle = self.handle, c_void_p()
        lib.checkpoint_close(handle)


class Reader:
    """Tensors of a .safetensors file or a folder, by range, as fp32."""

    def __init__(self, path):
        self.handle = c_void_p()
        lib.reader_open(str(path).encode(), byref(self.handle))

    def shapes(self):
        out = {}
        for i in range(lib.reader_n_tensors(self.handle)):
            t = Tensor()
            lib.reader_get(self.handle, i, byref(t))
            out[t.name.decode()] = tuple(t.shape[:t.n_dims])
        return out

    def find(self, name):
        return lib.reader_find(self.handle, name.encode())

    def read(self, i, offset, n, address):
        lib.reader_read(self.handle, i, offset, n, address)

    def close(self):
        lib.reader_close(self.handle)
        self.handle = c_void_p()


class Writer:
    """One safetensors folder that all ranks write their ranges of. tensors: (name, shape), fp32."""

    def __init__(self, folder, tensors, max_shard_bytes=0):
        self.handle = c_void_p()
        array = (Tensor * max(1, len(tensors)))()
        names = [c_char_p(name.encode()) for name, _ in tensors]
        for out, name, (_, shape) in zip(array, names, tensors):
            out.struct_size, out.name, out.dtype = ctypes.sizeof(Tensor), name, _lib.F32
            out.n_dims = len(shape)
            for i in range(_lib.MAX_DIMS):
                out.shape[i] = shape[i] if i < len(shape) else 1
        lib.writer_create(str(folder).encode(), array, len(tensors), max_shard_bytes,
                          byref(self.handle))

    def begin(self):
        lib.writer_begin(self.handle)

    def write(self, i, offset, n, address):
        lib.writer_write(self.handle, i, offset, n, address)

    def flush(self):
        lib.writer_flush(self.handle)

    def commit(self):
        lib.writer_commit(self.handle)

    def close(self):
        lib.writer_destroy(self.handle)
        self.handle = c_void_p()

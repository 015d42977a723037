# SPDX-License-Identifier: Apache-2.0
"""libzinc.so by ctypes: structs, functions, errors. Names and fields are those of include/zinc/*.h.

The library is loaded at the first call, not at import: `import deepspeed` happens in every run of
accelerate and must cost nothing. It is looked for in ZINC_LIBRARY, then beside this file, then
where the loader looks."""
import ctypes
import os
import threading
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_double, c_float, c_int, c_int64, c_size_t, c_void_p

F32, BF16, F16 = 0, 1, 2
FORWARD, BACKWARD, EVAL = 0, 1, 2
MASTERS, GRADS = -1, -2
KEEP = -1.0
E_INVALID, E_IO, E_COMM, E_UNSUPPORTED, E_TIMEOUT = -1, -4, -6, -8, -9
MAX_DIMS = 4


class Error(RuntimeError):
    """A call of libzinc failed: `status` is its code, the text is the library's message."""

    def __init__(self, status, name, message):
        super().__init__(f"zinc: {message or name} [{name}]")
        self.status = status


class Struct(ctypes.Structure):
    """A public struct: its first field is its size, which a later library reads."""

    def __init__(self, **fields):
        super().__init__(ctypes.sizeof(type(self)), **fields)


class CommParams(Struct):
    _fields_ = [("struct_size", c_size_t), ("timeout_ms", c_int64), ("device_limit_bytes", c_int64),
                ("host_limit_bytes", c_int64), ("n_threads", c_int)]


AllGather = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_size_t, POINTER(c_int64))
Broadcast = CFUNCTYPE(c_int, c_void_p, c_void_p, c_size_t, c_int, POINTER(c_int64))
Wait = CFUNCTYPE(c_int, c_void_p, c_int64, c_int64)
Test = CFUNCTYPE(c_int, c_void_p, c_int64, POINTER(c_int))
Abort = CFUNCTYPE(None, c_void_p, c_char_p)
Split = CFUNCTYPE(c_int, c_void_p, POINTER(c_int), c_int, c_void_p)
Close = CFUNCTYPE(None, c_void_p)


class CommHost(Struct):
    _fields_ = [("struct_size", c_size_t), ("ctx", c_void_p), ("rank", c_int), ("n_ranks", c_int),
                ("check_calls", c_int), ("all_gather", AllGather), ("all_to_all", AllGather),
                ("broadcast", Broadcast), ("wait", Wait), ("test", Test), ("abort", Abort),
                ("split", Split), ("close", Close)]


class ConfigFacts(Struct):
    _fields_ = [("struct_size", c_size_t), ("world_size", c_int64), ("hidden_size", c_int64),
                ("max_steps", c_int64), ("n_samples", c_int64), ("n_epochs", c_double),
                ("default_micro_batch", c_int64), ("ranks_per_node", c_int64)]


class Group(Struct):
    _fields_ = [("struct_size", c_size_t)] + [
        (name, c_double)
        for name in ("lr", "weight_decay", "beta1", "beta2", "eps", "momentum", "dampening")
    ]


GetMemory = CFUNCTYPE(c_void_p, c_void_p, c_int, c_size_t)
PutMemory = CFUNCTYPE(None, c_void_p, c_int, c_void_p)


class ParamMemory(Struct):
    _fields_ = [("struct_size", c_size_t), ("ctx", c_void_p), ("get", GetMemory), ("put", PutMemory)]


class EngineParams(Struct):
    _fields_ = [("struct_size", c_size_t), ("comm", c_void_p), ("config", c_void_p),
                ("optimizer", c_int), ("groups", c_void_p), ("n_groups", c_int),
                ("grad_divisor", c_double), ("share_parameters", c_int),
                ("param_memory", c_void_p), ("unscale_grown", c_int)]


class Param(Struct):
    _fields_ = [("struct_size", c_size_t), ("name", c_char_p), ("unit", c_int), ("n_dims", c_int),
                ("shape", c_int64 * MAX_DIMS), ("trainable", c_int), ("group", c_int)]


class Progress(Struct):
    _fields_ = [("struct_size", c_size_t), ("n_applied", c_int64), ("n_skipped", c_int64),
                ("loss_scale", c_double), ("hysteresis_left", c_int64), ("scale_steps", c_int64),
                ("last_overflow", c_int64)]


class StepResult(Struct):
    _fields_ = [("struct_size", c_size_t), ("skipped", c_int), ("bad_rank", c_int),
                ("bad_param", c_char_p), ("grad_norm", c_double), ("clip_coef", c_double),
                ("loss_scale", c_double), ("lr", c_double), ("n_applied", c_int64),
                ("n_skipped", c_int64)]


class Tensor(Struct):
    _fields_ = [("struct_size", c_size_t), ("name", c_char_p), ("dtype", c_int), ("n_dims", c_int),
                ("shape", c_int64 * MAX_DIMS)]


WriteFiles = CFUNCTYPE(c_int, c_void_p, c_char_p)


class SaveParams(Struct):
    _fields_ = [("struct_size", c_size_t), ("dir", c_char_p), ("name", c_char_p),
                ("leave_frozen", c_int), ("keep_latest", c_int), ("n_samples", c_int64),
                ("write_files", WriteFiles), ("ctx", c_void_p)]


class CheckpointInfo(Struct):
    _fields_ = [("struct_size", c_size_t), ("folder", c_char_p), ("optimizer", c_char_p),
                ("dtype", c_char_p), ("stage", c_int), ("n_ranks", c_int),
                ("train_batch_size", c_int64), ("n_samples", c_int64), ("n_params", c_int),
                ("n_states", c_int)]


class Memory(Struct):
    _fields_ = [("struct_size", c_size_t), ("now", c_int64 * 6), ("peak", c_int64 * 6),
                ("total_now", c_int64), ("total_peak", c_int64)]


class Stats(Struct):
    _fields_ = [("struct_size", c_size_t)] + [
        (name, c_int64) for name in ("padded_elems", "trainable_padded", "persistent_elems",
                                     "n_gathers", "n_prefetches", "n_reduces", "live_peak")
    ]


Fill = CFUNCTYPE(c_int, c_void_p, c_int, c_int64, c_int64, POINTER(c_float))
Restore = CFUNCTYPE(c_int, c_void_p, c_int, c_int, c_int64, c_int64, POINTER(c_float))

# What returns a status; the others are below.
_CALLS = {
    "comm_create_self": [POINTER(CommParams), POINTER(c_void_p)],
    "comm_create_host": [POINTER(CommHost), POINTER(CommParams), POINTER(c_void_p)],
    "comm_barrier": [c_void_p, c_char_p],
    "comm_agree": [c_void_p, c_int],
    "config_parse": [c_char_p, c_size_t, c_char_p, POINTER(c_void_p)],
    "config_resolve": [c_void_p, POINTER(ConfigFacts)],
    "config_get": [c_void_p, c_char_p, POINTER(c_void_p)],
    "engine_create": [POINTER(EngineParams), POINTER(c_void_p)],
    "engine_add_unit": [c_void_p, c_char_p, POINTER(c_int)],
    "engine_add_param": [c_void_p, POINTER(Param), POINTER(c_int)],
    "engine_build": [c_void_p],
    "engine_fill": [c_void_p, Fill, c_void_p],
    "engine_get_progress": [c_void_p, POINTER(Progress)],
    "engine_restore": [c_void_p, Restore, c_void_p, POINTER(Progress)],
    "engine_set_boundary": [c_void_p, c_int],
    "engine_acquire": [c_void_p, c_int, c_int],
    "engine_release": [c_void_p, c_int],
    "engine_data": [c_void_p, c_int, POINTER(c_void_p)],
    "engine_grad_ready": [c_void_p, c_int, c_void_p, c_int],
    "engine_reduce": [c_void_p, c_int],
    "engine_backward_end": [c_void_p],
    "engine_step": [c_void_p, POINTER(Group), POINTER(StepResult)],
    "engine_skip": [c_void_p],
    "engine_visit": [c_void_p, c_int, Fill, c_void_p],
    "engine_read": [c_void_p, c_int, c_int, c_void_p],
    "engine_save": [c_void_p, c_char_p, c_int, c_int64],
    "engine_memory": [c_void_p, c_int, POINTER(Memory)],
    "engine_get_stats": [c_void_p, POINTER(Stats)],
    "engine_save_checkpoint": [c_void_p, POINTER(SaveParams)],
    "checkpoint_open": [c_char_p, POINTER(c_void_p)],
    "checkpoint_get_info": [c_void_p, POINTER(CheckpointInfo)],
    "checkpoint_get_progress": [c_void_p, POINTER(Progress)],
    "checkpoint_get": [c_void_p, c_int, POINTER(Tensor)],
    "checkpoint_read": [c_void_p, c_int, c_int, c_int64, c_int64, c_void_p],
    "reader_open": [c_char_p, POINTER(c_void_p)],
    "reader_get": [c_void_p, c_int, POINTER(Tensor)],
    "reader_read": [c_void_p, c_int, c_int64, c_int64, c_void_p],
    "writer_create": [c_char_p, POINTER(Tensor), c_int, c_int64, POINTER(c_void_p)],
    "writer_begin": [c_void_p],
    "writer_write": [c_void_p, c_int, c_int64, c_int64, c_void_p],
    "writer_flush": [c_void_p],
    "writer_commit": [c_void_p],
}
_OTHERS = {
    "version": (c_char_p, []),
    "last_error": (c_char_p, []),
    "status_name": (c_char_p, [c_int]),
    "fail": (c_int, [c_int, c_char_p]),
    "free": (None, [c_void_p]),
    "comm_destroy": (None, [c_void_p]),
    "comm_abort": (None, [c_void_p, c_char_p]),
    "config_destroy": (None, [c_void_p]),
    "config_n_errors": (c_int, [c_void_p]),
    "config_error": (c_char_p, [c_void_p, c_int]),
    "config_n_notes": (c_int, [c_void_p]),
    "config_note": (c_char_p, [c_void_p, c_int]),
    "engine_destroy": (None, [c_void_p]),
    "engine_param_dtype": (c_int, [c_void_p]),
    "engine_loss_scale": (c_double, [c_void_p]),
    "engine_lr": (c_double, [c_void_p]),
    "engine_n_states": (c_int, [c_void_p]),
    "engine_state_name": (c_char_p, [c_void_p, c_int]),
    "checkpoint_close": (None, [c_void_p]),
    "checkpoint_state_name": (c_char_p, [c_void_p, c_int]),
    "checkpoint_find": (c_int, [c_void_p, c_char_p]),
    "reader_close": (None, [c_void_p]),
    "reader_n_tensors": (c_int, [c_void_p]),
    "reader_find": (c_int, [c_void_p, c_char_p]),
    "writer_destroy": (None, [c_void_p]),
}
_ABI = "0."


def _open():
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "libzinc.so")
    given = os.environ.get("ZINC_LIBRARY")
    path = given or (here if os.path.exists(here) else "libzinc.so")
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"zinc: cannot load {path}: {error}. Install with `pip install ./python` from the "
                          "checkout, or set ZINC_LIBRARY to a built libzinc.so") from None


class _Library:
    """Functions by their names without `zinc_`; those that return a status raise Error."""

    def __init__(self):
        self._dll = None

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if self._dll is None:
            self._dll = _open()
            version = self.version().decode()
            if not version.startswith(_ABI):
                raise ImportError(f"zinc: libzinc {version} does not fit this package, which is for {_ABI}*")
        function = getattr(self._dll, "zinc_" + name)
        if name in _OTHERS:
            function.restype, function.argtypes = _OTHERS[name]
            wrapped = function
        else:
            function.restype, function.argtypes = c_int, _CALLS[name]

            def wrapped(*args):
                status = function(*args)
                if status:
                    raise self.error(status) from _caught.__dict__.pop("error", None)

        setattr(self, name, wrapped)
        return wrapped

    def error(self, status):
        return Error(status, self.status_name(status).decode(),
                     self.last_error().decode(errors="replace"))


lib = _Library()
_caught = threading.local()  # what a callback of the call under way has raised


def kept_error(function, *args):
    """The result of a callback that gives a pointer: None, and the cause of an Error, if it raises."""
    try:
        return function(*args)
    except BaseException as error:  # nothing may pass through C
        _caught.error = error
        return None


def guarded(function, status=E_INVALID):
    """A Python function as a callback: what it raises becomes the message and, unless it has a better
    one, the `status` of the libzinc call that it runs in, and the cause of the Error."""

    def call(*args):
        try:
            function(*args)
            return 0
        except BaseException as error:  # nothing may pass through C
            _caught.error = error
            own = error.status if isinstance(error, Error) else E_IO if isinstance(error, OSError) else status
            text = str(error) if str(error).startswith("zinc: ") else f"{type(error).__name__}: {error}"
            return lib.fail(own, text.removeprefix("zinc: ").encode())

    return call

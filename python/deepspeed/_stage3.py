# SPDX-License-Identifier: Apache-2.0
"""Parameters of stage 3: there only while they are used.

While a partitioned parameter is used it shows libzinc's gathered copy, which lies in a block of
torch's memory (_memory.py); else it is empty. Autograd saves views of weights, and a view follows
its storage: so the bytes are really freed in between, and are right again when backward reads them.

Three kinds of parameter have a tensor `full` of their own, treated alike: those that libzinc keeps
whole below stage3_param_persistence_threshold, which are copied; those of zero.Init before there is
an engine, of which each rank keeps its part in `shard`; and any inside GatheredParameters, where the
script may write.

A shaped tensor over no bytes must never be read, so it is not shown while it is empty."""
import ctypes
import enum
import itertools

import torch
import torch.distributed as dist
from torch.nn.modules import module as torch_module
from zinc import EVAL, MASTERS
from zinc.comm import gather_function

from . import comm
from ._config import as_dict, dtype_of, stage_of
from ._keep import rewrite


class ZeroParamStatus(enum.Enum):
    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


_ids = itertools.count()


def _n_ranks():
    return dist.get_world_size() if comm.is_initialized() else 1


@torch.no_grad()
def from_rank(tensor, rank):
    """Rank `rank`'s values in place, of any type: as bytes. Collective."""
    if _n_ranks() == 1 or tensor.numel() == 0:
        return
    whole = tensor.contiguous()
    dist.broadcast(whole.reshape(-1).view(torch.uint8), rank)
    if whole.data_ptr() != tensor.data_ptr():
        tensor.copy_(whole)


class Part:
    """What a partitioned torch parameter stands for; it is the parameter's attribute _zinc."""

    def __init__(self, param, dtype):
        """Collective: rank 0's value is every rank's."""
        self._begin(param, dtype)
        if param.device.type != "cpu":
            raise NotImplementedError(f"zinc: a parameter on {param.device}: this front-end computes on the CPU. "
                                      "Pass --use_cpu, or PartialState(cpu=True)")
        value = param.data.to(dtype).contiguous()
        value = value.clone() if _n_ranks() > 1 else value
        from_rank(value, 0)
        self.store(value)
        self._hide()

    @classmethod
    def of_engine(cls, param):
        """Of a whole parameter that hand_over follows."""
        out = cls.__new__(cls)
        out._begin(param, param.dtype)
        return out

    def _begin(self, param, dtype):
        self.param, self.dtype = param, dtype
        self.shape, self.n = param.shape, param.numel()
        self.place = None      # (engine, parameter, unit) once there is an engine
        self.block = None      # the tensor that shows the engine's block, once it was seen
        self.full = None       # a tensor of its own, whose bytes come and go
        self.acquired = False  # the engine's copy is shown
        self.holds = 0         # who needs the values now
        self.shard = None
        param._zinc = self
        param.ds_id, param.ds_numel, param.ds_shape = next(_ids), self.n, self.shape
        param.partition = lambda *a, **k: None
        param.all_gather = lambda *a, **k: hold([self])

    def _hide(self):
        self.param.data = torch.empty(0, dtype=self.dtype)
        self.param.ds_status = ZeroParamStatus.NOT_AVAILABLE
        if self.acquired:
            self.acquired = False
            self.place[0].release(self.place[2])
        elif self.full is not None:
            self.full.untyped_storage().resize_(0)

    def _shown(self, tensor):
        self.param.data = tensor
        self.param.ds_status = ZeroParamStatus.AVAILABLE

    def _own(self):
        """`full` with room for the values."""
        if self.full is None:
            self.full = torch.empty(self.shape, dtype=self.dtype)
        else:
            self.full.untyped_storage().resize_(self.n * self.full.element_size())
        return self.full

    def show(self, kind, apart):
        """Make the parameter whole, to be read in a pass of this kind. apart: in memory that is
        nobody else's."""
        if self.place is None:
            self._from_shards()
            return
        engine, index, unit = self.place
        engine.acquire(unit, kind)
        if self.block is None:
            self.block = engine.blocks.view(engine.data(index), self.shape, self.dtype)
        if self.block is not None and not apart:
            self.acquired = True
            self._shown(self.block)
            return
        if self.block is not None:
            self.full = None  # what autograd saves of the copy must stay
        copy_out(engine, index, self._own())
        engine.release(unit)
        self._shown(self.full)

    def bytes(self):
        """What the parameter takes now."""
        return sum(t.untyped_storage().size() for t in (self.full, self.shard) if t is not None) + \
            self.n * self.dtype.itemsize * self.acquired

    def store(self, value):
        """Keep this rank's part of a whole value, equal on every rank. Before there is an
        engine."""
        n_ranks, rank = _n_ranks(), comm.get_rank() if _n_ranks() > 1 else 0
        each = -(-self.n // n_ranks) if self.n else 0
        flat = value.reshape(-1)[rank * each:(rank + 1) * each]
        self.shard = torch.zeros(each, dtype=value.dtype)
        self.shard[:flat.numel()].copy_(flat)

    def _from_shards(self):
        n_ranks = _n_ranks()
        whole = self.shard
        if n_ranks > 1 and self.n:
            whole = torch.empty(self.shard.numel() * n_ranks, dtype=self.shard.dtype)
            gather_function(dist)(whole.view(torch.uint8), self.shard.view(torch.uint8))
        self._own().reshape(-1).copy_(whole[:self.n])
        self._shown(self.full)

    def hand_over(self, engine, index, unit, dtype):
        """The engine has the values from now on."""
        self._hide()
        self.place, self.shard, self.block, self.dtype = (engine, index, unit), None, None, dtype
        self.full = None
        self._hide()


def copy_out(engine, index, into):
    """The engine's value of one parameter, whose unit is held, into a tensor of the same size."""
    n_bytes = into.numel() * into.element_size()
    source = (ctypes.c_char * n_bytes).from_address(engine.data(index))
    into.reshape(-1).copy_(torch.frombuffer(source, dtype=into.dtype))


@torch.no_grad()
def hold(parts, kind=EVAL, apart=False):
    """Make parameters whole until let_go, for a pass of libzinc's. Collective: the same parts, in
    the same order, on every rank."""
    missing = [p for p in parts if p.holds == 0]
    for part in parts:
        part.holds += 1
    for part in missing:
        part.show(kind, apart)


def let_go(parts):
    for part in parts:
        part.holds -= 1
        if part.holds == 0:
            part._hide()


def parts_of(params):
    """Parts of parameters that are partitioned, each once, in order."""
    if isinstance(params, torch.Tensor):
        params = [params]
    out = {}
    for param in params:
        part = getattr(param, "_zinc", None)
        if part is not None:
            out[id(part)] = part
    return list(out.values())


class GatheredParameters:
    """Whole parameters inside `with`; with modifier_rank what that rank wrote is kept by all.
    Collective."""

    def __init__(self, params, modifier_rank=None, fwd_module=None, enabled=True):
        del fwd_module
        self.parts = parts_of(list(params) if not isinstance(params, torch.Tensor) else params) \
            if enabled else []
        self.modifier_rank = modifier_rank

    def __enter__(self):
        hold(self.parts, apart=True)

    @torch.no_grad()
    def __exit__(self, kind, _value, _trace):
        try:
            if kind is None and self.modifier_rank is not None:
                self._keep()
        finally:
            let_go(self.parts)

    def _keep(self):
        written = {}  # engine -> {number: new value}
        for part in self.parts:
            value = part.param.data.to(part.dtype).contiguous()
            if value.shape != part.shape:
                raise RuntimeError(f"zinc: a parameter of {tuple(part.shape)} became {tuple(value.shape)} inside "
                                   "GatheredParameters: write its values in place")
            if part.place is not None and not self._changed(part, value):
                continue
            from_rank(value, self.modifier_rank)
            if part.place is None:
                part.store(value)
            else:
                written.setdefault(part.place[0], {})[MASTERS, part.place[1]] = value
        for engine, values in written.items():
            rewrite(engine, values)

    def _changed(self, part, value):
        """Whether modifier_rank's value is another than the engine's."""
        engine, index, unit = part.place
        now = torch.empty_like(value)
        engine.acquire(unit)
        copy_out(engine, index, now)
        engine.release(unit)
        changed = torch.tensor([not torch.equal(now, value)], dtype=torch.uint8)
        from_rank(changed, self.modifier_rank)
        return bool(changed.item())


def partition(params, dtype):
    """Partition parameters that are not yet. Collective."""
    for param in params:
        if getattr(param, "_zinc", None) is None and not param.is_meta and \
                param.is_floating_point():
            Part(param, dtype)


class Init:
    """Partition parameters while modules are built: a child's when it is attached to its parent,
    a parent's own when the outermost `with` ends."""

    _depth = 0

    def __init__(self, module=None, data_parallel_group=None, mem_efficient_linear=True,
                 remote_device=None, pin_memory=False, config_dict_or_path=None, config=None,
                 enabled=True, dtype=None, mpu=None, **kwargs):
        del data_parallel_group, mem_efficient_linear, remote_device, pin_memory, mpu, kwargs
        config = config_dict_or_path if config_dict_or_path is not None else config
        config = as_dict(config) if config is not None else {}
        self.enabled = enabled and (not config or stage_of(config) == 3)
        self.dtype = dtype or (dtype_of(config) if config else torch.get_default_dtype())
        self._handle, self._parents = None, []
        if module is not None and self.enabled:
            comm.init_distributed()
            partition(module.parameters(), self.dtype)

    def _attached(self, parent, _name, child):
        if child is not None:
            partition(child.parameters(), self.dtype)
        if not any(p is parent for p in self._parents[-8:]):
            self._parents.append(parent)

    def __enter__(self):
        if self.enabled and Init._depth == 0:
            comm.init_distributed()
            self._handle = torch_module.register_module_module_registration_hook(self._attached)
        Init._depth += self.enabled
        return self

    def __exit__(self, kind, _value, _trace):
        if not self.enabled:
            return
        Init._depth -= 1
        if self._handle is None:
            return
        self._handle.remove()
        self._handle = None
        if kind is None:
            for parent in self._parents:
                partition(parent.parameters(), self.dtype)
        self._parents = []


def register_external_parameter(module, parameter):
    """A module reads a parameter that another one owns: gather it for both."""
    extra = module.__dict__.setdefault("_zinc_external", [])
    if not any(p is parameter for p in extra):
        extra.append(parameter)
        for hooks in module.__dict__.get("_zinc_hooks", []):
            hooks.add_external(module, parameter)

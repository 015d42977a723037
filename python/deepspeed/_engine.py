# SPDX-License-Identifier: Apache-2.0
"""deepspeed.initialize and its engine: a torch module trained by libzinc.

Below stage 3 parameters stay torch tensors. In every stage a gradient is handed to libzinc when
autograd has accumulated it, and dropped here; units are reduced in the order that every rank has in
common, the last first; `step` is libzinc's, and new values are copied back."""
import contextlib
import ctypes
import math
import weakref

import torch
import zinc

from . import _config, _save, comm
from ._memory import Blocks, return_large_blocks
from ._refuse import refuse
from ._stage3 import Part, from_rank, hold, let_go
from ._units import Hooks, make_units, release_if_done
from .ops._hold import Held
from .runtime.lr_schedules import SCHEDULES
from .utils import logger

_engine_of = weakref.WeakKeyDictionary()  # module -> weak reference to the engine that trains it
_CODES = {torch.float32: zinc.F32, torch.bfloat16: zinc.BF16, torch.float16: zinc.F16}
_DTYPES = {code: dtype for dtype, code in _CODES.items()}


class ZincOptimizer:
    """What initialize returns as the optimizer: the groups of the one that holds them."""

    def __init__(self, engine, held):
        self.optimizer, self.overflow = held, False
        self._engine = engine

    param_groups = property(lambda self: self.optimizer.param_groups)
    state = property(lambda self: self.optimizer.state)
    loss_scale = property(lambda self: self._engine.zinc.loss_scale)
    cur_scale = loss_scale

    def step(self, closure=None):
        raise RuntimeError("zinc: call engine.step(): it clips, steps and publishes parameters")

    def zero_grad(self, set_to_none=True):
        self._engine.zero_grad()

    def state_dict(self):
        """Hyper-parameters alone: moments are in the engine's checkpoints."""
        return {"param_groups": _save.plain_groups(self.param_groups), "loss_scale": self.loss_scale}

    def load_state_dict(self, state):
        _save.set_groups(self.param_groups, state["param_groups"])


def _groups_of(model_parameters, module):
    """Parameter groups from what `model_parameters` may be; None: everything trainable."""
    given = list(model_parameters) if model_parameters is not None else \
        [p for p in module.parameters() if p.requires_grad]
    if given and isinstance(given[0], dict):
        return given
    return [{"params": [p[1] if isinstance(p, tuple) else p for p in given]}]


class DeepSpeedEngine(torch.nn.Module):
    """Made by deepspeed.initialize. Collective throughout: every rank makes the same calls."""

    def __init__(self, model, config, optimizer=None, model_parameters=None, lr_scheduler=None):
        super().__init__()
        self.module = model
        self.config = config
        before = _engine_of.get(model, lambda: None)()
        if before is not None:
            before._take_hooks_off()
        _engine_of[model] = weakref.ref(self)
        return_large_blocks()
        comm.init_distributed()
        self._comm = zinc.Comm()
        self.global_rank, self.world_size = self._comm.rank, self._comm.n_ranks
        self.local_rank = comm.get_local_rank()
        self.dp_world_size, self.mp_world_size = self.world_size, 1
        self.device = torch.device("cpu")
        self.training_dataloader = None
        self._stage = _config.stage_of(config)
        self.global_steps = self.skipped_steps = self.micro_steps = 0
        self._boundary = None     # what the script has said, from then on
        self._ready = False       # the last micro-batch was a boundary
        self._in_backward = False
        self._grad_norm = None
        self._hooks, self._handles = None, []
        self._shown = {}  # below stage 3: number of a parameter -> tensor over libzinc's values
        try:
            self._prepare_module()
            self._make_engine(optimizer, model_parameters)
            self._fill()
            self._set_hooks()
            self._make_scheduler(lr_scheduler)
            self._say_what_is_idle()
        except BaseException:
            self.destroy()
            raise

    # ---- building ----

    def _prepare_module(self):
        dtype = _config.dtype_of(self.config)
        for name, param in self.module.named_parameters():
            if param.device.type != "cpu":
                raise NotImplementedError(
                    f"zinc: {name} is on {param.device}: this front-end computes on the CPU. Pass --use_cpu to a "
                    "Trainer script, or make PartialState(cpu=True) before the Accelerator")
        if any(hasattr(p, "_zinc") for p in self.module.parameters()):
            if self._stage != 3:
                raise ValueError(f"zinc: the model was built under zero.Init, which is for stage 3; the "
                                 f"configuration says stage {self._stage}")
            for param in self.module.parameters():  # buffers stay as they are, as in DeepSpeed
                if not hasattr(param, "_zinc") and param.is_floating_point():
                    param.data = param.data.to(dtype)
        else:
            self.module.to(dtype)
        for buffer in self.module.buffers():
            from_rank(buffer, 0)

    def _optimizer_and_groups(self, optimizer, model_parameters, resolved):
        """The holder of the parameter groups; None without an optimizer."""
        block = self.config.get("optimizer")
        if optimizer is not None:
            return optimizer
        if not block:
            return None
        params = resolved.get("optimizer.params") or {}
        known = ("lr", "betas", "eps", "weight_decay", "momentum", "dampening")
        defaults = {k: params[k] for k in known if params.get(k) is not None}
        defaults.setdefault("lr", 1e-3)
        return Held(_groups_of(model_parameters, self.module), defaults)

    def _make_engine(self, optimizer, model_parameters):
        if callable(optimizer) and not isinstance(optimizer, torch.optim.Optimizer):
            optimizer = optimizer(_groups_of(model_parameters, self.module))
        self._units, names = make_units(self.module)
        _config.check_processes(self.config, self.world_size)
        settings = _config.for_library(self.config, optimizer, self._most_live())
        hidden = getattr(getattr(self.module, "config", None), "hidden_size", 0)
        resolved = zinc.Config(settings, self.world_size, "the DeepSpeed configuration",
                               hidden if isinstance(hidden, int) else 0)
        try:
            for note in resolved.notes():
                logger.info(note)
            self._gas = resolved.get("gradient_accumulation_steps")
            self._micro = resolved.get("train_micro_batch_size_per_gpu")
            self._clipping = resolved.get("gradient_clipping")
            self._scheduled = (resolved.get("scheduler") or {}).get("type") \
                if self.config.get("scheduler") else None
            held = self._optimizer_and_groups(optimizer, model_parameters, resolved)
            self._held = held
            self.zinc = zinc.Engine(self._comm, resolved, self._library_groups(), held is not None,
                                    grad_divisor=float(self.world_size), memory=Blocks(),
                                    unscale_grown=True)  # losses are those of DeepSpeed
        finally:
            resolved.close()
        self.optimizer = ZincOptimizer(self, held) if held is not None else None
        self._add_params(held, names)
        self.zinc.build()
        self._dtype = _DTYPES[self.zinc.dtype]

    def _library_groups(self):
        """Hyper-parameters of now. The rate is the configured schedule's where there is one."""
        if self._held is None:
            return None
        out = []
        for group in self._held.param_groups:
            values = {k: float(group[k]) for k in ("weight_decay", "eps", "momentum", "dampening")
                      if group.get(k) is not None}
            if group.get("betas") is not None:
                values["beta1"], values["beta2"] = (float(b) for b in group["betas"])
            if not self._scheduled:
                values["lr"] = float(group["lr"])
            out.append(zinc.group(**values))
        return out

    def _most_live(self):
        """Elements of the two largest units: one that is used and one that comes."""
        sizes = sorted(sum(_shape_of(p).numel() for p in unit.params) for unit in self._units)
        padding = 1024 * self.world_size
        return sum(sizes[-2:]) + padding * (2 + sum(sizes[-2:]) // (1 << 20))

    def _add_params(self, held, names):
        group_of = {}
        for i, group in enumerate(held.param_groups if held else []):
            for param in group["params"]:
                group_of[param] = i
        missing = [p for p in group_of if p not in names]
        if missing:
            raise ValueError(f"zinc: {len(missing)} parameters of the optimizer are not the model's; the first has "
                             f"shape {tuple(missing[0].shape)}")
        for unit in self._units:
            self.zinc.add_unit(unit.name)
            for param in unit.params:
                trains = param in group_of and param.requires_grad
                shape = _shape_of(param)
                index = self.zinc.add_param(names[param], unit.index, shape, shape.numel(), trains,
                                            group_of.get(param, 0))
                unit.indices.append(index)
                if trains:
                    unit.trainable.add(index)
                unit.has_frozen |= not trains

    def _fill(self):
        """Values from rank 0's module, or of zero.Init's shards."""
        for unit in self._units:
            for param in unit.params:
                if not hasattr(param, "_zinc"):
                    param.data = param.data.contiguous()
                    from_rank(param.data, 0)
        if self._stage == 3:
            self._fill_partitioned()
            return
        flat = [p.data.reshape(-1) for u in self._units for p in u.params]

        def give(index, at, n, address):
            _floats_at(address, n).copy_(flat[index][at:at + n])

        self.zinc.fill(give)
        for unit in self._units:
            self.zinc.acquire(unit.index)
            for param, index in zip(unit.params, unit.indices):
                param.data = self._shown[index] = self.zinc.blocks.view(
                    self.zinc.data(index), param.shape, self._dtype)
            self.zinc.release(unit.index)

    def _fill_partitioned(self):
        """Whole parameters exist one at a time: what this rank keeps is found first, by a fill that
        gives nothing, then cut out of each, then given."""
        wanted, kept = {}, {}

        def note(index, at, n, address):
            wanted.setdefault(index, []).append((at, n))
            ctypes.memset(address, 0, 4 * n)

        def give(index, at, n, address):
            _floats_at(address, n).copy_(kept[index, at])

        self.zinc.fill(note)
        for unit in self._units:
            for param, index in zip(unit.params, unit.indices):
                part = getattr(param, "_zinc", None)
                if part is not None:
                    hold([part])
                flat = param.data.reshape(-1)
                for at, n in wanted.get(index, []):
                    kept[index, at] = flat[at:at + n].clone()
                if part is not None:
                    let_go([part])
        self.zinc.fill(give)
        for unit in self._units:
            for param, index in zip(unit.params, unit.indices):
                part = getattr(param, "_zinc", None) or Part.of_engine(param)
                part.hand_over(self.zinc, index, unit.index, self._dtype)
                unit.parts.append(part)

    def _set_hooks(self):
        if self._stage == 3:
            self._hooks = Hooks(self.module, self._units, self._forward_kind)
        for unit in self._units:
            for param, index in zip(unit.params, unit.indices):
                param._zinc_place = (self.zinc, index, _shape_of(param))
                if index in unit.trainable:
                    self._handles.append(param.register_post_accumulate_grad_hook(
                        self._gradient_hook(unit, index)))

    def _make_scheduler(self, lr_scheduler):
        self.lr_scheduler = None
        if self._held is None:
            return
        if self._scheduled:
            if self._scheduled not in SCHEDULES:
                raise NotImplementedError(f"zinc: scheduler type {self._scheduled} from Python: use one of "
                                          f"{', '.join(SCHEDULES)}, or a torch scheduler")
            self.lr_scheduler = SCHEDULES[self._scheduled]._of(self.zinc, self._held)
        elif lr_scheduler is not None:
            made = hasattr(lr_scheduler, "step")
            self.lr_scheduler = lr_scheduler if made else lr_scheduler(self._held)

    def _say_what_is_idle(self):
        for block in ("tensorboard", "wandb", "csv_monitor", "comet", "flops_profiler", "comms_logger"):
            if (self.config.get(block) or {}).get("enabled") is True and self.global_rank == 0:
                logger.warning("\"%s\" has no effect from Python: use the script's own logging", block)

    # ---- a micro-batch ----

    def forward(self, *args, **kwargs):
        fp16 = self.config.get("fp16") or {}
        if fp16.get("auto_cast") is True and self._dtype == torch.float16:
            args, kwargs = _to_half(args), _to_half(kwargs)
        return self.module(*args, **kwargs)

    def _forward_kind(self):
        """What libzinc records the order of use by: inside backward a layer is computed again."""
        if self._in_backward:
            return zinc.BACKWARD
        trains = self._held is not None and not self._ready and self.module.training
        return zinc.FORWARD if trains and torch.is_grad_enabled() else zinc.EVAL

    def is_gradient_accumulation_boundary(self):
        if self._boundary is not None:
            return self._boundary
        return (self.micro_steps + 1) % self._gas == 0

    def set_gradient_accumulation_boundary(self, is_boundary):
        """The next backward is, or is not, a step's last; from now on the script says."""
        self._boundary = bool(is_boundary)

    def _gradient_hook(self, unit, index):
        def arrived(param):
            if not self._in_backward:
                raise RuntimeError("zinc: loss.backward() was called: call engine.backward(loss)")
            grad, param.grad = param.grad, None
            grad = grad.to_dense() if grad.is_sparse else grad
            grad = grad if grad.dtype in _CODES else grad.float()
            grad = grad.contiguous()
            self.zinc.grad_ready(index, grad.data_ptr(), _CODES[grad.dtype])
            unit.waiting.discard(index)
            if not unit.waiting:
                release_if_done(unit)
                self._reduce_complete()

        return arrived

    def _reduce_complete(self):
        """Units are reduced from the last to the first on every rank, whatever a rank's order of
        gradients: a unit waits for those behind it."""
        while self._next >= 0 and not self._units[self._next].waiting:
            self.zinc.reduce(self._next)
            self._next -= 1

    def backward(self, loss, allreduce_gradients=True, retain_graph=False, scale_wrt_gas=True):
        """Gradients of a micro-batch. Returns the loss, divided by the accumulation steps unless
        scale_wrt_gas is False."""
        if self._held is None:
            raise RuntimeError("zinc: backward without an optimizer: give initialize one")
        if self._ready:
            raise RuntimeError("zinc: backward after a boundary: call engine.step() first")
        del allreduce_gradients
        boundary = self.is_gradient_accumulation_boundary()
        if scale_wrt_gas:
            loss = loss / self._gas
        for unit in self._units:
            unit.waiting = set(unit.trainable)
        self._next = len(self._units) - 1
        self.zinc.set_boundary(boundary)
        self._in_backward = True
        try:
            (loss.float() * self.zinc.loss_scale).backward(retain_graph=retain_graph)
        finally:
            self._in_backward = False
            for unit in self._units:
                unit.inputs_left = 0
                unit.drop("backward")
        self.zinc.backward_end()
        self.micro_steps += 1
        self._ready = boundary
        return loss.detach()

    def step(self, lr_kwargs=None):
        """After a boundary: clip, step, new values, the schedule. Else nothing."""
        if not self._ready:
            return
        self._ready = False
        result = self.zinc.step(self._library_groups())
        skipped = bool(result.skipped)
        self._grad_norm = math.inf if skipped else result.grad_norm  # as DeepSpeed, whatever was not finite
        self.optimizer.overflow = skipped
        self.global_steps += 1
        self.skipped_steps += skipped
        self._held._opt_called = True  # torch's schedulers ask
        if skipped:
            where = f" in {result.bad_param.decode()} of rank {result.bad_rank}" if result.bad_param else ""
            logger.warning("step %d is skipped: a gradient is not finite%s; loss scale %g", self.global_steps,
                           where, self.zinc.loss_scale)
            return
        self._publish()
        if self.lr_scheduler is not None:
            self.lr_scheduler.step(**(lr_kwargs or {}))

    @torch.no_grad()
    def _publish(self):
        """Parameters below stage 3 show libzinc's values, whatever the script has put there. Under
        stage 3 they come when they are used."""
        if self._stage == 3:
            return
        for unit in self._units:
            for param, index in zip(unit.params, unit.indices):
                if param.dtype != self._dtype or param.numel() != self.zinc.params[index][1]:
                    raise RuntimeError(f"zinc: {self.zinc.params[index][0]} is {param.dtype} {tuple(param.shape)} "
                                       "now: the model was changed after deepspeed.initialize")
                if param.data_ptr() != self._shown[index].data_ptr():
                    param.data = self._shown[index]

    def zero_grad(self, set_to_none=True):
        for param in self.module.parameters():
            param.grad = None

    @contextlib.contextmanager
    def no_sync(self):
        if self._stage >= 2:
            raise AssertionError(f"no_sync context manager is incompatible with gradient partitioning logic of ZeRO "
                                 f"stage {self._stage}")
        yield

    # ---- looking ----

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "module" or name.startswith("__"):
                raise
            return getattr(super().__getattr__("module"), name)

    def get_global_grad_norm(self):
        return self._grad_norm

    def get_lr(self):
        return [group["lr"] for group in self._held.param_groups] if self._held else []

    def get_mom(self):
        groups = self._held.param_groups if self._held else []
        return [group.get("betas", group.get("momentum")) for group in groups]

    @property
    def global_samples(self):
        return self.global_steps * self.train_batch_size()

    def get_batch_info(self):
        return self.train_batch_size(), self._micro, self._gas

    set_train_batch_size = refuse("engine.set_train_batch_size", "say train_batch_size in the configuration")
    set_train_micro_batch_size = refuse("engine.set_train_micro_batch_size", "batches may have any number of rows "
                                        "as they are")

    def train_batch_size(self):
        return self._micro * self._gas * self.world_size

    def train_micro_batch_size_per_gpu(self):
        return self._micro

    def gradient_accumulation_steps(self):
        return self._gas

    def gradient_clipping(self):
        return self._clipping

    def zero_optimization(self):
        return self._stage > 0

    def zero_optimization_stage(self):
        return self._stage

    def zero_optimization_partition_weights(self):
        return self._stage == 3

    def fp16_enabled(self):
        return self._dtype == torch.float16

    def bfloat16_enabled(self):
        return self._dtype == torch.bfloat16

    def loss_scale(self):
        return self.zinc.loss_scale

    def dynamic_loss_scale(self):
        return self.fp16_enabled() and not (self.config.get("fp16") or {}).get("loss_scale")

    def optimizer_name(self):
        return (self.config.get("optimizer") or {}).get("type")

    def scheduler_name(self):
        return (self.config.get("scheduler") or {}).get("type")

    def module_state_dict(self, destination=None, prefix="", keep_vars=False,
                          exclude_frozen_parameters=False):
        """Names and tensors of the module; under stage 3 they are empty outside GatheredParameters, as
        in DeepSpeed."""
        out = self.module.state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)
        if exclude_frozen_parameters:
            for name, param in self.module.named_parameters():
                if not param.requires_grad:
                    out.pop(prefix + name, None)
        return out

    def was_step_applied(self):
        return self.optimizer is not None and not self.optimizer.overflow

    # ---- out and in ----

    def zero_gather_16bit_weights_on_model_save(self):
        zero = self.config.get("zero_optimization") or {}
        return zero.get("stage3_gather_16bit_weights_on_model_save") is True

    def _zero3_consolidated_16bit_state_dict(self, exclude_frozen_parameters=False):
        return _save.consolidated(self, exclude_frozen_parameters)

    def save_16bit_model(self, save_dir, save_filename="pytorch_model.bin",
                         exclude_frozen_parameters=False):
        return _save.save_16bit_model(self, save_dir, save_filename, exclude_frozen_parameters)

    save_fp16_model = save_16bit_model

    def save_checkpoint(self, save_dir, tag=None, client_state=None, save_latest=True,
                        exclude_frozen_parameters=False):
        return _save.save(self, save_dir, tag, client_state, save_latest, exclude_frozen_parameters)

    def load_checkpoint(self, load_dir, tag=None, load_module_strict=True,
                        load_optimizer_states=True, load_lr_scheduler_states=True,
                        load_module_only=False, custom_load_fn=None):
        if custom_load_fn is not None:
            raise NotImplementedError("zinc: load_checkpoint(custom_load_fn=) is not supported")
        return _save.load(self, load_dir, tag, load_module_strict,
                          load_optimizer_states and not load_module_only,
                          load_lr_scheduler_states and not load_module_only)

    def offload_states(self, include=None, device=None, pin_memory=True, non_blocking=False):
        """To the host's memory, where all states are: nothing is to be done."""
        del include, pin_memory, non_blocking
        if device is not None and str(getattr(device, "value", device)) not in ("cpu", "none"):
            raise NotImplementedError(f"zinc: offload_states(device={device}) is not supported: states are in host "
                                      "memory; \"offload_optimizer\" of the configuration puts them on a disk")

    def reload_states(self, non_blocking=False):
        """What offload_states would have moved away."""
        del non_blocking

    def compile(self, *args, **kwargs):
        raise NotImplementedError("zinc: engine.compile is not supported: train without torch.compile")

    def _take_hooks_off(self):
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks = None

    def destroy(self):
        """Release what libzinc holds. Collective; not an error twice."""
        self._take_hooks_off()
        engine = self.__dict__.get("zinc")
        if engine is not None:
            engine.close()
        self._comm.close()


def _shape_of(param):
    return param._zinc.shape if hasattr(param, "_zinc") else param.shape


def _floats_at(address, n):
    return torch.frombuffer((ctypes.c_char * (4 * n)).from_address(address), dtype=torch.float32)


def _to_half(value):
    if torch.is_tensor(value):
        return value.half() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {k: _to_half(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(_to_half(v) for v in value)
    return value


def initialize(args=None, model=None, optimizer=None, model_parameters=None, training_data=None,
               lr_scheduler=None, distributed_port=29500, mpu=None, dist_init_required=None,
               collate_fn=None, config=None, mesh_param=None, config_params=None):
    """deepspeed.initialize: (engine, optimizer, dataloader or None, lr_scheduler). Collective."""
    if model is None:
        raise ValueError("deepspeed.initialize requires a model")
    if mesh_param is not None:
        raise NotImplementedError("zinc: mesh_param (sequence parallelism) is not supported")
    del mpu
    for given in (config_params, getattr(args, "deepspeed_config", None)):
        config = given if config is None else config
    if config is None:
        raise ValueError("DeepSpeed requires --deepspeed_config to specify a configuration file")
    config = _config.as_dict(config)
    comm.init_distributed(distributed_port=distributed_port, dist_init_required=dist_init_required)
    engine = DeepSpeedEngine(model, config, optimizer, model_parameters, lr_scheduler)
    loader = None
    if training_data is not None:
        from torch.utils.data import DataLoader
        from torch.utils.data.distributed import DistributedSampler
        sampler = DistributedSampler(training_data, engine.world_size, engine.global_rank)
        loader = DataLoader(training_data, engine._micro, sampler=sampler, collate_fn=collate_fn)
        engine.training_dataloader = loader
    return engine, engine.optimizer, loader, engine.lr_scheduler

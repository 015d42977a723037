# SPDX-License-Identifier: Apache-2.0
"""Units of a torch module, and the hooks by which stage 3 gathers them.

A unit is what is gathered together: a block of a ModuleList, a leaf module, or the parameters that
one module owns. Its parameters are held while a forward runs through any of its modules, and from
the moment that a gradient reaches an output of one until the last gradient of the unit is there."""
import dataclasses

import torch
from zinc import BACKWARD, EVAL

from ._stage3 import hold, let_go


class Unit:
    def __init__(self, index, name):
        self.index, self.name = index, name
        self.params = []       # torch parameters, each in one unit
        self.indices = []      # their numbers in the engine
        self.trainable = set() # numbers that get a gradient
        self.waiting = set()   # those whose gradient of this micro-batch is still to come
        self.has_frozen = False
        self.parts = []        # stage 3
        self.in_forward = 0    # modules of the unit that are running
        self.held = {"forward": False, "backward": False}
        self.inputs_left = 0   # inputs whose gradient is still to come

    def hold(self, why, kind):
        if not self.held[why]:
            self.held[why] = True
            hold(self.parts, kind)

    def drop(self, why):
        if self.held[why]:
            self.held[why] = False
            let_go(self.parts)


def unit_roots(module):
    """Modules that are gathered whole: leaf modules, and the outermost blocks of ModuleLists."""
    out = []

    def walk(parent, prefix):
        for name, child in parent.named_children():
            path = f"{prefix}{name}"
            if getattr(child, "_z3_leaf", False) or isinstance(parent, torch.nn.ModuleList):
                out.append((path, child))
            else:
                walk(child, path + ".")

    if getattr(module, "_z3_leaf", False):
        return [("", module)]
    walk(module, "")
    return out


def make_units(module):
    """All parameters of a module in units, in the order in which they were registered; and the
    name of each, the first that it has."""
    names, units, seen = {}, [], set()
    for name, param in module.named_parameters():
        names[param] = name
    roots = dict(unit_roots(module))
    owner_of = {}
    for path, root in roots.items():
        for inner in root.modules():
            owner_of.setdefault(inner, path)
    by_path = {}
    for path, child in module.named_modules():
        for param in child.parameters(recurse=False):
            if param in seen or not param.is_floating_point():
                continue
            if param.numel() == 0 and getattr(param, "_zinc", None) is None:
                raise ValueError(f"zinc: {names[param]} has no elements: a copy of a partitioned parameter is "
                                 "empty; copy the model before it is partitioned, or inside GatheredParameters")
            seen.add(param)
            home = owner_of.get(child, path)
            if home not in by_path:
                by_path[home] = Unit(len(units), home or "(model)")
                units.append(by_path[home])
            by_path[home].params.append(param)
    return units, names


def _tensors(value):
    """Tensors in what a module takes or returns."""
    if torch.is_tensor(value):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _tensors(getattr(value, field.name))


class Hooks:
    """Hooks of one engine's units on one module tree."""

    def __init__(self, module, units, forward_kind=lambda: EVAL):
        """forward_kind: what a forward pass that begins now is for libzinc."""
        self.handles, self.forward_kind = [], forward_kind
        self.units_of = {}  # module -> units that it reads, in their order
        unit_of = {p: u for u in units for p in u.params}
        self.unit_of = unit_of
        for child in module.modules():
            mine = {unit_of[p].index: unit_of[p] for p in child.parameters(recurse=False)
                    if p in unit_of}
            for p in child.__dict__.get("_zinc_external", []):
                if p in unit_of:
                    mine[unit_of[p].index] = unit_of[p]
            self.units_of[child] = [mine[i] for i in sorted(mine)]
            child.__dict__.setdefault("_zinc_hooks", []).append(self)
        for _path, root in unit_roots(module):
            inner = {unit_of[p].index: unit_of[p] for p in root.parameters() if p in unit_of}
            own = {u.index: u for u in self.units_of[root]}
            own.update(inner)
            self.units_of[root] = [own[i] for i in sorted(own)]
        self.running = {}  # module -> stack of the units that its calls hold
        for child in self.units_of:
            self.handles.append(child.register_forward_pre_hook(self._before, with_kwargs=True,
                                                                prepend=True))
            self.handles.append(child.register_forward_hook(self._after, always_call=True))

    def add_external(self, module, param):
        unit = self.unit_of.get(param)
        if unit is not None and unit not in self.units_of[module]:
            self.units_of[module] = self.units_of[module] + [unit]

    def _before(self, module, args, kwargs):
        mine, kind = self.units_of[module], self.forward_kind()
        self.running.setdefault(module, []).append(mine)
        for unit in mine:
            unit.in_forward += 1
            unit.hold("forward", kind)
            if unit.has_frozen and unit.in_forward == 1 and torch.is_grad_enabled():
                self._watch_inputs(unit, (args, kwargs))

    def _watch_inputs(self, unit, inputs):
        """A frozen weight is read until the gradient of the unit's inputs is there."""
        def arrived(_grad):
            unit.inputs_left -= 1
            release_if_done(unit)

        for tensor in _tensors(inputs):
            if tensor.requires_grad:
                unit.inputs_left += 1
                tensor.register_hook(arrived)

    def _after(self, module, _args, output):
        mine = self.running[module].pop()
        if mine and torch.is_grad_enabled():
            def arrives(_grad):
                for unit in mine:
                    unit.hold("backward", BACKWARD)

            for tensor in _tensors(output):
                if tensor.requires_grad:
                    tensor.register_hook(arrives)
        for unit in mine:
            unit.in_forward -= 1
            if unit.in_forward == 0:
                unit.drop("forward")

    def remove(self):
        """Not an error twice."""
        for handle in self.handles:
            handle.remove()
        self.handles = []
        for child in self.units_of:
            if self in child._zinc_hooks:
                child._zinc_hooks.remove(self)


def release_if_done(unit):
    """Let go once nothing of backward reads the unit's parameters any more: every trainable one has
    its whole gradient, and the gradient has passed the frozen ones."""
    if not unit.waiting and (not unit.has_frozen or unit.inputs_left <= 0):
        unit.drop("backward")

# SPDX-License-Identifier: Apache-2.0
"""This rank's ranges of an engine's values, kept while the engine is given new ones."""
import ctypes

import torch
import zinc


class Kept:
    """Ranges by (what, parameter). They may be asked for in other cuts than they came in."""

    def __init__(self):
        self.ranges = {}

    def take(self, what, index, at, n, address):
        self.ranges.setdefault((what, index), []).append((at, ctypes.string_at(address, 4 * n)))

    def give(self, what, index, at, n, address):
        """Write elements [at, at + n) at address."""
        done = 0
        for start, data in self.ranges.get((what, index), []):
            first, end = max(at, start), min(at + n, start + len(data) // 4)
            if first < end:
                ctypes.memmove(address + 4 * (first - at), data[4 * (first - start):4 * (end - start)],
                               4 * (end - first))
                done += end - first
        if done != n:
            raise RuntimeError(f"{n - done} of {n} values of parameter {index} were not kept")


def rewrite(engine, values):
    """Give masters or states new values, {(what, number): whole fp32 tensor, equal on every rank};
    all else stays. For now and then: it copies what the rank has. Collective."""
    kept = Kept()
    for what in [zinc.MASTERS] + list(range(len(engine.state_names()))):
        engine.visit(what, lambda index, at, n, address, what=what: kept.take(what, index, at, n,
                                                                             address))
    flat = {key: value.detach().reshape(-1).float() for key, value in values.items()}

    def give(what, index, at, n, address):
        if (what, index) in flat:
            target = (ctypes.c_char * (4 * n)).from_address(address)
            torch.frombuffer(target, dtype=torch.float32).copy_(flat[what, index][at:at + n])
        else:
            kept.give(what, index, at, n, address)

    engine.restore(give, engine.progress())

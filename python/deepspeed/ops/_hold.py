# SPDX-License-Identifier: Apache-2.0
"""A torch optimizer that only holds parameter groups: learning-rate schedulers and scripts read and
write them, and the engine reads them at every step."""
import torch


class Held(torch.optim.Optimizer):
    # Group dicts of the caller are kept as they are: a scheduler may hold them already.
    def step(self, closure=None):
        raise RuntimeError("zinc: this optimizer holds hyper-parameters; call engine.step()")

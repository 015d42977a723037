# SPDX-License-Identifier: Apache-2.0
"""deepspeed.ops.lion."""
from .._hold import Held


class DeepSpeedCPULion(Held):
    def __init__(self, model_params, lr=1e-3, betas=(0.9, 0.999), weight_decay=0,
                 fp32_optimizer_states=True):
        if not fp32_optimizer_states:
            raise NotImplementedError("zinc: 16-bit optimizer states are not supported")
        super().__init__(model_params, dict(lr=lr, betas=tuple(betas), weight_decay=weight_decay))


class FusedLion(DeepSpeedCPULion):
    pass

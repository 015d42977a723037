# SPDX-License-Identifier: Apache-2.0
"""deepspeed.ops.adagrad."""
from .._hold import Held


class DeepSpeedCPUAdagrad(Held):
    def __init__(self, model_params, lr=1e-2, eps=1e-10, weight_decay=0, amsgrad=False,
                 fp32_optimizer_states=True):
        if amsgrad or not fp32_optimizer_states:
            raise NotImplementedError("zinc: amsgrad and 16-bit optimizer states are not supported")
        super().__init__(model_params, dict(lr=lr, eps=eps, weight_decay=weight_decay))

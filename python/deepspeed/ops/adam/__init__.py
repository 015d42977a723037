# SPDX-License-Identifier: Apache-2.0
"""deepspeed.ops.adam: they hold hyper-parameters; the engine that takes them does the update."""
from .._hold import Held


class DeepSpeedCPUAdam(Held):
    """torch's Adam (adamw_mode False) or AdamW."""

    def __init__(self, model_params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8,
                 weight_decay=0.0, amsgrad=False, adamw_mode=True, fp32_optimizer_states=True):
        if amsgrad or not fp32_optimizer_states:
            raise NotImplementedError("zinc: amsgrad and 16-bit optimizer states are not supported")
        self.adam_w_mode = adamw_mode
        super().__init__(model_params, dict(lr=lr, betas=tuple(betas), eps=eps,
                                            weight_decay=weight_decay,
                                            bias_correction=bias_correction))


class FusedAdam(DeepSpeedCPUAdam):
    def __init__(self, params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8,
                 adam_w_mode=True, weight_decay=0.0, amsgrad=False, set_grad_none=True):
        del set_grad_none
        super().__init__(params, lr, bias_correction, betas, eps, weight_decay, amsgrad, adam_w_mode)

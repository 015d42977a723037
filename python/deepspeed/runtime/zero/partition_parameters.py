# SPDX-License-Identifier: Apache-2.0
"""deepspeed.runtime.zero.partition_parameters: transformers exchanges the first two while it builds
a model. Zinc's Init leaves torch's constructors alone, so nothing happens by them."""
import torch

from ..._stage3 import GatheredParameters, Init, ZeroParamStatus, register_external_parameter
from ...accelerator import get_accelerator

__all__ = ["GatheredParameters", "Init", "ZeroParamStatus", "get_accelerator",
           "register_external_parameter", "zero_wrapper_for_fp_tensor_constructor"]
_orig_torch_arange = torch.arange


def zero_wrapper_for_fp_tensor_constructor(fn, target_fp_dtype):
    del target_fp_dtype
    return fn

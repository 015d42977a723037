# SPDX-License-Identifier: Apache-2.0
"""deepspeed.zero: parameters of stage 3, built partitioned and gathered by hand."""
from .._refuse import refuse
from .._stage3 import GatheredParameters, Init, ZeroParamStatus, register_external_parameter

__all__ = ["GatheredParameters", "Init", "TiledLinear", "ZeroParamStatus",
           "register_external_parameter"]
TiledLinear = refuse("deepspeed.zero.TiledLinear", "use a plain Linear")

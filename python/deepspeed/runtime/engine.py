# SPDX-License-Identifier: Apache-2.0
"""deepspeed.runtime.engine."""
from .._engine import DeepSpeedEngine

__all__ = ["DeepSpeedEngine"]

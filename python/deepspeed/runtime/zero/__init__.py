# SPDX-License-Identifier: Apache-2.0
from . import partition_parameters

__all__ = ["partition_parameters"]

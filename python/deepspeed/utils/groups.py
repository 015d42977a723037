# SPDX-License-Identifier: Apache-2.0
"""deepspeed.utils.groups: there is one group, of all ranks."""
from .._refuse import refuse
from ..comm import get_rank, get_world_size

_WHY = "Zinc has data parallelism only"


def _get_data_parallel_world_size():
    return get_world_size()


def _get_data_parallel_rank():
    return get_rank()


_get_sequence_parallel_group = refuse("sequence parallelism (Ulysses)", _WHY)
_get_sequence_parallel_world_size = _get_sequence_parallel_group
_get_sequence_parallel_rank = _get_sequence_parallel_group
_get_expert_parallel_group = refuse("expert parallelism", _WHY)

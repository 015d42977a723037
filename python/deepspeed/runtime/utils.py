# SPDX-License-Identifier: Apache-2.0
"""deepspeed.runtime.utils: what scripts print."""
from ..utils.logging import logger


def see_memory_usage(message, force=False, ranks=(0,)):
    """Of the whole process, in GB: what it has now and what it had at most."""
    from ..accelerator import get_accelerator
    from ..comm import get_rank
    if force and get_rank() in ranks:
        here = get_accelerator()
        logger.info("%s | resident %.2f GB, at most %.2f GB", message, here.memory_allocated() / 2**30,
                    here.max_memory_allocated() / 2**30)

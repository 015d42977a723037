# SPDX-License-Identifier: Apache-2.0
"""deepspeed.checkpointing: activations computed again in backward, by torch's own means. Partitioned
and offloaded activations are for model parallelism, which Zinc has not."""
from ._refuse import refuse

_configured = False


def configure(mpu_=None, deepspeed_config=None, partition_activations=None, contiguous_checkpointing=None,
              num_checkpoints=None, checkpoint_in_cpu=None, synchronize=None, profile=None):
    """What these ask for saves memory between model-parallel ranks, and has no effect here."""
    del mpu_, deepspeed_config, partition_activations, contiguous_checkpointing
    del num_checkpoints, checkpoint_in_cpu, synchronize, profile
    global _configured
    _configured = True


def is_configured():
    return _configured


def reset():
    """Nothing is kept between iterations."""


def checkpoint(function, *args, **kwargs):
    from torch.utils.checkpoint import checkpoint as torch_checkpoint
    return torch_checkpoint(function, *args, use_reentrant=False, **kwargs)


non_reentrant_checkpoint = checkpoint
_WHY = "Zinc has data parallelism only"
get_cuda_rng_tracker = refuse("deepspeed.checkpointing.get_cuda_rng_tracker", _WHY)
model_parallel_cuda_manual_seed = refuse("deepspeed.checkpointing.model_parallel_cuda_manual_seed", _WHY)

# SPDX-License-Identifier: Apache-2.0
"""Weights of a checkpoint folder as an fp32 state dict, without an engine and on one process."""
from .._save import read_masters


def get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag=None,
                                             exclude_frozen_parameters=False, lazy_mode=False):
    del lazy_mode
    return read_masters(checkpoint_dir, tag, exclude_frozen_parameters)


def load_state_dict_from_zero_checkpoint(model, checkpoint_dir, tag=None):
    model.load_state_dict(read_masters(checkpoint_dir, tag, False), strict=False)
    return model

# SPDX-License-Identifier: Apache-2.0
"""deepspeed.accelerator: where tensors of a script live. This front-end computes on the CPU."""
import os


class CpuAccelerator:
    _name = "cpu"

    def device_name(self, device_index=None):
        return "cpu"

    def current_device_name(self):
        return "cpu"

    def current_device(self):
        return 0

    def device(self, device_index=None):
        import torch
        return torch.device("cpu")

    def device_count(self):
        return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))

    def is_available(self):
        return True

    def set_device(self, device_index):
        return None

    def synchronize(self, device_index=None):
        return None

    def empty_cache(self):
        return None

    def communication_backend_name(self):
        return "gloo"

    def is_bf16_supported(self):
        return True

    def is_fp16_supported(self):
        return True


_THE_ONE = CpuAccelerator()


def get_accelerator():
    return _THE_ONE

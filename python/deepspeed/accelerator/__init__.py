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

    def manual_seed(self, seed):
        import torch
        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def memory_allocated(self, device_index=None):
        """Resident bytes of the process: it is the CPU's memory."""
        with open("/proc/self/statm", encoding="ascii") as f:
            return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def max_memory_allocated(self, device_index=None):
        import resource
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    memory_reserved, max_memory_reserved = memory_allocated, max_memory_allocated

    def reset_peak_memory_stats(self, device_index=None):
        """The system's own peak stays."""

    def total_memory(self, device_index=None):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def pin_memory(self, tensor, align_bytes=1):
        return tensor

    def on_accelerator(self, tensor):
        return tensor.device.type == "cpu"

    def communication_backend_name(self):
        return "gloo"

    def is_bf16_supported(self):
        return True

    def is_fp16_supported(self):
        return True


_THE_ONE = CpuAccelerator()


def get_accelerator():
    return _THE_ONE

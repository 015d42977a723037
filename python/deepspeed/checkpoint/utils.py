# SPDX-License-Identifier: Apache-2.0
"""deepspeed.checkpoint.utils."""
import torch


def clone_tensors_for_torch_save(item, device=torch.device("cpu")):
    """The same nesting with every tensor a copy: a view is saved with all of its storage."""
    if torch.is_tensor(item):
        return item.detach().clone() if item.device == torch.device(device) else item.detach().to(device)
    if isinstance(item, dict):
        return type(item)((k, clone_tensors_for_torch_save(v, device)) for k, v in item.items())
    if isinstance(item, (list, tuple)):
        out = [clone_tensors_for_torch_save(v, device) for v in item]
        return type(item)(*out) if hasattr(item, "_fields") else type(item)(out)
    return item

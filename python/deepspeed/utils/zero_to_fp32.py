# SPDX-License-Identifier: Apache-2.0
"""Weights of a checkpoint folder as an fp32 state dict, without an engine and on one process."""
import argparse
import os

from .._save import read_masters


def get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag=None,
                                             exclude_frozen_parameters=False, lazy_mode=False):
    del lazy_mode
    return read_masters(checkpoint_dir, tag, exclude_frozen_parameters)


def load_state_dict_from_zero_checkpoint(model, checkpoint_dir, tag=None):
    model.load_state_dict(read_masters(checkpoint_dir, tag, False), strict=False)
    return model


def convert_zero_checkpoint_to_fp32_state_dict(checkpoint_dir, output_dir, max_shard_size="5GB",
                                               safe_serialization=False, tag=None,
                                               exclude_frozen_parameters=False):
    """OUTPUT_DIR/pytorch_model.bin; a path that ends in .bin, .pt or .pth is the file itself. One
    file: `zinc export` writes safetensors in shards."""
    import torch
    del max_shard_size
    if safe_serialization:
        raise NotImplementedError("zinc: safe_serialization=True: `zinc export CHECKPOINT OUTPUT` writes safetensors")
    weights = read_masters(checkpoint_dir, tag, exclude_frozen_parameters)
    path = output_dir if str(output_dir).endswith((".bin", ".pt", ".pth")) else \
        os.path.join(output_dir, "pytorch_model.bin")
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    torch.save(dict(weights), path)


def main():
    """The zero_to_fp32.py that lies beside checkpoints."""
    parser = argparse.ArgumentParser(prog="zero_to_fp32.py",
                                     description="fp32 weights of a checkpoint as a torch file")
    parser.add_argument("checkpoint_dir", help="the folder with `latest`")
    parser.add_argument("output_dir", help="a folder, or a file that ends in .bin, .pt or .pth")
    parser.add_argument("-t", "--tag", default=None, help="the checkpoint in it; default: `latest`")
    parser.add_argument("--exclude_frozen_parameters", action="store_true")
    args = parser.parse_args()
    convert_zero_checkpoint_to_fp32_state_dict(
        args.checkpoint_dir, args.output_dir, tag=args.tag,
        exclude_frozen_parameters=args.exclude_frozen_parameters)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps of PyTorch FSDP2 (fully_shard) on the CPU over gloo, a process a rank; prints one JSON object."""
import argparse

import ranks
import shapes


def run_rank(rank, args):
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.distributed.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (args.ranks,))
    model = shapes.torch_model(args.model, "float32", args.folder)
    policy = {}
    if args.dtype == "bfloat16":
        policy["mp_policy"] = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for layer in model.transformer.h if args.model == "gpt2" else model.model.layers:
        fully_shard(layer, mesh=mesh, **policy)
    fully_shard(model, mesh=mesh, **policy)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    vocabulary = model.config.vocab_size

    def step():
        ids = torch.randint(vocabulary, (args.rows, args.tokens))
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    walls, first = shapes.timed_steps(step, args.steps)
    peak = ranks.summed(shapes.peak_mib())
    if rank == 0:
        shapes.report(f"FSDP2 {args.dtype}", args, args.ranks, walls, first, peak)
    torch.distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    shapes.arguments(parser)
    ranks.arguments(parser)
    ranks.start(run_rank, parser.parse_args())


if __name__ == "__main__":
    main()

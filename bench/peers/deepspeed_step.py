#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps of DeepSpeed on the CPU over gloo, a process a rank; prints one JSON object. It starts its ranks itself, or is
one that the command `deepspeed` has started (start.py)."""
import argparse

import ranks
import shapes


def run_rank(rank, args):
    import torch
    import deepspeed

    deepspeed.init_distributed("gloo", verbose=False)
    config = {
        "train_micro_batch_size_per_gpu": args.rows,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": args.stage},
        "bf16": {"enabled": args.dtype == "bfloat16"},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": args.torch_adam}},
        "steps_per_print": 10**9,
    }
    model = shapes.torch_model(args.model, "float32", args.folder)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    vocabulary = model.config.vocab_size

    def step():
        ids = torch.randint(vocabulary, (args.rows, args.tokens))
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()

    walls, first = shapes.timed_steps(step, args.steps)
    peak = ranks.summed(shapes.peak_mib())
    if rank == 0:
        shapes.report(f"deepspeed {deepspeed.__version__} ZeRO-{args.stage} {args.dtype}", args, args.ranks, walls, first,
                      peak)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    shapes.arguments(parser)
    ranks.arguments(parser)
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--torch_adam", action="store_true", help="where DeepSpeed's own does not build")
    parser.add_argument("--local_rank", help="given by the command deepspeed")
    ranks.start(run_rank, parser.parse_args())


if __name__ == "__main__":
    main()

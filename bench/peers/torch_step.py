#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps of transformers with torch's fused AdamW in one process; prints one JSON object."""
import argparse
import contextlib

import shapes


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    shapes.arguments(parser)
    parser.add_argument("--autocast", action="store_true", help="bf16 by torch.autocast over fp32 weights")
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    args = parser.parse_args()
    import torch

    torch.set_num_threads(args.threads)
    model = shapes.torch_model(args.model, args.dtype, args.folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    forward = torch.compile(model) if args.compile else model
    vocabulary = model.config.vocab_size

    def step():
        ids = torch.randint(vocabulary, (args.rows, args.tokens))
        with torch.autocast("cpu", dtype=torch.bfloat16) if args.autocast else contextlib.nullcontext():
            loss = forward(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    walls, first = shapes.timed_steps(step, args.steps)
    who = f"transformers {'autocast' if args.autocast else args.dtype}{' compiled' if args.compile else ''}"
    shapes.report(who, args, 1, walls, first, shapes.peak_mib())


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps of transformers with torch's fused AdamW in one process; prints one JSON object."""
import argparse
import json
import time

import shapes


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    shapes.arguments(parser)
    args = parser.parse_args()
    import torch

    torch.set_num_threads(args.threads)
    model = shapes.torch_model(args.model, args.dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    vocabulary = shapes.SHAPES[args.model]["vocab_size"]
    walls, cpus = [], []
    for step in range(args.steps + 1):
        ids = torch.randint(vocabulary, (args.rows, args.tokens))
        wall, cpu = time.perf_counter(), time.process_time()
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step > 0:
            walls.append(time.perf_counter() - wall)
            cpus.append(time.process_time() - cpu)
    print(json.dumps({"who": f"transformers {args.dtype}", "model": args.model, "ranks": 1, "threads": args.threads,
                      "tokens": args.rows * args.tokens, "step_s": walls, "cpu_s": cpus}))


if __name__ == "__main__":
    main()

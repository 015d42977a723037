#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps of DeepSpeed on the CPU over gloo, a process a rank; prints one JSON object. It starts its ranks itself, or is
one that the command `deepspeed` has started (start.py)."""
import argparse
import json
import os
import time

import shapes


def run_rank(rank, args):
    if "WORLD_SIZE" not in os.environ:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(args.ranks), MASTER_ADDR="127.0.0.1",
                          MASTER_PORT=str(args.port))
    os.environ.update(DS_ACCELERATOR="cpu", OMP_NUM_THREADS=str(args.threads))
    import torch
    import deepspeed

    torch.set_num_threads(args.threads)
    deepspeed.init_distributed("gloo", verbose=False)
    config = {
        "train_micro_batch_size_per_gpu": args.rows,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": args.stage},
        "bf16": {"enabled": args.dtype == "bfloat16"},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}},
        "steps_per_print": 10**9,
    }
    model = shapes.torch_model(args.model, "float32", args.folder)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    vocabulary = model.config.vocab_size
    walls, cpus = [], []
    for step in range(args.steps + 1):
        ids = torch.randint(vocabulary, (args.rows, args.tokens))
        torch.distributed.barrier()
        wall, cpu = time.perf_counter(), time.process_time()
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()
        if step > 0:
            walls.append(time.perf_counter() - wall)
            cpus.append(time.process_time() - cpu)
    if rank == 0:
        print(json.dumps({"who": f"deepspeed {deepspeed.__version__} ZeRO-{args.stage} {args.dtype}",
                          "model": args.model, "ranks": args.ranks, "threads": args.threads,
                          "tokens": args.ranks * args.rows * args.tokens, "step_s": walls,
                          "cpu_s": [c * args.ranks for c in cpus]}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    shapes.arguments(parser)
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--port", type=int, default=29512)
    parser.add_argument("--local_rank", help="given by the command deepspeed")
    args = parser.parse_args()
    if "RANK" in os.environ:
        run_rank(int(os.environ["RANK"]), args)
        return
    import multiprocessing

    ranks = [multiprocessing.get_context("spawn").Process(target=run_rank, args=(r, args)) for r in range(args.ranks)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    raise SystemExit(max(abs(rank.exitcode or 0) for rank in ranks))


if __name__ == "__main__":
    main()

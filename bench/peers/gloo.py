#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Collectives of torch.distributed over gloo, two ranks, at the largest size of `zinc bench comm` (32 Mi elements); milliseconds
of the slowest rank's best run, and of Zinc's row; one JSON object."""
import argparse
import json
import subprocess
import time

import ranks
import shapes

N = 32 << 20


def zinc_ms(args):
    """The rows are memory traffic: a gather reads and writes the peers' slices, a reduction reads all and writes fp32."""
    prefix = ["chrt", "-r", "1"] if args.realtime else []
    names = {f"{kind}.{dtype}": f"comm.thread.{kind}.{dtype}.32768Ki_elements"
             for kind in ("reduce_scatter", "all_gather") for dtype in ("f32", "bf16")}
    out = subprocess.run([*prefix, args.zinc, "bench", "--json", "--threads", "2", *names.values()],
                         stdout=subprocess.PIPE, check=True, text=True).stdout
    rates = {row["name"]: row["value"] for row in map(json.loads, out.splitlines())}
    size = {"f32": 4, "bf16": 2}
    traffic = {key: N * (2 * size[key.split(".")[1]] + (4 if key.startswith("reduce") else 0)) for key in names}
    return {key: round(traffic[key] / rates[name] / 1e6, 2) for key, name in names.items()}


def run_rank(rank, args):
    import torch
    from torch import distributed as dist

    dist.init_process_group("gloo")
    took = {}
    for dtype, name in ((torch.float32, "f32"), (torch.bfloat16, "bf16")):
        full, shard = torch.zeros(N, dtype=dtype), torch.zeros(N // args.ranks, dtype=dtype)
        calls = {"reduce_scatter": lambda s=shard, f=full: dist.reduce_scatter_tensor(s, f),
                 "all_gather": lambda s=shard, f=full: dist.all_gather_into_tensor(f, s)}
        for kind, call in calls.items():
            call()
            best = float("inf")
            shapes.realtime(True)
            for _ in range(args.rounds):
                dist.barrier()
                start = time.perf_counter()
                call()
                worst = torch.tensor([time.perf_counter() - start])
                dist.all_reduce(worst, op=dist.ReduceOp.MAX)
                best = min(best, worst.item())
            shapes.realtime(False)
            took[f"{kind}.{name}"] = round(1e3 * best, 2)
    if rank == 0:
        ours = zinc_ms(args)
        print(json.dumps({"gloo_ms": took, "zinc_ms": ours, "ratio": {k: round(took[k] / ours[k], 1) for k in took}}))
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    ranks.arguments(parser)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--zinc", default="../../build/release/zinc")
    parser.add_argument("--realtime", action="store_true", help="measured calls go before all else (root; set PEER_REALTIME=1 too)")
    ranks.start(run_rank, parser.parse_args())


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""AdamW steps of `zinc bench`, DeepSpeed's CPU Adam and torch's fused AdamW in turn, in ns a parameter; one JSON object.

The second pair has the 16-bit copy of the parameters: fused (with unscale and clip) in Zinc, a pass of its own beside cpu_adam.
"""
import argparse
import json
import os
import subprocess
import time

N = 32 << 20  # as many as zinc bench
BYTES = {"adamw": 28, "adamw_unscale_clip_bf16_out": 30}


def zinc(args):
    prefix = ["chrt", "-r", "1"] if args.realtime else []
    out = subprocess.run([*prefix, args.zinc, "bench", "--json", "--threads", str(args.threads), "--seconds", "0.2",
                          *(f"optimizer.{name}" for name in BYTES)], stdout=subprocess.PIPE, check=True, text=True).stdout
    rows = {row["name"]: row["value"] for row in map(json.loads, out.splitlines())}
    return {name: BYTES[name] / rows[f"optimizer.{name}"] for name in BYTES}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--zinc", default="../../build/release/zinc")
    parser.add_argument("--realtime", action="store_true", help="measured steps go before all else (root)")
    args = parser.parse_args()
    os.environ.update(DS_ACCELERATOR="cpu", **({"PEER_REALTIME": "1"} if args.realtime else {}))
    import torch
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    import shapes

    torch.set_num_threads(args.threads)
    p = torch.nn.Parameter(torch.randn(N))
    p.grad = torch.randn(N) * 1e-3
    copy = torch.empty(N, dtype=torch.bfloat16)
    deepspeed, fused = DeepSpeedCPUAdam([p], lr=1e-3), torch.optim.AdamW([p], lr=1e-3, fused=True)

    def with_copy():
        deepspeed.step()
        copy.copy_(p.data)

    steps = {"cpu_adam": deepspeed.step, "torch fused": fused.step, "cpu_adam and copy": with_copy}
    best = {}
    for _ in range(args.rounds):
        ours = zinc(args)
        for name, ns in ours.items():
            best[name] = min(ns, best.get(name, ns))
        for name, step in steps.items():
            step()
            shapes.realtime(True)
            for _ in range(3):
                start = time.perf_counter()
                step()
                ns = 1e9 * (time.perf_counter() - start) / N
                best[name] = min(ns, best.get(name, ns))
            shapes.realtime(False)
    plain, copied = best["adamw"], best["adamw_unscale_clip_bf16_out"]
    print(json.dumps({"ns_a_parameter": {name: round(ns, 3) for name, ns in best.items()},
                      "over_cpu_adam": round(best["cpu_adam"] / plain, 2),
                      "over_torch_fused": round(best["torch fused"] / plain, 2),
                      "fused_over_cpu_adam_and_copy": round(best["cpu_adam and copy"] / copied, 2)}))


if __name__ == "__main__":
    main()

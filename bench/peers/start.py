#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""From the command to the end of the first step, two ranks: `zinc launch … zinc train …` and `deepspeed deepspeed_step.py …` in turn.

    start.py ROUNDS --folder MODEL --deepspeed /tmp/peers/bin/deepspeed [--zinc ../../build/release/zinc] [--stage 2]

Both load the same model and train it on one short row a rank; without --folder both make random weights. The clock stops when rank 0's first step is printed. Also `zinc --help`, whose
best of 20 is in milliseconds. Prints a line a round and one JSON object.
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

import shapes
import zinc_step


def until_first_row(command, env):
    """Seconds until the command prints the row of its first step; it then runs to its end."""
    start = time.perf_counter()
    with subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          env={**os.environ, **env}) as process:
        took = None
        for line in process.stdout:
            if took is None and ('"who"' in line or line.startswith('{"step"')):
                took = time.perf_counter() - start
    if took is None or process.returncode != 0:
        raise SystemExit(f"exit code {process.returncode}: {' '.join(str(word) for word in command)}")
    return took


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rounds", type=int)
    shapes.arguments(parser)
    parser.set_defaults(rows=1, tokens=64, steps=0, threads=1)
    parser.add_argument("--zinc", default="../../build/release/zinc")
    parser.add_argument("--deepspeed", required=True, help="the command")
    parser.add_argument("--stage", type=int, default=2)
    args = parser.parse_args()
    args.ranks = 2
    peer = [args.deepspeed, "--num_gpus", 2, "--master_port", 29513, pathlib.Path(__file__).parent / "deepspeed_step.py", "--steps", 0,
            "--ranks", 2, "--threads", args.threads, *(["--folder", args.folder] if args.folder else []), "--rows", args.rows, "--tokens", args.tokens, "--model", args.model,
            "--dtype", args.dtype, "--stage", args.stage]
    ratios, helps, best = [], [], [float("inf")] * 2
    for number in range(args.rounds):
        with tempfile.TemporaryDirectory() as name:
            words = zinc_step.write_files(pathlib.Path(name), args)
            ours = until_first_row([args.zinc, "launch", "--num_ranks", 2, "zinc", *words, "--max_steps", 1, "--json"], {})
        theirs = until_first_row(peer, {"DS_ACCELERATOR": "cpu"})
        ratios.append(theirs / ours)
        best = [min(best[0], ours), min(best[1], theirs)]
        for _ in range(20):
            start = time.perf_counter()
            subprocess.run([args.zinc, "--help"], check=True, stdout=subprocess.DEVNULL)
            helps.append(time.perf_counter() - start)
        print(f"round {number + 1}: zinc {ours:.2f} s, deepspeed {theirs:.2f} s, ratio {ratios[-1]:.1f}", flush=True)
    print(json.dumps({"model": args.folder or args.model, "stage": args.stage, "dtype": args.dtype, "ratio_median": statistics.median(ratios),
                      "ratios": ratios, "best_s": best, "ratio_of_best": best[1] / best[0], "help_ms": 1e3 * min(helps)}))


if __name__ == "__main__":
    main()

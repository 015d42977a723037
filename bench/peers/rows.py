#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rows of RESULTS.md: rows.py NAME... runs Zinc and a peer in turn (pair.py) and prints both and their ratios.

A row is NAME.MODEL, NAME alone means all its models. Peers need a Python with torch, transformers and deepspeed (README.md);
llmc, which is GPT-2 alone, a clone of llm.c whose folder $LLMC names.
"""
import argparse
import os
import sys

import pair

RANKS = ["--ranks", "2", "--threads", "1"]
BF16 = ["--dtype", "bfloat16"]
MODELS = ["gpt2", "smollm2"]
# name: arguments of Zinc, script of the peer, its arguments
ROWS = {
    "zero2": (["--stage", "2", *RANKS, *BF16], "deepspeed_step.py", ["--stage", "2", *RANKS, *BF16]),
    "zero3": (["--stage", "3", *RANKS, *BF16], "deepspeed_step.py", ["--stage", "3", *RANKS, *BF16]),
    "fsdp2": (["--stage", "3", *RANKS, *BF16], "fsdp2_step.py", [*RANKS, *BF16]),
    "zero2_fp32": (["--stage", "2", *RANKS], "deepspeed_step.py", ["--stage", "2", *RANKS]),
    "fsdp2_fp32": (["--stage", "3", *RANKS], "fsdp2_step.py", RANKS),
    "torch_fp32": (["--threads", "2"], "torch_step.py", ["--threads", "2"]),
    "torch_compile": (["--threads", "2"], "torch_step.py", ["--threads", "2", "--compile"]),
    "torch_bf16": (["--threads", "2", *BF16], "torch_step.py", ["--threads", "2", *BF16]),
    "torch_autocast": (["--threads", "2", *BF16], "torch_step.py", ["--threads", "2", "--autocast"]),
    "llmc": (["--threads", "2"], "llmc_step.py", ["--threads", "2"]),
}


def models(row):
    return ["gpt2"] if row == "llmc" else MODELS


def wanted(names):
    for name in names:
        row, _, model = name.partition(".")
        if row not in ROWS or model not in ("", *models(row)):
            sys.exit(f"no row {name}; there are {', '.join(ROWS)}, each with .gpt2 or .smollm2")
        for m in [model] if model else models(row):
            yield row, m


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="+", metavar="NAME")
    parser.add_argument("--python", required=True, help="a Python with the peers")
    parser.add_argument("--zinc", default="../../build/release/zinc")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=5, help="measured in each run")
    parser.add_argument("--folder", help="a model folder whose weights both sides start from, instead of random ones")
    parser.add_argument("--realtime", action="store_true", help="Zinc and the peers' measured steps before all else (root)")
    args = parser.parse_args()
    if args.realtime:
        os.environ["PEER_REALTIME"] = "1"
    for row, model in list(wanted(args.rows)):
        zinc, script, peer = ROWS[row]
        common = ["--model", model, "--steps", str(args.steps), *(["--folder", args.folder] if args.folder else [])]
        print(f"{row}.{model}", flush=True)
        pair.compare(args.rounds, [sys.executable, "zinc_step.py", "--zinc", args.zinc, *common, *zinc],
                     [args.python, script, *common, *peer])


if __name__ == "__main__":
    main()

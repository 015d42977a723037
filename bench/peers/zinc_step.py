#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same steps by `zinc train`; prints one JSON object as the peers do."""
import argparse
import json
import os
import pathlib
import random
import resource
import struct
import subprocess
import tempfile
import time

import shapes


def write_files(folder, args):
    """Model, data and configuration in `folder`; returns the words of zinc train but for its ranks and steps."""
    shape = json.loads((pathlib.Path(args.folder) / "config.json").read_text()) if args.folder else shapes.SHAPES[args.model]
    (folder / "config.json").write_text(json.dumps(shape))
    model = [args.folder] if args.folder else [folder / "config.json", "--from_scratch"]
    n = args.ranks * args.rows * args.tokens * (args.steps + 2)
    ids = random.Random(0).choices(range(shape["vocab_size"]), k=n)
    (folder / "data.bin").write_bytes(b"ZINCTOK1" + struct.pack(f"<II{n}I", 4, 0, *ids))
    (folder / "ds.json").write_text(json.dumps({
        "train_micro_batch_size_per_gpu": args.rows, "gradient_clipping": 1.0,
        "zero_optimization": {"stage": args.stage}, "bf16": {"enabled": args.dtype == "bfloat16"},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}))
    return ["train", "--model", *model, "--train_file", folder / "data.bin", "--deepspeed",
            folder / "ds.json", "--output_dir", folder / "out", "--threads", args.threads, "--block_size", args.tokens,
            "--save_steps", 0]


def first_row(process, metrics):
    """Wait for the process; return when the first row of its metrics was there."""
    first = None
    while process.poll() is None:
        if first is None and metrics.exists() and "\n" in metrics.read_text():
            first = time.time()
        time.sleep(0.02)
    if process.returncode:
        raise SystemExit(f"zinc train failed ({process.returncode})")
    return first or time.time()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    shapes.arguments(parser)
    parser.add_argument("--zinc", default="build/release/zinc")
    parser.add_argument("--stage", type=int, default=0)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("more", nargs="*", help="further arguments of zinc train, after --")
    args = parser.parse_args()
    first = ["chrt", "-r", "1"] if os.environ.get("PEER_REALTIME") else []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        command = [args.zinc, *write_files(folder, args), "--ranks", args.ranks, "--max_steps", args.steps + 1, *args.more]
        process = subprocess.Popen([*first, *map(str, command)], stderr=subprocess.DEVNULL)
        done = first_row(process, folder / "out/metrics.jsonl")
        rows = [json.loads(line) for line in (folder / "out/metrics.jsonl").open()]
    # ranks are threads: one process
    shapes.report(f"zinc ZeRO-{args.stage} {args.dtype}", args, args.ranks, [row["step_ms"] / 1e3 for row in rows[1:]], done,
                  resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the account says is what the system sees: rss.py ZINC thread|mpi.

Trains a random 33M-parameter Llama for three steps and compares each process's peak resident set with the sum of its ranks'
accounted peaks: within 10% plus the constant of a process that holds nothing (libraries, code that oneDNN generates, stacks,
the data set), which is stated here.
"""
import json
import os
import subprocess
import sys
import tempfile

CONSTANT = {"thread": 32 << 20, "mpi": 48 << 20}
CONFIG = {"model_type": "llama", "vocab_size": 8192, "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 8,
          "num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
          "tie_word_embeddings": True}


def run(zinc, tmp, comm, stage, ranks, bf16):
    config = os.path.join(tmp, "ds.json")
    with open(config, "w", encoding="utf-8") as f:
        json.dump({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": stage}, "bf16": {"enabled": bf16}}, f)
    out = os.path.join(tmp, f"out_{comm}_{stage}_{ranks}_{bf16}")
    done = subprocess.run([zinc, "train", "--from_scratch", "--model", os.path.join(tmp, "config.json"), "--train_file",
                           os.path.join(tmp, "rows.jsonl"), "--deepspeed", config, "--ranks", str(ranks), "--comm", comm,
                           "--max_steps", "3", "--output_dir", out], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"exit {done.returncode}: {done.stderr}")
    row = json.loads(open(os.path.join(out, "metrics.jsonl"), encoding="utf-8").read().splitlines()[-1])
    ranks_here = ranks if comm == "thread" else 1
    return row["mem_device_peak"] * ranks_here, row["mem_host_peak"]


def main(zinc, comm):
    bad = 0
    with tempfile.TemporaryDirectory() as tmp:
        with open(os.path.join(tmp, "config.json"), "w", encoding="utf-8") as f:
            json.dump(CONFIG, f)
        with open(os.path.join(tmp, "rows.jsonl"), "w", encoding="utf-8") as f:
            for i in range(8):
                f.write(json.dumps({"input_ids": [(i * 31 + j * j) % 8192 for j in range(64)]}) + "\n")
        for stage, ranks, bf16 in ((0, 1, False), (0, 2, True), (3, 2, True), (3, 2, False)):
            account, rss = run(zinc, tmp, comm, stage, ranks, bf16)
            low, high = 0.9 * account, 1.1 * account + CONSTANT[comm]
            print(f"{comm} stage {stage} ranks {ranks} {'bf16' if bf16 else 'fp32'}: account {account / 2**20:.0f} MiB, "
                  f"resident {rss / 2**20:.0f} MiB, allowed {low / 2**20:.0f} to {high / 2**20:.0f}")
            bad += not low <= rss <= high
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))

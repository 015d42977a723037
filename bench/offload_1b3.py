#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Train a random Llama of 1.3 billion parameters for five steps with optimizer state on disk: offload_1b3.py ZINC FOLDER

FOLDER needs 25 GB and is where the state lies; what is made there is removed. Prints one JSON object: losses, the device
account, memory of the process without it, and the bytes a step wrote, by the kernel's counters (/proc/PID/io).
"""
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

STEPS, TOKENS = 5, 256
SHAPE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 32000, "hidden_size": 2048,
         "intermediate_size": 5504, "num_hidden_layers": 24, "num_attention_heads": 16, "max_position_embeddings": TOKENS,
         "rms_norm_eps": 1e-5, "hidden_act": "silu", "initializer_range": 0.02, "tie_word_embeddings": False}
CONFIG = {"bf16": {"enabled": True}, "gradient_clipping": 1.0, "train_micro_batch_size_per_gpu": 1,
          "optimizer": {"type": "AdamW", "params": {"lr": 2e-4}},
          "zero_optimization": {"stage": 2, "reduce_bucket_size": 20000000, "offload_optimizer": {"device": "nvme"}}}


def n_parameters():
    h, i = SHAPE["hidden_size"], SHAPE["intermediate_size"]
    return 2 * SHAPE["vocab_size"] * h + SHAPE["num_hidden_layers"] * (4 * h * h + 3 * h * i + 2 * h) + h


def read_field(path, name):
    """The number behind "name:"; 0 where the process has just ended."""
    with open(path, encoding="ascii") as f:
        found = re.search(rf"^{name}:\s*(\d+)", f.read(), re.M)
    return int(found[1]) if found else 0


def watch(run, rows):
    """[(steps done, bytes written)] whenever a row comes, and the largest resident set until the last one."""
    seen, rss = [], 0
    while run.poll() is None and len(seen) < STEPS:
        try:
            done = rows.read_text().count("\n") if rows.exists() else 0
            rss = max(rss, read_field(f"/proc/{run.pid}/status", "VmRSS") * 1024)
            if done > len(seen):
                seen.append((done, read_field(f"/proc/{run.pid}/io", "write_bytes")))
        except OSError:
            break
        time.sleep(0.02)
    return seen, rss


def main():
    zinc, base = sys.argv[1], pathlib.Path(sys.argv[2])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the folder goes
    folder = pathlib.Path(tempfile.mkdtemp(prefix="zinc_1b3_", dir=base))
    try:
        CONFIG["zero_optimization"]["offload_optimizer"]["nvme_path"] = str(folder)
        (folder / "model").mkdir()
        (folder / "model" / "config.json").write_text(json.dumps(SHAPE))
        (folder / "ds.json").write_text(json.dumps(CONFIG))
        row = {"input_ids": [(7 * i * i + 13) % 1000 for i in range(TOKENS)]}
        (folder / "rows.jsonl").write_text((json.dumps(row) + "\n") * 8)
        out = folder / "out"
        argv = [zinc, "train", "--model", str(folder / "model"), "--from_scratch", "--train_file", str(folder / "rows.jsonl"),
                "--output_dir", str(out), "--deepspeed", str(folder / "ds.json"), "--max_steps", str(STEPS),
                "--block_size", str(TOKENS), "--lr_scheduler_type", "constant", "--save_steps", "0", "--device_memory", "4GiB"]
        with open(folder / "log", "w", encoding="utf-8") as log:
            with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=log) as run:
                seen, rss = watch(run, out / "metrics.jsonl")
                run.kill()  # the saved model is no part of this
        if len(seen) < STEPS:
            sys.exit((folder / "log").read_text())
        rows = [json.loads(line) for line in (out / "metrics.jsonl").open()]
        device = max(r["mem_device_peak"] for r in rows)
        written = (seen[-1][1] - seen[1][1]) / (seen[-1][0] - seen[1][0])
        print(json.dumps({"parameters": n_parameters(), "losses": [r["loss"] for r in rows], "step_ms": [r["step_ms"] for r in rows],
                          "device_GiB": device / 2**30, "rss_less_device_GiB": (rss - device) / 2**30,
                          "written_per_step": written, "written_per_parameter": written / n_parameters()}))
    finally:
        shutil.rmtree(folder)  # made above, by mkdtemp


main()

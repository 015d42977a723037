#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A long run takes no more as it goes on: steady.py ZINC DATA_DIR.

300 steps at stage 3 with everything offloaded to the host, a checkpoint every 30 and an evaluation every 50: between steps 110 to 160
and the last 50 resident memory does not grow by more than 1%, and descriptors, threads and mappings stay as many as they were. Of
each stretch the least counts: a checkpoint that is being written beside training has threads and files of its own.
"""
import json
import os
import subprocess
import sys
import tempfile

CONFIG = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
          "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"},
                                "stage3_param_persistence_threshold": 0}}
GROWTH = 1.01


def taken(pid):
    status = dict(line.split(":", 1) for line in open(f"/proc/{pid}/status", encoding="ascii"))
    with open(f"/proc/{pid}/maps", encoding="utf-8") as f:
        n_maps = len(f.readlines())
    return {"rss": int(status["VmRSS"].split()[0]), "threads": int(status["Threads"]), "files": len(os.listdir(f"/proc/{pid}/fd")),
            "mappings": n_maps}


def main():
    zinc, data = sys.argv[1:3]
    seen = {"early": [], "late": []}
    with tempfile.TemporaryDirectory() as tmp:
        rows, config = os.path.join(tmp, "rows.jsonl"), os.path.join(tmp, "ds.json")
        with open(rows, "w", encoding="utf-8") as f:
            for i in range(16):
                f.write(json.dumps({"input_ids": [(7 * i * i + 13 * j) % 300 for j in range(24)]}) + "\n")
        with open(config, "w", encoding="utf-8") as f:
            json.dump(CONFIG, f)
        argv = [zinc, "train", "--model", os.path.join(data, "model", "llama3"), "--train_file", rows, "--validation_file", rows,
                "--deepspeed", config, "--output_dir", os.path.join(tmp, "out"), "--ranks", "2", "--threads", "1", "--max_steps", "300",
                "--save_steps", "30", "--save_total_limit", "2", "--eval_steps", "50", "--json"]
        # one arena: which of several glibc gives a saving thread, and when it is first touched, is chance
        env = {**os.environ, "MALLOC_ARENA_MAX": "1"}
        with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env) as run:
            for line in run.stdout:
                step = json.loads(line).get("step")
                if step and (110 <= step < 160 or step >= 250) and step % 5 == 0:
                    seen["early" if step < 160 else "late"].append(taken(run.pid))
            told = run.stderr.read()
        if run.returncode != 0 or not seen["late"]:
            sys.exit(f"exit {run.returncode}, seen {seen}\n{told}")
    early, late = ({what: min(t[what] for t in seen[when]) for what in seen[when][0]} for when in ("early", "late"))
    if late["rss"] > early["rss"] * GROWTH or any(late[what] > early[what] for what in ("threads", "files", "mappings")):
        sys.exit(f"early: {early}\nlate: {late}")


main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replay DeepSpeed's recorded training curves: curves.py ZINC DATA_DIR NAME [extra zinc options].

DATA_DIR holds train/NAME.json and model/. Exit 0 if every step's loss, gradient norm, learning rate, loss scale and
overflow agree.
"""
import json
import os
import subprocess
import sys
import tempfile


def main(zinc, data, name, extra):
    run = json.load(open(os.path.join(data, "train", name + ".json"), encoding="utf-8"))
    low = run["dtype"] != "float32"
    loss_tol, norm_tol = (0.01, 0.02) if low else (2e-5, 1e-4)
    with tempfile.TemporaryDirectory() as tmp:
        rows, config, out = (os.path.join(tmp, n) for n in ("rows.jsonl", "ds.json", "out"))
        with open(rows, "w", encoding="utf-8") as f:
            for i in run["order"]:
                f.write(json.dumps({"input_ids": run["samples"][str(i)]}) + "\n")
        with open(config, "w", encoding="utf-8") as f:
            f.write(run["ds_config"])
        subprocess.run([zinc, "train", "--model", os.path.join(data, "model", run["model"]), "--train_file", rows,
                        "--shuffle", "false", "--deepspeed", config, "--max_steps", str(run["steps"]), "--output_dir", out,
                        "--per_device_train_batch_size", str(run["micro_batch"]), "--ranks", str(run["ranks"]),
                        "--loss_average", "micro_batches", *extra], check=True)
        got = [json.loads(line) for line in open(os.path.join(out, "metrics.jsonl"), encoding="utf-8")]
    bad = [] if len(got) == len(run["records"]) else [f"{len(got)} steps, want {len(run['records'])}"]
    for g, w in zip(got, run["records"]):
        where = f"step {g['step']}"
        if w["overflow"] and run["dtype"] == "float16" and not g["overflow"]:
            break  # DeepSpeed overflowed inside its fp16 arithmetic, which is fp32 here; the runs part
        if abs(g["loss"] - w["loss_mean"]) > loss_tol * max(1, abs(w["loss_mean"])):
            bad.append(f"{where}: loss {g['loss']}, want {w['loss_mean']}")
        if g["overflow"] != bool(w["overflow"]) or g["loss_scale"] != w["loss_scale"]:
            bad.append(f"{where}: overflow {g['overflow']} at scale {g['loss_scale']}, want {w['overflow']} at {w['loss_scale']}")
        if abs(g["lr"] - w["lr"]) > 1e-9 * abs(w["lr"]) + 1e-12:
            bad.append(f"{where}: lr {g['lr']}, want {w['lr']}")
        grew = w["loss_scale_after"] is not None and w["loss_scale_after"] > w["loss_scale"]  # DeepSpeed halves the norm there
        if w["grad_norm"] and not w["overflow"] and not grew and abs(g["grad_norm"] - w["grad_norm"]) > norm_tol * w["grad_norm"]:
            bad.append(f"{where}: grad_norm {g['grad_norm']}, want {w['grad_norm']}")
    print("\n".join(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]))

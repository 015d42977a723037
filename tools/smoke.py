#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A few steps of a tiny model on two ranks: tools/smoke.py ZINC [PART THAT IS LEFT OUT...]

Passes if the loss of a memorable text falls, and `zinc env` says that the parts are left out.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

STEPS = 12
CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 270,
          "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
          "num_attention_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
          "hidden_act": "silu", "initializer_range": 0.05}
# What `zinc env --json` says where a part is not there: (row, beginning of its value).
ABSENT = {"SIMD": ("isa", "ref"), "OPENMP": ("openmp", "not in this build"),
          "MPI": ("mpi", "not in this build"), "DNNL": ("onednn", "not in this build"),
          "URING": ("io_uring", "not in this build")}


def run(zinc, *words):
    done = subprocess.run([zinc, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"zinc {' '.join(words)}: exit code {done.returncode}\n{done.stderr}")
    return done.stdout


def check_env(zinc, parts):
    rows = {row["name"]: row for row in map(json.loads, run(zinc, "env", "--json").splitlines())}
    for part in parts:
        name, begins = ABSENT[part]
        if not str(rows[name]["value"]).startswith(begins):
            sys.exit(f"built without {part}, but zinc env says {rows[name]}")


def main():
    zinc, parts = str(pathlib.Path(sys.argv[1]).resolve()), sys.argv[2:]
    check_env(zinc, parts)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        model, out, text = folder / "model", folder / "out", folder / "text.txt"
        model.mkdir()
        text.write_text("the quick brown fox jumps over the lazy dog\n" * 200)
        (model / "config.json").write_text(json.dumps(CONFIG))
        (folder / "ds.json").write_text(json.dumps(
            {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True},
             "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}))
        run(zinc, "tokenize", "--train", str(text), "--vocab_size", "270",
            "--output", str(model / "tokenizer.json"))
        run(zinc, "train", "--model", str(model), "--from_scratch", "--train_file", str(text),
            "--output_dir", str(out), "--deepspeed", str(folder / "ds.json"), "--ranks", "2",
            "--block_size", "32", "--max_steps", str(STEPS), "--per_device_train_batch_size", "2",
            "--lr_scheduler_type", "constant")
        losses = [json.loads(line)["loss"] for line in (out / "metrics.jsonl").open()]
        if len(losses) != STEPS or not losses[-1] < 0.8 * losses[0]:
            sys.exit(f"the loss does not fall: {losses}")
        print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f} in {STEPS} steps")


main()

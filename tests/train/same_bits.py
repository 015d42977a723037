#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One training run, many ways, the same bits: same_bits.py ZINC DATA_DIR CASE.

A case trains a small model at one world size and precision with every stage, on threads and on MPI, with different
buckets, overlap, prefetch, sharing and thresholds, and compares the weights (byte for byte) and the losses.
"""
import hashlib
import json
import os
import subprocess
import sys
import tempfile

BLOCK = {"float32": {}, "bf16": {"bf16": {"enabled": True}},
         "fp16": {"fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 10}}}
PARAMS = {"SGD": {"momentum": 0.9, "nesterov": True}}
KNOBS = [{}, {"reduce_bucket_size": 1, "allgather_bucket_size": 2, "overlap_comm": True},
         {"overlap_comm": False, "sub_group_size": 777, "stage3_prefetch_bucket_size": 0},
         {"stage3_max_live_parameters": 1, "stage3_max_reuse_distance": 0, "overlap_comm": True}]


class Runs:
    def __init__(self, zinc, data, tmp, model):
        self.zinc, self.data, self.tmp, self.model, self.n = zinc, data, tmp, model, 0
        self.rows = os.path.join(tmp, "rows.jsonl")
        with open(self.rows, "w", encoding="utf-8") as f:
            for i in range(48):  # lengths differ, so that ranks and micro-batches hold different numbers of targets
                f.write(json.dumps({"input_ids": [(7 * i * i + 13 * j * (i + 3)) % 300 for j in range(5 + i % 19)]}) + "\n")

    def run(self, dtype, stage, ranks, accumulation=1, knobs=None, extra=(), optimizer="AdamW", dropout="0"):
        """Digest of the saved fp32 masters, and the losses and norms as written."""
        self.n += 1
        out, config = os.path.join(self.tmp, f"out{self.n}"), os.path.join(self.tmp, "ds.json")
        zero = {"stage": stage, "stage3_param_persistence_threshold": 100, **(knobs or {})}
        with open(config, "w", encoding="utf-8") as f:
            json.dump({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": accumulation, "gradient_clipping": 0.5,
                       "optimizer": {"type": optimizer, "params": {"lr": 1e-3, "weight_decay": 0.1, **PARAMS.get(optimizer, {})}},
                       "zero_allow_untested_optimizer": True, "zero_optimization": zero,
                       **BLOCK[dtype]}, f)
        argv = [self.zinc, "train", "--model", os.path.join(self.data, "model", self.model), "--train_file", self.rows, "--deepspeed",
                config, "--max_steps", "4", "--output_dir", out, "--ranks", str(ranks), "--save_dtype", "float32", "--dropout", dropout, *extra]
        done = subprocess.run(argv, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(argv)}\nexit {done.returncode}\n{done.stderr}")
        weights = open(os.path.join(out, "model.safetensors"), "rb").read()
        rows = [json.loads(line) for line in open(os.path.join(out, "metrics.jsonl"), encoding="utf-8")]
        return hashlib.sha256(weights).hexdigest(), [(r["loss"], r["grad_norm"], r["overflow"]) for r in rows]


def same(name, want, got):
    if want != got:
        sys.exit(f"{name} differs:\n  {want}\n  {got}")


def stages(runs, dtype, ranks):
    """Accumulation 1: all stages are one; and a run repeats."""
    want = runs.run(dtype, 0, ranks)
    same("a repeated run", want, runs.run(dtype, 0, ranks))
    for stage in (1, 2, 3):
        for i, knobs in enumerate(KNOBS):
            for shared in ("true", "false"):
                if stage < 3 and i > 2:
                    continue
                same(f"{dtype}, {ranks} ranks, stage {stage}, knobs {i}, shared {shared}", want,
                     runs.run(dtype, stage, ranks, 1, knobs, ["--share_parameters", shared]))


def accumulation(runs, dtype, ranks):
    """Accumulation 4: 0 = 1 and 2 = 3, which sum micro-batches at different moments."""
    got = [runs.run(dtype, stage, ranks, 4) for stage in range(4)]
    same("stage 1 beside 0", got[0], got[1])
    same("stage 3 beside 2", got[2], got[3])
    same("stage 2, small buckets", got[2], runs.run(dtype, 2, ranks, 4, KNOBS[1]))


def model(runs, dtype, ranks):
    """Any architecture, with dropout too: all stages are one."""
    for dropout in ("0", "0.1"):
        want = runs.run(dtype, 0, ranks, dropout=dropout)
        for stage in (1, 2, 3):
            same(f"{runs.model}, {dtype}, dropout {dropout}, stage {stage}", want,
                 runs.run(dtype, stage, ranks, 1, KNOBS[stage], ["--share_parameters", "false"], dropout=dropout))


def optimizers(runs, dtype, ranks):
    """Every optimizer, sharded or whole, on device, host or disk."""
    for name in ("Adam", "SGD", "Adagrad", "Lion", "Lamb"):
        want = runs.run(dtype, 0, ranks, optimizer=name)
        for stage, offload in ((1, "cpu"), (2, "none"), (3, "cpu"), (3, "nvme"), (3, "none")):
            knobs = {"offload_optimizer": {"device": offload, "nvme_path": runs.tmp}} if offload != "none" else {}
            same(f"{name}, {dtype}, stage {stage}, offload {offload}", want, runs.run(dtype, stage, ranks, 1, knobs, optimizer=name))


def mpi(runs, dtype, ranks):
    """Processes over MPI give what threads give."""
    for stage in (0, 2, 3):
        same(f"mpi, {ranks} ranks, stage {stage}", runs.run(dtype, stage, ranks),
             runs.run(dtype, stage, ranks, 1, KNOBS[1], ["--comm", "mpi"]))


def main(zinc, data, case):
    kind, folder, dtype, ranks = case.split(":")
    with tempfile.TemporaryDirectory() as tmp:
        {"stages": stages, "accumulation": accumulation, "model": model, "optimizers": optimizers, "mpi": mpi}[kind](Runs(zinc, data, tmp, folder), dtype, int(ranks))


if __name__ == "__main__":
    main(*sys.argv[1:])

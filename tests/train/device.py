#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The stand-in accelerator under whole training runs: device.py ZINC DATA_DIR CASE.

guard:DTYPE: with ZINC_GUARD_DEVICE=1 device memory faults when host code touches it; training, evaluation, saving, resuming and the
explanation of an overflow live with that at every stage and with offload, and give the bits of an unguarded run.
activations:DTYPE: blocks' inputs on the host (activation_checkpointing.cpu_checkpointing) change no bit, take the memory that the plan
says, and the device's part no longer grows with the depth.
depth: with stage 3 and everything offloaded a deeper model takes no more of the device than its blocks' inputs.
"""
import hashlib
import json
import os
import subprocess
import sys
import tempfile

STAND_IN = ("--device_memory", "1GB", "--link_bandwidth", "20GB/s")
EVERYWHERE = ({"stage": 0}, {"stage": 1, "offload_optimizer": {"device": "cpu"}}, {"stage": 2},
              {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}})
TOLERANCE = 0.02


class Runs:
    def __init__(self, zinc, data, tmp):
        self.zinc, self.data, self.tmp, self.n = zinc, data, tmp, 0
        self.rows = os.path.join(tmp, "rows.jsonl")
        with open(self.rows, "w", encoding="utf-8") as f:
            for i in range(24):
                f.write(json.dumps({"input_ids": [(7 * i * i + 13 * j * (i + 3)) % 300 for j in range(32)]}) + "\n")

    def model(self, name, **changes):
        """A folder with the config of a small model, changed."""
        self.n += 1
        folder = os.path.join(self.tmp, f"model{self.n}")
        os.mkdir(folder)
        config = json.load(open(os.path.join(self.data, "model", name, "config.json"), encoding="utf-8"))
        config.update(changes)
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f)
        return folder

    def config(self, dtype, zero, **more):
        path = os.path.join(self.tmp, "ds.json")
        block = {} if dtype == "float32" else {dtype: {"enabled": True, **({"initial_scale_power": 10} if dtype == "fp16" else {})}}
        with open(path, "w", encoding="utf-8") as f:
            json.dump({"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0.5, "zero_optimization": zero,
                       "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, **block, **more}, f)
        return path

    def train(self, model, config, *extra, guard=False, out=None, code=0):
        """Digest of the fp32 masters, losses and norms, the last row, what was told."""
        self.n += 1
        out = out or os.path.join(self.tmp, f"out{self.n}")
        argv = [self.zinc, "train", "--model", os.path.join(model, "config.json"), "--from_scratch", "--train_file", self.rows,
                "--deepspeed", config, "--output_dir", out, "--save_dtype", "float32", "--threads", "1", "--block_size", "32", *extra]
        if "--max_steps" not in extra:
            argv += ["--max_steps", "3"]
        done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, "ZINC_GUARD_DEVICE": "1" if guard else "0"})
        if done.returncode != code:
            sys.exit(f"{' '.join(argv)}\nexit {done.returncode}, want {code}\n{done.stderr}")
        weights = open(os.path.join(out, "model.safetensors"), "rb").read()
        rows = [json.loads(line) for line in open(os.path.join(out, "metrics.jsonl"), encoding="utf-8")]
        return hashlib.sha256(weights).hexdigest(), [(r["loss"], r["grad_norm"], r["overflow"]) for r in rows], rows[-1], done.stderr

    def plan(self, model, config, *extra):
        argv = [self.zinc, "plan", "--model", model, "--deepspeed", config, "--block_size", "32", "--threads", "1", "--json", *extra]
        return json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)


def same(name, want, got):
    if want[:2] != got[:2]:
        sys.exit(f"{name} differs:\n  {want[:2]}\n  {got[:2]}")


def close(what, planned, held):
    if abs(planned - held) > TOLERANCE * max(planned, held):
        sys.exit(f"{what}: planned {planned}, held {held}")


def guard(runs, dtype):
    model = runs.model("llama3")
    extra = ("--validation_file", runs.rows, "--eval_steps", "2", "--gradient_checkpointing", *STAND_IN)
    for zero in EVERYWHERE:
        config = runs.config(dtype, zero, activation_checkpointing={"cpu_checkpointing": zero["stage"] % 2 == 1})
        want = runs.train(model, config, "--ranks", "1", *extra)
        same(f"{zero}, guarded", want, runs.train(model, config, "--ranks", "1", *extra, guard=True))
    config = runs.config(dtype, EVERYWHERE[3])
    want = runs.train(model, config, "--ranks", "2", *STAND_IN)
    same("two guarded ranks", want, runs.train(model, config, "--ranks", "2", *STAND_IN, guard=True))
    config, out = runs.config(dtype, {"stage": 0}), os.path.join(runs.tmp, "resumed")
    want = runs.train(model, config, *STAND_IN)
    runs.train(model, config, "--save_steps", "2", *STAND_IN, guard=True, out=out)
    os.remove(os.path.join(out, "model.safetensors"))
    same("resumed under guard", want, runs.train(model, config, "--resume_from_checkpoint", "latest", *STAND_IN, guard=True, out=out))
    if dtype == "fp16":  # a scale that overflows: the diagnosis reads weights, activations and gradients
        config = runs.config(dtype, {"stage": 2}, fp16={"enabled": True, "initial_scale_power": 32, "hysteresis": 1})
        told = runs.train(model, config, *STAND_IN, guard=True)[3]
        if "first overflow of the run" not in told:
            sys.exit(f"no overflow was explained:\n{told}")


def activations(runs, dtype):
    device, on_host = [], {"activation_checkpointing": {"cpu_checkpointing": True}}
    for layers in (2, 6):
        model = runs.model("llama3", num_hidden_layers=layers)
        want = runs.train(model, runs.config(dtype, {"stage": 2}), "--ranks", "2")
        args = ("--ranks", "2", "--gradient_checkpointing", *STAND_IN)
        same("recomputed", want, runs.train(model, runs.config(dtype, {"stage": 2}), *args))
        config = runs.config(dtype, {"stage": 2}, **on_host)
        got = runs.train(model, config, *args)
        same("inputs of blocks on the host", want, got)
        plan = runs.plan(model, config, "--gpus", "2", "--gradient_checkpointing")
        close("device", plan["device"]["total"], got[2]["mem_device_peak"])
        device.append(plan["device"]["activations"])
        n_bytes = (layers - 1) * 2 * 32 * json.load(open(os.path.join(model, "config.json"), encoding="utf-8"))["hidden_size"] * 4
        if plan["host"]["activations"] != n_bytes:
            sys.exit(f"{layers} layers: the plan has {plan['host']['activations']} bytes of activations on the host, not {n_bytes}")
    if device[0] != device[1]:
        sys.exit(f"activations on the device grow with the depth: {device}")


def depth(runs, dtype):
    """4 and 32 layers of the same width: the peak on the device differs by less than the inputs of 28 blocks."""
    zero = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"},
            "stage3_param_persistence_threshold": 0}
    peaks = []
    for layers in (4, 32):
        model = runs.model("llama3", num_hidden_layers=layers)
        width = json.load(open(os.path.join(model, "config.json"), encoding="utf-8"))["hidden_size"]
        peaks.append(runs.train(model, runs.config(dtype, zero), "--gradient_checkpointing", *STAND_IN)[2]["mem_device_peak"])
    if peaks[1] - peaks[0] > 28 * 2 * 32 * width * 4:
        sys.exit(f"28 layers more take {peaks[1] - peaks[0]} bytes of the device; their inputs are {28 * 2 * 32 * width * 4}")


def main():
    zinc, data, case = sys.argv[1:4]
    name, dtype = case.split(":")
    with tempfile.TemporaryDirectory() as tmp:
        {"guard": guard, "activations": activations, "depth": depth}[name](Runs(zinc, data, tmp), dtype)


main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A plan beside the run it plans: against_training.py ZINC DATA_DIR CASE.

States: `zinc plan` and the account of `zinc train` agree within 2% in every category of the start-up table and in the peak of
the metrics, at every stage on one and two ranks. Offload: the same on device and host for the twelve combinations of stage and
offload. Advice: what a run out of memory
names makes it run. Program: documents, exit codes and files as a shell sees them, and the answer for 1,024 ranks comes in less
than a second.
"""
import json
import os
import re
import subprocess
import sys
import tempfile
import time

UNITS = {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9}
TOLERANCE = 0.02


def run(argv, code=0):
    done = subprocess.run(argv, capture_output=True, text=True)
    if done.returncode != code:
        sys.exit(f"{' '.join(argv)}\nexit {done.returncode}, want {code}\n{done.stdout}{done.stderr}")
    return done


def close(what, planned, held, tolerance=TOLERANCE):
    if abs(planned - held) > tolerance * max(planned, held):
        sys.exit(f"{what}: planned {planned}, held {held}")


def held_at_start(stderr):
    """Bytes by category: what the start-up table says of the device and of the host."""
    size = r"(?:([\d.]+) (B|KB|MB|GB)|-)"
    rows = re.findall(rf"^  (parameters|gradients|masters|optimizer state|buffers) +{size} +{size} ", stderr, re.M)
    if len(rows) != 5:
        sys.exit(f"no start-up table in\n{stderr}")
    return ({name: float(n) * UNITS[unit] if n else 0 for name, n, unit, _, _ in rows},
            {name: float(n) * UNITS[unit] if n else 0 for name, _, _, n, unit in rows})


class Runs:
    def __init__(self, zinc, data, tmp):
        self.zinc, self.data, self.tmp, self.n = zinc, data, tmp, 0
        self.rows = os.path.join(tmp, "rows.jsonl")
        self.model = os.path.join(tmp, "model")
        os.mkdir(self.model)
        with open(self.rows, "w", encoding="utf-8") as f:
            for i in range(24):  # all as long as the block: the plan is of full batches
                f.write(json.dumps({"input_ids": [(7 * i * i + 13 * j) % 300 for j in range(64)]}) + "\n")

    def use_model(self, name, **changes):
        config = json.load(open(os.path.join(self.data, "model", name, "config.json"), encoding="utf-8"))
        config.update(changes)
        with open(os.path.join(self.model, "config.json"), "w", encoding="utf-8") as f:
            json.dump(config, f)

    def both(self, config, ranks, train_args=(), plan_args=()):
        """The plan, the start-up table and the peak of the last step."""
        self.n += 1
        out, path = os.path.join(self.tmp, f"out{self.n}"), os.path.join(self.tmp, "ds.json")
        with open(path, "w", encoding="utf-8") as f:
            json.dump(config, f)
        done = run([self.zinc, "train", "--model", os.path.join(self.model, "config.json"), "--from_scratch", "--train_file", self.rows,
                    "--deepspeed", path, "--max_steps", "3", "--output_dir", out, "--ranks", str(ranks), "--block_size", "64",
                    "--threads", "1", "--logging_steps", "1", *train_args])
        rows = [json.loads(line) for line in open(os.path.join(out, "metrics.jsonl"), encoding="utf-8")]
        plan = json.loads(run([self.zinc, "plan", "--model", self.model, "--deepspeed", path, "--gpus", str(ranks), "--block_size", "64",
                               "--threads", "1", "--json", *plan_args]).stdout)
        return plan, held_at_start(done.stderr), rows[-1]


def compare(name, plan, held, row):
    for place, bytes_of in zip(("device", "host"), held):
        for category in ("parameters", "gradients", "masters", "optimizer state"):
            close(f"{name}: {category} on the {place}", plan[place][category.replace(" ", "_")], bytes_of[category])
    close(f"{name}: buffers on the host", plan["host"]["buffers"], held[1]["buffers"])
    close(f"{name}: peak", plan["device"]["total"], row["mem_device_peak"])


def states(runs):
    runs.use_model("llama", hidden_size=96, intermediate_size=250, num_hidden_layers=3)
    for stage in range(4):
        for ranks in (1, 2):
            for block in ({}, {"bf16": {"enabled": True}}):
                config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": stage}, **block}
                compare(f"stage {stage}, {ranks} ranks, {block}", *runs.both(config, ranks, ("--share_parameters", "false")))


def knobs(runs):
    runs.use_model("gpt2")
    for zero in ({"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_max_live_parameters": 20000},
                 {"stage": 2, "reduce_bucket_size": 5000, "overlap_comm": True}, {"stage": 1}):
        config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "bf16": {"enabled": True},
                  "zero_optimization": zero}
        compare(str(zero), *runs.both(config, 2, ("--share_parameters", "false", "--gradient_checkpointing"),
                                      ("--gradient_checkpointing",)))
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}
    compare("shared", *runs.both(config, 2, (), ("--share_parameters",)))


def offload(runs):
    runs.use_model("llama", hidden_size=96, intermediate_size=250, num_hidden_layers=3)
    variants = [(stage, "none", "none") for stage in range(4)]
    variants += [(stage, where, "none") for stage in (1, 2, 3) for where in ("cpu", "nvme")]
    variants += [(3, "cpu", "cpu"), (3, "nvme", "cpu")]
    for stage, optimizer, params in variants:
        zero = {"stage": stage}
        for key, where in (("offload_optimizer", optimizer), ("offload_param", params)):
            if where != "none":
                zero[key] = {"device": where, "nvme_path": runs.tmp}
        config = {"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": True}, "zero_optimization": zero}
        plan, held, row = runs.both(config, 2, ("--share_parameters", "false"))
        compare(str(zero), plan, held, row)
        if (plan["disk"]["total"] > 0) != ("nvme" in (optimizer, params)):
            sys.exit(f"{zero}: {plan['disk']}")


def advice(runs):
    """A run that is out of memory names a change, and with the change it runs in the same memory."""
    runs.use_model("llama")
    config = {"train_micro_batch_size_per_gpu": 8, "bf16": {"enabled": True}, "zero_optimization": {"stage": 0}}
    path = os.path.join(runs.tmp, "ds.json")
    argv = [runs.zinc, "train", "--model", os.path.join(runs.model, "config.json"), "--from_scratch", "--train_file", runs.rows,
            "--deepspeed", path, "--max_steps", "2", "--output_dir", os.path.join(runs.tmp, "small"), "--overwrite_output_dir",
            "--ranks", "2", "--block_size", "64", "--threads", "1", "--device_memory", "2500KB"]
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f)
    told = run(argv, 3).stderr.partition("What fits")[2]
    pasted = re.search(r"^to paste into ds_config.json: (.*)$", told, re.M)
    added = re.findall(r"^to add to the command line: (.*)$", told, re.M)
    if not pasted and not added:
        sys.exit(f"nothing was advised: {told!r}")
    for key, value in json.loads("{" + (pasted.group(1) if pasted else "") + "}").items():
        config[key] = {**config[key], **value} if isinstance(value, dict) else value
    with open(path, "w", encoding="utf-8") as f:
        json.dump(config, f)
    run(argv + added)
    runs.use_model("llama", hidden_size=65536, intermediate_size=262144, num_hidden_layers=128, num_attention_heads=64,
                   num_key_value_heads=64)  # some ten TB
    told = run(argv + ["--device_memory", "1000TB"], 3).stderr
    if "of this machine's memory" not in told or os.listdir(os.path.join(runs.tmp, "small")) == []:
        sys.exit(f"a run that no machine holds: {told}")


def program(runs):
    zinc = runs.zinc
    start = time.monotonic()
    plan = json.loads(run([zinc, "plan", "--model", "llama-70b", "--preset", "h100", "--gpus", "8", "--nodes", "128", "--stage", "3",
                           "--json"]).stdout)
    if time.monotonic() - start > 1:
        sys.exit("1,024 ranks took more than a second")
    close("70B over 1,024 ranks", plan["device"]["optimizer_state"], 8 * 68976648192 / 1024, 0.01)
    out = os.path.join(runs.tmp, "suggested.json")
    plan = json.loads(run([zinc, "plan", "--model", "llama-7b", "--preset", "rtx3090", "--gpus", "4", "--suggest", out, "--json"]).stdout)
    if plan["fits"] or not plan["fix"] or not plan["fixed"]["fits"]:
        sys.exit(f"7B on four cards of 24 GB: {plan}")
    check = json.loads(run([zinc, "config", "check", out, "--world_size", "4", "--json"]).stdout)
    fixed = json.loads(run([zinc, "plan", "--model", "llama-7b", "--preset", "rtx3090", "--gpus", "4", "--deepspeed", out,
                            "--json"] + (["--gradient_checkpointing"] if plan["fixed"]["settings"]["gradient_checkpointing"] else [])).stdout)
    if not check["ok"] or not fixed["fits"] or fixed["device"] != plan["fixed"]["device"]:
        sys.exit(f"the suggested file is not what was planned: {fixed['device']} {plan['fixed']['device']}")
    own = os.path.join(runs.tmp, "own.json")
    with open(own, "w", encoding="utf-8") as f:
        f.write('{"train_batch_size": 64, // mine\n "optimizer": {"type": "Adam", "params": {"lr": 3e-5, "betas": [0.9, 0.95]}},\n'
                '"bf16": {"enabled": true}, "zero_optimization": {"stage": 1, "sub_group_size": 12345}, "wall_clock_breakdown": true}')
    argv = [zinc, "plan", "--model", "llama-7b", "--preset", "rtx3090", "--gpus", "4", "--host_memory", "256GB", "--json", "--deepspeed"]
    plan = json.loads(run([*argv, own, "--suggest", out]).stdout)
    kept = json.load(open(out, encoding="utf-8"))
    if kept["optimizer"] != {"type": "Adam", "params": {"lr": 3e-5, "betas": [0.9, 0.95]}} or not kept["wall_clock_breakdown"] \
            or kept["train_batch_size"] != 64 or kept["zero_optimization"]["sub_group_size"] != 12345:
        sys.exit(f"--suggest lost keys: {kept}")
    more = ["--gradient_checkpointing"] if plan["fixed"]["settings"]["gradient_checkpointing"] else []
    if json.loads(run([*argv, out, *more]).stdout)["device"] != plan["fixed"]["device"]:
        sys.exit(f"the changed file is not what was planned: {kept}")
    big = json.loads(run([zinc, "plan", "--model", "llama-70b", "--preset", "rtx3090", "--gpus", "1", "--host_memory", "256GB",
                          "--json"]).stdout)
    told = run([zinc, "plan", "--model", "llama-70b", "--preset", "rtx3090", "--gpus", "1", "--host_memory", "256GB"]).stdout
    if big["cpu_offload"]["fits"] or big["cpu_offload"]["host"]["over"] <= 0 or "CPU offload does not fit" not in told \
            or '"nvme"' not in told:
        sys.exit(f"70B on one card of 24 GB: {told}")
    rows = json.loads(run([zinc, "plan", "--params", "7B", "--gpus", "4", "--accounting", "classic", "--all", "--json"]).stdout)["rows"]
    if [r["device_total"] for r in rows if r["offload"] == "none"] != [84e9, 42e9, 31.5e9, 21e9]:
        sys.exit(f"the tutorials' 84, 42, 31.5 and 21 GB: {rows}")
    got = json.loads(run([zinc, "plan", "--accounting", "deepspeed", "--params", "2851e6", "--largest_layer", "32e6", "--gpus_per_node",
                          "8", "--nodes", "1", "--stage", "3", "--offload_optimizer", "cpu", "--offload_param", "cpu", "--json"]).stdout)
    if got != {"gpu_bytes": 128000000, "cpu_bytes": 76977000000}:
        sys.exit(f"DeepSpeed's estimate: {got}")
    for argv, code, part in ((["--model", "lama-7b"], 1, "did you mean llama-7b"), ([], 2, "--model"),
                             (["--params", "7X"], 2, "7X"), (["--params", "7B", "--preset", "a10"], 1, "rtx3090"),
                             (["--params", "7B", "--stage", "2", "--offload_param", "cpu"], 2, "needs stage 3"),
                             (["--params", "7B", "--gpus", "60000", "--nodes", "60000"], 2, "ranks")):
        done = run([zinc, "plan", *argv], code)
        if part not in done.stderr or done.stdout:
            sys.exit(f"{argv}: {done.stderr!r} does not say {part!r}")


def main():
    zinc, data, case = sys.argv[1:4]
    with tempfile.TemporaryDirectory() as tmp:
        {"states": states, "knobs": knobs, "offload": offload, "advice": advice, "program": program}[case](Runs(zinc, data, tmp))


main()

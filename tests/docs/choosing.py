#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/choosing.md: choosing.py ZINC DATA_DIR FILE.md [--write].

The first is measured: each way trains a small model on four ranks, and its bytes are the account's and the counters' at the
end. The second is what `zinc plan` says of a 7B model on 16 GPUs, model states and gathered units. The document must have
these very lines between its markers; --write puts them there."""
import json
import os
import re
import subprocess
import sys
import tempfile

ZERO = {"stage3_param_persistence_threshold": 0, "stage3_prefetch_bucket_size": "auto", "reduce_bucket_size": "auto"}
CPU = {"device": "cpu"}
# DeepSpeed's name, FSDP's, zero_optimization, fsdp
WAYS = [
    ("stage 0", "NO_SHARD", {"stage": 0}, {}),
    ("stage 1", "", {"stage": 1}, {}),
    ("stage 2", "", {"stage": 2}, {}),
    ("", "SHARD_GRAD_OP", {}, {"sharding_strategy": "SHARD_GRAD_OP"}),
    ("stage 3 [1]", "FULL_SHARD", {}, {"sharding_strategy": "FULL_SHARD"}),
    ("stage 3, hpZ over a node", "", {"stage": 3, "stage3_max_reuse_distance": 0, "zero_hpz_partition_size": "node"}, {}),
    ("", "HYBRID_SHARD_ZERO2", {}, {"sharding_strategy": "HYBRID_SHARD_ZERO2", "shard_size": "node"}),
    ("", "HYBRID_SHARD", {}, {"sharding_strategy": "HYBRID_SHARD", "shard_size": "node"}),
    ("stage 2, optimizer on the host", "", {"stage": 2, "offload_optimizer": CPU}, {}),
    ("stage 3, all on the host", "FULL_SHARD, offload", {"offload_optimizer": CPU, "offload_param": CPU},
     {"sharding_strategy": "FULL_SHARD"}),
]
SHAPE = {"hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 4}


def settings(tmp, zero, fsdp, node):
    """A ds_config.json of a way; "node" stands for the ranks of a node."""
    zero, fsdp = ({key: node if value == "node" else value for key, value in block.items()} for block in ({**ZERO, **zero}, fsdp))
    path = os.path.join(tmp, "ds_config.json")
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "memory_breakdown": True,
                   "zero_optimization": zero, **({"fsdp": fsdp} if fsdp else {})}, f)
    return path


def call(*argv):
    done = subprocess.run(list(map(str, argv)), capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, argv))}\nexit {done.returncode}\n{done.stderr}")
    return done


def row(*cells):
    return "| " + " | ".join(cells) + " |"


def in_bytes(number, unit):
    return float(number) * {"B": 1, "KB": 1e3, "MB": 1e6, "GB": 1e9}[unit]


def amount(n, unit):
    return f"{n / unit:.1f}" if n else "-"


STATES = ("parameters", "gradients", "masters", "optimizer state")


def on_device(text):
    """The account after the last step, in bytes by category."""
    last = text.rsplit("device memory after", 1)[1]
    return [in_bytes(*re.search(rf"{name} ([\d.]+) (\w+) \(", last).groups()) for name in STATES]


def on_host(text):
    """What the table at the start has in its second column."""
    found = (re.search(rf"^  {name} +[\d.]+ \w+ +([\d.]+) (\w+)", text, re.M) for name in STATES)
    return sum(in_bytes(*match.groups()) for match in found if match)


def make_model(data, tmp):
    model = os.path.join(tmp, "model")
    os.mkdir(model)
    with open(os.path.join(data, "model", "llama", "config.json"), encoding="utf-8") as f:
        values = json.load(f)
    with open(os.path.join(model, "config.json"), "w", encoding="utf-8") as f:
        json.dump({**values, **SHAPE}, f)
    return model


def measured(zinc, data, tmp):
    lines = [row("DeepSpeed", "FSDP", "parameters", "gradients", "masters, Adam", "sum", "host", "sent", "out of the node"),
             "|---|---|" + "---:|" * 7]
    train = [zinc, "train", "--model", make_model(data, tmp), "--from_scratch", "--train_file", os.path.join(data, "cases", "ragged.jsonl"),
             "--output_dir", os.path.join(tmp, "out"), "--overwrite_output_dir", "--ranks", 4, "--threads", 1, "--max_steps", 3,
             "--share_parameters", "false", "--profile", "--deepspeed"]
    for name, strategy, zero, fsdp in WAYS:
        text = call(*train, settings(tmp, zero, fsdp, 2)).stderr
        parameters, gradients, *others = on_device(text)
        sent = re.search(r"sent: (\d+) bytes a step(?:, (\d+) of them to replicas)?(?:, (\d+) of them from second)?", text)
        total, replicas, second = (int(n or 0) for n in sent.groups())
        out = replicas or (total - second) * 2 / 3  # slices go to three ranks, two of them on the other node
        numbers = (parameters, gradients, sum(others), parameters + gradients + sum(others), on_host(text), total, out)
        lines.append(row(name, strategy, *(amount(n, 1e6) for n in numbers)))
    return lines


def planned(zinc, tmp):
    lines = [row("DeepSpeed", "FSDP", "model states", "gathered at once", "host", "sent", "out of the node"), "|---|---|" + "---:|" * 5]
    for name, strategy, zero, fsdp in WAYS:
        plan = json.loads(call(zinc, "plan", "--model", "llama-7b", "--preset", "h100", "--gpus", 8, "--nodes", 2, "--json", "--deepspeed",
                               settings(tmp, zero, fsdp, 8)).stdout)
        states = [plan["device"][key] for key in ("parameters", "gradients", "unit_gradients", "masters", "optimizer_state")]
        host = [plan["host"][key] for key in ("parameters", "gradients", "masters", "optimizer_state")]
        traffic = plan["traffic"]
        out = traffic["replica_bytes"] or (traffic["sent_bytes"] - traffic["secondary_bytes"]) * 8 / 15
        numbers = (sum(states), plan["device"]["live_units"], sum(host), traffic["sent_bytes"], out)
        lines.append(row(name, strategy, *(amount(n, 1e9) for n in numbers)))
    return lines


def main():
    zinc, data, document = sys.argv[1:4]
    with open(document, encoding="utf-8") as f:
        text = f.read()
    fresh = text
    with tempfile.TemporaryDirectory() as tmp:
        for mark, lines in (("measured", measured(zinc, data, tmp)), ("planned", planned(zinc, tmp))):
            block = re.compile(rf"(?<=<!-- {mark} -->\n).*?(?=<!-- end -->)", re.S)
            if not block.search(fresh):
                sys.exit(f"{document} has no block {mark}")
            fresh = block.sub("\n".join(lines) + "\n", fresh, count=1)
    if "--write" in sys.argv:
        with open(document, "w", encoding="utf-8") as f:
            f.write(fresh)
    elif fresh != text:
        wrong = [(a, b) for a, b in zip(text.splitlines(), fresh.splitlines()) if a != b]
        sys.exit("\n".join(f"the document says\n  {a}\nand it is\n  {b}" for a, b in wrong) + "\nchoosing.py … --write writes it anew")


main()

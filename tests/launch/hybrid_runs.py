#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hybrid sharding over two hosts of two ranks: two_hosts.sh ZINC DATA_DIR python3 hybrid_runs.py.

HYBRID_SHARD finds the ranks of a node by itself; runs repeat their bits and are those of four threads; the bytes between the
hosts are the formula's: counted by the program to the byte, and on the wire by the switch that joins the hosts."""
import json
import os
import re
import subprocess
import sys

ZINC, STATE, SWITCH = (os.environ["ZN_" + name] for name in ("ZINC", "STATE", "SWITCH"))
FIRST = os.environ["ZN_INITS"].split()[0]
WORK = os.path.join(STATE, "work")
MODEL = os.path.join(WORK, "model")
BASE = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": {"stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0}}


def on_first(argv):
    """On h1, in a folder that both hosts see."""
    keep = [f"{name}={os.environ[name]}" for name in ("HOME", "PATH")]
    return ["nsenter", "-t", FIRST, "-m", "-n", "-u", "-i", "-p", "--", "env", "-i", *keep, "OMPI_MCA_oob_tcp_if_include=eth0",
            "OMPI_MCA_btl_tcp_if_include=eth0", "sh", "-c", 'cd "$0" && exec "$@"', WORK, *argv]


def run(argv):
    done = subprocess.run(argv, capture_output=True, text=True, cwd=WORK, timeout=120, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(f"{' '.join(argv)}\nexit {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout + done.stderr


def from_first_host():
    """Bytes that the first host has sent to the switch."""
    link = json.loads(run(["ip", "-n", SWITCH, "-s", "-j", "link", "show", "p1"]))[0]
    return link["stats64"]["rx"]["bytes"]


def settings(name, block):
    with open(os.path.join(WORK, name), "w", encoding="utf-8") as f:
        json.dump({**BASE, **block}, f)
    return name


def make_model():
    """The test's model, wide enough that headers are small beside what is sent."""
    os.mkdir(MODEL)
    with open(os.path.join(STATE, "llama", "config.json"), encoding="utf-8") as f:
        values = json.load(f)
    with open(os.path.join(MODEL, "config.json"), "w", encoding="utf-8") as f:
        json.dump({**values, "hidden_size": 256, "intermediate_size": 1024}, f)


def train(name, steps, out):
    return ["train", "--model", MODEL, "--from_scratch", "--train_file", "rows.jsonl", "--threads", "1", "--deepspeed", name, "--max_steps", str(steps),
            "--save_dtype", "float32", "--output_dir", out, "--profile"]


def over_hosts(name, steps, out):
    """Weights, what rank 0 says that it sent a step and to replicas, and bytes that left the first host."""
    before = from_first_host()
    text = run(on_first([ZINC, "launch", "--hostfile", "hosts", "--master_port", "29500", ZINC, *train(name, steps, out)]))
    sent = re.search(r"sent: (\d+) bytes a step(?:, (\d+) of them to replicas)?", text)
    weights = open(os.path.join(WORK, out, "model.safetensors"), "rb").read()
    return weights, int(sent[1]), int(sent[2] or 0), from_first_host() - before


def check(what, ok, *seen):
    if not ok:
        sys.exit(f"{what}: no: {seen}")
    print(f"{what}: ok {seen}")


def check_wire(name, formula, short=None):
    """Bytes a step from the first host, as what 20 steps more than 4 add. The rest are headers and scalars."""
    short = short or over_hosts(name, 4, name + ".short")
    wire = (over_hosts(name, 24, name + ".long")[3] - short[3]) / 20
    check(f"{name}: bytes a step between the hosts are the formula's", formula <= wire < 1.02 * formula, wire, formula)


def traffic(name):
    return json.loads(run([ZINC, "plan", "--model", MODEL, "--gpus", "2", "--nodes", "2", "--deepspeed", name, "--json"]))["traffic"]


def main():
    with open(os.path.join(WORK, "hosts"), "w", encoding="utf-8") as f:
        f.write("h1 slots=2\nh2 slots=2\n")
    with open(os.path.join(WORK, "rows.jsonl"), "w", encoding="utf-8") as f:
        for i in range(16):
            f.write(json.dumps({"input_ids": [(7 * i + 13 * j) % 300 for j in range(8 + i)]}) + "\n")
    make_model()
    hybrid = settings("hybrid.json", {"fsdp": {"sharding_strategy": "HYBRID_SHARD"}})
    given = settings("given.json", {"fsdp": {"sharding_strategy": "HYBRID_SHARD", "shard_size": 2}})
    first = over_hosts(hybrid, 4, "first")
    weights, sent, to_replicas, _ = first
    check("a hybrid run repeats its bits", over_hosts(hybrid, 4, "again")[0] == weights)
    run([ZINC, *train(given, 4, "threads"), "--ranks", "4"])
    check("they are those of threads in groups of two", open(os.path.join(WORK, "threads", "model.safetensors"), "rb").read() == weights)

    plan = traffic(hybrid)
    trainable = plan["reduce_elements"]  # S = R = 2: half a shard there and half back, in fp32
    check("what goes to replicas is the formula", to_replicas == plan["replica_bytes"] == 2 * trainable // 2 // 2 * 4, to_replicas)
    check("and all that is sent is the plan's", sent == plan["sent_bytes"], sent)
    check_wire(hybrid, 2 * to_replicas, first)

    # Over all ranks half of every slice's copies leaves the host, two bytes an element; two ranks.
    for zero in ({}, {"zero_hpz_partition_size": 2}):
        name = settings(f"all{len(zero)}.json", {"zero_optimization": {**BASE["zero_optimization"], "stage": 3, **zero}})
        plan = traffic(name)
        check_wire(name, 2 * (plan["reduce_elements"] + plan["gather_elements"]) * 2 // 2)


main()

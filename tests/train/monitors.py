#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a ds_config.json asks to see of a run: monitors.py ZINC DATA_DIR.

Trains a small model in fp16 on two ranks and holds the TensorBoard file (read here, byte by byte), the CSV files, run.json,
eval.jsonl, what is printed and the report to the rows of metrics.jsonl.
"""
import glob
import json
import math
import os
import re
import struct
import subprocess
import sys
import tempfile

STEPS, RANKS, MICRO, ACCUMULATION = 6, 2, 2, 2
TAGS = {"train_loss": "loss", "lr": "lr", "grad_norm": "grad_norm", "tokens_per_s": "tokens_per_s", "loss_scale": "loss_scale"}


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(data):
    at = 0
    while at < len(data):
        head = data[at:at + 8]
        (length,), (crc,) = struct.unpack("<Q", head), struct.unpack("<I", data[at + 8:at + 12])
        assert crc == masked(head), f"CRC of the length at byte {at}"
        body = data[at + 12:at + 12 + length]
        (crc,) = struct.unpack("<I", data[at + 12 + length:at + 16 + length])
        assert len(body) == length and crc == masked(body), f"CRC of the event at byte {at}"
        yield body
        at += 16 + length


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data):
    """(number, value) of a protobuf message; fixed-width values as bytes."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 0:
            value, at = varint(data, at)
        else:
            n = {1: 8, 5: 4}.get(key & 7)
            if n is None:
                assert key & 7 == 2, f"wire type {key & 7}"
                n, at = varint(data, at)
            value, at = data[at:at + n], at + n
            assert len(value) == n
        yield key >> 3, value


def scalars(path):
    """{tag: [(step, value)]} of an event file."""
    events = [dict(fields(body)) for body in records(open(path, "rb").read())]
    assert events[0][3] == b"brain.Event:2", "the first record is the file version"
    found = {}
    for event in events[1:]:
        (wall,) = struct.unpack("<d", event[1])
        assert 1.5e9 < wall < 1e11
        for number, value in fields(event[5]):
            assert number == 1
            value = dict(fields(value))
            (x,) = struct.unpack("<f", value[2])
            found.setdefault(value[1].decode(), []).append((event[2], x))
    return found


def equal(a, b, digits):
    return (math.isnan(a) and b is None) or a == b or (b is not None and abs(a - b) <= digits * abs(b))


def check_tensorboard(out, rows, evals):
    files = glob.glob(os.path.join(out, "tb", "job", "events.out.tfevents.*"))
    assert len(files) == 1, files
    found = scalars(files[0])
    assert set(found) == {"Train/Samples/" + tag for tag in TAGS} | {"Eval/Samples/eval_loss"}, set(found)
    for tag, key in TAGS.items():
        series = found["Train/Samples/" + tag]
        assert [s for s, _ in series] == [r["step"] * RANKS * MICRO * ACCUMULATION for r in rows], series
        for (_, x), row in zip(series, rows):
            if key != "grad_norm" or not row["overflow"]:
                assert equal(x, row[key], 1e-6), (tag, x, row)
    assert [x for _, x in found["Eval/Samples/eval_loss"]] == [struct.unpack("<f", struct.pack("<f", e["eval_loss"]))[0] for e in evals]


def check_csv(out, rows):
    for tag, key in TAGS.items():
        lines = open(os.path.join(out, "DeepSpeedJobName", f"Train_Samples_{tag}.csv"), encoding="utf-8").read().split("\n")
        assert lines[0] == "step," + tag and lines[-1] == "", lines
        assert len(lines) == len(rows) + 2
        for line, row in zip(lines[1:], rows):
            step, x = line.split(",")
            assert int(step) == row["step"] * RANKS * MICRO * ACCUMULATION, line
            if key != "grad_norm" or not row["overflow"]:
                assert float(x) == row[key], (line, row)


def check_run_json(out, rows):
    run = json.load(open(os.path.join(out, "run.json"), encoding="utf-8"))
    assert run["run"]["ranks"] == RANKS and run["run"]["steps"] == STEPS and run["run"]["precision"] == "fp16", run["run"]
    assert run["config"]["resolved"]["gradient_accumulation_steps"] == ACCUMULATION
    assert re.search(r"ds\.json:\d+$", run["config"]["origin"]["train_micro_batch_size_per_gpu"]), run["config"]["origin"]
    assert run["model"]["parameters"] > 1000 and run["data"]["rows"] == 24, (run["model"], run["data"])


def check_printed(text, out, rows):
    times = re.findall(r"^time of steps? .*?: (data .*)$", text, re.M)
    assert len(times) == STEPS // 2, text
    for line in times:
        parts = dict(re.fullmatch(r"(.*) (-?[\d.]+)", part).groups() for part in line.split(" | "))
        assert list(parts) == ["data", "forward+backward", "reduce wait", "gather wait", "step", "logging"], parts
        assert all(float(x) >= 0 for x in parts.values()) and float(parts["forward+backward"]) > 0, parts
    for wait in ("reduce wait", "gather wait"):  # two ranks never arrive at the same time
        assert any(float(x) > 0 for x in re.findall(wait + r" ([\d.]+)", "".join(times))), (wait, times)
    # parts do not overlap: what is not logging adds up to the step, which metrics.jsonl has
    sums = [sum(float(x) for x in re.findall(r"(?<= )[\d.]+(?= |$)", line)[:-1]) for line in times]
    wants = [(rows[2 * i]["step_ms"] + rows[2 * i + 1]["step_ms"]) / 2 for i in range(len(sums))]
    assert all(got <= 1.05 * want + 0.1 for got, want in zip(sums, wants)), (sums, wants)
    # a busy machine may take a moment away between two readings of the clock, but not each time
    assert any(got >= 0.95 * want - 0.1 for got, want in zip(sums, wants)), (sums, wants)
    assert len(re.findall(r"^step \d+/6  ", text, re.M)) == STEPS // 2, text
    memory = re.findall(r"^device memory after step (\d+), now \(peak\): parameters [\d.]+ [kKMG]?B \(", text, re.M)
    assert memory == ["2", "4", "6"], text
    assert len(re.findall(r"^zero_optimization\.stage +3 +\S*ds\.json:\d+$", text, re.M)) == 1, text
    profile = open(os.path.join(out, "profile.txt"), encoding="utf-8").read()
    assert profile.startswith("profile of step 3, rank 0 of 2, stage 3\n"), profile
    table = {name: [float(x) for x in rest.split()] for name, rest in re.findall(r"^  (forward|backward|sum) +(.*)$", profile, re.M)}
    flops = [table[name][0] for name in ("forward", "backward", "sum")]
    assert abs(flops[0] + flops[1] - flops[2]) <= 1e-3 * flops[2], profile
    for f, ms, rate in table.values():
        assert f <= rate * (ms + 0.006) * 1e-3 * 1.001 and f >= rate * (ms - 0.006) * 1e-3 * 0.999, profile  # of rounded numbers


def main(zinc, data):
    with tempfile.TemporaryDirectory() as tmp:
        rows, config, out = (os.path.join(tmp, n) for n in ("rows.jsonl", "ds.json", "out"))
        with open(rows, "w", encoding="utf-8") as f:
            for i in range(24):
                f.write(json.dumps({"input_ids": [(7 * i * i + 13 * j * (i + 3)) % 300 for j in range(5 + i % 19)]}) + "\n")
        with open(config, "w", encoding="utf-8") as f:
            json.dump({"train_micro_batch_size_per_gpu": MICRO, "gradient_accumulation_steps": ACCUMULATION,
                       "steps_per_print": 2, "wall_clock_breakdown": True, "memory_breakdown": True, "dump_state": True,
                       "fp16": {"enabled": True, "initial_scale_power": 20, "hysteresis": 1},
                       "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
                       "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 100},
                       "tensorboard": {"enabled": True, "output_path": os.path.join(out, "tb"), "job_name": "job"},
                       "csv_monitor": {"enabled": True},
                       "flops_profiler": {"enabled": True, "profile_step": 3, "output_file": os.path.join(out, "profile.txt")}},
                      f, indent=1)
        done = subprocess.run([zinc, "train", "--model", os.path.join(data, "model", "gpt2"), "--train_file", rows, "--deepspeed",
                               config, "--validation_file", rows, "--max_steps", str(STEPS), "--output_dir", out, "--ranks",
                               str(RANKS), "--eval_steps", "3", "--share_parameters", "false"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        got = [json.loads(line) for line in open(os.path.join(out, "metrics.jsonl"), encoding="utf-8")]
        evals = [json.loads(line) for line in open(os.path.join(out, "eval.jsonl"), encoding="utf-8")]
        assert len(got) == STEPS and [e["step"] for e in evals] == [3, 6], (got, evals)
        assert all(equal(e["perplexity"], math.exp(e["eval_loss"]), 1e-12) for e in evals)
        skipped = [r["overflow"] for r in got]
        assert skipped[0] and not skipped[-1], f"the first loss scale is meant to overflow, the last not: {skipped}"
        check_tensorboard(out, got, evals)
        check_csv(out, got)
        check_run_json(out, got)
        check_printed(done.stderr, out, got)
        subprocess.run([zinc, "report", out], check=True, capture_output=True)
        page = open(os.path.join(out, "report.html"), encoding="utf-8").read()
        assert f"<th>skipped steps</th><td>{sum(r['overflow'] for r in got)}</td>" in page and "<th>ranks</th><td>2</td>" in page


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

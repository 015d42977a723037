#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--profile says where the time of a run went, and draws it. profile.py ZINC DATA"""
import json
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

PHASES = ["data", "forward", "backward", "waiting to reduce", "waiting to gather", "optimizer", "other"]


def main():
    zinc, data = sys.argv[1], pathlib.Path(sys.argv[2])
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        ids = [i * 37 % 199 for i in range(4000)]
        (folder / "d.bin").write_bytes(b"ZINCTOK1" + struct.pack(f"<II{len(ids)}I", 4, 0, *ids))
        (folder / "ds.json").write_text(json.dumps({
            "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}, "bf16": {"enabled": True},
            "train_micro_batch_size_per_gpu": 2}))
        command = [zinc, "train", "--model", data / "model/llama", "--from_scratch", "--train_file", folder / "d.bin",
                   "--output_dir", folder / "out", "--deepspeed", folder / "ds.json", "--block_size", "32", "--ranks",
                   "2", "--threads", "1", "--max_steps", "4", "--share_parameters", "false", "--profile"]
        text = subprocess.run(command, check=True, text=True, stderr=subprocess.PIPE).stderr
        assert "profile of 3 steps after the first, rank 0" in text, text
        found = {phase: re.search(rf"^  {phase} +([\d.]+) +([\d.]+)%", text, re.M) for phase in PHASES}
        assert all(found.values()), text
        shares = sum(float(match.group(2)) for match in found.values())
        assert abs(shares - 100) < 1, text
        # one clock: the phases but the writing of rows are the steps of metrics.jsonl, to what printing rounds
        steps = [json.loads(line)["step_ms"] for line in (folder / "out/metrics.jsonl").open()][1:]
        phases = sum(float(match.group(1)) for phase, match in found.items() if phase != "other")
        assert abs(phases - sum(steps) / len(steps)) < 0.01 * len(PHASES), (phases, steps, text)
        assert re.search(r"of peak", text) and re.search(r"peak: [\d.]+ GFLOP/s", text), text
        events = json.loads((folder / "out/trace.json").read_text())["traceEvents"]
        spans = [event for event in events if event["ph"] == "X"]
        assert {(span["pid"], span["tid"]) for span in spans} == {(r, lane) for r in (0, 1) for lane in (0, 1, 2)}
        names = {span["name"] for span in spans}
        assert {"data", "forward and backward", "optimizer"} <= names, names
        assert any(name.startswith("all_gather ") for name in names), names
        assert any(name.startswith("reduce_scatter ") for name in names), names
        assert any(name.startswith("backward ") for name in names) and any(
            name.startswith("forward ") for name in names), names
        for rank in (0, 1):  # uses of units lie inside the phase that computes
            work = [s for s in spans if s["pid"] == rank and s["name"] == "forward and backward"]
            uses = [s for s in spans if s["pid"] == rank and s["tid"] == 1]
            assert len(work) == 4 and uses
            for use in uses:
                assert any(w["ts"] <= use["ts"] and use["ts"] + use["dur"] <= w["ts"] + w["dur"] for w in work), use


main()

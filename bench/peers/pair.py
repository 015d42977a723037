#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run two commands in turn and say how many times faster the first one's steps are.

    pair.py ROUNDS COMMAND_A -- COMMAND_B

Each command prints one JSON object with "who", "tokens" and "step_s". What a shared machine does to one it does to the
other a moment later, so the ratio of each round counts, not the seconds.
"""
import json
import statistics
import subprocess
import sys


def measure(command):
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout
    row = json.loads([line for line in out.splitlines() if line.startswith("{")][-1])
    row["rate"] = row["tokens"] / min(row["step_s"])
    return row


def main():
    cut = sys.argv.index("--")
    commands = [sys.argv[2:cut], sys.argv[cut + 1:]]
    ratios = []
    for number in range(int(sys.argv[1])):
        a, b = (measure(command) for command in commands)
        ratios.append(a["rate"] / b["rate"])
        print(f"round {number + 1}: {a['who']} {a['rate']:.0f} tok/s, {b['who']} {b['rate']:.0f} tok/s, "
              f"ratio {ratios[-1]:.2f}", flush=True)
    print(json.dumps({"a": a["who"], "b": b["who"], "model": a["model"], "ratio_median": statistics.median(ratios),
                      "ratios": ratios}))


if __name__ == "__main__":
    main()

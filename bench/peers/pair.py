#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run two commands in turn and compare their steps, their memory and their start.

    pair.py ROUNDS COMMAND_A -- COMMAND_B

Each command prints one JSON object with "who", "tokens", "step_s", "peak_mib" and "first_step_s". What a shared machine does
to one it does to the other a moment later, so the ratio of each round counts, not the seconds. With PEER_REALTIME=1
(root) measured steps go before all else on the machine.
"""
import json
import os
import statistics
import subprocess
import sys
import time


def measure(command):
    env = {**os.environ, "PEER_T0": str(time.time())}
    out = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True, env=env).stdout
    row = json.loads([line for line in out.splitlines() if line.startswith("{")][-1])
    row["rate"] = row["tokens"] / min(row["step_s"])
    row["median_rate"] = row["tokens"] / statistics.median(row["step_s"])
    return row


def compare(rounds, command_a, command_b):
    """Print every round; return the medians of the ratios."""
    keys = {"rate": "faster (best step)", "median_rate": "faster (median step)", "peak_mib": "of the memory",
            "first_step_s": "of the time to the first step"}
    ratios = {key: [] for key in keys}
    for number in range(rounds):
        a, b = measure(command_a), measure(command_b)
        for key in keys:
            ratios[key].append(a[key] / b[key])
        print(f"round {number + 1}: {a['who']} {a['rate']:.0f} tok/s, {a['peak_mib']} MiB, {a['first_step_s']} s; "
              f"{b['who']} {b['rate']:.0f} tok/s, {b['peak_mib']} MiB, {b['first_step_s']} s; "
              + ", ".join(f"{ratios[key][-1]:.2f} {keys[key]}" for key in keys), flush=True)
    summary = {key: round(statistics.median(values), 3) for key, values in ratios.items()}
    print(json.dumps({"a": a["who"], "b": b["who"], "model": a["model"], "rounds": rounds, **summary,
                      "spread": [round(min(ratios["rate"]), 2), round(max(ratios["rate"]), 2)]}), flush=True)
    return summary


def main():
    cut = sys.argv.index("--")
    compare(int(sys.argv[1]), sys.argv[2:cut], sys.argv[cut + 1:])


if __name__ == "__main__":
    main()

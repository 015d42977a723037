# SPDX-License-Identifier: Apache-2.0
"""Ranks of a test: one process each, that import a test module and call one of its functions."""
import json
import os
import socket
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
CALL = """
import importlib, json, sys
sys.path[:0] = json.loads(sys.argv[1])
out = getattr(importlib.import_module(sys.argv[2]), sys.argv[3])(*json.loads(sys.argv[4]))
with open(sys.argv[5], "w") as f:
    f.write(json.dumps(out))
"""


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def path_for(folder):
    """Where a rank finds the packages: as installed, or the source tree and metadata made here,
    without which transformers finds no deepspeed."""
    if os.environ.get("ZINC_TEST_INSTALLED"):
        return [HERE]
    about = os.path.join(folder, "metadata", "deepspeed-0.19.8+zinc.dist-info")
    os.makedirs(about, exist_ok=True)
    with open(os.path.join(about, "METADATA"), "w") as f:
        f.write("Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.19.8+zinc\n")
    return [os.path.dirname(about), os.path.dirname(HERE), HERE]


def ranks(n, module, function, *args, folder):
    """Results of function(*args) of every rank, which must be JSON."""
    env = dict(os.environ, WORLD_SIZE=str(n), LOCAL_WORLD_SIZE=str(n), MASTER_ADDR="127.0.0.1",
               MASTER_PORT=str(free_port()), OMP_NUM_THREADS="1")
    path = json.dumps(path_for(folder))
    outs = [os.path.join(folder, f"rank{r}.json") for r in range(n)]
    jobs = [subprocess.Popen([sys.executable, "-c", CALL, path, module, function, json.dumps(args), out],
                             env=dict(env, RANK=str(r), LOCAL_RANK=str(r)), stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE,
                             text=True) for r, out in enumerate(outs)]
    errors = [job.communicate(timeout=240)[1] for job in jobs]
    if any(job.returncode for job in jobs):
        raise AssertionError("\n".join(f"rank {r}: {e[-3000:]}" for r, e in enumerate(errors)))
    results = []
    for out in outs:
        with open(out) as f:
            results.append(json.load(f))
    return results

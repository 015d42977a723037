#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A run whose nodes share no file system: nodes.py ZINC DATA_DIR.

Two "nodes" of two ranks each are two folders of this machine: mpirun starts their processes in different ones, and the output
folder is a relative path. Saving, going on (also at other world sizes and stages, with the folders exchanged, with a part
missing), retention, what a cut-off save leaves, and export.
"""
import glob
import os
import shutil
import subprocess
import sys
import tempfile

from resume import Bench, bits, check, curve, latest

STEPS = 6


class Nodes(Bench):
    def run_nodes(self, *extra, ranks=(2, 2), code=0, stage=3, order=(0, 1), env=None):
        """ranks[i] processes in the folder of node order[i]."""
        argv = self.argv("run", *extra, "--comm", "mpi", stage=stage, ranks=sum(ranks), accumulation=1)
        argv[argv.index("--ranks") + 1] = "1"
        words = ["mpirun", "--oversubscribe"] + (["--allow-run-as-root"] if os.getuid() == 0 else [])
        for k, n in enumerate(ranks):
            folder = self.path(f"node{order[k]}")
            os.makedirs(folder, exist_ok=True)
            words += ([":"] if k else []) + ["-n", str(n), "--wdir", folder] + argv
        done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **(env or {})})
        check(done.returncode == code, f"{' '.join(words)}\nexit {done.returncode}, not {code}\n{done.stderr}")
        return done.stderr

    def node(self, i, *names):
        return self.path(f"node{i}", "run", *names)


def export(b, out, *folders, code=0):
    return b.run([b.zinc, "export", *folders, out], code=code)


def main(zinc, data):
    with tempfile.TemporaryDirectory() as tmp:
        b = Nodes(os.path.realpath(zinc), os.path.realpath(data), tmp)
        whole = b.path("whole")
        b.train(whole, "--max_steps", STEPS, ranks=4, accumulation=1)

        said = b.run_nodes("--max_steps", 4, "--save_steps", 2, "--save_total_limit", 1)
        check("is another folder on each of 2 nodes" in said and "`zinc export` FOLDER... OUT makes the model" in said, said)
        for i in range(2):
            check(latest(b.node(i)) == b.node(i, "checkpoint-4"), os.listdir(b.node(i)))
            check(not glob.glob(b.node(i, "checkpoint-2*")), f"--save_total_limit 1: {os.listdir(b.node(i))}")
            check(not glob.glob(b.node(i, ".zinc*")), f"left over: {os.listdir(b.node(i))}")
            parts = sorted(os.path.basename(p) for p in glob.glob(b.node(i, "checkpoint-4", "*.safetensors")))
            check(parts == [f"shard-0000{r}-of-00004.safetensors" for r in (2 * i, 2 * i + 1)], f"node {i}: {parts}")
            seen = subprocess.run([b.zinc, "checkpoint", "verify", b.node(i)], capture_output=True, text=True)
            check(seen.returncode == 0 and "files are on other nodes" in seen.stdout, seen.stdout + seen.stderr)
        manifests = [open(b.node(i, "checkpoint-4", "manifest.json"), "rb").read() for i in range(2)]
        check(manifests[0] == manifests[1], "the manifests of the nodes differ")
        kept = b.path("kept")
        for i in range(2):
            shutil.copytree(b.path(f"node{i}"), os.path.join(kept, f"node{i}"))

        def again():
            for i in range(2):
                shutil.rmtree(b.path(f"node{i}"), ignore_errors=True)
                shutil.copytree(os.path.join(kept, f"node{i}"), b.path(f"node{i}"))

        # the same nodes: nothing is sent, and the end is that of the unbroken run
        resume = ("--max_steps", STEPS, "--save_steps", 2, "--resume_from_checkpoint")
        said = b.run_nodes(*resume)
        check("were sent" not in said, said)
        check(curve(whole) == curve(b.node(0)), "the rows differ")
        export(b, b.path("out"), b.node(1), b.node(0))
        check(bits(b.path("out", "model.safetensors")) == bits(whole + "/model.safetensors"), "the weights differ")
        said = export(b, b.path("half"), b.node(0), code=4)
        check("is not here: it was written on the node" in said, said)

        # the nodes exchanged, and a stage that needs everything everywhere: parts are sent
        for how in ({"order": (1, 0)}, {"stage": 0}):
            again()
            said = b.run_nodes(*resume, **how)
            check("were sent to nodes that did not have them" in said, said)
            out = b.path(f"out{len(how)}{list(how)[0]}")
            export(b, out, b.node(0), b.node(1))
            check(bits(out + "/model.safetensors") == bits(whole + "/model.safetensors"), f"{how}: the weights differ")

        # another world size; the same on a new, empty node, once the other one holds all files
        again()
        said = b.run_nodes(*resume, ranks=(1, 1))
        check("were sent" in said and "is of 4 ranks at stage 3; going on with 2" in said, said)
        again()
        said = b.run_nodes(*resume, ranks=(1, 1), order=(0, 2), code=4)
        check("shard-00002-of-00004.safetensors is on no node of this run: it was written on the node" in said, said)
        for path in glob.glob(b.node(1, "checkpoint-4", "shard-*")):
            shutil.copy(path, b.node(0, "checkpoint-4"))
        said = b.run_nodes(*resume, ranks=(1, 1), order=(0, 2))
        check("were sent" in said and os.path.exists(b.node(2, "checkpoint-6", "manifest.json")), said)

        # a part that is damaged where it lies, and a save that was cut off between two nodes
        again()
        path = b.node(1, "checkpoint-4", "shard-00003-of-00004.json")
        with open(path, "r+b") as f:
            f.seek(200)
            f.write(b"#")
        said = b.run_nodes(*resume, code=1)
        check("shard-00003-of-00004.json: is damaged" in said, said)
        again()
        b.run_nodes(*resume)
        os.rename(b.node(1, "checkpoint-6"), b.node(1, "checkpoint-6.tmp"))
        for i in range(2):
            with open(b.node(i, "latest"), "w", encoding="utf-8") as f:
                f.write("checkpoint-4\n")
        said = b.run_nodes(*resume)
        check("going on after step 4 " in said and not glob.glob(b.node(1, "*.tmp")), said)
        check(curve(whole) == curve(b.node(0)), "the rows differ")

        # without --save_steps the weights are kept all the same
        for i in range(2):
            shutil.rmtree(b.path(f"node{i}"))
        b.run_nodes("--max_steps", 2, "--save_steps", 0)
        export(b, b.path("last"), b.node(0, "checkpoint-2"), b.node(1, "checkpoint-2"))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

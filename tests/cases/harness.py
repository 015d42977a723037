# SPDX-License-Identifier: Apache-2.0
"""What the case files share: running zinc, small models and data, safetensors without libraries.

A case file defines functions whose names are sentences and ends in `harness.main(globals())`; each function takes a
Bench. `FILE.py ZINC DATA_DIR [NAME ...]` runs all of them, or those named.
"""
import array
import inspect
import json
import math
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile

C0 = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 1, "gradient_clipping": 0,
      "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0}},
      "zero_optimization": {"stage": 0}}
PRECISION = {"fp32": {}, "bf16": {"bf16": {"enabled": True}},
             "fp16": {"fp16": {"enabled": True, "initial_scale_power": 8}}}
SIZE = {"F32": 4, "BF16": 2, "F16": 2}


def config(*overrides):
    """C0 with blocks and keys laid over it; None takes a key out."""
    out = json.loads(json.dumps(C0))
    for over in overrides:
        for key, value in over.items():
            if isinstance(value, dict) and isinstance(out.get(key), dict):
                out[key].update(value)
            elif value is None:
                out.pop(key, None)
            else:
                out[key] = value
    return out


def read_safetensors(path):
    """{name: (dtype, shape, bytes)}"""
    data = open(path, "rb").read()
    n = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + n])
    return {name: (t["dtype"], t["shape"], data[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]])
            for name, t in head.items() if name != "__metadata__"}


def write_safetensors(path, tensors):
    head, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def floats(tensor):
    dtype, _, data = tensor
    if dtype == "F32":
        return array.array("f", data)
    halves = array.array("H", data)
    if dtype == "BF16":
        return array.array("f", b"".join(struct.pack("<I", h << 16) for h in halves))
    return array.array("f", struct.unpack(f"<{len(halves)}e", data))


def f32(shape, values):
    return ("F32", list(shape), array.array("f", values).tobytes())


def spread(a, b):
    """Largest difference of two models' numbers, as a share of the largest number of their tensor."""
    worst = 0.0
    assert a.keys() == b.keys(), f"tensors differ: {sorted(a.keys() ^ b.keys())}"
    for name in a:
        x, y = floats(a[name]), floats(b[name])
        top = max(map(abs, x)) or 1.0
        worst = max(worst, max(abs(p - q) for p, q in zip(x, y)) / top)
    return worst


def rows_of_ids(path, lengths, vocab=250, targets=None, seed=1):
    """A .jsonl of random rows; targets[i] of row i's labels count (None: all)."""
    rng = random.Random(seed)
    with open(path, "w", encoding="utf-8") as f:
        for i, n in enumerate(lengths):
            ids = [rng.randrange(vocab) for _ in range(n)]
            keep = n if targets is None else targets[i]
            f.write(json.dumps({"input_ids": ids, "labels": ids[:keep] + [-100] * (n - keep)}) + "\n")
    return path


class Run:
    """A finished run: exit code, both outputs, and where it wrote."""

    def __init__(self, done, out):
        self.code, self.stdout, self.stderr, self.out = done.returncode, done.stdout, done.stderr, out

    @property
    def rows(self):
        with open(os.path.join(self.out, "metrics.jsonl"), encoding="utf-8") as f:
            return [json.loads(line) for line in f]

    def column(self, name):
        return [row[name] for row in self.rows]

    @property
    def weights(self):
        return read_safetensors(os.path.join(self.out, "model.safetensors"))

    @property
    def bits(self):
        return open(os.path.join(self.out, "model.safetensors"), "rb").read()

    @property
    def curve(self):
        return [(r["loss"], r["grad_norm"], r["lr"], r["overflow"]) for r in self.rows]


class Bench:
    def __init__(self, zinc, data, tmp):
        self.zinc, self.data, self.tmp, self.n = zinc, data, tmp, 0
        self.g2 = os.path.join(data, "cases", "g2")
        self.ragged = os.path.join(data, "cases", "ragged.jsonl")

    def model(self, name):
        return os.path.join(self.data, "model", name)

    def path(self, name):
        return os.path.join(self.tmp, name)

    def write(self, name, text):
        mode = "wb" if isinstance(text, bytes) else "w"
        with open(self.path(name), mode) as f:
            f.write(text if isinstance(text, (bytes, str)) else json.dumps(text))
        return self.path(name)

    def copy_model(self, source, name, change=None, settings=None):
        """A copy of a model folder; change(tensors) edits its weights in place, settings go into config.json."""
        to = self.path(name)
        shutil.copytree(source, to, dirs_exist_ok=True)
        if change:
            tensors = read_safetensors(os.path.join(to, "model.safetensors"))
            change(tensors)
            write_safetensors(os.path.join(to, "model.safetensors"), tensors)
        if settings:
            path = os.path.join(to, "config.json")
            with open(path, encoding="utf-8") as f:
                values = json.load(f)
            with open(path, "w", encoding="utf-8") as f:
                json.dump({**values, **settings}, f)
        return to

    def command(self, *argv, stdin=None):
        done = subprocess.run([self.zinc, *map(str, argv)], capture_output=True, text=True, input=stdin, timeout=200)
        return Run(done, None)

    def train(self, settings=None, model=None, rows=None, ranks=1, steps=3, extra=(), ok=True, save_dtype="float32"):
        """zinc train, unshuffled and without dropout; settings: a ds_config as a dict or as text; save_dtype None: not given."""
        self.n += 1
        out = self.path(f"out{self.n}")
        argv = [self.zinc, "train", "--model", model or self.g2, "--train_file", rows or self.ragged, "--output_dir", out, "--ranks",
                str(ranks), "--threads", "1", "--shuffle", "false", "--dropout", "0", "--max_steps", str(steps)]
        if settings is not None:
            argv += ["--deepspeed", self.write(f"ds{self.n}.json", settings if isinstance(settings, str) else json.dumps(settings))]
        if save_dtype:
            argv += ["--save_dtype", save_dtype]
        run = Run(subprocess.run(argv + list(map(str, extra)), capture_output=True, text=True, timeout=200), out)
        if ok and run.code != 0:
            raise AssertionError(f"{' '.join(argv + list(map(str, extra)))}\nexit {run.code}\n{run.stderr}")
        return run

    def refused(self, *needles, code=1, **how):
        """The run ends with `code`, its message holds every needle, and nothing was trained or saved."""
        run = self.train(ok=False, **how)
        assert run.code == code, f"exit {run.code}, want {code}\n{run.stderr}"
        for needle in needles:
            assert needle in run.stderr, f"no \"{needle}\" in\n{run.stderr}"
        assert not os.path.exists(os.path.join(run.out, "model.safetensors")), "something was saved"
        return run


def near(a, b, tolerance):
    return math.isclose(a, b, rel_tol=tolerance, abs_tol=0)


def same(what, want, got):
    assert want == got, f"{what} differs:\n  {want!r:.600}\n  {got!r:.600}"


def main(names):
    zinc, data, wanted = sys.argv[1], sys.argv[2], sys.argv[3:]
    cases = {n: f for n, f in names.items() if inspect.isfunction(f) and f.__module__ == "__main__" and not n.startswith("_")}
    bad = 0
    for name in wanted or cases:
        with tempfile.TemporaryDirectory() as tmp:
            try:
                cases[name](Bench(zinc, data, tmp))
                print(f"ok    {name}")
            except AssertionError as e:
                bad += 1
                print(f"FAIL  {name}: {e}")
    sys.exit(1 if bad else 0)

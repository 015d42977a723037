#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs that are cut and go on: resume.py ZINC DATA_DIR CASE [FAULT_LIBRARY].

bits:DTYPE  a run cut in three is the unbroken one bit for bit        kill     kill -9 at random moments
other       other stages, world sizes and precisions                  signals  SIGTERM, SIGINT, SIGUSR1
refuse      what may not go on says why                               faults   writes, flushes and renames that fail
damage      files that are damaged or missing are named               mpi      ranks as processes
worlds      world sizes that do not divide a checkpoint's
address_space  export where addresses are few
kills:N     kill -9 of a rank, a launcher or all, inside of writes, flushes, renames and removals and anywhere else
deepspeed:NAME  from DeepSpeed's checkpoints
"""
import errno
import glob
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

BLOCK = {"float32": {}, "bf16": {"bf16": {"enabled": True}},
         # a first scale that overflows, so that steps are skipped before the cut
         "fp16": {"fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 26, "hysteresis": 1, "loss_scale_window": 6}}}
ROWS, BATCH = 50, 8  # 20 steps are three epochs and a bit


def check(ok, what):
    if not ok:
        sys.exit(what)


def bits(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


class Bench:
    def __init__(self, zinc, data, tmp):
        self.zinc, self.data, self.tmp, self.n = zinc, data, tmp, 0
        self.rows = self.write_rows("rows.jsonl", ROWS)

    def path(self, *names):
        return os.path.join(self.tmp, *names)

    def write_rows(self, name, n):
        with open(self.path(name), "w", encoding="utf-8") as f:
            for i in range(n):
                f.write(json.dumps({"input_ids": [(7 * i * i + 13 * j * (i + 3)) % 300 for j in range(5 + i % 19)]}) + "\n")
        return self.path(name)

    def argv(self, out, *extra, dtype="float32", stage=3, ranks=2, accumulation=2, model="llama", settings=None, rows=None):
        self.n += 1
        config = self.path(f"ds{self.n}.json")
        with open(config, "w", encoding="utf-8") as f:
            json.dump({"train_micro_batch_size_per_gpu": BATCH // ranks // accumulation, "gradient_accumulation_steps": accumulation,
                       "gradient_clipping": 0.5, "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 100},
                       "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}},
                       "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 3, "total_num_steps": 40}},
                       **BLOCK[dtype], **(settings or {})}, f)
        return [self.zinc, "train", "--model", os.path.join(self.data, "model", model), "--train_file", rows or self.rows,
                "--deepspeed", config, "--output_dir", out, "--ranks", str(ranks), "--threads", "1", "--save_dtype", "float32",
                "--dropout", "0.1", *map(str, extra)]

    def run(self, argv, code=0, env=None):
        done = subprocess.run(argv, capture_output=True, text=True, env={**os.environ, **(env or {})})
        check(done.returncode == code, f"{' '.join(argv)}\nexit {done.returncode}, not {code}\n{done.stderr}")
        return done.stderr

    def train(self, out, *extra, code=0, env=None, **how):
        return self.run(self.argv(out, *extra, **how), code, env)

    def verify(self, folder):
        self.run([self.zinc, "checkpoint", "verify", folder])


def curve(out):
    with open(os.path.join(out, "metrics.jsonl"), encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    check([r["step"] for r in rows] == list(range(1, len(rows) + 1)), f"{out}: steps are not 1, 2, 3, …")
    return [(r["loss"], r["grad_norm"], r["lr"], r["loss_scale"], r["overflow"], r["epoch"], r["tokens"]) for r in rows]


def latest(out):
    with open(os.path.join(out, "latest"), encoding="utf-8") as f:
        return os.path.join(out, f.read().strip())


def case_bits(b, dtype):
    """20 = 3 + 5 + 12, at the same world size; overflows before the first cut in fp16."""
    for stage in (0, 3):
        whole, cut = b.path(f"whole{stage}"), b.path(f"cut{stage}")
        b.train(whole, "--max_steps", 20, dtype=dtype, stage=stage)
        b.train(cut, "--max_steps", 3, "--save_steps", 3, dtype=dtype, stage=stage)
        b.train(cut, "--max_steps", 8, "--save_steps", 5, "--resume_from_checkpoint", dtype=dtype, stage=stage)
        b.train(cut, "--max_steps", 20, "--resume_from_checkpoint", "latest", "--async_save", "false", dtype=dtype, stage=stage)
        want, got = curve(whole), curve(cut)
        check(dtype != "fp16" or any(row[4] for row in want[:3]), f"no overflow before the cut: {want[:3]}")
        check(len(want) == 20 and want == got, f"stage {stage}: the rows differ\n{want}\n{got}")
        check(bits(whole + "/model.safetensors") == bits(cut + "/model.safetensors"), f"stage {stage}: the weights differ")
    said = b.train(cut, "--max_steps", 20, "--resume_from_checkpoint", cut + "/checkpoint-8", dtype=dtype)
    check("going on after step 8" in said, said)
    before = os.stat(cut + "/model.safetensors").st_mtime_ns
    b.train(cut, "--max_steps", 8, "--resume_from_checkpoint", dtype=dtype)
    check(os.stat(cut + "/model.safetensors").st_mtime_ns == before, "a finished run wrote its model again")


def case_other(b):
    """A checkpoint of any stage, world size and precision goes on in any other: the next losses are those of the unbroken run."""
    source = b.path("source")
    for saved in (("float32", 3, 4), ("bf16", 1, 2)):
        dtype, stage, ranks = saved
        shutil.rmtree(source, ignore_errors=True)
        b.train(source, "--max_steps", 8, "--save_steps", 4, dtype=dtype, stage=stage, ranks=ranks, accumulation=1)
        want = curve(source)
        for other in (("float32", 0, 1), ("float32", 2, 2), ("bf16", 3, 4), ("bf16", 1, 1)):
            out = b.path("other")
            shutil.rmtree(out, ignore_errors=True)
            said = b.train(out, "--max_steps", 8, "--resume_from_checkpoint", source + "/checkpoint-4", dtype=other[0], stage=other[1],
                           ranks=other[2], accumulation=1)
            with open(out + "/metrics.jsonl", encoding="utf-8") as f:
                got = [json.loads(line) for line in f]
            check([r["step"] for r in got] == [5, 6, 7, 8], f"{saved} -> {other}: {got}")
            tolerance = 1e-6 if dtype == other[0] == "float32" else 2e-3  # bf16 rounds weights: 8 bits
            for want_row, got_row in zip(want[4:], got):
                check(abs(want_row[0] / got_row["loss"] - 1) <= tolerance, f"{saved} -> {other}: loss {want_row[0]} and {got_row['loss']}")
                check(want_row[6] == got_row["tokens"], f"{saved} -> {other}: other samples")
            check((dtype == other[0]) != (f"is of a {'float32' if dtype == 'float32' else 'bfloat16'} run" in said), said)


def case_worlds(b):
    """Four ranks' checkpoint goes on at world sizes that do not divide it, in every stage."""
    def train(out, ranks, stage, *extra):
        b.train(out, "--max_steps", 8, *extra, ranks=ranks, stage=stage, accumulation=1, settings={"train_micro_batch_size_per_gpu": 12 // ranks})
    source, out = b.path("source"), b.path("out")
    train(source, 4, 3, "--save_steps", 4)
    want = [row[0] for row in curve(source)[4:]]
    for ranks, stage in ((1, 1), (3, 0), (3, 3), (6, 1), (6, 2)):
        shutil.rmtree(out, ignore_errors=True)
        train(out, ranks, stage, "--resume_from_checkpoint", source + "/checkpoint-4")
        with open(out + "/metrics.jsonl", encoding="utf-8") as f:
            got = [json.loads(line)["loss"] for line in f]
        check(len(got) == 4 and all(abs(g / w - 1) <= 1e-6 for g, w in zip(got, want)), f"{ranks} ranks, stage {stage}: {got}, {want}")


def case_address_space(b):
    """An export takes no more addresses than a few tensors, whatever the model; a checkpoint of four ranks, read once."""
    model, rows, out, ds = b.path("model"), b.write_rows("few.jsonl", 4), b.path("out"), b.path("sgd.json")
    os.makedirs(model)
    with open(os.path.join(b.data, "model", "llama", "config.json"), encoding="utf-8") as f:
        config = {**json.load(f), "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 4,
                  "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 8192}
    with open(model + "/config.json", "w", encoding="utf-8") as f:
        json.dump(config, f)
    with open(ds, "w", encoding="utf-8") as f:
        json.dump({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}, "optimizer": {"type": "SGD", "params": {"lr": 1e-3}}}, f)
    b.run([b.zinc, "train", "--from_scratch", "--model", model, "--train_file", rows, "--deepspeed", ds, "--output_dir", out, "--ranks", "4",
           "--threads", "1", "--max_steps", "1", "--save_steps", "1", "--save_dtype", "float32"])
    n_bytes = os.path.getsize(out + "/model.safetensors")
    check(n_bytes > 110e6, n_bytes)

    def limited(mib, *words):
        limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (mib << 20, mib << 20))
        return subprocess.run([b.zinc, *words], capture_output=True, text=True, preexec_fn=limit, check=False)

    base = next(mib for mib in range(16, 512, 4) if limited(mib, "--version").returncode == 0)
    for extra, name in ((), "model.safetensors"), (("--max_shard_size", "20MB"), "model.safetensors.index.json"):
        done = limited(base + 64, "export", out + "/checkpoint-1", b.path("exported"), "--dtype", "float32", *extra)
        check(done.returncode == 0, f"{base} + 64 MiB: {done.stderr}")
        check(os.path.exists(b.path("exported", name)), os.listdir(b.path("exported")))
        if not extra:
            check(bits(b.path("exported", name)) == bits(out + "/model.safetensors"), "the weights differ")


def case_mpi(b):
    """Ranks that are processes save and go on as threads do."""
    whole, cut = b.path("whole"), b.path("cut")
    b.train(whole, "--max_steps", 8, dtype="bf16")
    b.train(cut, "--max_steps", 4, "--save_steps", 2, "--comm", "mpi", dtype="bf16")
    b.verify(latest(cut))
    b.train(cut, "--max_steps", 8, "--resume_from_checkpoint", "--comm", "mpi", dtype="bf16")
    check(curve(whole) == curve(cut), "the rows differ")
    check(bits(whole + "/model.safetensors") == bits(cut + "/model.safetensors"), "the weights differ")


def case_refuse(b):
    out = b.path("run")
    b.train(out, "--max_steps", 4, "--save_steps", 2)
    def refused(part, *extra, code=1, **how):
        said = b.train(out, "--max_steps", 8, *(extra or ("--resume_from_checkpoint",)), code=code, **how)
        check(part in said, f"{part!r} is not in: {said}")
    resume = "--resume_from_checkpoint"
    refused("it was made with --seed 42, and this run has 43", resume, "--seed", 43)
    refused("--shuffle true, and this run has false", resume, "--shuffle", "false")
    refused("train_batch_size 8, and this run has 16", resume, accumulation=1, settings={"train_micro_batch_size_per_gpu": 8})
    refused("training set of rows: 50, and this run has 60", resume, rows=b.write_rows("more.jsonl", 60))
    refused("state of the optimizer adamw (2 tensors a weight), and this run has sgd", resume,
            settings={"optimizer": {"type": "SGD", "params": {"lr": 0.1}}, "scheduler": {"type": "WarmupLR"}})
    refused("of another model", resume, model="gpt2")
    refused("pass --resume_from_checkpoint to go on", "--save_steps", 2)
    refused("there is no such folder", resume, b.path("nowhere"), code=4)
    said = b.train(out, "--max_steps", 8, resume, settings={"scheduler": {"type": "WarmupLR"}}, stage=1)
    check("schedule is not the checkpoint's" in said and "at stage 3; going on with 2 at stage 1" in said, said)
    empty = b.path("empty")
    os.makedirs(empty)
    said = b.train(empty, "--max_steps", 8, resume, code=4)
    check("holds no complete checkpoint" in said, said)


def case_damage(b):
    """What is wrong is named, the newest good one is offered, and nothing starts from scratch by itself."""
    good = b.path("good")
    b.train(good, "--max_steps", 6, "--save_steps", 2)
    for name in sorted(os.listdir(good + "/checkpoint-6")):
        for how in ("flip", "cut", "remove"):
            out = b.path("bad")
            shutil.rmtree(out, ignore_errors=True)
            shutil.copytree(good, out)
            path = os.path.join(out, "checkpoint-6", name)
            with open(path, "rb") as f:
                content = bytearray(f.read())
            content[len(content) // 2] ^= 4
            if how == "remove":
                os.remove(path)
            else:
                with open(path, "wb") as f:
                    f.write(content if how == "flip" else content[:-2])
            done = subprocess.run([b.zinc, "checkpoint", "verify", out + "/checkpoint-6"], capture_output=True, text=True)
            check(done.returncode in (1, 4) and name in done.stderr, f"{how} {name}: {done.returncode} {done.stderr}")
            if how == "flip" and not name.startswith(("shard", "manifest")):
                continue  # not read when a run goes on
            done = subprocess.run(b.argv(out, "--max_steps", 8, "--resume_from_checkpoint"), capture_output=True, text=True)
            check(done.returncode in (1, 4) and name in done.stderr, f"{how} {name}: {done.returncode} {done.stderr}")
            if how != "flip":
                check(f"--resume_from_checkpoint {out}/checkpoint-4" in done.stderr, done.stderr)
            check(not glob.glob(out + "/checkpoint-7*"), "it went on")
    out = b.path("bad")
    os.remove(out + "/latest")
    said = b.train(out, "--max_steps", 8, "--resume_from_checkpoint", code=4)
    check("latest" in said and f"--resume_from_checkpoint {out}/checkpoint-4" in said, said)


def _wait_for_rows(out, n):
    until = time.time() + 60
    while time.time() < until:
        try:
            with open(out + "/metrics.jsonl", encoding="utf-8") as f:
                if f.read().count("\n") >= n:
                    return
        except FileNotFoundError:
            pass
        time.sleep(0.01)


def case_kill(b):
    """15 kills at random moments: every one leaves a complete checkpoint to go on from, and the end is that of the unbroken run."""
    whole, out, steps = b.path("whole"), b.path("out"), 400
    b.train(whole, "--max_steps", steps)
    rng, last, finished = random.Random(20), 0, False
    argv = b.argv(out, "--max_steps", steps, "--save_steps", 2, "--save_total_limit", 2)
    for kill in range(15):
        started = os.path.exists(out + "/latest")
        child = subprocess.Popen(argv + (["--resume_from_checkpoint"] if started else ["--overwrite_output_dir"]),
                                 stderr=subprocess.PIPE, text=True)
        if kill % 3 and not finished:  # while it trains; else anywhere, also before its first step
            _wait_for_rows(out, last + 3)
        time.sleep(rng.uniform(0, 0.15))
        child.kill()
        said = child.communicate()[1]
        finished = child.returncode == 0  # it was faster; going on from its end must do no harm
        check(finished or child.returncode == -signal.SIGKILL, f"ended with {child.returncode} before it was killed: {said}")
        if os.path.exists(out + "/latest"):
            b.verify(latest(out))
            step = int(latest(out).rsplit("-", 1)[1])
            check(step >= last, f"step {step} after {last}")
            last = step
    check(last > 0, "no run lived long enough to save")
    said = b.run(argv + ["--resume_from_checkpoint"])
    check(f"going on after step {last} " in said or "nothing left to do" in said, said)
    check(curve(whole) == curve(out), "the rows differ")
    check(bits(whole + "/model.safetensors") == bits(out + "/model.safetensors"), "the weights differ")
    left = [name for suffix in ("tmp*", "old", "del") for name in glob.glob(f"{out}/*.{suffix}")]
    check(not left, f"left over: {left}")
    check(len(glob.glob(out + "/checkpoint-*")) == 2, f"--save_total_limit 2: {os.listdir(out)}")


def _state(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as f:
            return f.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "X"


def _tree(pid):
    """A process and all below it, parents first."""
    found = [pid]
    for task in glob.glob(f"/proc/{pid}/task/*/children"):
        try:
            with open(task, encoding="ascii") as f:
                children = f.read().split()
        except OSError:
            continue
        for child in children:
            found += _tree(int(child))
    return found


def _is_rank(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as f:
            return b"OMPI_COMM_WORLD_RANK=" in f.read()
    except OSError:
        return False


def _wait_for_mark(child, mark, last, out, rng):
    """Until a call of a rank is frozen inside the file system; without a mark, until some moment of the run."""
    if not mark:
        if rng.random() < 0.7:  # while it trains; else anywhere, also before its first step
            _wait_for_rows(out, last + 3)
        time.sleep(rng.uniform(0, 0.2))
        return []
    until = time.time() + 60
    while child.poll() is None and time.time() < until:
        try:
            with open(mark, encoding="ascii") as f:
                pids = [int(line) for line in f.read().split()]
            if pids:
                return pids
        except (FileNotFoundError, ValueError):
            pass
        time.sleep(0.005)
    return []


def _strike(child, victim, frozen, rng):
    """kill -9 of what is chosen; then nothing of the run may stay alive. What was killed."""
    pids = _tree(child.pid)
    ranks = [pid for pid in pids if _is_rank(pid)]
    chosen = {"rank": frozen[:1] or ranks[:1], "another rank": [pid for pid in ranks if pid not in frozen][-1:], "launcher": [child.pid],
              "mpirun": pids[1:2], "all": pids}[victim] or pids
    if victim == "all":
        rng.shuffle(chosen)
    for pid in chosen:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    child.wait()
    until = time.time() + 30
    while any(_state(pid) not in "XZ" for pid in pids):
        check(time.time() < until, f"{victim} was killed, and others live on")
        time.sleep(0.01)


def case_kills(b, n, library):
    """N times kill -9, ranks as processes: every one leaves a complete checkpoint to go on from, and the end is that of the unbroken
    run bit for bit. A run that is through before it is struck is compared and begun again."""
    whole, out, mark, steps = b.path("whole"), b.path("out"), b.path("mark"), 300
    b.train(whole, "--max_steps", steps)
    rng, last, struck, seen = random.Random(7), 0, 0, {}
    argv = b.argv(out, "--max_steps", steps, "--save_steps", 2, "--save_total_limit", 2, "--comm", "mpi")
    phases, victims = ["", "pwrite", "fsync", "rename", "unlink", "fallocate"], ["rank", "all", "launcher", "another rank", "mpirun"]

    def compare():
        check(curve(whole) == curve(out), "the rows differ")
        check(bits(whole + "/model.safetensors") == bits(out + "/model.safetensors"), "the weights differ")
        left = [name for suffix in ("tmp*", "old", "del") for name in glob.glob(f"{out}/*.{suffix}")]
        check(not left, f"left over: {left}")
        check(len(glob.glob(out + "/checkpoint-*")) == 2, f"--save_total_limit 2: {os.listdir(out)}")

    while struck < int(n):
        phase, victim = phases[struck % len(phases)], victims[(struck + struck // len(phases)) % len(victims)]
        if os.path.exists(mark):
            os.remove(mark)
        env = {"LD_PRELOAD": library, "ZINC_TEST_FAULT": f"{phase or 'none'}:-1:{rng.randint(1, 9)}", "ZINC_TEST_FAULT_MARK": mark}
        started = os.path.exists(out + "/latest")
        with open(b.path("said"), "w+", encoding="utf-8") as log:
            child = subprocess.Popen(argv + (["--resume_from_checkpoint"] if started else ["--overwrite_output_dir"]), stderr=log,
                                     env={**os.environ, **env})
            frozen = _wait_for_mark(child, phase and mark, last, out, rng)
            finished = child.poll() == 0
            _strike(child, victim, frozen, rng)
            log.seek(0)
            said = log.read()
        check(finished or child.returncode != 0, f"{phase}, {victim}: it was struck and says that all went well: {said}")
        check("cannot resume" not in said and "no complete checkpoint" not in said, said)
        if finished:
            compare()
            shutil.rmtree(out)
            last = 0
            continue
        struck += 1
        seen[phase] = seen.get(phase, 0) + bool(frozen)
        if os.path.exists(out + "/latest"):
            b.verify(latest(out))
            step = int(latest(out).rsplit("-", 1)[1])
            check(step >= last, f"step {step} after {last}: {said}")
            last = step
    said = b.run(argv + ["--resume_from_checkpoint"])
    check(f"going on after step {last} " in said or "nothing left to do" in said, said)
    compare()
    for phase in phases[1:] if int(n) >= 2 * len(phases) else []:
        check(seen[phase], f"no kill inside of {phase}: {seen}")
    print(f"{struck} kills, inside of a call: {seen}")


def _signalled(b, out, numbers, *extra):
    """Start a long run, wait for its fifth row, send the signals; exit code and what it said."""
    child = subprocess.Popen(b.argv(out, "--max_steps", 100000, *extra), stderr=subprocess.PIPE, text=True)
    _wait_for_rows(out, 5)
    start = time.time()
    for number in numbers:
        child.send_signal(number)
    said = child.communicate(timeout=30)[1]
    return child.returncode, time.time() - start, said


def case_signals(b):
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        out, whole = b.path(f"run{int(number)}"), b.path(f"whole{int(number)}")
        code, _, said = _signalled(b, out, [number], "--save_on_signal")
        check(code == 128 + number, f"exit {code}: {said}")
        step = len(curve(out))
        check(latest(out) == f"{out}/checkpoint-{step}", f"{latest(out)} after {step} steps: {said}")
        b.verify(latest(out))
        b.train(out, "--max_steps", step + 3, "--resume_from_checkpoint")
        b.train(whole, "--max_steps", step + 3)
        check(bits(whole + "/model.safetensors") == bits(out + "/model.safetensors"), "the weights differ")
        check(curve(whole) == curve(out), "the rows differ")
    out = b.path("plain")
    code, _, said = _signalled(b, out, [signal.SIGTERM], "--save_steps", 0)
    check(code == 143 and "--save_on_signal saves" in said and not os.path.exists(out + "/latest"), said)
    out, many = b.path("evaluation"), b.write_rows("many.jsonl", 100000)  # the row of a step is there before its evaluation
    child = subprocess.Popen(b.argv(out, "--max_steps", 100000, "--save_on_signal", "--validation_file", many, "--eval_steps", 1),
                             stderr=subprocess.PIPE, text=True)
    _wait_for_rows(out, 1)
    child.send_signal(signal.SIGTERM)
    said = child.communicate(timeout=60)[1]
    check(child.returncode == 143 and "a signal broke the evaluation off" in said, f"exit {child.returncode}: {said}")
    check(latest(out) == f"{out}/checkpoint-1" and len(curve(out)) == 1, said)
    out = b.path("echo")  # a scheduler's signal comes directly and through mpirun or a launcher
    code, _, said = _signalled(b, out, [signal.SIGUSR1, signal.SIGUSR1], "--save_on_signal")
    check(code == 128 + signal.SIGUSR1 and latest(out) == f"{out}/checkpoint-{len(curve(out))}", f"exit {code}: {said}")
    out = b.path("twice")
    code, seconds, said = _signalled(b, out, [signal.SIGTERM, signal.SIGTERM], "--save_steps", 2)
    check(code == 143 and seconds < 2, f"exit {code} after {seconds} s")
    if os.path.exists(out + "/latest"):
        b.verify(latest(out))


def case_faults(b, library):
    """The n-th write, flush or rename fails: it is reported, the run goes on, and every checkpoint that is there is whole. (ckpt.faults
    has every call; here are whole runs.) A read that fails ends the start and is named; a slow write is told."""
    whole = b.path("whole")
    b.train(whole, "--max_steps", 8)
    plan = [(kind, number, n) for kind, number in (("pwrite", errno.ENOSPC), ("short", 0), ("fsync", errno.EIO), ("rename", errno.EIO),
                                                   ("fallocate", errno.ENOSPC)) for n in (1, 4, 9)]
    struck = 0
    for kind, number, n in plan:
        out, mark = b.path("out"), b.path("mark")
        shutil.rmtree(out, ignore_errors=True)
        if os.path.exists(mark):
            os.remove(mark)
        env = {"LD_PRELOAD": library, "ZINC_TEST_FAULT": f"{kind}:{number}:{n}", "ZINC_TEST_FAULT_MARK": mark}
        argv = b.argv(out, "--max_steps", 8, "--save_steps", 2, "--async_save", "false" if n % 2 else "true")
        said = b.run(argv, env=env)
        hit = os.path.exists(mark)
        struck += hit
        if hit and kind != "short":  # a short write is gone on with
            check(os.strerror(number) in said and "the run goes on without checkpoint-" in said, f"{kind} {n}: {said}")
        check(bits(whole + "/model.safetensors") == bits(out + "/model.safetensors"), f"{kind} {n}: the weights differ")
        check(latest(out) == out + "/checkpoint-8" or hit, f"{kind} {n}: {os.listdir(out)}")
        check(not glob.glob(out + "/*.tmp*"), f"{kind} {n} left {os.listdir(out)}")
        for folder in glob.glob(out + "/checkpoint-*"):
            b.verify(folder)
        if hit and kind == "fsync":  # the same, told to stop; what is there goes on
            shutil.rmtree(out)
            os.remove(mark)
            b.run(argv + ["--save_failure", "stop"], code=4, env=env)
            if os.path.exists(out + "/latest"):
                b.run(argv + ["--resume_from_checkpoint"])
                check(bits(whole + "/model.safetensors") == bits(out + "/model.safetensors"), f"{kind} {n}: the weights differ")
    check(struck > 9, f"only {struck} faults struck")
    named = 0
    for n in range(1, 400, 9):  # until there is no n-th one
        if os.path.exists(mark):
            os.remove(mark)
        env = {"LD_PRELOAD": library, "ZINC_TEST_FAULT": f"pread:{errno.EIO}:{n}", "ZINC_TEST_FAULT_MARK": mark}
        done = subprocess.run(argv[:-2] + ["--resume_from_checkpoint", "--max_steps", "9"], capture_output=True, text=True,
                              env={**os.environ, **env}, check=False)
        if not os.path.exists(mark):
            check(done.returncode == 0 and n > 4, f"{n} reads: {done.stderr}")
            break
        check("/checkpoint-8/" in done.stderr and os.strerror(errno.EIO) in done.stderr, f"read {n}: {done.stderr}")
        if done.returncode == 0:  # a list of ranges that another rank could read
            check(".json" in done.stderr and "another rank has read it" in done.stderr, f"read {n}: {done.stderr}")
            shutil.rmtree(out + "/checkpoint-9")
            with open(out + "/latest", "w", encoding="utf-8") as f:
                f.write("checkpoint-8\n")
            continue
        check(done.returncode == 4, f"read {n}, exit {done.returncode}: {done.stderr}")
        named += " of model." in done.stderr and ", elements [" in done.stderr and ("/shard-00000" in done.stderr or "rank 1: " in done.stderr)
        b.verify(out)
    check(named > 0, f"none of {n} failed reads was of values")
    env = {"LD_PRELOAD": library, "ZINC_TEST_FAULT": "slow:1100:1"}
    said = b.run(argv[:-2] + ["--overwrite_output_dir"], env=env)
    check(" of 2, " in said and " MB at " in said and "checkpoint-2: shard " in said, said)


def case_deepspeed(b, name):
    """A run goes on from DeepSpeed's checkpoint, at its own and at other world sizes and stages, as DeepSpeed went on."""
    folder = os.path.join(b.data, "ckpt", name)
    with open(folder + "/resumed.json", encoding="utf-8") as f:
        run = json.load(f)
    with open(b.path("order.jsonl"), "w", encoding="utf-8") as f:
        for i in run["order"]:
            f.write(json.dumps({"input_ids": run["samples"][str(i)]}) + "\n")
    loss_tolerance, norm_tolerance = (2e-5, 1e-4) if run["dtype"] == "float32" else (0.01, 0.02)
    # after the first step fp16 overflows where DeepSpeed's kernels do, not where fp32 arithmetic does
    records = run["records"][:1] if run["dtype"] == "float16" else run["records"]
    config = json.loads(run["ds_config"])
    for ranks, stage in ((2, config["zero_optimization"]["stage"]), (1, 3), (4, 0)):
        config.update(train_micro_batch_size_per_gpu=4 // ranks, zero_optimization={"stage": stage}, train_batch_size=4)
        with open(b.path("ds.json"), "w", encoding="utf-8") as f:
            json.dump(config, f)
        out = b.path(f"out{ranks}")
        argv = [b.zinc, "train", "--model", os.path.join(b.data, "model", run["model"]), "--train_file", b.path("order.jsonl"), "--shuffle",
                "false", "--deepspeed", b.path("ds.json"), "--max_steps", str(run["steps"]), "--output_dir", out, "--ranks", str(ranks),
                "--loss_average", "micro_batches", "--resume_from_checkpoint", folder]
        said = b.run(argv)
        check("going on after step 3 of the DeepSpeed checkpoint" in said and "assigned 21 of 21 parameters" in said, said)
        with open(out + "/metrics.jsonl", encoding="utf-8") as f:
            rows = [json.loads(line) for line in f]
        check([r["step"] for r in rows] == [4, 5, 6], f"{rows}")
        for got, want in zip(rows, records):
            where = f"{ranks} ranks, stage {stage}, step {got['step']}: {got}, want {want}"
            check(abs(got["loss"] - want["loss_mean"]) <= loss_tolerance * want["loss_mean"], where)
            check(abs(got["lr"] - want["lr"]) <= 1e-9 * want["lr"], where)
            if name == "stage2_fp16":
                check((rows[0]["loss_scale"], rows[1]["loss_scale"]) == (want["loss_scale"], want["loss_scale_after"]), where)
            if name == "stage0_fp16":  # README.md of the data; DeepSpeed's own record does not show the file's scale
                check(got["loss_scale"] == 2097152, where)
            elif want["grad_norm"] is not None:
                check(abs(got["grad_norm"] - want["grad_norm"]) <= norm_tolerance * want["grad_norm"], where)


def main(zinc, data, case, *extra):
    kind, *args = case.split(":")
    with tempfile.TemporaryDirectory() as tmp:
        globals()["case_" + kind](Bench(zinc, data, tmp), *args, *extra)


if __name__ == "__main__":
    main(*sys.argv[1:])

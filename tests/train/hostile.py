#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What clumsy and hostile users do to a run: hostile.py ZINC DATA_DIR CASE.

lock: two runs, one output folder      mpi_signals: SIGINT, SIGTERM, SIGUSR1 to a run whose ranks are processes
config_file: from_scratch from a configuration file of any name      nan: a model with a weight that is no number
words: arguments and files that are empty or absurd
swap: a disk for offload that is full, becomes full, or whose folder goes      swap_mpi: a rank that is killed beside its swap file
"""
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

LIMIT = 60  # seconds; nothing here takes a tenth of it on an idle machine


def check(ok, *what):
    if not ok:
        sys.exit(" ".join(map(str, what)))


class Bench:
    def __init__(self, zinc, data, tmp):
        self.zinc, self.tmp = zinc, tmp
        self.model = os.path.join(data, "model", "llama")
        self.rows = self.path("rows.jsonl")
        with open(self.rows, "w", encoding="utf-8") as f:
            for i in range(20):
                f.write(json.dumps({"input_ids": [(7 * i * i + 13 * j) % 300 for j in range(6)]}) + "\n")

    def path(self, *names):
        return os.path.join(self.tmp, *names)

    def argv(self, out, *more, model=None):
        return [self.zinc, "train", "--model", model or self.model, "--train_file", self.rows, "--output_dir", out, "--threads", "1",
                "--ranks", "2", "--per_device_train_batch_size", "1", "--save_steps", "0", *map(str, more)]

    def run(self, argv, code=0):
        done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT, stdin=subprocess.DEVNULL)
        check(done.returncode == code, " ".join(argv), "\nexit", done.returncode, "not", code, done.stderr)
        return done.stderr

    def start(self, out, *more):
        with open(out + ".log", "w", encoding="utf-8") as log:
            return subprocess.Popen(self.argv(out, "--max_steps", 10000000, *more), stderr=log, stdin=subprocess.DEVNULL)

    def wait_for_steps(self, out):
        start = time.time()
        while not os.path.exists(out + "/metrics.jsonl") or os.path.getsize(out + "/metrics.jsonl") == 0:
            check(time.time() - start < LIMIT, "no step was made:", open(out + ".log", encoding="utf-8").read())
            time.sleep(0.02)


def steps_of(out):
    with open(out + "/metrics.jsonl", encoding="utf-8") as f:
        return sum(1 for _ in f)


def processes_that_name(word):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                if word.encode() in f.read() and int(pid) != os.getpid():
                    found.append(int(pid))
        except OSError:
            pass  # it has ended meanwhile
    return found


def case_lock(b):
    """The second run is refused and touches nothing; the end of the first, even by kill -9, lets others in."""
    out = b.path("out")
    first = b.start(out)
    try:
        b.wait_for_steps(out)
        others = [subprocess.Popen(b.argv(out, "--max_steps", 1, way), stderr=subprocess.PIPE, text=True)
                  for way in ("--overwrite_output_dir", "--resume_from_checkpoint")]
        for other in others:
            said = other.communicate(timeout=LIMIT)[1]
            check(other.returncode == 1 and f"another run is writing to {out}" in said, "exit", other.returncode, said)
        check(steps_of(out) > 1 and first.poll() is None, "the first run was disturbed")
    finally:
        first.kill()
        first.wait()
    b.run(b.argv(out, "--max_steps", 1, "--overwrite_output_dir"))
    check(steps_of(out) == 1, "rows of the first run are left")


def case_mpi_signals(b):
    """A signal ends ranks that are processes as it ends threads: after the step, saved if asked, 128+n."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        out = b.path(number.name)
        run = b.start(out, "--comm", "mpi", "--save_on_signal")
        b.wait_for_steps(out)
        run.send_signal(number)
        code = run.wait(LIMIT)
        with open(out + ".log", encoding="utf-8") as f:
            said = f.read()
        check(code == 128 + number, number.name, "exit", code, said)
        check(os.path.isdir(f"{out}/checkpoint-{steps_of(out)}"), number.name, "the last step was not saved", said)
    out = b.path("early")  # before mpirun has ranks that it could pass a signal on to
    for wait in (0, 0.01, 0.05):
        run = b.start(out, "--comm", "mpi")
        time.sleep(wait)
        run.send_signal(signal.SIGUSR1)
        check(run.wait(LIMIT) in (128 + signal.SIGUSR1, -signal.SIGUSR1), "a signal after", wait, "s: exit", run.returncode)
        shutil.rmtree(out, ignore_errors=True)
    out = b.path("twice")
    run = b.start(out, "--comm", "mpi")
    b.wait_for_steps(out)
    run.send_signal(signal.SIGTERM)
    run.send_signal(signal.SIGINT)
    check(run.wait(LIMIT) in (128 + signal.SIGTERM, 128 + signal.SIGINT), "two signals: exit", run.returncode)
    start = time.time()
    while processes_that_name(b.tmp + "/"):
        check(time.time() - start < LIMIT / 4, "still running:", processes_that_name(b.tmp + "/"))
        time.sleep(0.05)


def case_config_file(b):
    config = b.path("tiny.json")
    shutil.copy(b.model + "/config.json", config)
    out = b.path("out")
    b.run(b.argv(out, "--from_scratch", "--max_steps", 2, "--save_steps", 1, model=config))
    for folder in (out, out + "/checkpoint-1"):
        check(os.path.exists(folder + "/config.json"), folder, "has no config.json")
    b.run([b.zinc, "eval", "--model", out, "--data", b.rows])


def case_words(b):
    """Each says what is wrong, and where."""
    config = b.path("ds.json")
    for text, want in (("", f"{config} is empty"), (" \n", f"{config} is empty"), ("{} {}", f"{config}:1:4:")):
        with open(config, "w", encoding="utf-8") as f:
            f.write(text)
        said = b.run(b.argv(b.path("no"), "--deepspeed", config), 1)
        check(want in said, repr(text), said)
    said = b.run(b.argv(b.path("no"), "--learning_rate", -1), 1)
    check('zinc: --learning_rate: expected a number >= 0, found "-1"' in said, said)
    check("name of a file or folder is empty" in b.run(b.argv("", "--max_steps", 1), 4), "an empty --output_dir")
    check(not os.path.exists(b.path("no")), "a refused run made its folder")
    folder = b.path("not", "yet")  # DeepSpeed makes nvme_path, too
    with open(config, "w", encoding="utf-8") as f:
        json.dump({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {
            "stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": folder}}}, f)
    b.run(b.argv(b.path("out"), "--max_steps", 1, "--deepspeed", config))
    check(os.listdir(folder) == [], "files are left in nvme_path:", os.listdir(folder))


def case_nan(b):
    """NaN in the key weights of one head is seen by everything that uses the model."""
    model = b.path("model")
    shutil.copytree(b.model, model)
    with open(model + "/model.safetensors", "rb") as f:
        data = bytearray(f.read())
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:start])
    begin, end = header["model.layers.0.self_attn.k_proj.weight"]["data_offsets"]
    data[start + begin:start + begin + 4] = struct.pack("<f", float("nan"))
    check(end - begin > 4, "k_proj is empty")
    with open(model + "/model.safetensors", "wb") as f:
        f.write(data)
    done = subprocess.run([b.zinc, "eval", "--model", model, "--data", b.rows, "--json"], capture_output=True, text=True, timeout=LIMIT)
    check(done.returncode == 0 and json.loads(done.stdout)["loss"] is None and "the loss is not finite" in done.stderr, done)
    for temperature in (0, 1):
        said = b.run([b.zinc, "generate", "--model", model, "--prompt_ids", "1,2,3", "--temperature", str(temperature)], 1)
        check("gives NaN for the token after 3" in said, said)
    out = b.path("out")
    said = b.run(b.argv(out, "--max_steps", 2, model=model))
    check("the weight model.layers.0.self_attn.k_proj.weight is not finite" in said, said)
    with open(out + "/metrics.jsonl", encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    check([(r["loss"], r["overflow"]) for r in rows] == [(None, True)] * 2, rows)


def swap_config(b, folder, **more):
    config = b.path("swap.json")
    offload = {"device": "nvme", "nvme_path": folder}
    with open(config, "w", encoding="utf-8") as f:
        json.dump({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}, "zero_optimization": {
            "stage": 3, "offload_optimizer": offload, "offload_param": {**offload, "max_in_cpu": 0}, **more}}, f)
    return config


def said_by(run, out, limit=LIMIT):
    code = run.wait(limit)
    with open(out + ".log", encoding="utf-8") as f:
        return code, f.read()


def refuse_a_full_disk(b):
    """A mounted one of a few pages where this may mount, and a limit on the size of files, which anyone may set."""
    small = b.path("small")
    os.mkdir(small)
    config, out = swap_config(b, small), b.path("full")
    if os.geteuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", small],
                                            stderr=subprocess.DEVNULL, check=False).returncode == 0:
        try:
            said = b.run(b.argv(out, "--max_steps", 1, "--deepspeed", config), 4)
            check("has no room for the" in said and small in said and "No space left" in said, said)
        finally:
            subprocess.run(["umount", small], check=True)
    argv = ["sh", "-c", 'ulimit -f 64; exec "$@"', "sh", *b.argv(out, "--max_steps", 1, "--deepspeed", config)]
    said = b.run(argv, 4)
    check("has no room for the" in said and "File too large" in said, said)
    check(os.listdir(small) == [], "left in nvme_path:", os.listdir(small))


def case_swap(b):
    """A clear error in seconds, exit code 4, a checkpoint to go on from; a folder that goes is not missed."""
    refuse_a_full_disk(b)
    folder, out = b.path("swap"), b.path("out")
    config = swap_config(b, folder)
    run = b.start(out, "--deepspeed", config, "--save_steps", 2, "--save_total_limit", 3)
    start = time.time()
    while not os.path.exists(out + "/checkpoint-4"):
        check(time.time() - start < LIMIT and run.poll() is None, "no checkpoint came", open(out + ".log", encoding="utf-8").read())
        time.sleep(0.02)
    check(os.listdir(folder) == [], "files are seen in nvme_path:", os.listdir(folder))
    os.rmdir(folder)
    steps = steps_of(out)
    while steps_of(out) < steps + 3:
        check(time.time() - start < LIMIT and run.poll() is None, "the run missed its folder", open(out + ".log", encoding="utf-8").read())
        time.sleep(0.02)
    resource.prlimit(run.pid, resource.RLIMIT_FSIZE, (98304, 98304))  # as a disk that becomes full: less than the state
    code, said = said_by(run, out)
    check(code == 4 and "of the swap file in" in said and "File too large" in said and "--resume_from_checkpoint" in said, "exit", code, said)
    b.run([b.zinc, "checkpoint", "verify", out])
    b.run(b.argv(out, "--deepspeed", config, "--max_steps", steps_of(out) + 2, "--resume_from_checkpoint"))
    check(os.listdir(folder) == [], "files are left in nvme_path:", os.listdir(folder))


def case_swap_mpi(b):
    """One rank of two is killed: the other ends, and neither leaves a file."""
    folder, out = b.path("swap"), b.path("out")
    run = b.start(out, "--deepspeed", swap_config(b, folder), "--comm", "mpi")
    b.wait_for_steps(out)
    ranks = [pid for pid in processes_that_name(out) if pid != run.pid]
    with_swap = [pid for pid in ranks if any(folder in os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")
                                            if os.path.islink(f"/proc/{pid}/fd/{fd}"))]
    check(len(with_swap) == 2, "processes with a swap file:", with_swap, "of", ranks)
    os.kill(with_swap[1], signal.SIGKILL)
    start = time.time()
    code, said = said_by(run, out)
    check(code not in (0, None) and time.time() - start < LIMIT / 2, "exit", code, "after", time.time() - start, said)
    while processes_that_name(out):
        check(time.time() - start < LIMIT / 2, "still running:", processes_that_name(out))
        time.sleep(0.05)
    check(os.listdir(folder) == [], "files are left in nvme_path:", os.listdir(folder))


def main():
    zinc, data, case = sys.argv[1:4]
    with tempfile.TemporaryDirectory() as tmp:
        globals()["case_" + case](Bench(zinc, data, tmp))


main()

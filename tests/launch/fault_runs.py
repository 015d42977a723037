#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Faults while jobs run over two hosts: two_hosts.sh ZINC DATA_DIR python3 fault_runs.py N_RUNS [SEED].

Each run starts a job of 2 hosts x 2 ranks, strikes one part of it at a random moment, and looks at four things: the job has
ended on both hosts within 10 s (and what its timeout adds), no process is left, the exit code is right, and the first cause is
shown. Every process in the hosts' process namespaces that was not there before the job is the job's. Runs of zinc train with
--max_restarts must finish with the weights of the unbroken run.
"""
import json
import os
import random
import signal
import subprocess
import sys
import time

ZINC, STATE, SWITCH = (os.environ["ZN_" + name] for name in ("ZINC", "STATE", "SWITCH"))
INITS = [int(pid) for pid in os.environ["ZN_INITS"].split()]
WORK = os.path.join(STATE, "work")
END_S = 10
TICK = ["--", "sh", "-c", "while :; do echo tick; sleep 0.2; done"]


def namespace(pid):
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


HOSTS = {namespace(pid): number for number, pid in enumerate(INITS, 1)}


def processes():
    """{pid: (host, words)} of what lives on the two hosts; not sshd, whose connection over a cut link ends when it likes."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        host = HOSTS.get(namespace(name))
        try:
            with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as f:
                state = f.read().rsplit(")", 1)[1].split()[0]
            with open(f"/proc/{name}/cmdline", encoding="utf-8", errors="replace") as f:
                words = f.read().split("\0")[:-1]
        except OSError:
            continue
        if host and state not in "ZX" and not (words and words[0].startswith("sshd")):
            found[int(name)] = (host, words)
    return found


BASE = set(processes())


def of_job():
    return {pid: what for pid, what in processes().items() if pid not in BASE}


def parent(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
        return int(f.read().rsplit(")", 1)[1].split()[1])


def chosen(choose):
    """{pid: host} of what may be struck; an agent's guard, which has its words, is not."""
    found = {pid: host for pid, (host, words) in of_job().items() if choose(words)}
    return {pid: host for pid, host in found.items() if parent(pid) not in found}


def is_tick(words):
    return words[:2] == ["sh", "-c"] and "tick" in words[-1]


def is_agent(words):
    return words[:1] == [ZINC] and "agent" in words[1:2]


def is_far_agent(words):
    return is_agent(words) and "--fd=3" not in words  # over ssh


def is_launcher(words):
    return words[:2] == [ZINC, "launch"]


def is_ssh(words):
    return words[:1] == ["ssh"]


def is_trainer(words):
    return words[:2] == [ZINC, "train"]


class Job:
    """One launcher on the first host."""

    def __init__(self, *words):
        path = os.environ["PATH"]
        env = ["env", "-i", "HOME=" + os.environ.get("HOME", "/"), "PATH=" + path, "OMPI_MCA_oob_tcp_if_include=eth0",
               "OMPI_MCA_btl_tcp_if_include=eth0"]
        enter = ["nsenter", "-t", str(INITS[0]), "-m", "-n", "-u", "-i", "-p", "--"]
        shell = ["sh", "-c", 'cd "$0" && exec "$@"', WORK, ZINC, "launch", "--hostfile", os.path.join(WORK, "hosts")]
        self.said_path = os.path.join(STATE, "said")
        self.process = subprocess.Popen(enter + env + shell + list(words), stdin=subprocess.DEVNULL,
                                        stdout=open(self.said_path, "wb"), stderr=subprocess.STDOUT)

    def said(self):
        with open(self.said_path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def wait_for(self, what, n, seconds=30):
        until = time.monotonic() + seconds
        while True:
            found = [pid for pid, (_, words) in of_job().items() if what(words)]
            if len(found) >= n:
                return found
            assert time.monotonic() < until and self.process.poll() is None, f"it did not start:\n{self.said()}"
            time.sleep(0.02)

    def end(self, seconds):
        """Exit code, and seconds until all is gone."""
        start = time.monotonic()
        try:
            code = self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            code = None
        left = of_job()
        while left and time.monotonic() < start + seconds:
            time.sleep(0.05)
            left = of_job()
        took = time.monotonic() - start
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        if code is None:
            self.process.wait(timeout=60)
        assert code is not None and not left, f"after {seconds} s the code is {code}, and left are {left}\n{self.said()}"
        return (128 - code if code < 0 else code), took


def link(state):
    subprocess.run(["ip", "-n", SWITCH, "link", "set", "p2", state], check=True)


# ---- the runs: each returns what it struck, the code, the seconds, what must have been said ----


def strike(choose, n_wanted, sig, words, what, code, said, extra_s=0.0):
    job = Job(*words)
    job.wait_for(what, n_wanted)
    job.wait_for(choose, 1)
    time.sleep(random.uniform(0, 1.5))
    found = chosen(choose)
    target = random.choice(list(found))
    host = found[target]
    os.kill(target, sig)
    got, took = job.end(END_S + extra_s)
    assert got == code, f"exit code {got}, want {code}\n{job.said()}"
    assert said in job.said(), f"no {said!r} in\n{job.said()}"
    return f"on h{host}", got, took


def kill_a_rank():
    return strike(is_tick, 4, signal.SIGKILL, TICK, is_tick, 137, "was ended by signal 9")


def kill_an_agent():
    return strike(is_agent, 4, signal.SIGKILL, TICK, is_tick, 6, "is lost")


def kill_the_launcher():
    return strike(is_launcher, 4, signal.SIGKILL, TICK, is_tick, 137, "")


def kill_the_ssh():
    return strike(is_ssh, 4, signal.SIGKILL, TICK, is_tick, 6, "host h2 is lost")


def stop_a_rank():
    return strike(is_tick, 4, signal.SIGSTOP, ["--hang_timeout", "2", *TICK], is_tick, 5, "was stopped by a signal", 2)


def stop_an_agent_far_away():
    return strike(is_far_agent, 4, signal.SIGSTOP, TICK, is_tick, 6, "host h2 is lost: it has said nothing for 5 s")


def stop_an_agent():
    return strike(is_agent, 4, signal.SIGSTOP, TICK, is_tick, 6, "has said nothing for 5 s")


def cut_the_link():
    job = Job(*TICK)
    job.wait_for(is_tick, 4)
    time.sleep(random.uniform(0, 1.5))
    link("down")
    try:
        got, took = job.end(END_S)
    finally:
        link("up")
    assert got == 6 and "host h2 is lost" in job.said(), f"{got}\n{job.said()}"
    return "to h2", got, took


def train(out, *more):
    return ["--", "zinc", "train", "--model", os.path.join(STATE, "llama"), "--train_file", os.path.join(WORK, "rows.jsonl"),
            "--deepspeed", os.path.join(WORK, "ds_config.json"), "--output_dir", os.path.join(WORK, out), "--threads", "1", "--max_steps", "40",
            "--save_steps", "4", *more]


def weights(out):
    with open(os.path.join(WORK, out, "model.safetensors"), "rb") as f:
        return f.read()


N_OUT = [0]


def new_out():
    N_OUT[0] += 1
    return f"run{N_OUT[0]}"


def wait_for_steps(job, out, n):
    until = time.monotonic() + 60
    rows = 0
    while rows < n:
        assert time.monotonic() < until and job.process.poll() is None, f"{rows} steps\n{job.said()}"
        time.sleep(0.01)
        try:
            with open(os.path.join(WORK, out, "metrics.jsonl"), encoding="utf-8") as f:
                rows = sum(1 for _ in f)
        except OSError:
            rows = 0


def kill_a_trainer():
    out = new_out()
    return strike(is_trainer, 4, signal.SIGKILL, train(out, "--max_steps", "1000000"), is_trainer, 137, "signal 9")


def cut_the_link_of_training():
    out = new_out()
    job = Job(*train(out, "--max_steps", "1000000"))
    wait_for_steps(job, out, 2)
    link("down")
    try:
        got, took = job.end(END_S + 5)  # mpirun on both sides must find out
    finally:
        link("up")
    assert got == 6 and "lost communication" in job.said(), f"{got}\n{job.said()}"
    return "to h2", got, took


def train_on(choose):
    out = new_out()
    job = Job("--max_restarts", "3", *train(out))
    wait_for_steps(job, out, random.randint(5, 20))
    found = chosen(choose)
    target = random.choice(list(found))
    os.kill(target, signal.SIGKILL)
    got, took = job.end(90)
    assert got == 0 and "restart 1 of 3" in job.said(), f"{got}\n{job.said()}"
    assert weights(out) == weights("whole"), f"the weights differ\n{job.said()}"
    return f"on h{found[target]}, restarted", got, took


def restart_after_a_rank():
    return train_on(is_trainer)


def restart_after_an_agent():
    return train_on(lambda words: is_agent(words) or words[:1] == ["mpirun"])


KINDS = [kill_a_rank, kill_an_agent, kill_the_launcher, kill_the_ssh, restart_after_a_rank, cut_the_link, stop_a_rank, stop_an_agent,
         kill_a_trainer, cut_the_link_of_training, restart_after_an_agent, stop_an_agent_far_away]


def prepare():
    with open(os.path.join(WORK, "hosts"), "w", encoding="utf-8") as f:
        f.write("h1 slots=2\nh2 slots=2\n")
    with open(os.path.join(WORK, "rows.jsonl"), "w", encoding="utf-8") as f:
        for i in range(32):
            f.write(json.dumps({"input_ids": [(7 * i + 13 * j) % 300 for j in range(8 + i % 16)]}) + "\n")
    with open(os.path.join(WORK, "ds_config.json"), "w", encoding="utf-8") as f:
        json.dump({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}, f)
    one = [word for word in train("one")[1:]]
    one[0] = ZINC
    subprocess.run([*one, "--ranks", "4"], cwd=WORK, check=True, capture_output=True)
    code, _ = Job("--master_port", "29500", *train("whole")).end(90)
    assert code == 0 and weights("whole") == weights("one"), "two hosts do not give what one gives"


def main():
    n, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1
    random.seed(seed)
    prepare()
    print("two hosts x 2 ranks give the bits of 4 ranks on one", flush=True)
    bad = 0
    for i in range(n):
        kind = KINDS[i % len(KINDS)]
        try:
            what, code, took = kind()
            print(f"{i + 1:3d} {kind.__name__:26s} {what:20s} code {code:3d}  all gone after {took:5.1f} s", flush=True)
        except AssertionError as error:
            bad += 1
            print(f"{i + 1:3d} {kind.__name__:26s} FAILED: {error}", flush=True)
    print(f"{n - bad} of {n} runs as they should be (seed {seed})")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

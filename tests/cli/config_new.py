#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""zinc config new on a pseudo-terminal, to each of its ends, and from a pipe: config_new.py ZINC DATA_DIR"""
import json
import os
import pty
import select
import signal
import subprocess
import sys
import tempfile
import termios
import time

ZINC, DATA = os.path.realpath(sys.argv[1]), os.path.realpath(sys.argv[2])
UP, DOWN, ENTER, CTRL_C = "\x1b[A", "\x1b[B", "\r", "\x03"
DEADLINE = 60.0


class Session:
    """One run on a terminal of its own; what it says is read until a wanted part has come."""

    def __init__(self, *options):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execv(ZINC, [ZINC, "config", "new", *options])
        self.text = ""
        self.seen = 0

    def read(self, seconds):
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.fd, 65536)
        except OSError:  # the other end is closed
            return False
        self.text += data.decode(errors="replace")
        return bool(data)

    def expect(self, part):
        until = time.monotonic() + DEADLINE
        while part not in self.text[self.seen:]:
            if time.monotonic() > until or not self.read(until - time.monotonic()):
                raise AssertionError(f"no {part!r} in {self.text[self.seen:]!r}")
        self.seen = self.text.index(part, self.seen) + len(part)

    def answer(self, question, *keys):
        self.expect(question)
        time.sleep(0.05)  # a menu switches the terminal after its question
        for key in keys or (ENTER,):
            os.write(self.fd, key.encode())

    def is_cooked(self):
        return bool(termios.tcgetattr(self.fd)[3] & (termios.ICANON | termios.ECHO))

    def end(self):
        while self.read(DEADLINE):
            pass
        status = os.waitpid(self.pid, 0)[1]
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


def check(condition, what):
    if not condition:
        raise AssertionError(what)


def resolved(path):
    run = subprocess.run([ZINC, "config", "check", path, "--json"], stdout=subprocess.PIPE, check=False)
    answer = json.loads(run.stdout)
    check(answer["ok"], answer)
    return answer["resolved"]


def arrows_and_numbers_choose_deepspeed():
    s = Session("--output", "ds.yaml")
    s.answer("Which type of machine", UP, DOWN, DOWN, DOWN, ENTER)  # stays at the last
    s.answer("How many machines")
    s.answer("use DeepSpeed?", "maybe\r")
    s.answer("yes or no, please", "yes\r")  # asked again
    s.answer("DeepSpeed json file?")
    s.answer("Which ZeRO", "3", ENTER)
    s.answer("offload optimizer", DOWN, ENTER)
    s.answer("offload parameters", DOWN, UP, ENTER)
    s.answer("accumulation steps", "x\r")
    s.answer("a whole number", "4\r")
    s.answer("want gradient clipping", "y\r")
    s.answer("clipping value", "0.5\r")
    s.answer("16-bit", "yes\r")
    s.answer("zero.Init", "yes\r")
    s.answer("How many processes", "4\r")
    s.answer("mixed precision", DOWN, DOWN, ENTER)
    s.answer("Which model")
    check(s.end() == 0, s.text)
    got = resolved("ds.yaml")
    zero = got["zero_optimization"]
    check(zero["stage"] == 3 and zero["offload_optimizer"]["device"] == "cpu", zero)
    check(zero["offload_param"]["device"] == "none", zero)
    check(got["gradient_accumulation_steps"] == 4 and got["gradient_clipping"] == 0.5, got)
    check(got["bf16"]["enabled"] and got["accelerate"]["num_processes"] == 4, got)
    check(got["accelerate"]["deepspeed_config"]["zero3_init_flag"], got)


def fsdp_over_two_machines():
    s = Session("--output", "fsdp.yaml")
    s.answer("Which type of machine")
    s.answer("How many machines", "2\r")
    s.answer("rank of this machine", "1\r")
    s.answer("IP address", "\r")
    s.answer("needs an answer", "10.1.2.3\r")
    s.answer("Which port", "29600\r")
    s.answer("same local network", "no\r")
    s.answer("rendezvous backend", "c10d\r")
    s.answer("use DeepSpeed?")
    s.answer("FullyShardedDataParallel?", "yes\r")
    s.answer("FSDP version", "0", ENTER)
    s.answer("sharding strategy", DOWN, ENTER)
    s.answer("Offload parameters", "yes\r")
    for question in ("auto wrap", "block classes", "backward prefetch", "state dict", "forward prefetch", "original"):
        s.answer(question)
    s.answer("little host memory", "no\r")
    s.answer("Broadcast module states")
    s.answer("activation checkpointing", "yes\r")
    s.answer("How many processes")
    s.answer("mixed precision")
    s.answer("Which model")
    check(s.end() == 0, s.text)
    got = resolved("fsdp.yaml")
    check(got["fsdp"]["sharding_strategy"] == "SHARD_GRAD_OP" and got["fsdp"]["activation_checkpointing"], got)
    check(got["zero_optimization"]["offload_param"]["device"] == "cpu", got)
    machines = got["accelerate"]
    check((machines["num_machines"], machines["num_processes"], machines["machine_rank"]) == (2, 4, 1), machines)
    check((machines["main_process_ip"], machines["main_process_port"]) == ("10.1.2.3", 29600), machines)


def ctrl_c_leaves_no_file():
    s = Session("--output", "never.yaml")
    s.answer("Which type of machine", DOWN, CTRL_C)  # in a menu
    check(s.end() == 130, s.text)
    s = Session("--output", "never.yaml")
    s.answer("Which type of machine")
    s.answer("How many machines", CTRL_C)  # in a line
    check(s.end() == -signal.SIGINT, s.text)
    s = Session("--model", "llama-7b", "--device_memory", "60GB", "--output", "never.yaml")
    s.answer("Which type of machine")
    s.answer("How many machines")
    check(s.is_cooked(), "the terminal is not put back")
    s.answer("use DeepSpeed?")
    s.answer("FullyShardedDataParallel?")
    s.answer("How many processes")
    s.answer("mixed precision", "2", ENTER)
    s.answer("It does not fit. Write it", CTRL_C)  # at the last question
    check(s.end() == -signal.SIGINT, s.text)
    check(not os.path.exists("never.yaml"), "a file is left")


def fits(path, said):
    options = ["--gradient_checkpointing"] if "it goes with --gradient_checkpointing" in said else []
    run = subprocess.run([ZINC, "plan", "--model", "llama-7b", "--gpus", "2", "--gpu_memory", "60GB",
                          "--accelerate_config", path, "--json", *options], stdout=subprocess.PIPE, check=True)
    return json.loads(run.stdout)["fits"]


def the_cheapest_change(answer, name):
    s = Session("--model", "llama-7b", "--device_memory", "60GB", "--output", name)
    s.answer("Which type of machine")
    s.answer("How many machines")
    s.answer("use DeepSpeed?", "yes\r")
    s.answer("json file?")
    s.answer("Which ZeRO", "0", ENTER)
    for question in ("accumulation", "clipping", "zero.Init", "How many processes"):
        s.answer(question)
    s.answer("mixed precision", "2", ENTER)
    s.expect("What fits")
    s.answer("It does not fit. Write it", answer)
    check(s.end() == 0, s.text)
    return resolved(name), s.text


def a_change_is_written_or_not():
    kept, said = the_cheapest_change("no\r", "kept.yaml")
    check(kept["zero_optimization"]["stage"] == 0 and not fits("kept.yaml", said), kept)
    changed, said = the_cheapest_change(ENTER, "changed.yaml")
    check(changed["zero_optimization"]["stage"] > 0 and fits("changed.yaml", said), changed)
    check(changed["accelerate"]["num_processes"] == 2 and changed["bf16"]["enabled"], changed)


def piped(answers, *options):
    return subprocess.run([ZINC, "config", "new", *options], input="".join(a + "\n" for a in answers), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)


def pipes_and_defaults():
    # the three questions a tutorial asks: FSDP, the strategy, offload
    run = piped(["multi-GPU", "", "no", "yes", "1", "FULL_SHARD", "yes"] + [""] * 8 + ["2", "bf16", ""],
                "--output", "piped.yaml")
    check(run.returncode == 0, run.stderr)
    got = resolved("piped.yaml")
    check(got["fsdp"]["sharding_strategy"] == "FULL_SHARD" and got["zero_optimization"]["stage"] == 3, got)
    check(got["zero_optimization"]["offload_optimizer"]["device"] == "cpu" and got["bf16"]["enabled"], got)
    run = piped(["multi-GPU", "", "no", "yes", "1", "HALF_SHARD"], "--output", "wrong.yaml")
    check(run.returncode == 1 and "no answer to \"Which sharding strategy?\"" in run.stderr, run.stderr)
    run = piped(["multi-GPU"], "--output", "wrong.yaml")
    check(run.returncode == 1 and "the answers end before" in run.stderr, run.stderr)
    check(not os.path.exists("wrong.yaml"), "a file is left")
    run = piped([], "--yes", "--format", "ds_config", "--output", "yes.json")
    check(run.returncode == 0 and "Which" not in run.stderr, run.stderr)
    check(json.load(open("yes.json"))["zero_optimization"]["stage"] == 0, "--yes")
    run = piped([], "--yes", "--format", "ds_config", "--output", "yes.json")
    check(run.returncode == 1 and "is there already" in run.stderr, run.stderr)
    run = piped([], "--yes", "--format", "ds_config", "--output", "yes.json", "--overwrite")
    check(run.returncode == 0, run.stderr)


def main():
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for test in (arrows_and_numbers_choose_deepspeed, fsdp_over_two_machines, ctrl_c_leaves_no_file,
                     a_change_is_written_or_not, pipes_and_defaults):
            test()
            print(f"{test.__name__}: ok")
        os.chdir("/")


main()

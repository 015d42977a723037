#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The launcher with real processes: processes.py ZINC DATA_DIR [NAME...]. Each test_ function is one test.

A stand-in for ssh (first in PATH) runs the remote command here, in an empty environment, so that agents on "other hosts" are
tested without a network. Every rank writes its process id; no test ends before all of them are gone.
"""
import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ZINC, DATA = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
SKIPPED = 77
GONE_S = 12  # what was started is gone this long after its launcher, with room for a busy machine

SSH = """#!/bin/bash
printf '%s\\n' "$*" >>"$SSH_LOG"
while [[ $1 == -* ]]; do [[ $1 == -- ]] && { shift; break; }; case $1 in -[olp]) shift 2 ;; *) shift ;; esac; done
host=$1; shift # what follows the host is joined and read by a shell, as ssh does
case $host in
refused) echo "ssh: connect to host refused port 22: Connection refused" >&2; exit 255 ;;
nozinc) exit 127 ;;
silent) exec sleep 30 ;;
late) sleep 6.5 ;;
once) mkdir once 2>/dev/null || { echo "No route to host" >&2; exit 255; } ;;
chatty) echo "Welcome to chatty!" ;;
odd) exec env -i HOME="$HOME" PATH="$PATH" ZINC_ISA=ref sh -c "$*" ;;
esac
mkdir -p "tmp.$host" # mpirun's daemons of one machine would make the same folders at once
env -i HOME="$HOME" PATH="$PATH" TMPDIR="$PWD/tmp.$host" ${LD_LIBRARY_PATH+LD_LIBRARY_PATH="$LD_LIBRARY_PATH"} sh -c "$*"
"""


class Skip(Exception):
    """What this machine lacks for a test."""


class Job:
    """One launcher, in a folder of its own."""

    started = []

    def __init__(self, tmp, *argv, env=None, hostfile=None, ranks=3):
        self.tmp = tmp
        words = ["--hostfile", self.write("hosts", hostfile)] if hostfile else ["--num_ranks", str(ranks)]
        bin_dir = os.path.join(tmp, "bin")
        os.makedirs(bin_dir, exist_ok=True)
        with open(os.path.join(bin_dir, "ssh"), "w", encoding="utf-8") as f:
            f.write(SSH)
        with open(os.path.join(bin_dir, "gdb"), "w", encoding="utf-8") as f: # the real one takes seconds on a busy machine
            f.write('#!/bin/bash\necho noise\necho "#0  stopped_here (${!#})"\n')
        for name in ("ssh", "gdb"):
            os.chmod(os.path.join(bin_dir, name), 0o755)
        full = {**os.environ, "PATH": bin_dir + ":" + os.environ["PATH"], "SSH_LOG": os.path.join(tmp, "ssh.log"), **(env or {})}
        for name in ("CUDA_VISIBLE_DEVICES", "MASTER_PORT"):
            full.pop(name, None)
        full.update(env or {})
        self.out, self.err = os.path.join(tmp, "out"), os.path.join(tmp, "err")
        self.process = subprocess.Popen([ZINC, "launch", *words, *argv], cwd=tmp, env=full, stdin=subprocess.DEVNULL,
                                        stdout=open(self.out, "wb"), stderr=open(self.err, "wb"))
        Job.started.append(self.process)

    def write(self, name, text):
        path = os.path.join(self.tmp, name)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)
        return path

    def text(self, path):
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def pids(self, n):
        """Process ids that n ranks (and their children) have written, once all are there."""
        until = time.monotonic() + 20
        while time.monotonic() < until:
            found = {os.path.basename(p)[4:]: int(self.text(p) or 0) for p in glob.glob(os.path.join(self.tmp, "pid.*"))
                     if not p.endswith(".tmp")}
            if len(found) >= n and all(found.values()):
                return found
            time.sleep(0.02)
        raise AssertionError(f"only {found} started\n{self.text(self.err)}")

    def end(self, code, seconds=20):
        got = self.process.wait(timeout=seconds)
        assert got == code, f"exit code {got}, want {code}\n{self.text(self.out)}\n{self.text(self.err)}"
        return self


def gone(pids):
    until = time.monotonic() + GONE_S
    left = list(pids)
    while left and time.monotonic() < until:
        left = [p for p in left if is_alive(p)]
        time.sleep(0.02)
    assert not left, f"processes {left} are left"


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
            return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def parent(pid):
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as f:
        return int(f.read().rsplit(")", 1)[1].split()[1])


# A rank that leaves its pid, and one of a child in a session of its own, and waits.
WAIT = 'setsid sleep 97 & echo $! >pid.child$RANK.tmp; mv pid.child$RANK.tmp pid.child$RANK; echo $$ >pid.$RANK.tmp; mv pid.$RANK.tmp pid.$RANK; '


def bash(script):
    return ["--", "bash", "-c", script]


def holds(text, *parts):
    for part in parts:
        assert part in text, f"{part!r} is not in\n{text}"


def test_arguments_arrive_byte_for_byte(tmp):
    words = ["a b", "it's", '"q"', "$HOME `id`", "two\nlines", "é", "", "*", "--flag"]
    script = "import sys, os, json; print(json.dumps([sys.argv[1:], os.environ['V'], os.getcwd()]))"
    for hostfile in (None, "other slots=1\nchatty slots=2\n"):
        job = Job(tmp, "--export", "V=x y\n'z'", "--", sys.executable, "-c", script, *words, hostfile=hostfile).end(0)
        lines = [line.split("] ", 1) for line in job.text(job.out).splitlines()]
        assert len(lines) == 3, lines
        for _, line in lines:
            assert json.loads(line) == [words, "x y\n'z'", os.path.realpath(tmp)], line


def test_the_environment_says_who_a_rank_is(tmp):
    with open(os.path.join(tmp, ".deepspeed_env"), "w", encoding="utf-8") as f:
        f.write("# comment\n\nFROM_FILE=1\n")
    job = Job(tmp, "--include", "b:1,3@a", *bash('echo $RANK $LOCAL_RANK $WORLD_SIZE $LOCAL_WORLD_SIZE $CUDA_VISIBLE_DEVICES $MASTER_ADDR $FROM_FILE'),
              hostfile="a slots=1\nb slots=4\n").end(0)
    assert sorted(job.text(job.out).splitlines()) == ["[a:0] 0 0 3 1 0 a 1", "[b:1] 1 0 3 2 1,3 a 1", "[b:2] 2 1 3 2 1,3 a 1"], job.text(job.out)


def test_the_first_failure_ends_all_and_gives_its_code(tmp):
    job = Job(tmp, *bash(WAIT + 'test $RANK = 1 || sleep 97; until test -e go; do sleep 0.02; done; echo last words >&2; exit 7'))
    pids = job.pids(6)
    job.write("go", "")
    job.end(7)
    holds(job.text(job.err), "rank 1 on localhost exited with code 7", "last words")
    gone(pids.values())


def test_a_rank_that_is_killed(tmp):
    for sig in (signal.SIGKILL, signal.SIGSEGV):
        for name in glob.glob(os.path.join(tmp, "pid.*")):
            os.unlink(name)
        job = Job(tmp, *bash(WAIT + "sleep 97"))
        pids = job.pids(6)
        os.kill(pids["2"], sig)
        job.end(128 + sig)
        holds(job.text(job.err), f"rank 2 on localhost was ended by signal {int(sig)}")
        gone(pids.values())


def test_a_rank_without_memory_ends_all_and_says_so(tmp):
    words = train(tmp, "run$RANK")[2:]
    job = Job(tmp, *bash(WAIT + f'test $RANK = 1 || sleep 97; until test -e go; do sleep 0.02; done; exec {ZINC} {" ".join(words)} --device_memory 1MB'))
    pids = job.pids(6)
    job.write("go", "")
    job.end(3)
    holds(job.text(job.err), "rank 1 on localhost exited with code 3; its last lines:", "memory")
    gone(pids.values())


def test_a_rank_that_does_not_hear_sigterm_is_killed(tmp):
    job = Job(tmp, *bash("trap '' TERM; " + WAIT + "until test $RANK$(cat go) = 0go; do sleep 0.1; done 2>&-; exit 3"))
    pids = job.pids(6)
    job.write("go", "go")
    job.end(3)
    gone(pids.values())


def test_an_agent_that_is_killed(tmp):
    for hostfile in (None, "a slots=2\nb slots=1\n"):
        for name in glob.glob(os.path.join(tmp, "pid.*")):
            os.unlink(name)
        job = Job(tmp, *bash('echo $$ >pid.$RANK.tmp; mv pid.$RANK.tmp pid.$RANK; sleep 97'), hostfile=hostfile)
        pids = job.pids(3)
        os.kill(parent(pids["2"]), signal.SIGKILL)
        job.end(6)
        holds(job.text(job.err), "is lost")
        gone(pids.values())


def test_an_agent_that_is_stopped_is_lost_within_seconds(tmp):
    job = Job(tmp, *bash('echo $$ >pid.$RANK.tmp; mv pid.$RANK.tmp pid.$RANK; sleep 97'))
    pids = job.pids(3)
    os.kill(parent(pids["0"]), signal.SIGSTOP)
    job.end(6)
    holds(job.text(job.err), "has said nothing for 5 s")
    gone(pids.values())


def test_a_launcher_that_is_killed_takes_all_with_it(tmp):
    for hostfile in (None, "a slots=2\nb slots=1\n"):
        for name in glob.glob(os.path.join(tmp, "pid.*")):
            os.unlink(name)
        job = Job(tmp, *bash(WAIT + "sleep 97"), hostfile=hostfile)
        pids = job.pids(6)
        agents = [parent(pids[str(r)]) for r in range(3)]
        job.process.kill()
        job.end(-9)
        gone([*pids.values(), *agents])


def test_a_signal_to_the_launcher_reaches_every_rank(tmp):
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        for name in glob.glob(os.path.join(tmp, "pid.*")) + glob.glob(os.path.join(tmp, "got.*")):
            os.unlink(name)
        job = Job(tmp, *bash(f"trap 'echo >got.$RANK; exit 0' {int(sig)}; " + WAIT + "while :; do sleep 0.05; done"))
        pids = job.pids(6)
        job.process.send_signal(sig)
        job.end(128 + sig)
        assert len(glob.glob(os.path.join(tmp, "got.*"))) == 3
        gone(pids.values())


def test_a_second_signal_ends_at_once(tmp):
    job = Job(tmp, *bash("trap '' TERM INT; " + WAIT + "while :; do sleep 1; done"))
    pids = job.pids(6)
    job.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert job.process.poll() is None  # the grace period
    job.process.send_signal(signal.SIGTERM)
    job.end(143, 8)
    gone(pids.values())


def test_the_grace_period_ends(tmp):
    job = Job(tmp, "--grace_period", "0.5", *bash("trap '' TERM; " + WAIT + "while :; do sleep 1; done"))
    pids = job.pids(6)
    job.process.send_signal(signal.SIGTERM)
    job.end(143, 8)
    gone(pids.values())


def test_a_stopped_rank_is_a_hang(tmp):
    job = Job(tmp, "--hang_timeout", "1.5", *bash(WAIT + "while :; do echo tick; sleep 0.1; done"))
    pids = job.pids(6)
    os.kill(pids["1"], signal.SIGSTOP)
    job.end(5)
    holds(job.text(job.err), "rank 1 on localhost", "was stopped by a signal for 1.5 s (--hang_timeout)")
    holds(job.text(job.err), f"where rank 1 on localhost is:\n    #0  stopped_here ({pids['1']})")
    gone(pids.values())


def test_silence_is_a_hang_and_a_touched_file_is_none(tmp):
    job = Job(tmp, "--hang_timeout", "1.5", *bash(WAIT + "sleep 97")).end(5)
    holds(job.text(job.err), "no rank has printed or made a step")
    gone(job.pids(6).values())
    Job(tmp, "--hang_timeout", "4", *bash('for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.5; touch "$ZINC_HEARTBEAT_FILE"; done')).end(0)
    job = Job(tmp, "--hang_timeout", "2.5", *bash('touch "$ZINC_HEARTBEAT_FILE"; test $RANK = 1 && sleep 97; '
                                                  'while :; do echo x; sleep 0.2; touch "$ZINC_HEARTBEAT_FILE"; done')).end(5)
    holds(job.text(job.err), "rank 1 on localhost", "has made no step")


def test_programs_that_cannot_run(tmp):
    job = Job(tmp, "--", "no-such-program").end(127)
    holds(job.text(job.err), "no-such-program")
    job = Job(tmp, "--", "no-such-script.py").end(1)
    holds(job.text(job.err), "no-such-script.py: No such file")
    os.makedirs(os.path.join(tmp, "plain"), exist_ok=True)
    Job(tmp, "--", "./plain/").end(126)


def plan(tmp, *words, code=0, **more):
    job = Job(tmp, *words, "--dry-run", "--json", "--", "prog.py", "x", **more).end(code)
    return json.loads(job.text(job.out)) if code == 0 else job.text(job.err)


def test_the_plan_is_made_without_reaching_a_host(tmp):
    hosts = "w1 slots=1\nrefused slots=2\n"
    got = plan(tmp, hostfile=hosts)
    assert got["hosts"] == [{"name": "w1", "slots": [0]}, {"name": "refused", "slots": [0, 1]}] and got["master_addr"] == "w1", got
    assert [(r["rank"], r["host"], r["local_rank"]) for r in got["ranks"]] == [(0, "w1", 0), (1, "refused", 0), (2, "refused", 1)], got
    assert got["ranks"][0]["argv"] == ["python3", "-u", "prog.py", "x"], got
    assert not os.path.exists(os.path.join(tmp, "ssh.log"))
    mask = {"CUDA_VISIBLE_DEVICES": "2,5"}
    assert plan(tmp, "--num-nodes=1", env=mask, ranks=2)["ranks"][1]["env"]["CUDA_VISIBLE_DEVICES"] == "2,5"
    assert plan(tmp, "--include", "localhost:5", env=mask, ranks=-1)["hosts"] == [{"name": "localhost", "slots": [5]}]
    holds(plan(tmp, "--include", "localhost:0", env=mask, ranks=-1, code=2), "no slot 0 on host localhost; it has 2,5")
    holds(plan(tmp, env=mask, ranks=3, code=1), "CUDA_VISIBLE_DEVICES lists 2 devices")
    assert plan(tmp, "--exclude", "w1@refused", hostfile=hosts)["hosts"] == []
    holds(plan(tmp, "--num_gpus", "2", hostfile=hosts, code=1), "host w1 has 1 slots")
    holds(plan(tmp, "--include", "w1", "--exclude", "w1", hostfile=hosts, code=2), "exclude each other")
    holds(plan(tmp, "--include", "w1", "--num_nodes", "1", hostfile=hosts, code=2), "give one kind")
    holds(plan(tmp, "--elastic_training", code=2), "--max_restarts")
    holds(plan(tmp, "--launcher", "mvapich", code=2), "there are ssh, local, openmpi")
    holds(plan(tmp, "--hostfile", "nowhere", code=1), "nowhere: there is no such file")
    holds(plan(tmp, "--hostfile", ".", code=1), "is a folder")
    holds(plan(tmp, hostfile="w1 slots=1\nw2 slot=1\n", code=1), "hosts:2:4: expected slots=")
    holds(plan(tmp, "--export", "1X=2", code=2), "expected NAME=VALUE")
    holds(plan(tmp, "--no_ssh", code=2), "--node_rank K")
    job = Job(tmp, "--exclude", "w1@refused", "--", "true", hostfile=hosts).end(1)
    holds(job.text(job.err), "no slot is left")


def test_all_unfit_hosts_are_listed_and_nothing_starts(tmp):
    job = Job(tmp, "--connect_timeout", "4", "--", "touch", "started", hostfile="a slots=1\nrefused slots=1\nnozinc slots=1\nsilent slots=1\n").end(6)
    holds(job.text(job.err), "3 of 4 hosts", "refused: ssh fails", "Connection refused", "nozinc: there is no", "silent: it did not answer within 4 s")
    assert not os.path.exists(os.path.join(tmp, "started"))


def test_hosts_that_are_there_wait_for_one_that_is_late(tmp):
    job = Job(tmp, *bash("echo $RANK"), hostfile="a slots=1\nlate slots=1\n").end(0)
    assert sorted(job.text(job.out).splitlines()) == ["[a:0] 0", "[late:1] 1"]


def env_of_hosts(tmp, hosts, *words):
    job = Job(tmp, "--", "true", ranks=1)  # makes the stand-in for ssh
    job.end(0)
    full = {**os.environ, "PATH": os.path.join(tmp, "bin") + ":" + os.environ["PATH"], "SSH_LOG": os.path.join(tmp, "ssh.log")}
    full.pop("ZINC_ISA", None)
    return subprocess.run([ZINC, "env", "--hostfile", job.write("hosts", hosts), *words], cwd=tmp, env=full, capture_output=True, text=True, check=False)


def test_zinc_env_compares_hosts(tmp):
    got = env_of_hosts(tmp, "a slots=1\nodd slots=2\nb slots=3\nrefused slots=1\n")
    assert got.returncode == 6, got
    holds(got.stderr, "1 of 4 hosts", "refused: ssh fails", "Connection refused")
    lines = got.stdout.splitlines()
    start = [i for i, line in enumerate(lines) if line.startswith("isa ")][0]
    assert lines[start].endswith(" a b") and lines[start + 1].split() == ["ref", "odd"], got.stdout
    assert "ZINC_ISA" in got.stdout and "jansson" not in got.stdout and "rows are the same on 3 hosts" in lines[-1], got.stdout
    got = env_of_hosts(tmp, "a slots=1\nodd slots=1\n", "--json")
    assert got.returncode == 0, got
    rows = [json.loads(line) for line in got.stdout.splitlines()]
    assert {"name": "isa", "value": "ref", "hosts": ["odd"], "same": False} in rows, rows
    assert [row["hosts"] for row in rows if row["name"] == "jansson"] == [["a", "odd"]], rows
    got = env_of_hosts(tmp, "a slots=1\nb slots=1\n")
    assert got.returncode == 0 and got.stdout.endswith("rows are the same on 2 hosts\n") and len(got.stdout.splitlines()) == 1, got
    got = env_of_hosts(tmp, "refused slots=1\n")
    assert got.returncode == 6 and "1 of 1 hosts" in got.stderr and not got.stdout, got
    got = subprocess.run([ZINC, "env", "--ssh_port", "22"], capture_output=True, text=True, check=False)
    assert got.returncode == 2 and "--ssh_port goes with --hostfile" in got.stderr, got


def test_ssh_gets_port_and_options_in_order(tmp):
    Job(tmp, "--ssh_port", "2222", "--launcher_args", "-o 'User=a b'", "--", "true", hostfile="me@h slots=1\n").end(0)
    with open(os.path.join(tmp, "ssh.log"), encoding="utf-8") as f:
        log = f.read()
    holds(log, "-o User=a b -o BatchMode=yes", "-p 2222 -- me@h exec ")


def test_min_nodes_goes_on_without_lost_hosts(tmp):
    job = Job(tmp, "--min_nodes", "1", *bash("echo $RANK of $WORLD_SIZE"), hostfile="a slots=1\nrefused slots=4\nb slots=1\n").end(0)
    assert sorted(job.text(job.out).splitlines()) == ["[a:0] 0 of 2", "[b:1] 1 of 2"]
    holds(job.text(job.err), "going on without host refused")


def test_restarts_are_counted(tmp):
    job = Job(tmp, "--max_restarts", "2", *bash('echo x >>tries; test "$(wc -l <tries)" = 3'), ranks=1).end(0)
    holds(job.text(job.err), "restart 1 of 2", "restart 2 of 2")
    os.unlink(os.path.join(tmp, "tries"))
    Job(tmp, "--max_restarts", "1", *bash("echo x >>tries; exit 9"), ranks=1).end(9)
    with open(os.path.join(tmp, "tries"), encoding="utf-8") as f:
        assert f.read() == "x\nx\n"


def test_a_host_that_went_down_is_tried_again(tmp):
    job = Job(tmp, "--max_restarts", "2", *bash("exit 9"), hostfile="a slots=1\nonce slots=1\n").end(6)
    holds(job.text(job.err), "restart 1 of 2 after exit code 9", "restart 2 of 2", "once: ssh fails: No route to host")
    os.rmdir(os.path.join(tmp, "once"))
    job = Job(tmp, "--max_restarts", "1", "--min_nodes", "1", *bash('test $WORLD_SIZE = 1 || exit 9'), hostfile="a slots=1\nonce slots=1\n").end(0)
    holds(job.text(job.err), "going on without host once")


def test_each_rank_has_a_log(tmp):
    Job(tmp, "--enable_each_rank_log", "logs/here", *bash("echo out $RANK; echo err $RANK >&2")).end(0)
    for rank in range(3):
        files = glob.glob(os.path.join(tmp, f"logs/here/*_rank{rank}.log"))
        assert len(files) == 1, files
        with open(files[0], encoding="utf-8") as f:
            assert sorted(f.read().splitlines()) == [f"err {rank}", f"out {rank}"]


def test_much_output_arrives_whole(tmp):
    job = Job(tmp, *bash("seq 200000")).end(0)
    lines = job.text(job.out).splitlines()
    assert len(lines) == 600000
    for rank in range(3):
        assert [line[14:] for line in lines if line.startswith(f"[localhost:{rank}] ")] == [str(i) for i in range(1, 200001)]


def test_a_slow_reader_loses_no_host(tmp):
    job = Job(tmp, *bash("sleep 0.1; seq 300000"), hostfile="a slots=1\nb slots=1\n")
    job.end(0)
    job = subprocess.Popen([ZINC, "launch", "--num_ranks", "2", "--", "seq", "300000"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    time.sleep(6.5)
    data = job.stdout.read()
    assert job.wait(timeout=20) == 0
    assert data.count(b"\n") == 600000


def test_the_plan_shows_the_cores_of_each_rank(tmp):
    here = sorted(os.sched_getaffinity(0))
    assert [r["cores"] for r in plan(tmp, hostfile="localhost slots=1\nw slots=2\n")["ranks"]] == [None, None, None]
    got = plan(tmp, "--bind_cores_to_rank", hostfile="localhost slots=1\nw slots=2\n")["ranks"]
    assert [r["cores"] for r in got] == [here, None, None], got  # what another host has is not known here
    got = plan(tmp, "--bind_core_list", "0-4", hostfile="localhost slots=1\nw slots=2\n")["ranks"]
    assert [r["cores"] for r in got] == [[c for c in here if c <= 4], [0, 1], [2, 3, 4]], got
    job = Job(tmp, "--bind_core_list", "0,3,5-6", "--dry-run", "--", "prog", hostfile="w slots=2\n").end(0)
    rows = [line.split() for line in job.text(job.out).splitlines()]
    assert ["w", "0", "0", "0", "0,3"] in rows and ["w", "1", "1", "1", "5,6"] in rows, rows
    job = Job(tmp, "--bind_cores_to_rank", *train(tmp, "run"), hostfile="a slots=1\nb slots=1\n").end(1)
    holds(job.text(job.err), "--bind-to core")


def test_cores_are_divided(tmp):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return
    job = Job(tmp, "--bind_cores_to_rank", "--", sys.executable, "-c", "import os; print(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])",
              ranks=2).end(0)
    half = len(cores) // 2
    assert sorted(job.text(job.out).splitlines()) == [f"[localhost:0] {cores[:half]} {half}", f"[localhost:1] {cores[half:]} {len(cores) - half}"]
    job = Job(tmp, "--bind_core_list", "9999", "--", "true", ranks=1).end(1)
    holds(job.text(job.err), "0 cores to use")


def test_a_busy_port_is_refused_if_asked_for_and_avoided_if_not(tmp):
    import socket
    with socket.socket() as s:
        s.bind(("", 0))
        s.listen()
        port = s.getsockname()[1]
        job = Job(tmp, "--master_port", str(port), "--", "true").end(1)
        holds(job.text(job.err), f"--master_port {port} is in use")
        Job(tmp, "--", "true", env={"MASTER_PORT": str(port)}).end(1)
    job = Job(tmp, *bash("echo $MASTER_PORT"), env={"MASTER_PORT": str(port)}, ranks=1).end(0)
    assert job.text(job.out) == f"{port}\n"


LISTEN = """import os, socket, sys
s = socket.create_server(("", int(os.environ["MASTER_PORT"])))
c = socket.create_connection(s.getsockname())
print(os.environ["MASTER_PORT"], flush=True)
sys.exit(0) if "once" in sys.argv else s.accept()[0].recv(1)
"""


def test_two_jobs_at_once_take_two_ports_and_do_not_touch_each_other(tmp):
    jobs = []
    for name in "ab":
        os.mkdir(os.path.join(tmp, name))
        jobs.append(Job(os.path.join(tmp, name), *bash(WAIT + 'echo $MASTER_PORT >port.$RANK; until test -e go; do sleep 0.05; done')))
    pids = [job.pids(6) for job in jobs]
    ports = [{job.text(p).strip() for p in glob.glob(os.path.join(job.tmp, "port.*"))} for job in jobs]
    assert len(ports[0]) == len(ports[1]) == 1 and ports[0] != ports[1], ports
    os.kill(pids[0]["1"], signal.SIGKILL)
    jobs[0].end(137)
    gone(pids[0].values())
    assert all(is_alive(pid) for pid in pids[1].values())
    jobs[1].write("go", "")
    jobs[1].end(0)
    gone(pids[1].values())


def test_a_job_right_after_a_killed_one_gets_its_port(tmp):
    def listen(*more):
        return Job(tmp, "--master_port", port, "--", sys.executable, "-uc", LISTEN, *more, ranks=1)

    port = str(plan(tmp, ranks=1)["master_port"])
    job = listen()
    wait_until(lambda: port in job.text(job.out), job)
    os.kill(children(children(job.process.pid)[0])[-1], signal.SIGKILL)  # the first is the agent's guard
    job.end(137)
    listen("once").end(0)


def test_no_program_of_the_system_is_needed_to_launch_here(tmp):
    Job(tmp, "--", shutil.which("true"), env={"PATH": os.path.join(tmp, "nothing")}).end(0)


def test_no_ssh_starts_one_hosts_ranks_on_each(tmp):
    words = ["--no_ssh", "--num_nodes", "2", "--master_addr", "127.0.0.1", *bash("echo $RANK $LOCAL_RANK $WORLD_SIZE")]
    lines = []
    for node in range(2):
        job = Job(tmp, "--node_rank", str(node), *words, ranks=2).end(0)
        lines += [line.split("] ")[1] for line in sorted(job.text(job.out).splitlines())]
    assert lines == ["0 0 4", "1 1 4", "2 0 4", "3 1 4"], lines


def test_python_programs_modules_and_scripts_to_read_first(tmp):
    with open(os.path.join(tmp, "say.py"), "w", encoding="utf-8") as f:
        f.write("import sys; print('said', sys.argv[1:])\n")
    with open(os.path.join(tmp, "venv.sh"), "w", encoding="utf-8") as f:
        f.write("export READ_FIRST=yes\n")
    for words in (["say.py"], ["--module", "say"], ["--no_local_rank", "say.py"]):
        job = Job(tmp, *words, "a b", ranks=1).end(0)
        assert job.text(job.out) == "said ['a b']\n", job.text(job.out)
    job = Job(tmp, "--venv_script", "./venv.sh", *bash("echo $READ_FIRST \"$0\""), "a b;c", ranks=1).end(0)
    assert job.text(job.out) == "yes a b;c\n", job.text(job.out)


def needs(program):
    if not shutil.which(program):
        raise Skip(f"needs {program}")


def runner_starts_agents(tmp, launcher, ends_all):
    """The command that zinc makes really runs, over the stand-in for ssh; its agents connect back and are believed.

    ends_all: the runner itself ends every host when one is refused, so that the time limit is never waited for.
    """
    hosts = "a slots=1\nb slots=2\n"
    script = 'echo "$RANK $LOCAL_RANK a b ${OMPI_COMM_WORLD_RANK-none} ${PMI_RANK-none}"; test $RANK = 2 && exit CODE; test CODE = 0 || sleep 97'
    for code in (0, 7):
        job = Job(tmp, "--launcher", launcher, "--ssh_port", "2222", *bash(script.replace("CODE", str(code))), hostfile=hosts).end(code, 40)
        for line in ("[a:0] 0 0 a b none none", "[b:1] 1 0 a b none none", "[b:2] 2 1 a b none none"):
            assert line in job.text(job.out).splitlines(), job.text(job.out)
    assert all("-p 2222" in line for line in job.text(os.path.join(tmp, "ssh.log")).splitlines())
    job = Job(tmp, "--launcher", launcher, "--connect_timeout", "60" if ends_all else "8", "--", "touch", "started", hostfile="a slots=1\nrefused slots=1\n").end(6, 40)
    holds(job.text(job.err), "nothing was started", "refused: ", "Connection refused")
    assert not os.path.exists(os.path.join(tmp, "started"))


def test_openmpi_starts_agents_that_connect_back(tmp):
    needs("mpirun")
    runner_starts_agents(tmp, "openmpi", ends_all=True)


def test_mpich_starts_agents_that_connect_back(tmp):
    needs("mpiexec.hydra")
    runner_starts_agents(tmp, "mpich", ends_all=False)


def test_pdsh_starts_agents_that_connect_back(tmp):
    needs("pdsh")
    runner_starts_agents(tmp, "pdsh", ends_all=False)


def test_a_runner_that_is_not_installed_is_named(tmp):
    job = Job(tmp, "--launcher", "pdsh", "--", "true", hostfile="a slots=1\n", env={"PATH": os.path.join(tmp, "bin")}).end(1)
    holds(job.text(job.err), "--launcher pdsh: cannot run pdsh: No such file or directory; install it, or choose another --launcher")


def train(tmp, out, *more):
    rows = os.path.join(tmp, "rows.jsonl")
    with open(rows, "w", encoding="utf-8") as f:
        for i in range(16):
            f.write(json.dumps({"input_ids": [(7 * i + 13 * j) % 300 for j in range(8 + i)]}) + "\n")
    return ["--", "zinc", "train", "--model", os.path.join(DATA, "model", "llama"), "--train_file", rows, "--output_dir", os.path.join(tmp, out),
            "--per_device_train_batch_size", "1", "--threads", "1", "--max_steps", "3", *more]


def losses(tmp, out):
    with open(os.path.join(tmp, out, "metrics.jsonl"), encoding="utf-8") as f:
        return [json.loads(line)["loss"] for line in f]


def test_zinc_train_is_one_process_on_a_host(tmp):
    job = Job(tmp, "--dry_run", "--json", *train(tmp, "run"), ranks=2).end(0)
    plan = json.loads(job.text(job.out))
    assert plan["world_size"] == 2 and len(plan["ranks"]) == 1 and plan["ranks"][0]["argv"][-2:] == ["--ranks", "2"], plan
    Job(tmp, *train(tmp, "run"), ranks=2).end(0)
    assert len(losses(tmp, "run")) == 3
    job = Job(tmp, *train(tmp, "no", "--ranks", "3"), ranks=2).end(2)
    holds(job.text(job.err), "--ranks 3 of zinc train, but the launcher has 2 slots")
    Job(tmp, "--hang_timeout", "60", *train(tmp, "beats"), ranks=2).end(0)


def test_zinc_train_over_hosts_is_mpirun_and_gives_the_same_losses(tmp):
    hosts = "a slots=1\nb slots=1\n"
    job = Job(tmp, "--ssh_port", "2222", "--dry_run", "--json", *train(tmp, "run"), hostfile=hosts).end(0)
    plan = json.loads(job.text(job.out))["ranks"]
    assert plan[0]["argv"][:5] == ["mpirun", "-n", "2", "--host", "a:1,b:1"] and plan[0]["argv"][-2:] == ["--comm", "mpi"], plan
    holds(plan[0]["env"]["OMPI_MCA_plm_rsh_agent"], "-p 2222")
    Job(tmp, "--launcher", "local", *train(tmp, "mpi"), hostfile=hosts).end(0, 60)
    Job(tmp, *train(tmp, "threads"), ranks=2).end(0)
    assert losses(tmp, "mpi") == losses(tmp, "threads")


def wait_until(what, job):
    until = time.monotonic() + 30
    while not what():
        assert time.monotonic() < until, job.text(job.err)
        time.sleep(0.02)


def test_a_run_of_zinc_train_that_is_killed_goes_on_from_its_checkpoint(tmp):
    job = Job(tmp, "--max_restarts", "1", *train(tmp, "run", "--save_steps", "5", "--max_steps", "100000"), ranks=2)
    latest = os.path.join(tmp, "run", "latest")
    wait_until(lambda: os.path.exists(latest), job)
    first = job.text(latest).strip()
    saved = os.stat(os.path.join(tmp, "run", first)).st_ino
    os.kill(children(children(job.process.pid)[0])[-1], signal.SIGKILL)  # the first is the agent's guard
    wait_until(lambda: "restart 1 of 1" in job.text(job.err), job)
    at_restart = job.text(latest)
    wait_until(lambda: job.text(latest) != at_restart, job)
    job.process.send_signal(signal.SIGTERM)
    job.end(143)
    holds(job.text(job.err), "was ended by signal 9", "restart 1 of 1")
    with open(os.path.join(tmp, "run", "metrics.jsonl"), encoding="utf-8") as f:
        steps = [json.loads(line)["step"] for line in f]
    assert len(steps) >= 5 and steps == list(range(1, len(steps) + 1)), steps  # none twice, none missing
    assert os.stat(os.path.join(tmp, "run", first)).st_ino == saved  # it was not begun anew


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as f:
        return [int(p) for p in f.read().split()]


def main():
    names = sys.argv[3:] or [n for n in globals() if n.startswith("test_")]
    bad = n_skipped = 0
    for name in names:
        with tempfile.TemporaryDirectory() as tmp:
            start = time.monotonic()
            try:
                globals()[name](os.path.realpath(tmp))
                print(f"{name} ok {time.monotonic() - start:.1f} s")
            except Skip as skip:
                n_skipped += 1
                print(f"{name} skipped: {skip}")
            except Exception as error:  # pylint: disable=broad-except
                bad += 1
                print(f"{name} FAILED: {type(error).__name__}: {error}")
            for process in Job.started:  # what a failed test has left
                if process.poll() is None:
                    process.terminate()
                    process.wait(timeout=60)
            Job.started.clear()
    return 1 if bad else SKIPPED if n_skipped == len(names) else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# zinc launch in a Slurm cluster of its own: slurm.sh ZINC DATA_DIR
# Two nodes, z1 and z2, are two slurmd on this machine; all state is in one temporary folder, all ports are on the loopback
# address. Needs root and the packages slurmd, slurmctld, slurm-client and munge (optional); exits 77 and says what is missing.
# What is started is ended by its own process id.
set -euo pipefail
zinc=$(readlink -f "$1")
data=$(readlink -f "$2")

skip() {
    echo "skipped: $1"
    exit 77
}
[ "$(id -u)" = 0 ] || skip "needs root for slurmd"
export PATH=$PATH:/usr/sbin:/sbin
for program in munged slurmctld slurmd srun sbatch salloc scancel sinfo unshare; do
    command -v $program >/dev/null || skip "needs $program"
done

state=$(mktemp -d /var/tmp/zinc_slurm.XXXXXX)
chmod 755 "$state" # munged wants to be reached
cp "$zinc" "$state/zinc" # the nodes have a /tmp of their own, where build and source may stand
cp -r "$data/model/llama" "$state/llama"
zinc=$state/zinc
started=()
down() {
    local pid n
    [ ${#started[@]} -lt 4 ] || timeout 10 scancel --user root --full --signal KILL 2>/dev/null || true
    for ((pid = ${#started[@]} - 1; pid >= 0; pid--)); do
        kill "${started[$pid]}" 2>/dev/null || true
        for ((n = 0; n < 100; n++)); do kill -0 "${started[$pid]}" 2>/dev/null && sleep 0.05 || break; done
        kill -KILL "${started[$pid]}" 2>/dev/null || true
    done
    rm -rf "$state"
}
trap down EXIT

free_ports() { # N: that many free ports
    python3 -c 'import socket, sys
held = [socket.socket() for _ in range(int(sys.argv[1]))]
for s in held: s.bind(("127.0.0.1", 0))
print(*[s.getsockname()[1] for s in held])' "$1"
}
read -r ctl_port d1_port d2_port <<<"$(free_ports 3)"
host=$(hostname -s)
export SLURM_CONF=$state/slurm.conf
cat >"$SLURM_CONF" <<C
ClusterName=zinc
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$state/munge.sock
SlurmctldPort=$ctl_port
StateSaveLocation=$state/ctl
SlurmdSpoolDir=$state/%n
SlurmctldPidFile=$state/ctl.pid
SlurmdPidFile=$state/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=5
SlurmdParameters=config_overrides
NodeName=z1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$d1_port CPUs=8
NodeName=z2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$d2_port CPUs=8
PartitionName=all Nodes=z1,z2 Default=YES MaxTime=INFINITE State=UP
C
mkdir "$state/ctl" "$state/work"
(umask 077 && head -c 64 /dev/urandom >"$state/key")

start() { # NAME COMMAND...: a daemon in the foreground, in the background
    local name=$1
    shift
    "$@" >"$state/$name.log" 2>&1 </dev/null &
    disown $!
    started+=($!)
}
start munged munged --foreground --force --key-file="$state/key" --socket="$state/munge.sock" --pid-file="$state/munged.pid" \
    --log-file="$state/munged.out" --seed-file="$state/seed"
for ((n = 0; n < 100; n++)); do [ -S "$state/munge.sock" ] && break || sleep 0.05; done
start slurmctld slurmctld -D -c -f "$SLURM_CONF"
for node in z1 z2; do # a /tmp and shared memory each: PMIx and Open MPI name files there as if a machine had one node
    mkdir -m 1777 "$state/tmp_$node"
    start $node unshare --mount sh -c 'mount --make-rprivate / && mount --bind "$0" /tmp && mount -t tmpfs -o mode=1777 shm /dev/shm && exec "$@"' "$state/tmp_$node" \
        slurmd -D -N $node -f "$SLURM_CONF"
done
for ((n = 0; n < 100; n++)); do
    [ "$(timeout 5 sinfo --noheader --Node --format '%t' 2>/dev/null | grep -c idle)" = 2 ] && break || sleep 0.2
done
[ "$(timeout 5 sinfo --noheader --Node --format '%t' 2>/dev/null | grep -c idle)" = 2 ] || {
    tail -n 5 "$state"/*.log
    skip "Slurm does not come up here"
}
cd "$state/work"
export mark=986.$$ # seconds, and the name of this run's ranks
export PATH=${zinc%/*}:$PATH

expect() { # CODE WHAT PART...: how the last command ended, and what the file `said` holds
    local wanted=$1 what=$2 part n
    shift 2
    [ "$code" = "$wanted" ] || { echo "$what: exit code $code, want $wanted"; cat said; exit 1; }
    for part in "$@"; do grep -q -- "$part" said || { echo "$what: no '$part'"; cat said; exit 1; }; done
    for ((n = 0; n < 100; n++)); do [ "$(living)" = 0 ] && break || sleep 0.1; done
    [ "$(living)" = 0 ] || { echo "$what: processes are left"; exit 1; }
    echo "$what: ok"
}
living() { ps -eo args | grep -c "^sleep $mark\$" || true; }
wait_for() { # N: that many ranks sleep
    for ((n = 0; n < 200; n++)); do [ "$(living)" = "$1" ] && return || sleep 0.05; done
    echo "the ranks did not start"
    cat said
    exit 1
}
alloc() { # WORDS...: in an allocation of two nodes with two tasks each
    code=0
    timeout 60 salloc --quiet --nodes 2 --ntasks-per-node 2 "$@" >said 2>&1 </dev/null || code=$?
}
batch() { # N_NODES COMMAND: a job in the background
    timeout 60 sbatch --parsable --output said --error said --nodes "$1" --ntasks-per-node 2 --wrap "$2"
}
job_end() { # JOB: its exit code once it has ended
    local text
    for ((n = 0; n < 200; n++)); do
        text=$(scontrol --oneliner show job "$1")
        case $text in *JobState=RUNNING* | *JobState=PENDING* | *JobState=COMPLETING*) sleep 0.1 ;; *) break ;; esac
    done
    code=${text##* ExitCode=}
    code=${code%%:*}
}

alloc "$zinc" launch -- sh -c 'echo "$SLURMD_NODENAME $RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR"'
expect 0 "an allocation gives hosts and slots" '\[z1:0\] z1 0 0 4 z1' '\[z1:1\] z1 1 1 4 z1' '\[z2:3\] z2 3 1 4 z1'
alloc "$zinc" launch --num_nodes 1 --num_ranks 3 -- sh -c 'echo "$RANK of $WORLD_SIZE"'
expect 0 "more ranks than tasks, if asked for" '\[z1:2\] 2 of 3'
alloc "$zinc" launch -- sh -c 'test $RANK = 3 && exit 7; exec sleep $mark'
expect 7 "a rank fails" 'rank 3 on z2 exited with code 7'
alloc "$zinc" launch -- sh -c 'test $RANK = 2 && kill -KILL $$; exec sleep $mark'
expect 137 "a rank is killed" 'rank 2 on z2 was ended by signal 9'
alloc srun --ntasks 2 "$zinc" launch -- true
expect 1 "started several times" 'srun has started 2 of this'

printf 'z2 slots=1\nz1 slots=1\n' >hosts
code=0
timeout 60 "$zinc" launch --launcher slurm --hostfile hosts -- sh -c 'echo "$SLURMD_NODENAME $RANK"' >said 2>&1 || code=$?
expect 0 "a hostfile's order, without an allocation" '\[z2:0\] z2 0' '\[z1:1\] z1 1'

for sig in TERM KILL; do
    timeout 60 salloc --quiet --nodes 2 --ntasks-per-node 2 sh -c '"$0" launch -- sleep $mark & echo $! >pid; wait $!; exit $?' \
        "$zinc" >said 2>&1 </dev/null &
    pid=$!
    wait_for 4
    kill -$sig "$(cat pid)"
    code=0
    wait $pid || code=$?
    expect $([ $sig = TERM ] && echo 143 || echo 137) "SIG$sig to the launcher"
done

job=$(batch 2 "exec $zinc launch -- sleep $mark")
wait_for 4
scancel "$job"
job_end "$job"
[ "$code" = 143 ] && code=0 # the launcher's own, if it ends before Slurm sees its signal
expect 0 "scancel" 'CANCELLED'

printf '%s\n' "trap 'echo \"rank \$RANK is told\"; exit 0' USR1" 'echo >ready.$RANK; while :; do sleep 0.05; done' >told.sh
job=$(batch 2 "exec $zinc launch -- bash told.sh")
for ((n = 0; n < 200; n++)); do [ -e ready.0 ] && [ -e ready.1 ] && [ -e ready.2 ] && [ -e ready.3 ] && break || sleep 0.05; done
scancel --signal USR1 "$job" # as sbatch --signal does: steps hear it, not the script
job_end "$job"
expect 0 "--signal reaches the ranks" 'rank 0 is told' 'rank 1 is told' 'rank 2 is told' 'rank 3 is told'

python3 -c 'import json
for i in range(16): print(json.dumps({"input_ids": [(7 * i + 13 * j) % 300 for j in range(8 + i)]}))' >rows.jsonl
echo '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}' >ds.json
train="zinc train --model $state/llama --train_file rows.jsonl --threads 1 --per_device_train_batch_size 1 --deepspeed ds.json"
$train --ranks 2 --max_steps 3 --output_dir whole >said 2>&1
same() { cmp whole/model.safetensors "$1/model.safetensors" || exit 1; }

job=$(batch 1 "exec zinc launch $train --max_steps 3 --output_dir threads")
job_end "$job"
expect 0 "zinc launch zinc train in a batch script" 'is in threads'
same threads
for way in batch full; do # the script alone, and every process of the job
    job=$(batch 1 "exec zinc launch $train --max_steps 1000000 --save_on_signal --output_dir $way")
    for ((n = 0; n < 200; n++)); do [ -s $way/metrics.jsonl ] && break || sleep 0.05; done
    scancel --signal USR1 --$way "$job"
    job_end "$job"
    expect 138 "SIGUSR1 ends with a save ($way)" 'stopped by a signal after step'
    [ -s $way/latest ] || { echo "no checkpoint"; exit 1; }
done

if zinc env | grep -q '^mpi .*MPI' && command -v mpirun >/dev/null; then
    job=$(batch 1 "exec $train --comm mpi --ranks 2 --max_steps 3 --output_dir mpirun")
    job_end "$job"
    expect 0 "zinc train --comm mpi in a batch script is no rank yet" 'is in mpirun'
    same mpirun
    alloc srun --nodes 1 --ntasks 2 --mpi=none $train --comm mpi --max_steps 3 --output_dir none
    expect 1 "srun without PMI" 'give it --mpi=pmix'
    if srun --mpi=list 2>&1 | grep -q pmix; then
        alloc srun --nodes 1 --ntasks 2 --mpi=pmix $train --comm mpi --max_steps 3 --output_dir pmix
        expect 0 "zinc train under srun" 'is in pmix'
        same pmix
        $train --ranks 4 --max_steps 3 --output_dir four >said 2>&1
        alloc srun --nodes 2 --ntasks 4 --mpi=pmix $train --comm mpi --max_steps 3 --output_dir nodes
        expect 0 "zinc train under srun over two nodes, two ranks each" 'is in nodes'
        cmp four/model.safetensors nodes/model.safetensors
        alloc "$zinc" launch $train --max_steps 3 --output_dir launched
        expect 0 "zinc launch zinc train in an allocation of two nodes" 'is in launched'
        cmp four/model.safetensors launched/model.safetensors
    fi
fi

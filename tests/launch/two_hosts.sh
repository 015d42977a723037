#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# zinc launch over two hosts made on one machine: two_hosts.sh ZINC DATA_DIR [COMMAND...]
# A COMMAND runs in place of the tests here, with the hosts described in ZN_* variables (fault_runs.py).
# Each host has its own network, process, mount and host name space, an address on a bridge of its own, and sshd. Needs root,
# iproute2, util-linux and openssh-server (optional packages); exits 77 and says what is missing. Outside these namespaces
# nothing changes, and what is started is ended by its own process id.
set -euo pipefail
zinc=$(readlink -f "$1")
data=$(readlink -f "$2")
net=10.88.77

skip() {
    echo "skipped: $1"
    exit 77
}
[ "$(id -u)" = 0 ] || skip "needs root for network namespaces"
for program in ip unshare nsenter ssh ssh-keygen; do
    command -v "$program" >/dev/null || skip "needs $program"
done
[ -x /usr/sbin/sshd ] || skip "needs sshd (package openssh-server)"

state=$(mktemp -d /var/tmp/zinc_two_hosts.XXXXXX)
tag=zn$$
outer=()
init=()
down() {
    local i pid
    for pid in "${outer[@]}"; do kill -KILL "$pid" 2>/dev/null || true; done # takes its process namespace along
    for pid in "${init[@]}"; do
        for ((i = 0; i < 100; i++)); do [ -d "/proc/$pid" ] && sleep 0.05 || break; done
    done
    for i in h1 h2 sw; do ip netns del "$tag-$i" 2>/dev/null || true; done
    rm -rf "$state"
}
trap down EXIT
# Each host has a /tmp of its own, where build and source may stand.
cp "$zinc" "$state/zinc"
cp -r "$data/model/llama" "$state/llama"
zinc=$state/zinc
unshare --net true 2>/dev/null || skip "may not make network namespaces here"

ip netns add "$tag-sw"
ip -n "$tag-sw" link add br0 type bridge 2>/dev/null || skip "the kernel has no bridges"
ip -n "$tag-sw" link set br0 up
ssh-keygen -q -t ed25519 -N '' -C zinc-test -f "$state/id" </dev/null
printf '127.0.0.1 localhost\n%s.1 h1\n%s.2 h2\n' $net $net >"$state/hosts"

prepare() { # I: the host's files and its network
    local i=$1 d=$state/h$1
    ip netns add "$tag-h$i"
    ip -n "$tag-sw" link add "p$i" type veth peer name eth0 netns "$tag-h$i"
    ip -n "$tag-sw" link set "p$i" master br0
    ip -n "$tag-sw" link set "p$i" up
    ip -n "$tag-h$i" addr add "$net.$i/24" dev eth0
    ip -n "$tag-h$i" link set eth0 up
    ip -n "$tag-h$i" link set lo up
    mkdir -p "$d/home/.ssh" "$d/tmp"
    ssh-keygen -q -t ed25519 -N '' -f "$d/hostkey" </dev/null
    cp "$state/id" "$d/home/.ssh/id_ed25519"
    cp "$state/id.pub" "$d/home/.ssh/authorized_keys"
    chmod -R go= "$d/home"
    sed "s/^/h$i,$net.$i /" "$d/hostkey.pub" >>"$state/known_hosts"
    cat >"$d/sshd_config" <<C
Port 22
ListenAddress $net.$i
HostKey $d/hostkey
PidFile none
AuthorizedKeysFile $d/home/.ssh/authorized_keys
PasswordAuthentication no
PermitRootLogin prohibit-password
UsePAM no
StrictModes no
C
    cat >"$d/ssh_config" <<C
Host h1 h2
  User root
  IdentityFile $d/home/.ssh/id_ed25519
  UserKnownHostsFile $state/known_hosts
C
    cat >"$d/init.sh" <<I
hostname h$i
mount --make-rprivate /
mount --bind "$d/tmp" /tmp
mount --bind "$state/hosts" /etc/hosts
mount -t tmpfs -o mode=755 ssh /etc/ssh
cp "$d/ssh_config" /etc/ssh/ssh_config
mount -t tmpfs -o size=1g,mode=1777 shm /dev/shm
mkdir -p /run/sshd
/usr/sbin/sshd -D -e -f "$d/sshd_config" 2>"$d/sshd.log" &
echo >"$d/ready"
while :; do wait -n || sleep 1; done
I
}

start() { # I: the host's process 1, found as the child of its unshare
    local i=$1 d=$state/h$1 pid n
    setsid ip netns exec "$tag-h$i" unshare --fork --kill-child --pid --mount --mount-proc --uts --ipc \
        bash "$d/init.sh" </dev/null >"$d/log" 2>&1 &
    pid=$!
    disown "$pid"
    outer+=("$pid")
    for ((n = 0; n < 100; n++)); do [ -e "$d/ready" ] && break || sleep 0.05; done
    [ -e "$d/ready" ] || {
        cat "$d/log" "$d/sshd.log"
        skip "namespaces do not work here"
    }
    init+=("$(cut -d' ' -f1 "/proc/$pid/task/$pid/children")")
}

on() { # I COMMAND...: run on a host
    local p=${init[$1 - 1]}
    shift
    nsenter -t "$p" -m -n -u -i -p -- env -i HOME="$HOME" PATH="$PATH" OMPI_MCA_oob_tcp_if_include=eth0 \
        OMPI_MCA_btl_tcp_if_include=eth0 "$@"
}

count() { # PATTERN: processes on both hosts whose words match
    { on 1 ps -eo args; on 2 ps -eo args; } | grep -c "^$1" || true
}

expect() { # CODE WHAT PART...: how the last command ended, and what $state/err holds
    local wanted=$1 what=$2 part
    shift 2
    [ "$code" = "$wanted" ] || { echo "$what: exit code $code, want $wanted"; cat "$state/out" "$state/err"; exit 1; }
    for part in "$@"; do
        grep -q -- "$part" "$state/err" "$state/out" || { echo "$what: no '$part'"; cat "$state/out" "$state/err"; exit 1; }
    done
    for ((n = 0; n < 200; n++)); do [ "$(count 'sleep 987')" = 0 ] && break || sleep 0.1; done
    [ "$(count 'sleep 987')" = 0 ] || { echo "$what: processes are left"; exit 1; }
    echo "$what: ok"
}

launch() { # WORDS...: zinc launch on h1, in a folder that both hosts see
    code=0
    on 1 sh -c 'cd "$0" && exec "$@"' "$state/work" "$zinc" launch --hostfile "$state/work/hosts" "$@" \
        >"$state/out" 2>"$state/err" </dev/null || code=$?
}

prepare 1
prepare 2
start 1
start 2
mkdir "$state/work"
printf 'h1 slots=1\nh2 slots=2\n' >"$state/work/hosts"
for ((n = 0; n < 100; n++)); do on 1 ssh h2 true 2>/dev/null && on 2 ssh h1 true 2>/dev/null && break || sleep 0.1; done

if [ $# -gt 2 ]; then
    shift 2
    export ZN_ZINC=$zinc ZN_STATE=$state ZN_SWITCH=$tag-sw ZN_INITS="${init[*]}"
    "$@"
    exit $?
fi

launch -- sh -c 'echo "$(hostname) $RANK $LOCAL_RANK $WORLD_SIZE $MASTER_ADDR"'
expect 0 "ranks over ssh" '\[h1:0\] h1 0 0 3 h1' '\[h2:1\] h2 1 0 3 h1' '\[h2:2\] h2 2 1 3 h1'

launch -- sh -c 'test $RANK = 2 && exit 7; sleep 987'
expect 7 "a rank on the other host fails" 'rank 2 on h2 exited with code 7'

launch --force_multi -- sh -c 'test $RANK = 0 && kill -KILL $$; sleep 987'
expect 137 "this host through ssh too" 'rank 0 on h1 was ended by signal 9'

(for ((n = 0; n < 100; n++)); do [ "$(count 'sleep 987')" = 3 ] && break || sleep 0.1; done
    ip -n "$tag-sw" link set p2 down
    sleep 14 # both sides give up meanwhile
    ip -n "$tag-sw" link set p2 up) &
launch -- sleep 987
wait $!
expect 6 "the network to a host is cut" 'host h2 is lost' 'has said nothing for 5 s'

printf 'h1 slots=1\nh2 slots=2\n10.88.77.9 slots=1\n' >"$state/work/hosts"
launch --connect_timeout 8 -- true
expect 6 "a host that is not there" '1 of 3 hosts cannot be used' '10.88.77.9: '
printf 'h1 slots=1\nh2 slots=1\n' >"$state/work/hosts"

on 1 sh -c 'cd "$0" && exec "$@"' "$state/work" "$zinc" launch --hostfile "$state/work/hosts" -- sleep 987 \
    >"$state/out" 2>"$state/err" </dev/null &
nsenter_pid=$!
for ((n = 0; n < 100; n++)); do [ "$(count 'sleep 987')" = 2 ] && break || sleep 0.1; done
on 1 sh -c 'kill -KILL "$(ps -eo pid,args | grep "[z]inc launch" | grep -v "sh -c" | head -1 | sed "s/^ *//" | cut -d" " -f1)"'
code=0
wait "$nsenter_pid" || code=$?
expect 137 "the launcher is killed"

runner_of() { case $1 in openmpi) echo mpirun ;; mpich) echo mpiexec.hydra ;; *) echo "$1" ;; esac; }
for launcher in openmpi mpich pdsh; do
    command -v "$(runner_of $launcher)" >/dev/null || { echo "agents by $launcher: left out, needs $(runner_of $launcher)"; continue; }
    launch --launcher $launcher -- sh -c 'echo "$(hostname) $RANK"; test $RANK = 0 || exit 3; sleep 987'
    expect 3 "agents by $launcher" '\[h2:1\] h2 1' 'rank 1 on h2 exited with code 3'
done

if "$zinc" env | grep -q '^comm.mpi\|mpi' && command -v mpirun >/dev/null; then
    python3 -c 'import json
for i in range(8): print(json.dumps({"input_ids": [(7 * i + 13 * j) % 300 for j in range(8 + i)]}))' >"$state/work/rows.jsonl"
    printf 'h1 slots=2\nh2 slots=2\n' >"$state/work/hosts"
    echo '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}' >"$state/work/ds_config.json"
    train="zinc train --model $state/llama --train_file rows.jsonl --threads 1 --deepspeed ds_config.json"
    (cd "$state/work" && $state/$train --ranks 4 --max_steps 3 --output_dir one >"$state/out" 2>&1)
    for launcher in ssh pdsh openmpi; do
        launch --launcher $launcher --master_port 29500 $train --max_steps 3 --output_dir $launcher
        expect 0 "zinc train over two hosts by $launcher" '4 ranks'
        [ "$(wc -l <"$state/work/$launcher/metrics.jsonl")" = 3 ] || { echo "no metrics"; exit 1; }
        cmp "$state/work/one/model.safetensors" "$state/work/$launcher/model.safetensors"
    done

    # each host's /tmp is its own; the rate must not depend on --max_steps
    train="$train --lr_scheduler_type constant"
    (cd "$state/work" && $state/$train --ranks 4 --max_steps 4 --save_dtype float32 --output_dir whole >"$state/out" 2>&1)
    launch $train --max_steps 2 --save_steps 2 --output_dir /tmp/apart
    expect 0 "hosts without a common folder" 'is another folder on each of 2 nodes'
    launch $train --max_steps 4 --save_steps 2 --save_total_limit 1 --output_dir /tmp/apart --resume_from_checkpoint
    expect 0 "they go on" 'going on after step 2 '
    "$zinc" export "$state/h2/tmp/apart" "$state/h1/tmp/apart" "$state/work/both" --dtype float32 >"$state/out" 2>"$state/err" ||
        { cat "$state/err"; exit 1; }
    cmp "$state/work/both/model.safetensors" "$state/work/whole/model.safetensors"
    [ ! -e "$state/h2/tmp/apart/checkpoint-2" ] || { echo "the other host's old checkpoint is left"; exit 1; }
    mv "$state/h2/tmp/apart/checkpoint-4/shard-00003-of-00004.safetensors" "$state/work"
    launch $train --max_steps 5 --output_dir /tmp/apart --resume_from_checkpoint
    expect 4 "a part is missing" 'shard-00003-of-00004.safetensors is on no node of this run: it was written on the node h2'

    (for ((n = 0; n < 200; n++)); do [ -s "$state/work/told/metrics.jsonl" ] && break || sleep 0.1; done
        on 1 sh -c 'kill -TERM "$(ps -eo pid,args | grep "[z]inc launch" | grep -v "sh -c" | head -1 | sed "s/^ *//" | cut -d" " -f1)"') &
    launch $train --max_steps 1000000 --save_on_signal --output_dir told
    wait $!
    expect 143 "SIGTERM to the launcher of zinc train over two hosts" 'stopped by a signal after step'
    [ -s "$state/work/told/latest" ] || { echo "no checkpoint"; exit 1; }
fi

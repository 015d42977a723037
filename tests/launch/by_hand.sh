#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# zinc train over two machines, started by hand on each: a COMMAND of two_hosts.sh, whose ZN_* variables it reads.
set -euo pipefail
zinc=$ZN_ZINC
work=$ZN_STATE/by_hand
read -r -a inits <<<"$ZN_INITS"
mkdir -p "$work"
cd "$work"

on() { # I COMMAND...
    local p=${inits[$1 - 1]}
    shift
    nsenter -t "$p" -m -n -u -i -p -- env -i HOME="$HOME" PATH="$PATH" OMPI_MCA_oob_tcp_if_include=eth0 \
        OMPI_MCA_btl_tcp_if_include=eth0 sh -c 'cd "$0" && exec "$@"' "$work" "$@"
}
fail() {
    echo "by_hand.sh: $*" >&2
    cat ./*.err >&2
    exit 1
}
for ((i = 0; i < 16; i++)); do
    echo "{\"input_ids\":[$i,5,9,$((i + 3)),7,11,2,$((2 * i))],\"labels\":[$i,5,9,$((i + 3)),7,11,2,$((2 * i))]}"
done >rows.jsonl
for k in 0 1; do # the six keys of a tutorial, addresses and counts reduced
    printf '%s\n' 'compute_environment: LOCAL_MACHINE' 'distributed_type: DEEPSPEED' "machine_rank: $k  # 0, 1, ..." \
        'main_process_ip: 10.88.77.1' 'main_process_port: 29511' 'num_machines: 2' 'num_processes: 4' >"machine$k.yaml"
done
options=(--model "$ZN_STATE/llama" --train_file rows.jsonl --max_steps 3 --threads 1 --per_device_train_batch_size 2 --save_steps 0
    --logging_steps 0 --json)
losses() { sed -n 's/.*"loss":\([^,]*\),"grad_norm":\([^,]*\),.*/\1 \2/p' "$1"; }

# One host, four ranks.
printf 'distributed_type: DEEPSPEED\nnum_processes: 4\n' >one.yaml
"$zinc" train "${options[@]}" --output_dir one --accelerate_config one.yaml >one.json 2>one.err || fail "one host"
# Two machines, the second first; zinc train itself, as the tutorial's command line is.
on 2 "$zinc" train "${options[@]}" --output_dir two --accelerate_config machine1.yaml >two1.json 2>two1.err &
partner=$!
on 1 "$zinc" train "${options[@]}" --output_dir two --accelerate_config machine0.yaml >two.json 2>two0.err || fail "machine 0"
wait "$partner" || fail "machine 1"
[ "$(losses one.json | wc -l)" = 3 ] || fail "no three steps"
[ "$(losses one.json)" = "$(losses two.json)" ] || fail "the losses of two machines are not those of one"
grep -q 'machine 1 of 2 is here: 10.88.77.2' two0.err || fail "the partner is not announced"

# The same without a YAML.
by_hand=(--no_ssh --num_nodes 2 --num_ranks 2 --master_addr 10.88.77.1 --master_port 29512)
on 2 "$zinc" launch "${by_hand[@]}" --node_rank 1 zinc train "${options[@]}" --output_dir three >three1.json 2>three1.err &
partner=$!
on 1 "$zinc" launch "${by_hand[@]}" --node_rank 0 zinc train "${options[@]}" --output_dir three >three.json 2>three0.err || fail "--node_rank 0"
wait "$partner" || fail "--node_rank 1"
[ "$(losses one.json)" = "$(losses three.json)" ] || fail "the losses of --no_ssh are not those of one host"
"$zinc" launch --dry_run "${by_hand[@]}" --node_rank 0 zinc train "${options[@]}" | grep -q '^  mpirun -n 4 --host node-0:2,node-1:2 ' || fail "no plan"

# A machine that does not come is named, on either side, within the deadline.
code=0
on 1 "$zinc" launch --connect_timeout 1 --accelerate_config machine0.yaml zinc train "${options[@]}" --output_dir no 2>no.err || code=$?
[ "$code" = 6 ] || fail "exit code $code for a missing partner"
grep -q 'machine 1 of 2 did not come within 1 s' no.err || fail "the missing machine is not named"
code=0
on 2 "$zinc" launch --connect_timeout 1 --accelerate_config machine1.yaml zinc train "${options[@]}" --output_dir no 2>no.err || code=$?
[ "$code" = 6 ] || fail "exit code $code without machine 0"
grep -q 'machine 0 did not answer at 10.88.77.1:29511 within 1 s' no.err || fail "machine 0 is not named"
code=0 # nobody has that address: no connection is ever refused
on 2 "$zinc" launch "${by_hand[@]/%.1/.9}" --node_rank 1 --connect_timeout 1 zinc train "${options[@]}" 2>no.err || code=$?
[ "$code" = 6 ] || fail "exit code $code for an address that nobody has"
grep -q 'machine 0 did not answer at 10.88.77.9:29512 within 1 s.*: 10.88.77.9: ' no.err || fail "the address is not named"
echo "by hand: ok"

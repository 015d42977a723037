#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# accelerate's YAML files and FSDP's words on the command line: accelerate.sh ZINC DATA_DIR
set -euo pipefail
zinc=$(readlink -f "$1")
data=$(readlink -f "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

fail() {
    echo "accelerate.sh: $*" >&2
    exit 1
}
for ((i = 0; i < 16; i++)); do
    echo "{\"input_ids\":[$i,5,9,$((i + 3)),7,11,2,$((2 * i))],\"labels\":[$i,5,9,$((i + 3)),7,11,2,$((2 * i))]}"
done >rows.jsonl

train() { # NAME OPTIONS...: losses and norms of three steps, in NAME
    local name=$1
    shift
    "$zinc" train --model "$data/model/llama" --train_file rows.jsonl --output_dir "$name.out" --max_steps 3 --threads 1 \
        --per_device_train_batch_size 2 --save_steps 0 --logging_steps 0 --json "$@" 2>"$name.err" |
        sed 's/.*"loss":\([^,]*\),"grad_norm":\([^,]*\),.*/\1 \2/' >"$name" || { cat "$name.err"; fail "$name does not run"; }
    [ "$(wc -l <"$name")" = 3 ] || fail "$name has no three steps"
}

same() { # A B
    cmp "$1" "$2" || fail "$1 and $2 differ"
}

yaml() { # NAME LINES...: an FSDP file for two ranks
    local name=$1
    shift
    printf 'distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n' >"$name"
    printf '  %s\n' "$@" >>"$name"
}

echo '{"zero_optimization": {"stage": 3}}' >z3.json
yaml full.yaml 'fsdp_version: 1' 'fsdp_reshard_after_forward: FULL_SHARD' \
    'fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP'
yaml op.yaml 'fsdp_version: 2' 'fsdp_reshard_after_forward: false' 'fsdp_offload_params: true'
printf 'distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n  deepspeed_config_file: z3.json\n' >ds.yaml
printf 'distributed_type: MULTI_CPU\nnum_processes: 2\nmixed_precision: "no"\n' >cpu.yaml

# One model, shared in every way that a file or a word can say: the bits are the same.
train stage3 --ranks 2 --deepspeed z3.json
train full --accelerate_config full.yaml
train op --accelerate_config op.yaml
train ds --accelerate_config ds.yaml
train cpu --accelerate_config cpu.yaml
train words --ranks 2 --fsdp "full_shard offload auto_wrap"
train json --ranks 2 --fsdp --fsdp_config '{"reshard_after_forward": false, "activation_checkpointing": true}'
for name in full op ds cpu words json; do same stage3 "$name"; done
grep -q 'ZeRO stage 3 (auto: fsdp.sharding_strategy)' full.err || fail "the origin of the stage is not said"
grep -q 'x 2 ranks' full.err || fail "num_processes does not make the ranks"

# The user's own file only where it is asked for.
mkdir -p hf/accelerate
cp full.yaml hf/accelerate/default_config.yaml
HF_HOME=$work/hf train own --accelerate_config default
same stage3 own

# Contradictions.
"$zinc" train --model "$data/model/llama" --train_file rows.jsonl --output_dir x --accelerate_config full.yaml --ranks 3 \
    2>err && fail "--ranks 3 with num_processes 2"
grep -q 'num_processes 2' err || fail "the contradiction is not named"
"$zinc" train --model "$data/model/llama" --train_file rows.jsonl --output_dir x --fsdp --deepspeed z3.json 2>err &&
    fail "--fsdp with --deepspeed"
grep -q 'give one' err || fail "two ways to share are not refused"

# zinc launch: a zinc train reads the file itself; another program finds it as accelerate would say it.
"$zinc" launch --accelerate_config full.yaml --dry_run --json zinc train --model m >plan 2>/dev/null
grep -q '"--accelerate_config","full.yaml"' plan || fail "zinc train does not get the file"
"$zinc" launch --accelerate_config full.yaml --dry_run --json train.py >plan 2>err
grep -q '"world_size":2' plan || fail "the file's ranks are not taken"
head -1 err | grep -q 'FSDP is translated to ZeRO stage 3: the program sees distributed_type DEEPSPEED' ||
    fail "the first line does not say what is translated"
sed 's/.*"ACCELERATE_DEEPSPEED_CONFIG_FILE":"\([^"]*\)".*/\1/' plan | tr -- -_ +/ | base64 -d >generated.json
"$zinc" config check generated.json --world_size 2 --json >checked || { cat checked; fail "the generated file is wrong"; }
grep -q '"stage":3' checked || fail "the generated file is of another stage"
"$zinc" launch --accelerate_config ds.yaml --dry_run --json train.py >plan 2>/dev/null
grep -q '"ACCELERATE_DEEPSPEED_CONFIG_FILE":"z3.json"' plan || fail "the named ds_config does not reach the program"
"$zinc" launch --accelerate_config "$data/config/accelerate/accelerate_zero2.yaml" --dry_run --json train.py >plan 2>/dev/null
for part in ACCELERATE_USE_DEEPSPEED\":\"true ACCELERATE_DEEPSPEED_ZERO_STAGE\":\"2 ACCELERATE_GRADIENT_ACCUMULATION_STEPS\":\"2 \
    ACCELERATE_MIXED_PRECISION\":\"no; do
    grep -q "$part" plan || fail "no $part"
done
"$zinc" launch --accelerate_config "$data/config/accelerate/six_keys.yaml" --dry_run --json train.py >plan 2>/dev/null
grep -q '"world_size":16' plan && grep -q '"master_addr":"192.168.1.100"' plan || fail "six keys do not make 16 ranks"
grep -q '"rank":15,"host":"node-1","local_rank":7' plan || fail "rank 15 is not on the second machine"
"$zinc" launch --accelerate_config full.yaml --num_ranks 3 --dry_run train.py 2>err && fail "--num_ranks 3 with num_processes 2"
grep -q 'num_processes 2' err || fail "the launcher's contradiction is not named"
echo "accelerate.sh: ok"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `zinc config` as a shell sees it: streams, exit codes, documents. check_command.sh ZINC DATA
set -uo pipefail
zinc=$1 data=$2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
bad=0

expect() { # CODE WHAT COMMAND...
    local wanted=$1 what=$2 code=0
    shift 2
    "$@" >"$folder/out" 2>"$folder/err" || code=$?
    if [ "$code" != "$wanted" ]; then
        echo "$what: exit code $code, want $wanted"
        cat "$folder/err"
        bad=1
    fi
}
holds() { # WHAT PYTHON: d is the document on stdout
    python3 -c "import json; d = json.load(open('$folder/out')); assert $2, d" || {
        echo "$1: not so"
        bad=1
    }
}

expect 0 "a tutorial's file" "$zinc" config check "$data/tutorial_zero2.json" --world_size 4 \
    --per_device_train_batch_size 4 --json
holds "its batch size" "d['ok'] and d['resolved']['train_batch_size'] == 16"
holds "its origins" "d['origin']['train_micro_batch_size_per_gpu'] == 'argument --per_device_train_batch_size'"
holds "its nested keys" "d['resolved']['zero_optimization']['stage'] == 2"
expect 1 "a contradiction" "$zinc" config check "$data/tutorial_zero2.json" --max_grad_norm 0.5 --json
holds "it names the key" "not d['ok'] and d['errors'][0]['path'] == 'gradient_clipping'"
expect 0 "a table" "$zinc" config check "$data/tutorial_zero3_offload.json"
[ -s "$folder/err" ] && grep -q error "$folder/err" && bad=1
printf '{"train_batch_size": 4,\n "gradient_cliping": 1}' >"$folder/ds.json"
expect 1 "a typing error" "$zinc" config check "$folder/ds.json" --json
holds "its place" "(d['errors'][0]['line'], d['errors'][0]['column']) == (2, 2)"
holds "its hint" "'gradient_clipping' in d['errors'][0]['hint']"
expect 4 "a missing file" "$zinc" config check "$folder/none.json" --json
holds "it is a document too" "not d['ok']"
expect 2 "no file" "$zinc" config check
expect 2 "an unknown action" "$zinc" config chek
expect 0 "strict JSON" "$zinc" config check "$data/tutorial_zero2.json" --for transformers \
    --output "$folder/out.json"
cp "$folder/out.json" "$folder/out"
holds "auto is kept" "d['train_batch_size'] == 'auto'"
cp "$data/tutorial_zero2.json" "$folder/comments.json"
for program in "script.py --deepspeed $folder/comments.json" "script.py --lr 1 --deepspeed=$folder/comments.json"; do
    expect 1 "comments, which a Trainer script cannot read" "$zinc" launch --num_ranks 2 --dry_run $program
    grep -q "comments.json: not valid JSON at line 17 .*--for transformers" "$folder/err" || { cat "$folder/err"; bad=1; }
done
for program in "zinc train --deepspeed $folder/comments.json" "script.py --deepspeed_config $folder/comments.json" \
    "script.py --deepspeed $folder/out.json" "script.py --deepspeed $folder" "script.py --deepspeed"; do
    expect 0 "what reads comments, or has none" "$zinc" launch --num_ranks 2 --dry_run $program
done
echo '{"hidden_size": 66}' >"$folder/config.json"
echo '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3,
"stage3_prefetch_bucket_size": "auto"}}' >"$folder/ds.json"
expect 0 "a model's hidden size" "$zinc" config check "$folder/ds.json" --model "$folder" --json
holds "it fills auto" "d['resolved']['zero_optimization']['stage3_prefetch_bucket_size'] == 3920"
exit $bad

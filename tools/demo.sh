#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `make demo`: a language model from nothing in under five minutes on two cores. Installs what is
# missing, builds, learns a tokenizer from an English book, trains a small Llama on two ranks with
# ZeRO-3 and bf16, and shows what it learned. Passes only if the model beats word frequencies by a
# quarter on chapters that it never saw, and its sample consists of words of the book.
# A second run keeps text and tokenizer and writes to a new folder.
#   DEMO_STEPS=N     optimizer steps (default 800)
#   DEMO_FOLDER=DIR  where everything goes (default demo/)
set -euo pipefail
export PATH
cd "$(dirname "$0")/.."
folder=${DEMO_FOLDER:-demo}
steps=${DEMO_STEPS:-800}
vocabulary=1024
zinc=build/release/zinc
began=$SECONDS
unset "${!OMP_@}" "${!OPENBLAS_@}" "${!GOMP_@}"

phase() {
    echo
    echo "[$1/5] $2, about $3"
}
give_up() {
    echo "demo: $1" >&2
    exit 1
}

phase 1 "packages and the release build" "a minute, nothing the second time"
tools/install_deps.sh --demo
make release

phase 2 "the text and its tokenizer" "10 s, nothing the second time"
mkdir -p "$folder/model"
[ -s "$folder/valid.txt" ] || python3 tools/demo_text.py "$folder"
if [ ! -s "$folder/model/tokenizer.json" ]; then
    "$zinc" tokenize --train "$folder/train.txt" --vocab_size $vocabulary \
        --output "$folder/model/tokenizer.json"
fi
for part in train valid; do
    [ -s "$folder/$part.bin" ] || "$zinc" tokenize --tokenizer "$folder/model/tokenizer.json" \
        --output "$folder/$part.bin" "$folder/$part.txt"
done
# "auto" keeps parameters of at most 10 x hidden_size elements whole on every rank: here only the
# norms, so that far more than nine tenths of the model are sharded.
[ -s "$folder/model/config.json" ] || cat >"$folder/model/config.json" <<END
{
  "architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "vocab_size": $vocabulary, "hidden_size": 192, "intermediate_size": 512,
  "num_hidden_layers": 4, "num_attention_heads": 6, "num_key_value_heads": 6,
  "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
  "hidden_act": "silu", "tie_word_embeddings": true, "initializer_range": 0.02
}
END
[ -s "$folder/ds_config.json" ] || cat >"$folder/ds_config.json" <<'END'
{
  "zero_optimization": {
    "stage": 3,
    "overlap_comm": true,
    "stage3_param_persistence_threshold": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "reduce_bucket_size": "auto"
  },
  "bf16": { "enabled": true },
  "optimizer": { "type": "AdamW", "params": { "lr": "auto", "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1 } },
  "gradient_clipping": 1.0,
  "train_micro_batch_size_per_gpu": "auto",
  "gradient_accumulation_steps": "auto",
  "train_batch_size": "auto"
}
END

number=1
while [ -e "$folder/run-$number" ]; do number=$((number + 1)); done
run=$folder/run-$number

phase 3 "training on two ranks, ZeRO-3, bf16" "two minutes"
training=(--model "$folder/model" --from_scratch --train_file "$folder/train.bin"
          --validation_file "$folder/valid.bin" --deepspeed "$folder/ds_config.json" --ranks 2
          --block_size 128 --per_device_train_batch_size 8 --max_steps "$steps" --seed 1
          --learning_rate 4e-3 --lr_scheduler_type cosine --warmup_steps 30 --logging_steps 50)
"$zinc" train "${training[@]}" --output_dir "$run"
[ -s "$run/metrics.jsonl" ] || give_up "the training wrote no $run/metrics.jsonl"

phase 4 "loss on chapters it never saw" "10 s"
"$zinc" eval --model "$run" --data "$folder/valid.bin" --block_size 128 --json >"$run/eval.json"

phase 5 "a sample, and what it all means" "10 s"
"$zinc" generate --model "$run" --prompt "And it came to pass" --max_new_tokens 100 \
    --temperature 0.6 --top_p 0.9 --seed 1 --json >"$run/sample.json"
verdict=0
python3 tools/demo_report.py "$folder" "$run" || verdict=1
echo
"$zinc" train "${training[@]}" --output_dir "$folder/dry-run" --dry_run 2>&1 | sed -n '/by stage/,$p'

"$zinc" report "$run" >/dev/null

cat <<END

everything is in $run: the model (a Hugging Face folder), metrics.jsonl, eval.json, sample.json,
and report.html, a page with its curves
$((SECONDS - began)) s in all. To paste next:
  $zinc generate --model $run --prompt "In the beginning" --max_new_tokens 100 --temperature 0.7
  $zinc config check $folder/ds_config.json --world_size 2
  DEMO_STEPS=3000 make demo
END
[ "$verdict" = 0 ] || give_up "it did not pass, see above"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Manual pages that groff takes without a warning and that name every option, and a completion that
# bash runs. manual.sh ZINC
set -uo pipefail
zinc=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
bad=0
wrong() {
    echo "$1"
    bad=1
}

# Help and manual are written from the same tables: whatever option one names, the other does.
for command in "" $("$zinc" help --commands); do
    page=$folder/zinc-$command.1
    # shellcheck disable=SC2086 # no word for zinc(1) itself
    "$zinc" help --man $command >"$page" || wrong "no page of '$command'"
    grep -q '^\.TH zinc' "$page" || wrong "the page of '$command' has no title"
    if command -v groff >/dev/null; then
        groff -man -Tutf8 -Kutf8 -ww "$page" >/dev/null 2>"$folder/warnings"
        [ ! -s "$folder/warnings" ] || wrong "groff, page of '$command': $(head -n 3 "$folder/warnings")"
    fi
    [ -n "$command" ] || continue
    "$zinc" help "$command" | sed -n 's/^  --\([a-z0-9_]*\).*/\1/p' >"$folder/options"
    [ -s "$folder/options" ] || wrong "help of $command names no option"
    while read -r option; do
        grep -qF "\\-\\-$option" "$page" || wrong "the page of $command does not name --$option"
    done <"$folder/options"
done
"$zinc" help --man nonsense 2>/dev/null && wrong "a page of no command"
"$zinc" help --completion zsh 2>"$folder/err" && wrong "a completion for no bash"
grep -q 'zinc help --completion bash' "$folder/err" || wrong "the refusal does not say what there is"

"$zinc" help --completion bash >"$folder/zinc.bash"
# completes "WORDS" WANTED...: completing the last word offers each WANTED; "!X": not X
completes() {
    local words offered word
    read -ra words <<<"$1"
    [[ $1 == *" " ]] && words+=("")
    shift
    offered=$(cd "$folder" && bash -c '
        source ./zinc.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _zinc
        printf "%s\n" "${COMPREPLY[@]}"' - "${words[@]}") || wrong "completing '${words[*]}' failed"
    for word in "$@"; do
        if [[ $word == !* ]]; then
            ! grep -qxF -- "${word#!}" <<<"$offered" || wrong "'${words[*]}' offers ${word#!}"
        else
            grep -qxF -- "$word" <<<"$offered" || wrong "'${words[*]}' does not offer $word, but: $offered"
        fi
    done
}
touch "$folder/ds_config.json"
completes "zinc " train eval help
completes "zinc tr" train '!eval'
completes "zinc help ge" generate
completes "zinc train --max_g" --max_grad_norm
completes "zinc train --max-g" --max_grad_norm
completes "zinc train --mod" --model --model_name_or_path
completes "zinc train --loss_average " tokens micro_batches
completes "zinc train --loss-average = t" tokens '!micro_batches'
completes "zinc train --deepspeed ds" ds_config.json
completes "zinc train --max_steps " '!ds_config.json'
completes "zinc train --bf16 --output_di" --output_dir
completes "zinc config check ds" ds_config.json
completes "zinc env --js" --json
exit $bad

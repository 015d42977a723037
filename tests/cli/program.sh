#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The program as a shell sees it: streams and exit codes. program.sh ZINC
set -uo pipefail
zinc=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
bad=0

# expect CODE WHAT COMMAND...: the command's exit code, its streams in $folder/out and $folder/err.
expect() {
    local wanted=$1 what=$2 code=0
    shift 2
    "$@" >"$folder/out" 2>"$folder/err" || code=$?
    if [ "$code" != "$wanted" ]; then
        echo "$what: exit code $code, want $wanted"
        cat "$folder/err"
        bad=1
    fi
}
holds() {
    eval "$2" || {
        echo "$1: not so"
        bad=1
    }
}

expect 0 "zinc alone" "$zinc"
holds "zinc alone writes six lines to stdout" '[ "$(wc -l <"$folder/out")" = 6 ] && [ ! -s "$folder/err" ]'
expect 0 "help" "$zinc" help env
holds "help goes to stdout" 'grep -q -- --json "$folder/out" && [ ! -s "$folder/err" ]'
expect 2 "a misspelt option" "$zinc" env --jsno
holds "a usage error is one line on stderr" '[ "$(wc -l <"$folder/err")" = 1 ] && [ ! -s "$folder/out" ]'
expect 2 "a misspelt command" "$zinc" evn
expect 2 "a word too many" "$zinc" env here
expect 0 "env" env -i "$zinc" env --json
holds "every row of env is JSON" 'python3 -c "
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
names = [row[\"name\"] for row in rows]
sys.exit(not {\"zinc\", \"isa\", \"cores\", \"memory\", \"jansson\"} <= set(names))" "$folder/out"'
if [ -w /dev/full ]; then
    expect 4 "a full disk" bash -c '"$1" help >/dev/full' - "$zinc"
    holds "it says so" 'grep -q "writing to stdout failed" "$folder/err"'
fi
# A reader that leaves: no message, and the exit code of a broken pipe. The sleep lets it leave first.
expect 141 "a closed pipe" bash -c '{ sleep 0.1; "$1" help; echo $? >"$2"; } | true; exit "$(cat "$2")"' - "$zinc" "$folder/code"
holds "a closed pipe is no message" '[ ! -s "$folder/err" ]'
exit $bad

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The tree is formatted as .clang-format says. Versions differ in what they write, so only the one
# the tree is formatted with is asked (Debian 12's); without it this check is left out.
#   tools/check_format.sh         look
#   tools/check_format.sh --fix   format
set -euo pipefail
export PATH
cd "$(dirname "$0")/.."
wanted=14
format=
for name in clang-format-$wanted clang-format; do
    if command -v "$name" >/dev/null && "$name" --version | grep -q "version $wanted\."; then
        format=$name
        break
    fi
done
if [ -z "$format" ]; then
    echo "no clang-format $wanted here: the format is not checked (apt-get install clang-format-$wanted)"
    exit 0
fi
folders=()
for folder in include src tests fuzz; do
    [ -d "$folder" ] && folders+=("$folder")
done
files() {
    find "${folders[@]}" \( -name '*.c' -o -name '*.h' \) -print0
}
if [ "${1:-}" = --fix ]; then
    files | xargs -0 -n 20 -P 2 "$format" -i
    exit 0
fi
bad=$(files | xargs -0 -n 20 -P 2 "$format" --dry-run -Werror 2>&1 | sed -n 's/^\([^ :]*\):\([0-9]*\):.*error:.*/\1/p' |
    sort | uniq -c || true)
[ -z "$bad" ] && exit 0
printf '%s\n' "$bad" | while read -r places file; do
    echo "$file: $places places are not formatted as .clang-format says ('make fmt')"
done
exit 1

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What libzinc.so shows and how large its public structs are is written down; a difference is either
# a mistake or a change of the ABI that is meant, and then the lists change in the same commit.
#   abi.sh LIBRARY SIZES_PROGRAM LISTS_FOLDER [--update]
set -euo pipefail
library=$1 sizes=$2 lists=$3 update=${4:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

nm -D --defined-only "$library" | awk '$2 != "A" {sub("@.*", "", $3); print $3}' |
    LC_ALL=C sort >"$work/abi_symbols.txt"
"$sizes" >"$work/abi_sizes.txt"
if [ "$update" = --update ]; then
    cp "$work"/*.txt "$lists/"
    exit 0
fi
bad=0
for list in abi_symbols.txt abi_sizes.txt; do
    diff -u "$lists/$list" "$work/$list" || bad=1
done
[ "$bad" = 0 ] || echo "the ABI differs from tools/abi_*.txt: tests/abi/abi.sh … --update writes them anew" >&2
# A struct that is public but not in the list of sizes would escape.
headers=$(dirname "$lists")/include/zinc
for name in $(sed -n 's/^typedef struct \(zinc_[a-z_]*\) {.*/\1/p' "$headers"/*.h); do
    grep -q "^$name " "$work/abi_sizes.txt" || {
        echo "struct $name is not in tests/abi/abi_sizes.c" >&2
        bad=1
    }
done
# Nothing is declared that the library lacks.
for name in $(grep -ho '\bzinc_[a-z_0-9]*(' "$headers"/*.h | tr -d '(' | sort -u); do
    grep -q "ZINC_API.*\b$name(\|^[^/*]*\b$name(" "$headers"/*.h || continue
    grep -qx "$name" "$work/abi_symbols.txt" || {
        echo "$name is declared and not in the library" >&2
        bad=1
    }
done
exit $bad

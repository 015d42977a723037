#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Install into an empty folder, and build and run an example with nothing but what is there: the
# flags come from zinc.pc. The static library links too, and C++ may include every header.
#   installed.sh BUILD_FOLDER EXAMPLES_FOLDER
set -euo pipefail
build=$1 examples=$2
cc=${CC:-cc}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/usr" >"$work/log" || { cat "$work/log"; exit 1; }
pc=$(find "$work/usr" -name zinc.pc)
lib=$(dirname "$(dirname "$pc")")
# zinc.pc holds the prefix that was configured; pkg-config is told where it is now.
flags() {
    PKG_CONFIG_PATH=$(dirname "$pc") pkg-config --define-variable=prefix="$work/usr" "$@" zinc
}
[ "$(flags --modversion)" = "$(sed -n 's/.*VERSION_STRING "\(.*\)"/\1/p' "$work/usr/include/zinc/version.h")" ]

read -ra shared <<<"$(flags --cflags --libs)"
"$cc" -std=c11 -Wall -Wextra -pedantic -Werror "$examples/02_two_ranks.c" -o "$work/two" \
    "${shared[@]}" -lpthread -lm
LD_LIBRARY_PATH=$lib "$work/two" >"$work/out"
grep -q 'bias   3  +3.0000' "$work/out"

read -ra static <<<"$(flags --cflags --libs --static)"
"$cc" -std=c11 "$examples/01_config.c" -o "$work/config" "${static[@]/#-lzinc/-l:libzinc.a}" -lpthread -lm
"$work/config" | grep -q 'gradient_accumulation_steps *4 '

if command -v g++ >/dev/null; then
    for header in "$work/usr/include/zinc"/*.h; do
        echo "#include \"zinc/$(basename "$header")\""
    done >"$work/all.cc"
    echo 'int main() { return zinc_comm_rank(nullptr) + (zinc_last_error() == nullptr); }' >>"$work/all.cc"
    g++ -std=c++17 -Wall -Wextra -pedantic -Werror "$work/all.cc" -o "$work/all" "${shared[@]}"
    LD_LIBRARY_PATH=$lib "$work/all"
fi

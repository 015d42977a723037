#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Run every fuzz target for SECONDS_EACH seconds (60) from its corpus. What it finds is written to
# build/fuzz/found; the corpus in the tree is read, never written.
#   tools/fuzz.sh [TARGET...]      e.g. tools/fuzz.sh fuzz_json
set -euo pipefail
export PATH
cd "$(dirname "$0")/.."
each=${SECONDS_EACH:-60}
command -v clang >/dev/null || {
    echo "fuzz.sh: needs clang (apt-get install clang)" >&2
    exit 1
}
tools/build.sh fuzz -j "$(nproc)"
targets=("$@")
if [ "${#targets[@]}" = 0 ]; then
    mapfile -t targets < <(find build/fuzz -type f -executable -name 'fuzz_*' -printf '%f\n' | sort)
fi
[ "${#targets[@]}" != 0 ] || {
    echo "fuzz.sh: no fuzz targets were built" >&2
    exit 1
}
mkdir -p build/fuzz/found
failed=0
for name in "${targets[@]}"; do
    program=$(find build/fuzz -type f -executable -name "$name" | head -n 1)
    [ -n "$program" ] || {
        echo "fuzz.sh: no target $name" >&2
        exit 2
    }
    grown=build/fuzz/grown/$name
    mkdir -p "$grown"
    seeds=()
    [ -d "fuzz/corpus/${name#fuzz_}" ] && seeds=("fuzz/corpus/${name#fuzz_}")
    echo "$name, $each s"
    "$program" -max_total_time="$each" -verbosity=0 -print_final_stats=0 \
        -artifact_prefix="build/fuzz/found/$name-" "$grown" "${seeds[@]}" || failed=1
done
exit $failed

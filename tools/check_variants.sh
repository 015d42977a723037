#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds with parts left out compile, say so in `zinc env`, and train: tools/check_variants.sh
# [OPTION...], default each of SIMD, OPENMP, DNNL, MPI and URING off, and all of them off. The folders
# build/variant-* stay, so that a second time is quick.
set -uo pipefail
export PATH LC_ALL=C
cd "$(dirname "$0")/.." || exit 1
unset "${!OMP_@}" "${!GOMP_@}" "${!ZINC_@}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0

# variant NAME OFF...: build with these options off, and train a few steps.
variant() {
    local began=$SECONDS folder=build/variant-$1 flags=() off code=0
    shift
    for off in "$@"; do flags+=("-DZINC_$off=OFF"); done
    {
        cmake -S . -B "$folder" -G Ninja -DCMAKE_BUILD_TYPE=Release -DZINC_TESTS=OFF "${flags[@]}" &&
            cmake --build "$folder" --target zinc -j "$(nproc)" &&
            python3 tools/smoke.py "$folder/zinc" "$@"
    } >"$log" 2>&1 || code=$?
    if [ "$code" = 0 ]; then
        echo "ok    without $* ($((SECONDS - began)) s)"
    else
        tail -n 40 "$log"
        echo "FAIL  without $*"
        failed=1
    fi
}

if [ $# != 0 ]; then
    variant "$(tr '[:upper:] ' '[:lower:]-' <<<"$*")" "$@"
else
    for one in SIMD OPENMP DNNL MPI URING; do variant "${one,,}" "$one"; done
    variant all SIMD OPENMP DNNL MPI URING
fi
exit $failed

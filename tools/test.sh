#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that must hold before a change is shared: checks of the source, then the tests as
# built for use, under address and undefined-behaviour sanitizers, and under the thread sanitizer.
# The last line is "N passed, N failed"; the exit code is 0 only if none failed.
set -uo pipefail
export PATH
cd "$(dirname "$0")/.."
tools/install_deps.sh || exit 1

# The tests choose their own thread counts; those of the caller must not change a result.
unset "${!OMP_@}" "${!OPENBLAS_@}" "${!GOMP_@}" "${!ZINC_@}"
export HOME="${HOME:-/tmp}" LC_ALL=C
jobs=$(nproc)
mkdir -p build
rm -f build/test-summary.txt
passed=0 failed=0 skipped=0
failures=()

# step NAME COMMAND...: one check or build; its output is shown if it fails.
step() {
    local name=$1 start=$SECONDS output
    shift
    if output=$("$@" 2>&1); then
        echo "ok    $name ($((SECONDS - start)) s)"
        return 0
    fi
    printf '%s\n' "$output" | tail -n 80
    echo "FAIL  $name"
    failures+=("$name")
    return 1
}
check() {
    if step "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
}

# Value of an attribute of <testsuite> in ctest's own report.
attribute() {
    sed -n "s/.*[[:space:]]$2=\"\([0-9]*\)\".*/\1/p" "$1" | head -n 1
}
# tests PRESET [ctest arguments...]: build, run, count.
tests() {
    local preset=$1 report=$PWD/build/$1/report.xml rc=0 total bad idle
    shift
    if ! step "build $preset" tools/build.sh "$preset" -j "$jobs"; then
        failed=$((failed + 1))
        return
    fi
    rm -f "$report"
    "${wrap[@]}" ctest --preset "$preset" -j "$jobs" --output-junit "$report" "$@" || rc=$?
    # The attributes of the first element stand on lines of their own.
    total=$(attribute <(tr '\n' ' ' <"$report" 2>/dev/null | sed 's/<testcase.*//') tests)
    bad=$(attribute <(tr '\n' ' ' <"$report" 2>/dev/null | sed 's/<testcase.*//') failures)
    idle=$(attribute <(tr '\n' ' ' <"$report" 2>/dev/null | sed 's/<testcase.*//') skipped)
    total=${total:-0} bad=${bad:-0} idle=${idle:-0}
    # A program that could not be run counts as skipped there, but ctest fails.
    if [ "$rc" != 0 ] && [ "$bad" = 0 ]; then
        bad=1
        [ "$idle" = 0 ] || idle=$((idle - 1))
        [ "$total" != 0 ] || total=1
    fi
    if [ "$total" = 0 ]; then
        echo "FAIL  $preset: no test was run"
        total=1 bad=1
    fi
    [ "$bad" = 0 ] || failures+=("$bad of preset $preset")
    passed=$((passed + total - bad - idle)) failed=$((failed + bad)) skipped=$((skipped + idle))
}

check "layers" python3 tools/check_layers.py
check "source" python3 tools/check_source.py
check "format" tools/check_format.sh
check "headers" tools/check_headers.sh
check "a build without SIMD, OpenMP, oneDNN, MPI and io_uring" tools/check_variants.sh SIMD OPENMP DNNL MPI URING

wrap=()
tests dev
# Under the sanitizers: all unit tests and corpora, and one run of the program of each kind. The whole
# matrix of program runs (which bits, which curves, kills, hosts) has been run above.
export ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1
tests asan -E '^(docs\.|launch\.(two_hosts|slurm|faults|hangs|ends|restarts|hosts|output)|plan\.(states|knobs|advice)|cases\.(stages|frozen|loss|schedule)|train\.(bits_[^o]|bits_of_[^lo]|curve_s[^1]|resume_(kill|bits|faults|signals|deepspeed)|user_data_(eval|pack|chat)))'
# The thread sanitizer needs a memory layout that some kernels' randomisation breaks.
if setarch "$(uname -m)" -R true 2>/dev/null; then
    wrap=(setarch "$(uname -m)" -R)
fi
export TSAN_OPTIONS=halt_on_error=1
tests tsan -R '^(device|comm|zero|engine|api)\.|^train\.(saving|progress|bits_llama_bf16|bits_accumulation_bf16|curve_stage3_private)$'

[ "${#failures[@]}" = 0 ] || printf 'failed: %s\n' "${failures[@]}"
[ "$skipped" = 0 ] || echo "$skipped skipped (the reason stands beside each above)"
echo "$passed passed, $failed failed" | tee build/test-summary.txt
[ "$failed" = 0 ]

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Configure and build a preset: tools/build.sh PRESET [cmake --build arguments].
# Quiet where all is well; the output is shown where something is not.
set -euo pipefail
export PATH # where the environment has none, bash has one, and compilers need it
cd "$(dirname "$0")/.."
preset=$1
shift
cache=build/$preset/CMakeCache.txt
fresh=()
# A build folder that was copied along with the tree remembers where it came from.
if [ -f "$cache" ] && ! grep -qxF "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD" "$cache"; then
    fresh=(--fresh)
fi
mkdir -p build
log=build/$preset-configure.log
if ! cmake --preset "$preset" "${fresh[@]}" >"$log" 2>&1; then
    cat "$log" >&2
    echo "configuring preset $preset failed; tools/install_deps.sh --list shows the packages" >&2
    exit 1
fi
exec cmake --build --preset "$preset" "$@"

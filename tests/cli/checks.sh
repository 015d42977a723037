#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The checks of tools/ find what they are for, each in a small tree of its own. checks.sh SOURCE
set -uo pipefail
source=$1
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
mkdir -p "$tree/tools" "$tree/src/base" "$tree/src/comm" "$tree/include/zinc"
cp "$source"/tools/check_*.py "$source/tools/long_functions.txt" "$tree/tools/"
cp "$source/CMakeLists.txt" "$tree/"
license='/* SPDX-License-Identifier: Apache-2.0 */'
bad=0

# finds CHECK TEXT: the check fails and its message contains TEXT.
finds() {
    local output
    if output=$(python3 "$tree/tools/$1.py"); then
        echo "$1 does not find: $2"
        bad=1
    elif ! grep -qF -- "$2" <<<"$output"; then
        printf '%s says\n%s\nand not: %s\n' "$1" "$output" "$2"
        bad=1
    fi
}
passes() {
    python3 "$tree/tools/$1.py" || {
        echo "$1 fails on a clean tree"
        bad=1
    }
}
# file LINE...: src/base/probe.c of these lines
file() {
    printf '%s\n' "$license" "$@" >"$tree/src/base/probe.c"
}

file 'int probe(void);' '/* malloc(1), "comm/comm.h" and exit() in a comment are fine */'
passes check_layers
passes check_source
file '#include "comm/comm.h"'
finds check_layers 'src/base/probe.c:2: base may not include comm'
file '#include <mpi.h>'
finds check_layers 'src/base/probe.c:2: only comm may include <mpi.h>'
file 'void *p = malloc(1);'
finds check_source 'src/base/probe.c:2: malloc(: use zn_alloc'
file 'printf("x");'
finds check_source 'src/base/probe.c:2: printf('
file 'exit(1);'
finds check_source 'src/base/probe.c:2: exit('
file "$(printf '\tint x;')"
finds check_source 'src/base/probe.c:2: a tab'
file '#if 0' '#endif'
finds check_source 'src/base/probe.c:2: #if 0'
file '/* TO''DO later */'
finds check_source 'src/base/probe.c:2: write TO''DO(#issue)'
mapfile -t body < <(yes '    x++;' | head -n 61)
file 'static void long_one(void)' '{' "${body[@]}" '}'
finds check_source 'src/base/probe.c:3: long_one has 61 lines'
mapfile -t body < <(yes 'extern int x;' | head -n 800)
file "${body[@]}"
finds check_source 'src/base/probe.c:1: 801 lines'
printf 'int x;\n' >"$tree/src/base/probe.c"
finds check_source 'src/base/probe.c:1: the first line is to be'
file 'int x;'
cp "$tree/src/base/probe.c" "$tree/src/comm/probe.c"
finds check_source 'has the same file name'
rm "$tree/src/comm/probe.c"
printf '%s\n' "$license" '#ifndef ZN_OTHER_H' '#define ZN_OTHER_H' '#endif' >"$tree/src/base/probe.h"
finds check_source 'src/base/probe.h:1: the include guard is to be ZN_BASE_PROBE_H'
exit $bad

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every header stands alone and may be included twice: all as C11, the public ones (include/zinc)
# also pedantically as C++17 where there is a C++ compiler.
set -euo pipefail
export PATH
cd "$(dirname "$0")/.."
cc=${CC:-cc}
flags=(-fsyntax-only -Iinclude -Isrc -D_POSIX_C_SOURCE=200809L -D_DEFAULT_SOURCE -Wall -Wextra -Werror)

# compile LANGUAGE HEADER COMPILER...
compile() {
    local language=$1 header=$2
    shift 2
    # The last line: ISO C forbids a file that declares nothing.
    printf '#include "%s"\n#include "%s"\ntypedef int header_was_read;\n' "$header" "$header" |
        "$@" "${flags[@]}" -fmax-errors=3 -x "$language" - || {
        echo "$header does not compile alone as $language" >&2
        return 1
    }
}

bad=0
for path in include/zinc/*.h; do
    compile c "${path#include/}" "$cc" -std=c11 -pedantic || bad=1
    if command -v g++ >/dev/null; then
        compile c++ "${path#include/}" g++ -std=c++17 -pedantic || bad=1
    fi
done
while IFS= read -r path; do
    isa=()
    case "$path" in
    src/kernels/simd/vec_*) continue ;; # parts of vec.h, one an instruction set
    src/kernels/simd/*) [ "$(uname -m)" = x86_64 ] && isa=(-mavx2 -mfma -mf16c) ;;
    esac
    compile c "${path#src/}" "$cc" -std=c11 "${isa[@]}" || bad=1
done < <(find src -name '*.h' | sort)
exit $bad

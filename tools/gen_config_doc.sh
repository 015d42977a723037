#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Write docs/config.md from the key table: tools/gen_config_doc.sh [path of zinc]
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
zinc=${1:-$root/build/release/zinc}
"$zinc" config keys >"$root/docs/config.md.new"
mv "$root/docs/config.md.new" "$root/docs/config.md"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests of the Python front-end, as it is installed.
#   python_test.sh            make build/python-venv with torch, transformers, accelerate and peft of
#                             known versions (once, gigabytes are downloaded), install ./python there,
#                             test
#   PYTHON=… python_test.sh   test the source tree with that interpreter's packages, and ZINC_LIBRARY
#                             if it is set; nothing is installed
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -n "${PYTHON:-}" ]; then
    [ -n "${ZINC_LIBRARY:-}" ] || tools/build.sh release >/dev/null
    library=${ZINC_LIBRARY:-$PWD/build/release/libzinc.so}
    ZINC_LIBRARY=$library PYTHONPATH=python exec "$PYTHON" -m unittest discover -s python/tests -v
fi
venv=$PWD/build/python-venv
tools/build.sh release >/dev/null
export ZINC_PROGRAM=${ZINC_PROGRAM:-$PWD/build/release/zinc} # `zinc train`, which checkpoints are exchanged with
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
# The versions that docs/huggingface.md has in its table, last row.
"$venv/bin/pip" install --quiet torch==2.13.0 transformers==5.24.0 accelerate==1.15.0 peft==0.21.2
"$venv/bin/pip" install --quiet --force-reinstall --no-deps ./python
ZINC_TEST_INSTALLED=1 exec "$venv/bin/python" -m unittest discover -s python/tests -v

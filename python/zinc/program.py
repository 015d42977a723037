# SPDX-License-Identifier: Apache-2.0
"""The program `zinc`, which pip puts on PATH: the one that was built into this package."""
import os
import sys


def path():
    """Of the program in this package; None in a source tree, where it lies in the build folder."""
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "zinc")
    return here if os.path.exists(here) else None


def main():
    program = path()
    if program is None:
        raise SystemExit("zinc: the program is not in this package: `pip install ./python` from the checkout "
                         "builds it in")
    os.execv(program, ["zinc"] + sys.argv[1:])

# SPDX-License-Identifier: Apache-2.0
"""deepspeed.launcher.runner: the command `deepspeed`, which accelerate calls for several machines,
is `zinc launch`, whose options have the same names."""
import os
import shutil
import sys

from zinc import program

DEEPSPEED_ENVIRONMENT_NAME = os.environ.get("DS_ENV_FILE", ".deepspeed_env")


def main(args=None):
    zinc = program.path() or shutil.which("zinc")
    if zinc is None:
        raise SystemExit("zinc: the program `zinc` is not in this package and not on PATH: `pip install ./python` "
                         "or `make install` puts it there")
    # A .py program runs under the first python3 of PATH: that of this environment.
    os.environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", "")
    os.execv(zinc, [zinc, "launch"] + (sys.argv[1:] if args is None else list(args)))

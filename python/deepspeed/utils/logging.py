# SPDX-License-Identifier: Apache-2.0
"""deepspeed.utils.logging."""
import logging
import sys


def _make_logger():
    out = logging.getLogger("DeepSpeed")
    if not out.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("[%(asctime)s] [%(levelname)s] [zinc] %(message)s"))
        out.addHandler(handler)
        out.setLevel(logging.WARNING)
        out.propagate = False
    return out


logger = _make_logger()


def log_dist(message, ranks=None, level=logging.INFO):
    from ..comm import get_rank
    if not ranks or -1 in ranks or get_rank() in ranks:
        logger.log(level, message)


def print_rank_0(message, debug=False, force=False):
    from ..comm import get_rank
    if get_rank() == 0 and (debug or force):
        print(message)

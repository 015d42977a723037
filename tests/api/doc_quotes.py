#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every C block of docs/library.md stands, apart from its indentation, in one of the examples."""
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])


def plain(text):
    return "\n".join(line.strip() for line in text.strip().split("\n"))


def main():
    examples = [plain(path.read_text()) for path in sorted((ROOT / "examples").glob("*.c"))]
    blocks = re.findall(r"^```c\n(.*?)^```", (ROOT / "docs/library.md").read_text(), re.M | re.S)
    if len(blocks) < 5:
        print(f"docs/library.md has only {len(blocks)} C blocks")
        return 1
    strangers = [block for block in blocks if not any(plain(block) in text for text in examples)]
    for block in strangers:
        print(f"not a quote from examples/:\n{block}")
    return 1 if strangers else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every message that docs/troubleshooting.md quotes stands in the source: messages.py ROOT

The quotes are the headings of level 3, each in backticks; "…" stands for what differs. The pieces between must
stand in one string of src/, in order, where a format directive stands for anything.
"""
import pathlib
import re
import sys

STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"\s*(PRI[a-zA-Z0-9]+)?\s*')
DIRECTIVE = re.compile(r"%[-+ #0]*(?:\*|\d+)?(?:\.(?:\*|\d+))?(?:hh|h|ll|l|z|j|t)?[diouxXeEfgGcsp]")


def strings_of(code):
    """Literals of a file, adjacent ones joined as the compiler does."""
    code = re.sub(r"/\*.*?\*/", " ", code, flags=re.S)
    joined, end = [], None
    for match in STRING.finditer(code):
        text = match.group(1).replace('\\"', '"').replace("\\\\", "\\").replace("\\n", "\n")
        text += "d" if match.group(2) else ""
        if end == match.start():
            joined[-1] += text
        else:
            joined.append(text)
        end = match.end()
    return joined


def stands_in(pieces, text):
    at = 0
    for piece in pieces:
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True


def main():
    root = pathlib.Path(sys.argv[1])
    literals = [DIRECTIVE.sub("…", text) for path in sorted((root / "src").rglob("*.c"))
                for text in strings_of(path.read_text(encoding="utf-8"))]
    page = root / "docs" / "troubleshooting.md"
    quotes = re.findall(r"^### `(.*)`$", page.read_text(encoding="utf-8"), re.M)
    unquoted = re.findall(r"^### [^`].*$", page.read_text(encoding="utf-8"), re.M)
    gone = [quote for quote in quotes
            if not any(stands_in([piece for piece in quote.split("…") if piece], text)
                       for text in literals)]
    for quote in gone:
        print(f"{page}: no message of src/ reads: {quote}")
    for heading in unquoted:
        print(f"{page}: a heading of level 3 is a message in backticks: {heading}")
    if gone or unquoted or len(quotes) < 20:
        sys.exit(f"{len(quotes)} messages quoted, {len(gone)} of them gone")
    print(f"{len(quotes)} messages stand in the source")


main()

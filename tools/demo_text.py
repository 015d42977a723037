#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The demo's text: the King James Bible of the Debian package bible-kjv, as plain prose.

demo_text.py FOLDER writes FOLDER/train.txt and, from every 20th chapter, FOLDER/valid.txt. A verse
is one line, an empty line ends a chapter.
"""
import pathlib
import re
import subprocess
import sys

HELD_OUT_EVERY = 20


def chapters(listing):
    """Lists of verses. The program prints a heading ("Genesis 1") a chapter and wraps verses."""
    chapter = []
    for line in listing.split("\n"):
        verse = re.match(r"\s+\d+ (.*)", line)
        if verse:
            chapter.append(verse.group(1).strip())
        elif re.fullmatch(r"(\d )?[A-Z][A-Za-z ]* \d+", line):
            if chapter:
                yield chapter
            chapter = []
        elif line.strip() and chapter:
            chapter[-1] += " " + line.strip()
    if chapter:
        yield chapter


def write(path, parts):
    part = path.with_suffix(".part")
    part.write_text("\n".join("\n".join(verses) + "\n" for verses in parts))
    part.rename(path)


def main():
    folder = pathlib.Path(sys.argv[1])
    listing = subprocess.run(["bible", "Gen1:1-Rev22:21"], stdin=subprocess.DEVNULL, check=True,
                             capture_output=True, text=True).stdout
    parts = list(chapters(listing))
    if len(parts) < 1000:
        sys.exit(f"demo_text.py: 1189 chapters were expected, {len(parts)} were found")
    write(folder / "train.txt", [c for i, c in enumerate(parts) if i % HELD_OUT_EVERY])
    write(folder / "valid.txt", [c for i, c in enumerate(parts) if i % HELD_OUT_EVERY == 0])
    print(f"{len(parts)} chapters, {sum(len(v) for c in parts for v in c) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Run the commands of a document and compare what they print: tutorial.py ZINC FILE.md [--write]

All ```sh blocks run in order, in one temporary folder, each as a script of its own with errexit. A
```text block after one is what it prints, stdout and stderr together. In it "…" stands for
anything within a line, a line of "…" alone for any lines, and numbers may be off by TOLERANCE (they
depend on instruction set and threads). --write puts what was printed into the document instead.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

TOLERANCE = 0.1
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[-+]?\d+)?")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```\n", re.S | re.M)
# What --write replaces by "…": what differs from run to run and from machine to machine.
VARYING = [(r"[\d.]+[kM]? tokens/s", "… tokens/s"), (r"host [\d.]+ [MG]iB", "host …"),
           (r"  \d+% of peak", "  …% of peak"), (r"  eta \S+", "  eta …"), (r"grad_norm \S+", "grad_norm …"), (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "…"),
           (r"hash to [0-9a-f]+", "hash to …"), (r"clipped in \d+ of", "clipped in … of"), (r"waited [\d.]+ \S+", "waited …"),
           (r'"ids":\[[\d,]+\]', '"ids":[…]'), (r"\d+ rows;", "… rows;"), (r"targets \d+", "targets …"),
           (r" -x \S.* \S+/zinc ", " …zinc ")]


def same_line(wanted, line):
    """Literal pieces between "…" in order; numbers within TOLERANCE of each other, blanks as one."""
    wanted, line = (re.sub(r" +", " ", text.rstrip()) for text in (wanted, line))
    pattern, numbers = "", []
    for piece in re.split(r"(…)", wanted):
        if piece == "…":
            pattern += ".*?"
            continue
        at = 0
        for match in NUMBER.finditer(piece):
            pattern += re.escape(piece[at:match.start()]) + f"({NUMBER.pattern})"
            numbers.append(float(match.group()))
            at = match.end()
        pattern += re.escape(piece[at:])
    found = re.fullmatch(pattern, line)
    return found is not None and all(
        abs(float(got) - want) <= TOLERANCE * abs(want) for got, want in zip(found.groups(), numbers))


def same(wanted, lines):
    """Whether the lines match; lines of "…" alone match any number of lines."""
    if not wanted:
        return not lines
    if wanted[0] == "…":
        return any(same(wanted[1:], lines[i:]) for i in range(len(lines) + 1))
    return bool(lines) and same_line(wanted[0], lines[0]) and same(wanted[1:], lines[1:])


def run(script, folder, zinc):
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(("OMP_", "ZINC_", "HF_"))}
    environment["PATH"] = f"{zinc.parent}:{environment.get('PATH', os.defpath)}"
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", script], cwd=folder, env=environment,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout


def without_varying(text):
    for pattern, instead in VARYING:
        text = re.sub(pattern, instead, text)
    return text


def main():
    zinc, path = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2])
    write = "--write" in sys.argv
    text = path.read_text(encoding="utf-8")
    blocks = list(FENCE.finditer(text))
    n_run, problems, written = 0, [], {}
    with tempfile.TemporaryDirectory() as folder:
        for i, block in enumerate(blocks):
            if block.group(1) != "sh":
                continue
            line = text.count("\n", 0, block.start()) + 2
            code, printed = run(block.group(2), folder, zinc)
            n_run += 1
            if code:
                problems.append(f"{path}:{line}: exit code {code}\n{printed}")
                break
            following = blocks[i + 1] if i + 1 < len(blocks) else None
            if not following or following.group(1) != "text":
                continue
            if write:
                written[following.start(2)] = (following.end(2), without_varying(printed))
            elif not same(following.group(2).splitlines(), printed.splitlines()):
                problems.append(f"{path}:{line}: printed\n{printed}\nand not\n{following.group(2)}")
    for start, (end, printed) in sorted(written.items(), reverse=True):
        text = text[:start] + printed + text[end:]
    if write:
        path.write_text(text, encoding="utf-8")
    if problems or n_run == 0:
        sys.exit("\n".join(problems) or f"{path}: no ```sh block")
    print(f"{path}: {n_run} blocks of commands ran as written")


main()

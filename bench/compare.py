#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Pair the rows of two runs of `zinc bench --json`.

    zinc bench --json > before.jsonl; zinc bench --json > after.jsonl
    bench/compare.py before.jsonl after.jsonl [--least 0.05]

"rate" is after / before of the values; "share" of the shares of the limits, which were measured in the same run each: on
a machine that others use too, only the latter means something. A row's better direction is up, but for milliseconds.
"""
import argparse
import json
import sys


def read(path):
    rows = {}
    with open(path, encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
                rows[row["name"]] = row
            except (ValueError, KeyError, TypeError):
                sys.exit(f"{path}:{number}: not a row of `zinc bench --json`")
    return rows


def ratio(a, b):
    return b / a if a and b else None


def show(value):
    return f"{value:8.2f}" if value is not None else f"{'-':>8}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before")
    parser.add_argument("after")
    parser.add_argument("--least", type=float, default=0, help="only rows that moved by more than this")
    args = parser.parse_args()
    before, after = read(args.before), read(args.after)
    common = [name for name in before if name in after]
    if not common:
        sys.exit("the two files have no row in common")
    print(f"{'name':52} {'before':>10} {'after':>10} {'rate':>8} {'share':>8}")
    for name in common:
        a, b = before[name], after[name]
        rate, share = ratio(a["value"], b["value"]), ratio(a["share"], b["share"])
        moved = share if share is not None else rate
        if moved is None or abs(moved - 1) >= args.least:
            print(f"{name:52} {a['value']:10.4g} {b['value']:10.4g} {show(rate)} {show(share)}")
    for name in sorted(before.keys() ^ after.keys()):
        print(f"{name:52} only in {args.before if name in before else args.after}")


if __name__ == "__main__":
    main()

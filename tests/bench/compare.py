#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`zinc bench --json` writes rows that bench/compare.py pairs. compare.py ZINC FOLDER_OF_BENCH"""
import json
import pathlib
import subprocess
import sys
import tempfile


def main():
    zinc, bench = sys.argv[1], pathlib.Path(sys.argv[2])
    command = [zinc, "bench", "gemm.smollm2.o", "flops.fma_f32.1_thread", "startup", "--seconds", "0", "--json"]
    out = subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["name"] for row in rows] == ["flops.fma_f32.1_thread", "gemm.smollm2.o.forward", "gemm.smollm2.o.dx",
                                             "gemm.smollm2.o.dw", "startup.help"], rows
    assert all(set(row) == {"name", "value", "unit", "limit", "share"} for row in rows), rows
    assert rows[0]["limit"] is None and rows[0]["share"] is None, rows[0]
    assert all(row["value"] > 0 for row in rows), rows
    with tempfile.TemporaryDirectory() as name:
        before, after = pathlib.Path(name) / "before", pathlib.Path(name) / "after"
        before.write_text(out)
        rows[1]["value"] *= 2
        rows[1]["share"] *= 4
        after.write_text("".join(json.dumps(row) + "\n" for row in rows[:-1]))
        paired = subprocess.run([bench / "compare.py", before, after, "--least", "0.5"], check=True, text=True,
                                stdout=subprocess.PIPE).stdout.splitlines()
        assert paired[1].split()[0] == "gemm.smollm2.o.forward" and paired[1].split()[3:] == ["2.00", "4.00"], paired
        assert paired[2].startswith("startup.help") and "only in" in paired[2] and len(paired) == 3, paired
        after.write_text("no row\n")
        refused = subprocess.run([bench / "compare.py", before, after], text=True, stderr=subprocess.PIPE, check=False)
        assert refused.returncode != 0 and "after:1" in refused.stderr, refused
    unknown = subprocess.run([zinc, "bench", "gem"], text=True, stderr=subprocess.PIPE, check=False)
    assert unknown.returncode == 2 and 'nothing is called "gem"' in unknown.stderr, unknown


main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A folder of src/ includes only the layers below it, and third parties stay behind their layer.

What a layer may include is what it is linked with: the zn_layer() lines of CMakeLists.txt.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BELOW_TOO = {"plan", "train", "cli"}  # these stand on the engine and may use everything under it
OWNERS = {"mpi.h": "comm", "oneapi/dnnl/": "kernels", "omp.h": "kernels", "pcre2.h": "data",
          "utf8proc.h": "data", "liburing.h": "device", "yaml.h": "config"}


def allowed_layers():
    text = (ROOT / "CMakeLists.txt").read_text()
    layers = {}
    for name, rest in re.findall(r"^zn_layer\((\w+)([^)]*)\)", text, re.M):
        depends = re.search(r"DEPENDS([a-z_ ]*)", rest)
        layers[name] = set(depends.group(1).split()) if depends else set()
    for name in BELOW_TOO & layers.keys():
        while (more := set().union(*(layers[d] for d in layers[name])) - layers[name]):
            layers[name] |= more
    return layers


def check_file(path, layer, allowed, layers):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if not match:
            continue
        where = f"{path.relative_to(ROOT)}:{number}"
        kind, name = match.groups()
        top = name.split("/")[0]
        if kind == "<":
            for header, owner in OWNERS.items():
                if name.startswith(header) and owner != layer:
                    yield f"{where}: only {owner} may include <{name}>"
        elif top == "zinc" or top == layer:
            continue
        elif top not in layers:
            yield f'{where}: "{name}" is not written from src/ ("layer/file.h")'
        elif top not in allowed:
            yield f"{where}: {layer} may not include {top}"


def main():
    layers = allowed_layers()
    problems = []
    for path in sorted((ROOT / "src").rglob("*.[ch]")):
        layer = path.relative_to(ROOT / "src").parts[0]
        if layer not in layers:
            problems.append(f"{path.relative_to(ROOT)}:1: CMakeLists.txt has no layer {layer}")
            continue
        problems += check_file(path, layer, layers[layer], layers)
    for path in sorted((ROOT / "include" / "zinc").glob("*.h")):
        problems += check_file(path, "include", set(), layers)
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""House rules that a compiler does not know. Each message says what to use instead.

The C rules look at code only: comments and the insides of string literals are blanked first.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
SKIP = {".git", "build", "demo", "data", "corpus", "__pycache__", "deepspeed.egg-info"}
MAX_FILE_LINES = 800
MAX_FUNCTION_LINES = 60

# (pattern, where it is allowed, what to do instead); patterns see code of src/ and include/.
BANNED = [
    (r"(?<![\w.>])(malloc|calloc|realloc|free|strdup|strndup|asprintf|aligned_alloc|posix_memalign)\s*\(",
     {"src/base/mem.c", "src/device/"}, "use zn_alloc and zn_free (base/mem.h), or the device allocator"),
    (r"(?<![\w.>])(printf|puts|putchar|vprintf)\s*\(|\bstdout\b", {"src/cli/", "src/train/report.c"},
     "only the command line (and the rows of a training run) write to stdout; use zn_log"),
    (r"(?<![\w.>])(exit|_exit|_Exit|abort|quick_exit)\s*\(",
     {"src/base/status.c", "src/train/stop.c", "src/train/mpirun.c", "src/launch/spawn.c",
      "src/cli/disk_error.c"},
     "return a zinc_status"),
    (r"\bassert\s*\(|<assert\.h>", set(), "use ZN_ASSERT for an invariant, ZN_FAIL for input"),
    (r"\b(secure_)?getenv\s*\(",
     {"src/base/log.c", "src/base/sys.c", "src/base/fs.c", "src/cli/cmd_env.c", "src/train/ranks.c",
      "src/launch/"},
     "environment variables are read in base/ (those of a launcher in launch/) and listed by "
     "`zinc env`"),
    (r"(?<![\w.>])(strcpy|strcat|sprintf|gets|atoi|atof|atol)\s*\(", set(),
     "use snprintf, zn_buf or strto*, which have bounds and errors"),
    (r"^\s*#\s*if\s+0\b", set(), "delete it; the history keeps it"),
    (r"\btypeof\b|\(\{", set(), "C11 only: no typeof, no statement expressions"),
]
# Names that a file may share with another: one a layer, each found through its folder.
SHARED_NAMES = {"registry.c"}


def blank(text):
    """Code with comments and string contents replaced by blanks; lines stay where they are."""
    def spaces(match):
        token = match.group(0)
        if token[0] in "\"'":
            return token[0] + " " * (len(token) - 2) + token[-1]
        return re.sub(r"[^\n]", " ", token)
    return re.sub(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', spaces, text,
                  flags=re.S)


def check_banned(name, code):
    for pattern, allowed, instead in BANNED:
        if any(name.startswith(place) for place in allowed):
            continue
        for number, line in enumerate(code, 1):
            match = re.search(pattern, line)
            if match:
                yield f"{name}:{number}: {match.group(0).strip()}: {instead}"


def check_functions(name, code, exceptions):
    """The Linux brace style puts '{' and '}' of a function alone in column 0."""
    start, title = None, ""
    for number, line in enumerate(code, 1):
        head = re.match(r"[A-Za-z_].*?\b(\w+)\s*\(", line)
        if start is None and head:
            title = head.group(1)
        if line == "{":
            start = number
        elif line.startswith("}") and start is not None:
            lines = number - start - 1
            if lines > MAX_FUNCTION_LINES and (name, title) not in exceptions:
                yield (f"{name}:{start}: {title} has {lines} lines, more than "
                       f"{MAX_FUNCTION_LINES}: cut it, or say why in tools/long_functions.txt")
            start = None


def check_guard(name, text):
    path = pathlib.PurePath(name)
    if name.startswith("include/zinc/"):
        guard = "ZINC_" + path.name
    elif name.startswith("src/"):
        guard = "ZN_" + str(path.relative_to("src"))
    else:  # tests and fuzz: the file name is enough
        guard = "ZN_" + path.name.removeprefix("zn_")
    guard = re.sub(r"\W", "_", guard).upper()
    match = re.search(r"^#ifndef (\w+)\n#define \1\n", text, re.M)
    if not match or (match.group(1) != guard and not (
            name.startswith(("tests/", "fuzz/")) and match.group(1).endswith(guard[2:]))):
        yield f"{name}:1: the include guard is to be {guard}"


def check_c(name, text, exceptions):
    code = blank(text).split("\n")
    if name.startswith(("src/", "include/")):
        yield from check_banned(name, code)
        yield from check_functions(name, code, exceptions)
    if name.endswith(".h"):
        yield from check_guard(name, text)
    if not text.startswith("/* SPDX-License-Identifier: Apache-2.0 */\n"):
        yield f"{name}:1: the first line is to be /* SPDX-License-Identifier: Apache-2.0 */"


def check_text(name, text):
    lines = text.split("\n")
    if len(lines) - 1 > MAX_FILE_LINES and name.endswith((".c", ".h", ".inc", ".py", ".sh")):
        yield f"{name}:1: {len(lines) - 1} lines, more than {MAX_FILE_LINES}: cut it in two"
    if text and not text.endswith("\n"):
        yield f"{name}:{len(lines)}: no newline at the end"
    for number, line in enumerate(lines, 1):
        where = f"{name}:{number}"
        if "\t" in line and pathlib.PurePath(name).name != "Makefile":
            yield f"{where}: a tab"
        if line != line.rstrip():
            yield f"{where}: blanks at the end of the line"
        if re.search(r"\b(TODO|FIXME|XXX)\b", line) and not re.search(r"TODO\(#\d+\)", line):
            yield f"{where}: write TODO(#issue), or do it"
        if re.search(r"(?<![\w.~])/(work|home|root|mnt)/\w", line):
            yield f"{where}: an absolute path of one machine"
    if name.endswith((".py", ".sh", ".cmake")) or name.endswith(("CMakeLists.txt", "Makefile")):
        if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(lines[:2]):
            yield f"{name}:1: the first line is to carry SPDX-License-Identifier: Apache-2.0"


def read_exceptions():
    rows = (ROOT / "tools" / "long_functions.txt").read_text().split("\n")
    return {tuple(row.split()[:2]) for row in rows if row.strip() and not row.startswith("#")}


def text_files():
    names = {"Makefile", "CMakeLists.txt", "run", "pre-commit"}
    endings = {".c", ".h", ".inc", ".py", ".sh", ".md", ".cmake", ".json", ".txt"}
    for path in sorted(ROOT.rglob("*")):
        parts = path.relative_to(ROOT).parts
        if path.is_file() and not SKIP & set(parts) and (
                path.name in names or path.suffix in endings):
            yield path, "/".join(parts)


def main():
    exceptions = read_exceptions()
    problems, seen = [], {}
    for path, name in text_files():
        if name == "tools/check_source.py":
            continue
        text = path.read_text(encoding="utf-8")
        problems += check_text(name, text)
        if name.endswith((".c", ".h")):
            problems += check_c(name, text, exceptions)
            if name.startswith(("src/", "tests/")) and path.name not in SHARED_NAMES:
                if path.name in seen:
                    problems.append(f"{name}:1: {seen[path.name]} has the same file name")
                seen[path.name] = name
    print("\n".join(problems), end="\n" if problems else "")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

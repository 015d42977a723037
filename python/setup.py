# SPDX-License-Identifier: Apache-2.0
"""Builds libzinc.so and the program `zinc` with cmake into the package; ZINC_LIBRARY names a libzinc.so
that is built already, with the program beside it."""
import os
import shutil
import subprocess
import tempfile

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(HERE)
# MPI stays out: torch.distributed is the transport here.
OPTIONS = ["-DCMAKE_BUILD_TYPE=Release", "-DZINC_TESTS=OFF", "-DZINC_MPI=OFF"]


def build(folder):
    if not os.path.exists(os.path.join(TOP, "CMakeLists.txt")):
        raise SystemExit("zinc: build from the checkout (pip install ./python), or set ZINC_LIBRARY "
                         "to a built libzinc.so")
    options = OPTIONS + (["-G", "Ninja"] if shutil.which("ninja") else [])
    subprocess.run(["cmake", "-S", TOP, "-B", folder] + options, check=True)
    subprocess.run(["cmake", "--build", folder, "-j", str(os.cpu_count() or 1), "--target",
                    "zinc_shared", "zinc"], check=True)
    return os.path.join(folder, "libzinc.so")


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        with tempfile.TemporaryDirectory() as folder:
            library = os.environ.get("ZINC_LIBRARY") or build(folder)
            program = os.path.join(os.path.dirname(library), "zinc")
            if not os.path.isfile(program):
                raise SystemExit(f"zinc: {library} is there and the program {program} is not")
            target = os.path.join(self.build_lib, "zinc")
            shutil.copyfile(os.path.realpath(library), os.path.join(target, "libzinc.so"))
            os.makedirs(os.path.join(target, "bin"), exist_ok=True)
            shutil.copy(program, os.path.join(target, "bin", "zinc"))  # with its mode


class BinaryDistribution(Distribution):
    def has_ext_modules(self):
        return True


setup(cmdclass={"build_py": BuildWithLibrary}, distclass=BinaryDistribution)

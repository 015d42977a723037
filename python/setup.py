# SPDX-License-Identifier: Apache-2.0
"""Builds libzinc.so with cmake into the package; ZINC_LIBRARY names one that is built already."""
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


def built_library(folder):
    if not os.path.exists(os.path.join(TOP, "CMakeLists.txt")):
        raise SystemExit("zinc: build from the checkout (pip install ./python), or set ZINC_LIBRARY "
                         "to a built libzinc.so")
    options = OPTIONS + (["-G", "Ninja"] if shutil.which("ninja") else [])
    subprocess.run(["cmake", "-S", TOP, "-B", folder] + options, check=True)
    subprocess.run(["cmake", "--build", folder, "-j", str(os.cpu_count() or 1), "--target",
                    "zinc_shared"], check=True)
    return os.path.join(folder, "libzinc.so")


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        with tempfile.TemporaryDirectory() as folder:
            library = os.environ.get("ZINC_LIBRARY") or built_library(folder)
            target = os.path.join(self.build_lib, "zinc", "libzinc.so")
            shutil.copyfile(os.path.realpath(library), target)


class BinaryDistribution(Distribution):
    def has_ext_modules(self):
        return True


setup(cmdclass={"build_py": BuildWithLibrary}, distclass=BinaryDistribution)

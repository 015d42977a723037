# SPDX-License-Identifier: Apache-2.0
"""ds_report: what this Python finds, and what the program `zinc` finds (`zinc env`)."""
import importlib
import importlib.metadata
import subprocess
import sys

NAMES = ("deepspeed", "torch", "transformers", "accelerate", "peft")


def found():
    """[(name, what it is here)]."""
    import deepspeed
    import torch
    import zinc
    from zinc import program
    out = [("python", f"{sys.version.split()[0]} ({sys.executable})")]
    for name in NAMES:
        try:
            out.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            out.append((name, "not installed"))
    out.append(("deepspeed from", deepspeed.__path__[0] + " (Zinc, not DeepSpeed)"))
    try:
        out.append(("libzinc", zinc.version()))
    except ImportError as error:
        out.append(("libzinc", f"cannot be loaded: {error}"))
    backends = [b for b in ("gloo", "nccl", "mpi") if torch.distributed.is_backend_available(b)]
    out.append(("torch.distributed", " ".join(backends) or "none"))
    cuda = torch.cuda.is_available()
    out.append(("computes on", "the CPU" + (": pass --use_cpu, the GPU that torch sees is not used" if cuda else "")))
    out.append(("zinc", program.path() or "not in this package"))
    return out


def main():
    for name, text in found():
        print(f"{name:<19}{text}")
    from zinc import program
    if program.path():
        print(flush=True)
        raise SystemExit(subprocess.run([program.path(), "env"], check=False).returncode)


if __name__ == "__main__":
    main()

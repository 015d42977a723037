# SPDX-License-Identifier: Apache-2.0
"""Ranks of torch.distributed over gloo, a process each."""
import multiprocessing
import os


def _rank(run, rank, args):
    if "WORLD_SIZE" not in os.environ:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(args.ranks), MASTER_ADDR="127.0.0.1",
                          MASTER_PORT=str(args.port))
    os.environ.update(DS_ACCELERATOR="cpu", OMP_NUM_THREADS=str(args.threads))
    import torch

    torch.set_num_threads(args.threads)
    run(rank, args)


def arguments(parser):
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--port", type=int, default=29512)


def start(run, args):
    """run(rank, args) in args.ranks processes; leaves with their worst exit code. In a process that is a rank already: here."""
    if "WORLD_SIZE" in os.environ:
        _rank(run, int(os.environ["RANK"]), args)
        return
    ranks = [multiprocessing.get_context("spawn").Process(target=_rank, args=(run, r, args)) for r in range(args.ranks)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    raise SystemExit(max(abs(rank.exitcode or 0) for rank in ranks))


def summed(value):
    """The sum of a number over the ranks."""
    import torch

    x = torch.tensor([float(value)])
    torch.distributed.all_reduce(x)
    return x.item()

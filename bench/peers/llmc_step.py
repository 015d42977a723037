#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Training steps of llm.c's CPU trainer (train_gpt2.c), GPT-2 124M in fp32; prints one JSON object.

    git clone https://github.com/karpathy/llm.c CLONE; python llmc_step.py --clone CLONE

It is compiled from the clone with the flags of its Makefile (-Ofast -march=native -fopenmp), with a main of its own: random weights and
tokens, the same sizes and steps as the others. It does not clip. Needs numpy and a C compiler.
"""
import argparse
import os
import pathlib
import resource
import subprocess
import tempfile

import shapes

MAIN = r"""
#define TESTING
#include "train_gpt2.c"

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
    const int rows = atoi(argv[2]), tokens = atoi(argv[3]), steps = atoi(argv[4]);
    GPT2 model;
    gpt2_build_from_checkpoint(&model, argv[1]);
    int *ids = malloc(sizeof *ids * (size_t)(rows * tokens + 1));
    unsigned long long state = 1;
    printf("%.6f\n", now());
    for (int step = 0; step <= steps; step++) {
        for (int i = 0; i <= rows * tokens; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            ids[i] = (int)((state >> 33) % (unsigned)model.config.vocab_size);
        }
        gpt2_forward(&model, ids, ids + 1, (size_t)rows, (size_t)tokens);
        gpt2_zero_grad(&model);
        gpt2_backward(&model);
        gpt2_update(&model, 1e-4f, 0.9f, 0.999f, 1e-8f, 0.01f, step + 1);
        printf("%.6f\n", now());
        fflush(stdout);
    }
    return argc == 0;
}
"""


def write_weights(path):
    """Random weights in the trainer's form: 256 integers, then all parameters in fp32, the vocabulary padded to 128."""
    import numpy

    shape = shapes.GPT2
    positions, vocabulary, layers = shape["n_positions"], shape["vocab_size"], shape["n_layer"]
    channels, padded = shape["n_embd"], -(-shape["vocab_size"] // 128) * 128
    header = numpy.zeros(256, dtype="<i4")
    header[:8] = [20240326, 3, positions, vocabulary, layers, shape["n_head"], channels, padded]
    n = (padded + positions) * channels + layers * (12 * channels**2 + 13 * channels) + 2 * channels
    with path.open("wb") as out:
        header.tofile(out)
        (numpy.random.default_rng(0).standard_normal(n, dtype="<f4") * 0.02).astype("<f4").tofile(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shapes.arguments(parser)
    parser.add_argument("--clone", default=os.environ.get("LLMC"), help="a clone of llm.c [$LLMC]")
    args = parser.parse_args()
    if not args.clone or args.model != "gpt2" or args.dtype != "float32" or args.folder:
        parser.error("needs --clone, and does --model gpt2 --dtype float32 with random weights alone")
    first = ["chrt", "-r", "1"] if os.environ.get("PEER_REALTIME") else []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "main.c").write_text(MAIN)
        subprocess.run(["cc", "-Ofast", "-march=native", "-fopenmp", "-w", "-I", args.clone, "-o", folder / "step",
                        folder / "main.c", "-lm"], check=True)
        write_weights(folder / "gpt2.bin")
        words = [folder / "step", folder / "gpt2.bin", args.rows, args.tokens, args.steps]
        out = subprocess.run([*first, *map(str, words)], check=True, text=True, stdout=subprocess.PIPE,
                             env={**os.environ, "OMP_NUM_THREADS": str(args.threads)}).stdout
    times = [float(line) for line in out.splitlines() if line.replace(".", "").isdigit() and "." in line]
    walls = [b - a for a, b in zip(times[1:], times[2:])]
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    shapes.report("llm.c float32", args, 1, walls, times[1], peak)


if __name__ == "__main__":
    main()

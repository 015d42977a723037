#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Configurations, arguments, data and model files as users give them: what runs, and what is refused before it costs time."""
import json
import math
import os
import random

import harness
from harness import config, f32, near, read_safetensors, same

AUTO = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
        "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto",
                              "stage3_param_persistence_threshold": "auto"}}


def _no_weights(b):
    """A model folder without weights: a run that fails on its settings must not get as far as missing them."""
    model = b.copy_model(b.g2, "empty")
    os.remove(os.path.join(model, "model.safetensors"))
    return model


def _ids(b, name, rows):
    return b.write(name, "".join(json.dumps({"input_ids": r}) + "\n" for r in rows))


def auto_becomes_numbers_and_the_run_is_that_of_the_numbers(b):
    settings = config(AUTO, {"gradient_clipping": "auto"})
    run = b.train(settings, ranks=2, extra=["--per_device_train_batch_size", 2, "--max_grad_norm", 0.5])
    done = b.command("config", "check", b.write("auto.json", settings), "--world_size", 2, "--model", b.g2, "--json",
                     "--per_device_train_batch_size", 2, "--max_grad_norm", 0.5)
    resolved = json.loads(done.stdout)["resolved"]
    assert '"auto"' not in json.dumps(resolved), resolved
    zero = resolved["zero_optimization"]
    same("sizes from the hidden size of 64", (4096, 3686, 640), (zero["reduce_bucket_size"], zero["stage3_prefetch_bucket_size"],
                                                               zero["stage3_param_persistence_threshold"]))
    same("batch", 4, resolved["train_batch_size"])
    plain = config({"gradient_clipping": 0.5}, {"zero_optimization": {"stage": 3}})
    same("weights", b.train(plain, ranks=2).bits, run.bits)


def auto_where_nothing_computes_it_is_refused_before_weights_are_read(b):
    model = _no_weights(b)
    for over, path in (({"zero_optimization": {"stage": "auto"}}, "zero_optimization.stage"),
                       ({"zero_optimization": {"sub_group_size": "auto"}}, "zero_optimization.sub_group_size")):
        b.refused(path, settings=config(over), model=model)


def a_batch_that_does_not_multiply_out_is_refused_before_weights_are_read(b):
    model = _no_weights(b)
    keys = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"

    def batch(train, micro, gas):
        return {k: v for k, v in zip(keys, (train, micro, gas))}
    for train, micro, gas, rows in ((8, 2, 2, (2, 2)), (8, None, None, (4, 1)), (None, 2, None, (2, 1)), (8, None, 2, (2, 2))):
        run = b.train(config(batch(train, micro, gas)), ranks=2, steps=1)
        assert f"batch      {rows[0]} rows a rank" in run.stderr and f"x {rows[1]} accumulated" in run.stderr, run.stderr
    for train, micro, gas, needles in ((7, None, None, ("train_batch_size 7 (/", "world size 2", "nearest: train_batch_size 6 or 8")),
                                       (8, 3, None, ("train_micro_batch_size_per_gpu 3 (/",)),
                                       (8, 2, 1, ("gradient_accumulation_steps 1 (/", "or gradient_accumulation_steps 2, or")),
                                       (None, "2", None, (keys[1], "string \"2\"")), (None, 2.5, None, (keys[1], "2.5")),
                                       (None, -2, None, (keys[1], "-2"))):
        b.refused(*needles, settings=config(batch(train, micro, gas)), ranks=2, model=model)


def what_the_command_line_fills_and_what_it_contradicts(b):
    run = b.train(config({"gradient_clipping": None}), extra=["--max_grad_norm", "0.01"])
    assert "clipping   to norm 0.01 (argument --max_grad_norm)" in run.stderr, run.stderr
    run = b.refused("gradient_clipping", "--max_grad_norm", "lr", "--learning_rate",
                    settings=config({"gradient_clipping": 0.3}), extra=["--max_grad_norm", "1.0", "--learning_rate", "2e-3"])
    assert len(run.stderr.strip().splitlines()) == 2, run.stderr
    plain = b.train(config({"gradient_clipping": None}), steps=1)
    assert "clipping   " in plain.stderr and "default" in plain.stderr, plain.stderr


def relaxed_json_trains_like_strict_json(b):
    text = json.dumps(config(), indent=1)
    relaxed = "\ufeff// note\n# note\n/* note */" + text.replace("\n}", ",\n}").replace("\n", "\r\n")
    same("weights", b.train(text).bits, b.train(relaxed).bits)
    b.refused("the file ends inside the object", "is the file complete", settings=json.dumps(config())[:-1])
    b.refused("\"stage\" is given twice, on line 18 and on line 19", settings=text.replace('"stage": 0', '"stage": 1,\n  "stage": 3'))
    b.refused(":1:", settings='{"zero_optimization": {"stage": 3 "overlap_comm": true}}')


def ids_and_lengths_are_checked_before_the_first_step(b):
    """Positions end at 64, the vocabulary at 257; every message names file and line."""
    rng = random.Random(5)
    good = [[rng.randrange(250) for _ in range(20)] for _ in range(3)]
    for name, row, needle in (("long", list(range(65)), "65 tokens"), ("above", [1, 257, 2], "257"), ("below", [1, -1, 2], "-1"),
                              ("none", [], "empty")):
        b.refused(f"{name}.jsonl:4", needle, settings=config(), rows=_ids(b, name + ".jsonl", [*good, row]))
    b.refused("empty.jsonl", settings=config(), rows=b.write("empty.jsonl", ""))
    long = _ids(b, "asked.jsonl", [*good, list(range(65))])
    run = b.train(config(), rows=long, extra=["--block_size", 64])
    assert "1 rows were longer than block_size 64 and were cut" in run.stderr, run.stderr
    b.refused("--block_size 65", "64 positions", settings=config(), rows=long, extra=["--block_size", 65])


def a_vocabulary_that_is_padded_beyond_the_tokenizer_keeps_its_rows(b):
    """300 rows in config.json and file, ids up to 256: 300 rows out, the unused ones trained by the softmax alone."""
    def widen(tensors):
        dtype, shape, data = tensors["transformer.wte.weight"]
        rng = random.Random(2)
        tensors["transformer.wte.weight"] = (dtype, [300, 64], data + f32([43, 64], (rng.gauss(0, .02) for _ in range(43 * 64)))[2])
    model = b.copy_model(b.g2, "wide", widen, {"vocab_size": 300})
    for stage in (0, 3):
        run = b.train(config({"zero_optimization": {"stage": stage}}), model=model, ranks=2)
        same("shape", [300, 64], run.weights["transformer.wte.weight"][1])
        with open(os.path.join(run.out, "config.json"), encoding="utf-8") as f:
            same("vocab_size", 300, json.load(f)["vocab_size"])
        assert b.command("eval", "--model", run.out, "--data", b.ragged).code == 0


def ranks_with_rows_of_unequal_length_agree(b):
    """No rank waits for another's sequence length; every micro-batch is padded on its own."""
    rows = harness.rows_of_ids(b.path("r.jsonl"), [64, 2, 2, 64, 33, 5, 7, 60])
    one = b.train(config({"train_micro_batch_size_per_gpu": 4}), rows=rows)
    four = b.train(config({"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 3}}), rows=rows, ranks=4)
    for a, c in zip(one.rows, four.rows):
        assert near(a["loss"], c["loss"], 1e-6) and near(a["grad_norm"], c["grad_norm"], 1e-6), (a, c)
    assert all(math.isfinite(x) for x in one.column("loss"))


def a_saved_model_has_the_names_and_types_of_the_one_it_came_from(b):
    before = read_safetensors(os.path.join(b.g2, "model.safetensors"))
    for dtype, kind in (("float32", "F32"), ("bfloat16", "BF16"), ("float16", "F16")):
        after = b.train(config({"zero_optimization": {"stage": 3}}), ranks=2, save_dtype=dtype).weights
        same("names and shapes", {n: t[1] for n, t in before.items()}, {n: t[1] for n, t in after.items()})
        same("types", {kind}, {t[0] for t in after.values()})


def what_is_fp32_in_a_16_bit_file_stays_fp32(b):
    """Two kinds of tensors in, the same two out, on any number of ranks; what is asked for by name is one kind."""
    def narrow(tensors):
        for i, (name, (_, shape, data)) in enumerate(sorted(tensors.items())):
            if i % 3:
                tensors[name] = ("BF16", shape, bytes(x for k in range(0, len(data), 4) for x in data[k + 2:k + 4]))
    model = b.copy_model(b.g2, "two_kinds", narrow, {"dtype": "bfloat16"})
    before = {n: t[:2] for n, t in read_safetensors(os.path.join(model, "model.safetensors")).items()}
    same("kinds in", {"F32", "BF16"}, {t[0] for t in before.values()})
    for ranks in (1, 3):
        run = b.train(config({"bf16": {"enabled": True}, "zero_optimization": {"stage": 3}}), model=model, ranks=ranks, save_dtype=None)
        same("types and shapes", before, {n: t[:2] for n, t in run.weights.items()})
        again = b.train(config({"zero_optimization": {"stage": 1}}), model=run.out, ranks=2, save_dtype="bfloat16")
        same("types asked for", {"BF16"}, {t[0] for t in again.weights.values()})


if __name__ == "__main__":
    harness.main(globals())

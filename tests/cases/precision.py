#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""16-bit training: accumulation types, loss scales, and numbers that are not finite."""
import array
import math
import os

import harness
from harness import config, floats, near, read_safetensors, same

BF16, FP16 = {"bf16": {"enabled": True}}, {"fp16": {"enabled": True}}


def _break(*places):
    """A change for copy_model: numbers of fp32 tensors, each as (name, index, value)."""
    def change(tensors):
        for name, index, value in places:
            dtype, shape, data = tensors[name]
            values = array.array("f", data)
            values[index] = value
            tensors[name] = (dtype, shape, values.tobytes())
    return change


# Each fits fp32, their sum in the residual stream of position 40 does not.
_HUGE = _break(("transformer.wpe.weight", 40 * 64 + 3, 3e38), ("transformer.h.0.attn.c_proj.bias", 3, 3e38))


def _update(b, run):
    """What one run moved, over all parameters, as one list."""
    before, after = read_safetensors(b.g2 + "/model.safetensors"), run.weights
    out = []
    for name in sorted(before):
        out.extend(y - x for x, y in zip(floats(before[name]), floats(after[name])))
    return out


def _cosine(a, b):
    return sum(x * y for x, y in zip(a, b)) / math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))


def bf16_sums_of_many_micro_batches_are_visible_and_fp32_sums_are_not(b):
    """64 micro-batches of one row beside one of 64 rows. SGD, so that the update is the gradient."""
    rows = harness.rows_of_ids(b.path("r.jsonl"), [16] * 64)
    def run(stage, micro, gas, accum=None):
        settings = config(BF16, {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": gas,
                                 "zero_optimization": {"stage": stage}, "communication_data_type": "fp32",
                                 **({"data_types": {"grad_accum_dtype": accum}} if accum else {})})
        settings["optimizer"] = {"type": "SGD", "params": {"lr": 0.1}}
        return b.train(settings, rows=rows, steps=1)
    for stage in (0, 1, 2, 3):
        whole, parts, rounded = run(stage, 64, 1), run(stage, 1, 64), run(stage, 1, 64, "bf16")
        norms = [r.rows[0]["grad_norm"] for r in (whole, parts, rounded)]
        assert near(norms[0], norms[1], 1e-3), f"stage {stage}: norms {norms}"
        moved = [_update(b, r) for r in (whole, parts, rounded)]
        distance = [math.dist(moved[0], m) for m in moved[1:]]
        assert _cosine(moved[0], moved[1]) >= 0.999
        assert distance[1] >= 5 * distance[0], f"stage {stage}: fp32 sums are off by {distance[0]}, bf16 sums by {distance[1]}"


def a_16_bit_accumulator_gives_the_same_bits_in_stages_0_and_1_and_in_2_and_3(b):
    for block, accum in ((BF16, "bf16"), (FP16, "fp16"), ({}, "bf16")):
        runs = [b.train(config(block, {"gradient_accumulation_steps": 2, "gradient_clipping": 0.5,
                                       "zero_optimization": {"stage": stage}, "data_types": {"grad_accum_dtype": accum}}), ranks=2)
                for stage in range(4)]
        for low in (0, 2):
            same(f"stage {low + 1} beside {low}, {accum}", (runs[low].curve, runs[low].bits), (runs[low + 1].curve, runs[low + 1].bits))


def the_wire_type_changes_the_gradient_and_nothing_else(b):
    """communication_data_type in every stage: fp32 on the wire of bf16 training, 16 bits on that of fp32 training."""
    for block, wires in ((BF16, ("bf16", "fp32")), ({}, ("fp32", "bf16", "fp16")), (FP16, ("fp16", "fp32"))):
        norms = {}
        for wire in wires:
            runs = [b.train(config(block, {"communication_data_type": wire, "zero_optimization": {"stage": stage}}), ranks=2)
                    for stage in range(4)]
            for stage in range(1, 4):
                same(f"stage {stage}, wire {wire}", (runs[0].curve, runs[0].bits), (runs[stage].curve, runs[stage].bits))
            norms[wire] = runs[0].rows[0]["grad_norm"]
        assert len(set(norms.values())) == len(wires), f"no difference: {norms}"
        assert all(near(n, norms[wires[0]], 5e-3) for n in norms.values()), norms
        default = b.train(config(block), ranks=2)
        same("the default wire", norms[wires[0]], default.rows[0]["grad_norm"])


def a_scale_that_cannot_fall_ends_the_run_and_names_what_and_where(b):
    """A gradient too large for fp16 at the smallest scale that is allowed. Nothing is saved before a step was good."""
    settings = config({"fp16": {"enabled": True, "initial_scale_power": 32, "min_loss_scale": 2 ** 32, "hysteresis": 1}})
    for stage in (0, 3):
        settings["zero_optimization"]["stage"] = stage
        run = b.refused("step 1: the gradient of transformer.", "is not finite in fp16 at loss scale 4.29497e+09",
                        "(rank 0, micro-batch 0: training rows 0, 1, counted from 0)", "minimum loss scale", "use bf16",
                        settings=settings, ranks=2, steps=40)
        assert not [n for n in os.listdir(run.out) if n.startswith("checkpoint")], os.listdir(run.out)


def offloaded_state_tells_an_overflow_as_well(b):
    settings = config({"fp16": {"enabled": True, "initial_scale_power": 32, "hysteresis": 1},
                       "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}})
    run = b.train(settings, ranks=2, steps=2)
    same("overflow", [True, True], run.column("overflow"))
    assert "first overflow of the run: step 1: the gradient of transformer." in run.stderr, run.stderr


def masters_in_halves_change_no_number(b):
    """bf16 masters beside their parameters, on the device and on the host, against whole ones."""
    for block in ({"stage": 1}, {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}):
        runs = [b.train(config({"bf16": {"enabled": True, "split_masters": split}, "zero_optimization": block}), ranks=2)
                for split in (True, False)]
        for column in ("loss", "grad_norm"):
            same(column, runs[0].column(column), runs[1].column(column))


def a_weight_too_large_for_fp16_is_named(b):
    """Trained in bf16, whose range is that of fp32: 1e5 is infinite in fp16."""
    name = "transformer.h.1.mlp.c_fc.weight"
    model = b.copy_model(b.g2, "large", _break((name, 77, 1e5)))
    settings = config({"fp16": {"enabled": True, "initial_scale_power": 2, "min_loss_scale": 1, "hysteresis": 1}})
    run = b.refused(f"step 3: the weight {name} is not finite in fp16", "minimum loss scale 1", settings=settings, model=model, steps=40)
    same("scales", [4, 2, 1], run.column("loss_scale"))
    assert f"first overflow of the run: step 1: the weight {name} is not finite" in run.stderr


def the_last_good_weights_are_kept_when_a_run_gives_up(b):
    """Two good steps, then rows that overflow: what was learned so far is in a checkpoint, and loads."""
    rows = harness.rows_of_ids(b.path("good.jsonl"), [16] * 8)
    settings = config({"fp16": {"enabled": True, "initial_scale_power": 16, "min_loss_scale": 2 ** 16, "hysteresis": 1},
                       "optimizer": {"type": "AdamW", "params": {"lr": 3e4}}})
    run = b.train(settings, rows=rows, steps=40, ok=False)
    same("exit code", 1, run.code)
    applied = [r for r in run.rows if not r["overflow"]]
    assert applied, "no step was good"
    folder = os.path.join(run.out, f"checkpoint-{len(run.rows)}")
    assert folder in run.stderr, run.stderr
    done = b.command("export", folder, b.path("kept"))
    assert done.code == 0, done.stderr
    kept = read_safetensors(os.path.join(b.path("kept"), "model.safetensors"))
    assert all(math.isfinite(x) for t in kept.values() for x in floats(t)), "a kept weight is not finite"
    good = b.train(settings, rows=rows, steps=len(applied))  # the skipped step moved nothing
    for name, tensor in good.weights.items():
        same(name, floats(tensor), floats(kept[name]))
    assert not os.path.exists(os.path.join(run.out, "model.safetensors"))


def the_first_overflow_says_rank_micro_batch_rows_and_tensor_once(b):
    """A dynamic scale that starts too high: skipped steps are normal, are counted, and change nothing."""
    settings = config({"fp16": {"enabled": True, "initial_scale_power": 24, "hysteresis": 1}, "gradient_accumulation_steps": 2})
    run = b.train(settings, ranks=2, steps=12)
    skipped = [r["overflow"] for r in run.rows]
    assert skipped[0] and not skipped[-1], skipped
    same("notes", 1, run.stderr.count("first overflow of the run"))
    assert "step 1: the gradient of transformer." in run.stderr and "(rank 0, micro-batch 0: training rows 0, 1" in run.stderr
    first_good = skipped.index(False)
    same("rates until a step is applied", 1, len(set(run.column("lr")[:first_good + 1])))


def a_poisoned_activation_is_told_from_a_gradient(b):
    """An infinite position vector beyond the first rows' length: the first row that reaches it is named."""
    model = b.copy_model(b.g2, "poisoned", _break(("transformer.wpe.weight", 40 * 64 + 3, math.inf)))
    rows = harness.rows_of_ids(b.path("r.jsonl"), [16, 16, 16, 48])
    run = b.train(config({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2}), model=model, rows=rows, ranks=2, steps=2)
    same("overflow", [True, True], run.column("overflow"))
    assert "the weight transformer.wpe.weight is not finite in fp32" in run.stderr, run.stderr
    model = b.copy_model(b.g2, "huge", _HUGE)
    run = b.train(config({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2}), model=model, rows=rows, ranks=2, steps=2)
    assert "step 1: the output of layer.0 is not finite" in run.stderr and "(rank 1, micro-batch 1: training row 3, counted from 0)" in run.stderr, run.stderr
    before = floats(read_safetensors(model + "/model.safetensors")["transformer.wte.weight"])
    same("weights after skipped steps", before, floats(run.weights["transformer.wte.weight"]))


def bf16_without_the_overflow_check_applies_what_comes(b):
    model = b.copy_model(b.g2, "huge", _HUGE)
    rows = harness.rows_of_ids(b.path("r.jsonl"), [48, 48])
    checked = b.train(config(BF16), model=model, rows=rows, steps=1)
    same("checked", [True], checked.column("overflow"))
    unchecked = b.train(config({"bf16": {"enabled": True, "check_grad_overflow": False}}), model=model, rows=rows, steps=1)
    same("unchecked", [False], unchecked.column("overflow"))
    broken = lambda run: sum(not math.isfinite(x) for t in run.weights.values() for x in floats(t))
    assert broken(checked) == 0 < broken(unchecked)


def skipped_steps_move_neither_schedule_nor_weights(b):
    settings = config({"fp16": {"enabled": True, "loss_scale": 4294967296}, "scheduler":
                       {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-3, "warmup_num_steps": 4,
                                                       "warmup_type": "linear"}}})
    run = b.train(settings)
    same("overflow", [True] * 3, run.column("overflow"))
    same("rates", [0, 0, 0], run.column("lr"))
    kept = run.weights
    half = b.train(config({**FP16, "optimizer": {"type": "AdamW", "params": {"lr": 0}}}), steps=1).weights
    same("weights", half, kept)
    settings["fp16"]["loss_scale"] = 1
    same("rates of applied steps", [0, 0, 2.5e-4], b.train(settings).column("lr"))


if __name__ == "__main__":
    harness.main(globals())

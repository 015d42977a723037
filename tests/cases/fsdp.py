#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""FSDP's modes: strategies are stages to the bit, replicas learn from everybody's rows, and every mode's checkpoint is every
other's. Four ranks; hybrid as 2 x 2, 4 x 1 and 1 x 4."""
import os
import shutil

import harness
from harness import PRECISION, config, near, same, spread

MODES = {"NO_SHARD": {"sharding_strategy": "NO_SHARD"}, "SHARD_GRAD_OP": {"sharding_strategy": "SHARD_GRAD_OP"},
         "FULL_SHARD": {"sharding_strategy": "FULL_SHARD"}, "HYBRID_SHARD": {"sharding_strategy": "HYBRID_SHARD", "shard_size": 2},
         "HYBRID_SHARD_ZERO2": {"sharding_strategy": "HYBRID_SHARD_ZERO2", "shard_size": 2}}
PRIVATE = ["--share_parameters", "false"]
# Adam makes a step of any gradient, were it only the rounding of a sum; momentum leaves rounding small.
SGD = {"optimizer": {"type": "SGD", "params": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01}},
       "zero_allow_untested_optimizer": True}


def _fsdp(mode, **more):
    return {"zero_optimization": {"stage": None}, "fsdp": {**MODES[mode], **more}}


def _config(*blocks):
    settings = config({"gradient_clipping": 0.5}, *blocks)
    for block in (settings["zero_optimization"], settings["optimizer"]["params"]):
        for key in [key for key, value in block.items() if value is None]:
            del block[key]
    return settings


def strategies_are_stages_to_the_bit(b):
    """Shared parameters and private ones; with accumulation too."""
    for mode, stage in (("FULL_SHARD", 3), ("SHARD_GRAD_OP", 2), ("NO_SHARD", 0)):
        for precision, block in list(PRECISION.items())[:2]:
            for steps, extra in ((1, []), (2, PRIVATE)):
                accumulate = {"gradient_accumulation_steps": steps}
                want = b.train(_config(block, accumulate, {"zero_optimization": {"stage": stage}}), ranks=4, extra=extra)
                got = b.train(_config(block, accumulate, _fsdp(mode)), ranks=4, extra=extra)
                same(f"{mode}, {precision}, {steps}", (want.curve, want.bits), (got.curve, got.bits))


def replicas_learn_from_all_rows_and_repeat_their_bits(b):
    """Groups of 4, 2 and 1, with and without accumulation: stage 0 within the order of additions. One group's rows alone are
    another run."""
    rows = harness.rows_of_ids(b.path("r.jsonl"), [5 + 3 * i % 29 for i in range(64)])
    for accumulation in (1, 4):
        base = {"gradient_accumulation_steps": accumulation, **SGD}
        want = b.train(_config(base), rows=rows, ranks=4)
        for mode in ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2"):
            for size in (4, 2, 1):
                settings = _config(base, _fsdp(mode, shard_size=size))
                got = b.train(settings, rows=rows, ranks=4, extra=PRIVATE)
                for a, c in zip(want.rows, got.rows):
                    assert near(a["loss"], c["loss"], 1e-6) and near(a["grad_norm"], c["grad_norm"], 1e-5), (mode, size, a, c)
                assert spread(want.weights, got.weights) < 1e-5, (mode, size, spread(want.weights, got.weights))
                if size == 2:
                    same(f"{mode}, again, shared", got.bits, b.train(settings, rows=rows, ranks=4).bits)
        alone = b.train(_config(base), rows=rows, ranks=2)
        assert spread(want.weights, alone.weights) > 1e-3


def accumulation_costs_no_gradient_memory(b):
    """Micro-batches add up in the shard: the account's peak is that of one (a tied embedding's shard apart: docs/memory.md)."""
    for mode in ("SHARD_GRAD_OP", "FULL_SHARD", "HYBRID_SHARD"):
        peaks = []
        for accumulation in (1, 4):
            settings = _config({"gradient_accumulation_steps": accumulation, "memory_breakdown": True}, PRECISION["bf16"], _fsdp(mode))
            text = b.train(settings, model=b.model("llama"), ranks=4, extra=PRIVATE).stderr
            peaks.append(text.rsplit("gradients ", 1)[1].split("|")[0])
        same(mode, peaks[0], peaks[1])


def every_mode_goes_on_from_every_others_checkpoint(b):
    """Bit by bit in the mode that saved, and as near as the order of additions in the others."""
    kept, whole = {}, {}
    for mode in MODES:
        settings = _config(_fsdp(mode), SGD)
        whole[mode] = b.train(settings, ranks=4, steps=4)
        kept[mode] = b.train(settings, ranks=4, steps=4, extra=["--save_steps", "2"])
    for saved in MODES:
        for mode in MODES:
            out = b.path(f"{saved}-{mode}")
            os.mkdir(out)
            shutil.copytree(os.path.join(kept[saved].out, "checkpoint-2"), os.path.join(out, "checkpoint-2"))
            run = b.train(_config(_fsdp(mode), SGD), ranks=4, steps=4,
                          extra=["--output_dir", out, "--resume_from_checkpoint", os.path.join(out, "checkpoint-2")])
            run.out = out
            if saved == mode:
                same(mode, whole[mode].bits, run.bits)
            apart = spread(whole[mode].weights, run.weights)
            assert apart < 1e-5, (saved, mode, apart)


def a_second_copy_changes_no_bit(b):
    sharded = {"stage": 3, "stage3_param_persistence_threshold": 0, "stage3_max_reuse_distance": 0}
    want = b.train(_config(PRECISION["bf16"], {"zero_optimization": sharded}), ranks=4, extra=PRIVATE)
    for ranks in (2, 4):
        zero = {"zero_optimization": {**sharded, "zero_hpz_partition_size": ranks}}
        got = b.train(_config(PRECISION["bf16"], zero), ranks=4, extra=[*PRIVATE, "--profile"])
        same(f"over {ranks}", (want.curve, want.bits), (got.curve, got.bits))
        assert "from second copies" in got.stderr


def wrapping_changes_no_bit_where_nothing_is_clipped(b):
    """By block, by size, not at all; tied weights too, whose embedding the head uses."""
    for model in (b.g2, b.model("llama")):
        want = None
        for policy in ({}, {"auto_wrap_policy": "SIZE_BASED_WRAP", "min_num_params": 30000},
                       {"auto_wrap_policy": "SIZE_BASED_WRAP"}, {"auto_wrap_policy": "NO_WRAP"}):
            for extra in ([], PRIVATE):
                run = b.train(_config({"gradient_clipping": 0}, _fsdp("FULL_SHARD", **policy)), model=model, ranks=4, extra=extra)
                want = want or run
                same(f"{policy}", (want.column("loss"), want.bits), (run.column("loss"), run.bits))


if __name__ == "__main__":
    harness.main(globals())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Learning rates, steps and optimizers as users count them."""
import harness
from harness import config, near, same

WARMUP = {"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-3, "warmup_num_steps": 4,
                                                            "warmup_type": "linear", "total_num_steps": 10}}}


def _adam(kind, **more):
    return {"optimizer": {"type": kind, "params": {"lr": 1e-3, "weight_decay": 0.1, **more}}}


def a_warm_up_never_runs_a_step_at_the_full_rate(b):
    want = [0, 0, 2.5e-4, 5e-4, 7.5e-4, 1e-3, 5e-3 / 6, 4e-3 / 6, 3e-3 / 6, 2e-3 / 6, 1e-3 / 6, 0]
    got = b.train(config(WARMUP), steps=12).column("lr")
    assert all(near(g, w, 1e-9) or g == w == 0 or abs(g - w) < 1e-15 for g, w in zip(got, want)), got
    same("steps", 12, len(got))


def a_schedule_counts_optimizer_steps_at_every_world_size(b):
    rows = harness.rows_of_ids(b.path("r.jsonl"), [12] * 40)
    rates = [b.train(config({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4 // world}, WARMUP), rows=rows,
                     ranks=world, steps=12).column("lr") for world in (1, 2, 4)]
    same("2 ranks", rates[0], rates[1])
    same("4 ranks", rates[0], rates[2])
    assert len(set(rates[0])) > 5


def two_epochs_of_50_rows_are_14_steps_of_8(b):
    """The last batch of an epoch is filled up from the next one; the schedule's length follows."""
    rows = harness.rows_of_ids(b.path("r.jsonl"), [8] * 50)
    settings = config({"train_micro_batch_size_per_gpu": 4},
                      {"scheduler": {"type": "WarmupDecayLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-3, "warmup_num_steps": 1,
                                                                         "total_num_steps": "auto"}}})
    run = b.train(settings, rows=rows, ranks=2, steps=-1, extra=["--num_train_epochs", "2"])
    same("steps", list(range(1, 15)), run.column("step"))
    explicit = config(settings)
    explicit["scheduler"]["params"]["total_num_steps"] = 14
    same("rates", b.train(explicit, rows=rows, ranks=2, steps=14).column("lr"), run.column("lr"))
    assert "14 steps" in run.stderr, run.stderr


def adam_means_adamw_unless_told_otherwise(b):
    for stage in (0, 3):
        adam, adamw, other = (b.train(config(block, {"zero_optimization": {"stage": stage}}), ranks=2) for block in (
            _adam("Adam"), _adam("adamw"), _adam("Adam", adam_w_mode=False)))
        same("Adam beside AdamW", adamw.bits, adam.bits)
        assert other.bits != adam.bits
        assert "AdamW rule" in adam.stderr and "in the gradient (L2)" in other.stderr


def an_unknown_optimizer_is_answered_with_the_list(b):
    b.refused("\"Lamb2\"", "\"Adam\", \"AdamW\", \"Adagrad\", \"Lamb\", \"Lion\", \"SGD\"", "did you mean \"Lamb\"", settings=config(_adam("Lamb2")))


if __name__ == "__main__":
    harness.main(globals())

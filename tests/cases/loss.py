#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The loss, the gradient norm and clipping: what they are a mean of, and what must not change them."""
import json
import math

import harness
from harness import config, floats, near, read_safetensors, same, spread

CUTS = ((1, 8, 1), (1, 1, 8), (2, 2, 2), (4, 1, 2))  # world size, micro-batch, accumulation: 8 rows each


def _cut(b, world, micro, gas, over=None, **how):
    settings = config({"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": gas}, over or {})
    return b.train(settings, ranks=world, **how)


def _agree(what, want, got, tolerance):
    for g, w in zip(got.rows, want.rows):
        for key in ("loss", "grad_norm"):
            assert near(g[key], w[key], tolerance), f"{what}, step {g['step']}: {key} {g[key]}, want {w[key]}"
    same(f"steps of {what}", len(want.rows), len(got.rows))


def one_global_batch_however_it_is_cut_gives_one_loss_gradient_and_model(b):
    runs = [_cut(b, *cut, steps=20) for cut in CUTS]
    assert near(runs[0].rows[0]["grad_norm"], 1.8614, 5e-5), f"norm {runs[0].rows[0]['grad_norm']}, PyTorch has 1.8614"
    for cut, run in zip(CUTS[1:], runs[1:]):
        _agree(f"W, micro, gas = {cut}", runs[0], run, 1e-6)
    sgd = {"optimizer": {"type": "SGD", "params": {"lr": 0.1}}}
    first = [_cut(b, *cut, steps=1, over=sgd) for cut in CUTS]
    for cut, run in zip(CUTS[1:], first[1:]):
        off = spread(first[0].weights, run.weights)
        assert off <= 1e-6, f"weights of {cut} are off by {off}"


def rows_in_reverse_order_give_the_same_step(b):
    with open(b.ragged, encoding="utf-8") as f:
        lines = f.read().splitlines()
    turned = b.write("turned.jsonl", "\n".join(reversed(lines)) + "\n")
    for cut in CUTS:
        _agree(f"{cut} turned round", _cut(b, *cut, steps=1), _cut(b, *cut, steps=1, rows=turned), 1e-6)


def world_sizes_agree_at_each_of_20_steps(b):
    """A new order each epoch, which depends on the seed and not on the ranks."""
    rows = harness.rows_of_ids(b.path("r.jsonl"), [5 + i * 7 % 26 for i in range(50)])
    shuffled = ["--shuffle", "true", "--seed", "7"]
    runs = [_cut(b, world, 8 // world, 1, rows=rows, steps=20, extra=shuffled) for world in (1, 2, 4)]
    for world, run in zip((2, 4), runs[1:]):
        _agree(f"{world} ranks", runs[0], run, 1e-6)
        same(f"tokens of {world} ranks", runs[0].column("tokens"), run.column("tokens"))


def the_mean_of_means_is_there_for_those_who_ask(b):
    """PyTorch has 2.3199 for a mean of row means."""
    run = _cut(b, 1, 1, 8, steps=1, extra=["--loss_average", "micro_batches"])
    assert near(run.rows[0]["grad_norm"], 2.3199, 5e-5), run.rows[0]["grad_norm"]


def accumulation_divides_once(b):
    rows = harness.rows_of_ids(b.path("r.jsonl"), [24] * 16)
    for average in ("tokens", "micro_batches"):
        runs = [_cut(b, 1, 16 // gas, gas, rows=rows, steps=2, extra=["--loss_average", average]) for gas in (1, 2, 8)]
        for gas, run in zip((2, 8), runs[1:]):
            _agree(f"gas {gas}, mean over {average}", runs[0], run, 1e-6)
        assert 5 < runs[0].rows[0]["loss"] < 6  # near ln 257


def rows_without_targets_add_nothing(b):
    """Two rows of eight masked whole: the step is that of the other six."""
    lengths, keep = [16] * 8, [0, 0] + [12, 5, 16, 9, 3, 16]
    all_rows = harness.rows_of_ids(b.path("all.jsonl"), lengths, targets=keep)
    with open(all_rows, encoding="utf-8") as f:
        others = b.write("six.jsonl", "".join(f.readlines()[2:]))
    eight, six = _cut(b, 1, 1, 8, rows=all_rows, steps=1), _cut(b, 1, 1, 6, rows=others, steps=1)
    _agree("eight rows", six, eight, 1e-6)
    same("weights", six.bits, eight.bits)
    assert "2 of 8 rows have no target" in eight.stderr, eight.stderr


def a_data_set_without_any_target_is_refused(b):
    rows = harness.rows_of_ids(b.path("none.jsonl"), [16] * 8, targets=[0] * 8)
    b.refused("none of the 8 training rows has a target", settings=config(), rows=rows)


def a_step_without_targets_is_skipped_and_changes_nothing(b):
    """Rows 2 and 3 are the second step; the model after it is that after the first, and the third applies rate 2."""
    rows = harness.rows_of_ids(b.path("gap.jsonl"), [16] * 6, targets=[16, 16, 0, 0, 16, 16])
    settings = config({"scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0, "warmup_max_lr": 1e-3, "warmup_num_steps": 4,
                                                                    "warmup_type": "linear"}}})
    one, two, three = (b.train(settings, rows=rows, ranks=r, steps=n) for r, n in ((1, 1), (1, 2), (1, 3)))
    same("weights", one.bits, two.bits)
    assert all(v is None or math.isfinite(v) for row in three.rows for v in row.values() if isinstance(v, float))
    same("a loss of no target", 0, three.rows[1]["loss"] or 0)
    same("norm", 0, three.rows[1]["grad_norm"] or 0)
    assert three.rows[2]["lr"] == three.rows[1]["lr"], three.column("lr")


def the_norm_is_logged_before_clipping_and_the_update_is_clipped(b):
    """With plain SGD the update is the rate times the clipped gradient."""
    sgd = {"train_micro_batch_size_per_gpu": 8, "optimizer": {"type": "SGD", "params": {"lr": 1.0}}}
    for clip in (0.01, 0, 100):
        settings = config({**sgd, "gradient_clipping": clip})
        settings["optimizer"]["params"] = {"lr": 1.0}
        run = b.train(settings, steps=1)
        before, after = read_safetensors(b.g2 + "/model.safetensors"), run.weights
        moved = math.sqrt(sum((x - y) ** 2 for n in before for x, y in zip(floats(before[n]), floats(after[n]))))
        assert near(run.rows[0]["grad_norm"], 1.8614, 5e-5)
        assert near(moved, 0.01 if clip == 0.01 else 1.8614, 1e-4), f"clip {clip}: moved by {moved}"
        assert ("clipped in 1 of 1 steps" in run.stderr) == (clip == 0.01), run.stderr
        assert ("clipping   off" in run.stderr) == (clip == 0), run.stderr


def the_norm_counts_each_parameter_once_at_any_world_size(b):
    """120,640 parameters over 3 and 7 ranks; tied and untied heads; clipping follows."""
    for model in (b.g2, b.model("llama"), b.model("qwen2")):
        rows = harness.rows_of_ids(b.path("r.jsonl"), [16, 9, 12, 7, 16, 5] * 7, vocab=200)  # 42 rows for 1, 3 and 7 ranks
        want = _cut(b, 1, 42, 1, model=model, rows=rows, steps=2, over={"gradient_clipping": 0.5})
        for world, micro in ((3, 14), (7, 6)):
            for stage in (0, 2, 3):
                got = _cut(b, world, micro, 1, {"gradient_clipping": 0.5, "zero_optimization": {"stage": stage}}, model=model, rows=rows, steps=2)
                _agree(f"stage {stage} on {world} ranks", want, got, 2e-6)


def padding_is_masked_by_position_and_not_by_value(b):
    """Rows that end in eos = 256, which also pads: the eos target counts, and padding changes nothing."""
    lengths = (6, 20, 11, 17)
    rows = [[(7 * i + 3 * j) % 250 for j in range(n - 1)] + [256] for i, n in enumerate(lengths)]
    longest = max(lengths)
    plain = b.write("plain.jsonl", "".join(json.dumps({"input_ids": r}) + "\n" for r in rows))
    padded = b.write("padded.jsonl", "".join(json.dumps(
        {"input_ids": r + [256] * (longest - len(r)), "attention_mask": [1] * len(r) + [0] * (longest - len(r))}) + "\n" for r in rows))
    cut = b.write("cut.jsonl", "".join(json.dumps({"input_ids": r[:-1]}) + "\n" for r in rows))
    want, got, less = (_cut(b, 1, 4, 1, rows=f, steps=3) for f in (plain, padded, cut))
    _agree("padded rows", want, got, 1e-6)
    assert want.rows[0]["loss"] != less.rows[0]["loss"]
    score = [json.loads(b.command("eval", "--model", b.g2, "--data", f, "--json").stdout) for f in (plain, padded, cut)]
    same("targets", [sum(lengths) - 4] * 2 + [sum(lengths) - 8], [s["targets"] for s in score])
    assert near(score[0]["loss"], score[1]["loss"], 1e-6)
    assert near(score[0]["loss"], want.rows[0]["loss"], 1e-6)


if __name__ == "__main__":
    harness.main(globals())

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What must not depend on stage, buckets, overlap, prefetch, or on who asks for a unit when; and tied weights."""
import itertools
import json
import os

import harness
from harness import PRECISION, config, floats, near, read_safetensors, same


def _stage(stage, **more):
    return {"zero_optimization": {"stage": stage, **more}}


def stages_agree_when_micro_batches_are_summed(b):
    """Stages 0 and 1 sum micro-batches before ranks, 2 and 3 after: the same bits within, 1e-6 across in fp32."""
    for precision, block in PRECISION.items():
        for model in (b.g2, b.model("llama")):
            rows = harness.rows_of_ids(b.path("r.jsonl"), [4, 32, 8, 30, 6, 20, 16, 12])
            runs = [b.train(config(block, {"gradient_accumulation_steps": 2}, _stage(stage)), model=model, rows=rows, ranks=2, steps=5)
                    for stage in range(4)]
            for low in (0, 2):
                same(f"stage {low + 1}, {precision}", (runs[low].curve, runs[low].bits), (runs[low + 1].curve, runs[low + 1].bits))
            for a, c in zip(runs[0].rows, runs[2].rows):
                assert near(a["loss"], c["loss"], 1e-6 if precision == "fp32" else 1e-3), (precision, a, c)


def offload_changes_no_bit_with_and_without_frozen_parameters(b):
    """Optimizer state on the host or on disk, parameters on the host: the numbers stay."""
    places = [{"offload_optimizer": {"device": "cpu"}}, {"offload_optimizer": {"device": "nvme", "nvme_path": b.tmp}},
              {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}]
    for precision, block in PRECISION.items():
        for frozen in ([], ["--freeze", "transformer.w*", "*ln_1*"]):
            base = config(block, {"gradient_accumulation_steps": 2, "gradient_clipping": 0.5})
            for stage in (2, 3):
                want = b.train(config(base, _stage(stage)), ranks=2, extra=frozen)
                for place in places[:1] if stage == 2 else places:
                    run = b.train(config(base, _stage(stage, **place)), ranks=2, extra=frozen)
                    same(f"{precision}, stage {stage}, {place}, {frozen}", (want.curve, want.bits), (run.curve, run.bits))


def offload_of_what_would_fit_is_called_a_cost(b):
    """The advice names stage 0, and does not come where the device is limited."""
    offload = config(_stage(3, offload_optimizer={"device": "cpu"}))
    assert "stage 0 without offload would need" in b.train(offload, ranks=2).stderr
    assert "stage 0 without" not in b.train(offload, ranks=2, extra=["--device_memory", "1GB"]).stderr


def speed_settings_change_no_bit(b):
    """overlap x contiguous x reduce_scatter, and buckets from one element to half a billion."""
    base = config({"gradient_accumulation_steps": 2})
    for stage in (2, 3):
        want = None
        cases = [{"overlap_comm": o, "contiguous_gradients": c, "reduce_scatter": r}
                 for o, c, r in itertools.product((False, True), repeat=3)]
        cases += [{"overlap_comm": o, "reduce_bucket_size": n, "allgather_bucket_size": a}
                  for o, n, a in itertools.product((False, True), (1, 7, 1000, 16448), (7, 5e8))]
        for case in cases:
            run = b.train(config(base, _stage(stage, **case)), ranks=2, steps=5, extra=["--share_parameters", "false"])
            want = want or (run.curve, run.bits)
            same(f"stage {stage}, {case}", want, (run.curve, run.bits))
    b.refused("reduce_bucket_size", settings=config(_stage(2, reduce_bucket_size=0)))


def evaluation_between_steps_changes_nothing(b):
    """Another length, another order of use, any prefetch and limit; the model is that of stage 0."""
    held_out = harness.rows_of_ids(b.path("v.jsonl"), [64, 3, 40, 7, 21], seed=3)
    extra = ["--validation_file", held_out, "--eval_steps", "1", "--share_parameters", "false"]
    want = b.train(config(), ranks=2, steps=4)
    for prefetch, live, persist in itertools.product((0, 5e7), (1, 20000, 1e9), (0, 1e5)):
        run = b.train(config(_stage(3, stage3_prefetch_bucket_size=prefetch, stage3_max_live_parameters=live,
                                    stage3_param_persistence_threshold=persist)), ranks=2, steps=4, extra=extra)
        same(f"prefetch {prefetch}, live {live}, persistence {persist}", (want.curve, want.bits), (run.curve, run.bits))
        same("evaluations", 4, run.stderr.count("held-out loss"))


def threads_and_repetition_change_no_bit(b):
    want = b.train(config(), ranks=2)
    same("again", want.bits, b.train(config(), ranks=2).bits)
    for n in (2, 3):
        same(f"{n} threads", want.bits, b.train(config(), ranks=2, extra=["--threads", n]).bits)


def a_seed_decides_the_order_and_nothing_else_does(b):
    rows = harness.rows_of_ids(b.path("r.jsonl"), [5 + i % 9 for i in range(32)])

    def run(seed, world, shuffle="true"):
        return b.train(config({"train_micro_batch_size_per_gpu": 8 // world}), rows=rows, ranks=world,
                       extra=["--shuffle", shuffle, "--seed", seed])

    def order(r):
        return next(line for line in r.stderr.splitlines() if line.startswith("  order"))
    seven = run(7, 1)
    same("seed 7 again", (seven.curve, order(seven)), (run(7, 1).curve, order(run(7, 1))))
    assert run(8, 1).curve != seven.curve and order(run(8, 1)).split()[-1] != order(seven).split()[-1]
    for world in (2, 4):
        same(f"order on {world} ranks", order(seven), order(run(7, world)))
    same("file order has no seed", run(7, 1, "false").curve, run(8, 1, "false").curve)


def _tied(b, name, over, extra_head=None):
    """LLAMA with its head taken out (tied), or with another head."""
    def change(tensors):
        tensors.pop("lm_head.weight", None)
        if extra_head:
            tensors["lm_head.weight"] = extra_head(tensors["model.embed_tokens.weight"])
    return b.copy_model(b.model("llama"), name, change, {"tie_word_embeddings": over})


def tied_weights_are_one_tensor_in_every_stage(b):
    rows = harness.rows_of_ids(b.path("r.jsonl"), [16, 9, 12, 7], vocab=400)
    tied = _tied(b, "tied", True)
    copied = _tied(b, "copied", True, lambda embed: embed)
    names = set(read_safetensors(os.path.join(tied, "model.safetensors")))
    want = b.train(config(), model=tied, rows=rows, ranks=2)
    same("saved names", names, set(want.weights))
    with open(os.path.join(want.out, "config.json"), encoding="utf-8") as f:
        same("tie in config.json", True, json.load(f)["tie_word_embeddings"])
    for stage in (1, 2, 3):
        same(f"stage {stage}", want.bits, b.train(config(_stage(stage)), model=tied, rows=rows, ranks=2).bits)
    same("a file that repeats the embedding as the head", want.bits, b.train(config(), model=copied, rows=rows, ranks=2).bits)
    one = b.train(config(), model=tied, rows=rows)
    two = b.train(config({"train_micro_batch_size_per_gpu": 1}), model=tied, rows=rows, ranks=2)
    assert near(one.rows[0]["grad_norm"], two.rows[0]["grad_norm"], 1e-6)


def an_untied_head_is_a_tensor_of_its_own(b):
    rows = harness.rows_of_ids(b.path("r.jsonl"), [16, 9, 12, 7], vocab=400)
    untied = b.train(config(), model=b.model("llama"), rows=rows).weights
    assert untied["lm_head.weight"] != untied["model.embed_tokens.weight"]
    same("head that is a copy at first", False, b.train(config(), model=_tied(b, "copied", False, lambda t: t), rows=rows).weights[
        "lm_head.weight"] == untied["lm_head.weight"])
    b.refused("missing lm_head.weight", settings=config(), model=_tied(b, "missing", False), rows=rows)


def gpt2_is_tied_without_a_word_in_its_config(b):
    def drop(tensors):
        tensors.pop("lm_head.weight", None)
    model = b.copy_model(b.g2, "silent", drop)
    path = os.path.join(model, "config.json")
    with open(path, encoding="utf-8") as f:
        values = json.load(f)
    values.pop("tie_word_embeddings", None)
    with open(path, "w", encoding="utf-8") as f:
        json.dump(values, f)
    run = b.train(config(), model=model)
    assert "lm_head.weight" not in run.weights
    same("weights", b.train(config()).bits, run.bits)
    logits = b.path("logits.safetensors")
    done = b.command("eval", "--model", run.out, "--data", b.ragged, "--logits", logits, "--json")
    assert done.code == 0, done.stderr
    assert len(floats(read_safetensors(logits)["logits"])) == 8 * 32 * 257


if __name__ == "__main__":
    harness.main(globals())

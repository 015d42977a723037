#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Parameters that are not trained: --freeze."""
import harness
from harness import PRECISION, config, floats, read_safetensors, same

EMBED = ["--freeze", "transformer.wte.*", "transformer.wpe.*"]


def _frozen_names(tensors):
    return {n for n in tensors if n.endswith(("wte.weight", "wpe.weight"))}


def frozen_parameters_are_saved_bit_for_bit_in_every_precision_and_stage(b):
    before = read_safetensors(b.g2 + "/model.safetensors")
    for precision, block in PRECISION.items():
        for stage in (0, 1, 2, 3):
            after = b.train(config(block, {"zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 100}}), ranks=2,
                            extra=EMBED + ["--share_parameters", "false"]).weights
            frozen = _frozen_names(before)
            assert len(frozen) == 2
            for name in before:
                where = f"{name} ({precision}, stage {stage})"
                if name in frozen:
                    assert after[name] == before[name], f"{where} changed"
                else:
                    assert after[name] != before[name], f"{where} was not trained"


def frozen_parameters_survive_a_checkpoint_and_a_resume_bit_for_bit(b):
    """What is exported from the checkpoint, and what the resumed run saves at another stage."""
    before = read_safetensors(b.g2 + "/model.safetensors")
    for precision, block in PRECISION.items():
        for stage in (1, 2, 3):
            settings = config(block, {"zero_optimization": {"stage": stage}})
            whole = b.train(settings, ranks=2, steps=4, extra=EMBED + ["--save_steps", "0"])
            run = b.train(settings, ranks=2, steps=4, extra=EMBED + ["--save_steps", "2"])
            done = b.command("export", run.out + "/checkpoint-2", b.path(f"x{stage}{precision}"))
            assert done.code == 0, done.stderr
            exported = read_safetensors(b.path(f"x{stage}{precision}") + "/model.safetensors")
            resumed = b.train(settings, ranks=2, steps=4, extra=EMBED + ["--resume_from_checkpoint", run.out + "/checkpoint-2"])
            for name in _frozen_names(before):
                assert exported[name] == before[name], f"{name} of the checkpoint, {precision}, stage {stage}"
            same(f"resumed run, {precision}, stage {stage}", whole.bits, resumed.bits)


def a_model_that_changed_since_is_not_what_is_saved(b):
    """Frozen values are read again when saving; a folder with other numbers is told from the one that was trained on."""
    model = b.copy_model(b.g2, "model")
    run = b.train(config(PRECISION["bf16"]), model=model, steps=2, extra=EMBED + ["--save_steps", "1"])

    def other(tensors):
        dtype, shape, data = tensors["transformer.wte.weight"]
        tensors["transformer.wte.weight"] = (dtype, shape, data[::-1])
    b.copy_model(b.g2, "model", other)
    resumed = b.train(config(PRECISION["bf16"]), model=model, steps=3, extra=EMBED + ["--resume_from_checkpoint", run.out + "/checkpoint-1"])
    assert "has changed since" in resumed.stderr, resumed.stderr
    kept, want = (floats(r["transformer.wte.weight"]) for r in (resumed.weights, read_safetensors(b.g2 + "/model.safetensors")))
    assert max(abs(x - y) for x, y in zip(kept, want)) < 1e-3


def random_weights_stay_as_they_were_drawn(b):
    """A frozen parameter of a model from scratch is saved as fp32 training saves it, also in bf16."""
    extra = EMBED + ["--from_scratch"]
    want, got = b.train(config(), extra=extra).weights, b.train(config(PRECISION["bf16"]), extra=extra).weights
    for name in _frozen_names(want):
        assert want[name] == got[name], f"{name} differs"


def stages_give_the_same_bits_with_frozen_parameters(b):
    for precision in ("fp32", "bf16"):
        for model, freeze in ((b.g2, ["transformer.h.0.*", "transformer.wte.*", "transformer.wpe.*"]),
                              (b.model("llama"), ["*norm*", "model.layers.1.mlp.*"])):
            runs = [b.train(config(PRECISION[precision], {"gradient_clipping": 0.5, "zero_optimization": {"stage": stage}}), model=model,
                            rows=harness.rows_of_ids(b.path("r.jsonl"), [9, 17, 12, 5, 16, 8]), ranks=3, extra=["--freeze", *freeze])
                    for stage in range(4)]
            for stage, run in enumerate(runs):
                same(f"curve of stage {stage}, {precision}", runs[0].curve, run.curve)
                same(f"weights of stage {stage}, {precision}", runs[0].bits, run.bits)


def trained_parameters_do_not_depend_on_a_skipped_backward(b):
    """With the lowest layers frozen backward ends early; the head trains as it does beside a trained embedding."""
    low = b.train(config(), steps=1, extra=["--freeze", "transformer.w*", "transformer.h.0.*"]).weights
    full = b.train(config(), steps=1, extra=["--freeze", "transformer.h.0.ln_1.bias"]).weights
    top = [n for n in full if ".h.1." in n or "ln_f" in n]
    assert len(top) == 14
    for name in top:
        assert low[name] == full[name], f"{name} differs"


def frozen_parameters_take_no_gradient_master_or_state(b):
    """Bytes of rank 0 at rest, read from the start-up table."""
    def table(run):
        cells = {}
        for line in run.stderr.splitlines():
            words = line.split()
            if words and words[0] in ("gradients", "masters", "optimizer") and "B" in line:
                cells[words[0]] = float(words[-2]) * {"B": 1, "KB": 1e3, "MB": 1e6}[words[-1]]
        return cells
    settings = config(PRECISION["bf16"])
    plain, frozen = b.train(settings, steps=1), b.train(settings, steps=1, extra=EMBED)
    assert "frozen: 2 of 28 parameters, 20544 of 120640 elements (17.0%)" in frozen.stderr, frozen.stderr
    assert "frozen" not in plain.stderr
    a, c = table(plain), table(frozen)
    same("rows", sorted(a), ["gradients", "masters", "optimizer"])
    for row in a:
        share = 1 - c[row] / a[row]
        assert abs(share - 20544 / 120640) < 2e-3, f"{row} shrank by {share}"


def weight_decay_does_not_reach_frozen_parameters(b):
    settings = config({"optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.5}}})
    before = read_safetensors(b.g2 + "/model.safetensors")
    after = b.train(settings, extra=["--freeze", "*.mlp.*"]).weights
    for name in before:
        assert (after[name] == before[name]) == (".mlp." in name), name


def a_pattern_that_matches_nothing_is_an_error_with_a_near_name(b):
    b.refused("--freeze transformer.wte.wieght", "transformer.wte.weight", settings=config(),
              extra=["--freeze", "transformer.wte.wieght"])
    b.refused("--freeze zzzzzzzz*", "matches no parameter", "transformer.wte.weight", settings=config(), extra=["--freeze", "zzzzzzzz*"])
    b.refused("leaves no parameter to train", settings=config(), extra=["--freeze", "*"])


if __name__ == "__main__":
    harness.main(globals())

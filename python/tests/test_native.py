# SPDX-License-Identifier: Apache-2.0
"""A Trainer script and `zinc train`: the same losses, and each goes on from the other's checkpoint."""
import importlib.util
import json
import os
import struct
import subprocess
import tempfile
import unittest

import support

PROGRAM = os.environ.get("ZINC_PROGRAM")
HAVE = PROGRAM and all(importlib.util.find_spec(name) for name in ("transformers", "accelerate"))
ROWS, TOKENS, STEPS = 80, 16, 20  # a step takes 4 rows


def rows():
    import torch
    return torch.randint(0, 48, (ROWS, TOKENS), generator=torch.Generator().manual_seed(5))


def settings(stage):
    return {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
            "gradient_clipping": "auto",
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "betas": [0.9, 0.99], "eps": 1e-8,
                                                      "weight_decay": 0.1}},
            "scheduler": {"type": "WarmupDecayLR", "params": {
                "warmup_min_lr": 0, "warmup_max_lr": 1e-2, "warmup_num_steps": 4,
                "total_num_steps": STEPS}},
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0,
                                  "stage3_gather_16bit_weights_on_model_save": True}}


def make_inputs(folder):
    """model/, tokens.bin and zeroN.json."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(
        vocab_size=48, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32, bos_token_id=0,
        eos_token_id=1, use_cache=False)).save_pretrained(os.path.join(folder, "model"))
    with open(os.path.join(folder, "tokens.bin"), "wb") as f:
        f.write(b"ZINCTOK1" + struct.pack("<II", 2, 0))
        f.write(rows().to(torch.uint16).numpy().tobytes())
    for stage in (2, 3):
        with open(os.path.join(folder, f"zero{stage}.json"), "w", encoding="utf-8") as f:
            json.dump(settings(stage), f)


def zinc_train(folder, out, stage, steps, *more):
    """Losses of `zinc train` on two ranks."""
    done = subprocess.run(
        [PROGRAM, "train", "--model", os.path.join(folder, "model"), "--train_file",
         os.path.join(folder, "tokens.bin"), "--output_dir", os.path.join(folder, out), "--ranks", "2",
         "--threads", "1", "--deepspeed", os.path.join(folder, f"zero{stage}.json"),
         "--per_device_train_batch_size", "2", "--block_size", str(TOKENS), "--max_steps", str(steps),
         "--shuffle", "false", "--save_steps", "10", *more],
        capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(done.stderr[-2000:])
    with open(os.path.join(folder, out, "metrics.jsonl"), encoding="utf-8") as f:
        return [json.loads(line)["loss"] for line in f]


def trainer(folder, out, stage, steps):
    """Losses of the Trainer, which saves after ten steps."""
    from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
    n = int(os.environ["WORLD_SIZE"])
    data = []
    for row in rows():
        labels = row.clone()
        labels[0] = -100  # no row's first token is a target: the Trainer then counts as zinc does
        data.append({"input_ids": row, "labels": labels})
    args = TrainingArguments(
        output_dir=os.path.join(folder, out), use_cpu=True, max_steps=steps, report_to=[],
        per_device_train_batch_size=4 // n, logging_steps=1, max_grad_norm=1.0, save_steps=10,
        learning_rate=1e-2, weight_decay=0.1, adam_beta2=0.99, warmup_steps=4,
        train_sampling_strategy="sequential", disable_tqdm=True,
        deepspeed=os.path.join(folder, f"zero{stage}.json"))
    model = AutoModelForCausalLM.from_pretrained(os.path.join(folder, "model"))
    run = Trainer(model=model, args=args, train_dataset=data)
    run.train()
    return [h["loss"] for h in run.state.log_history if "loss" in h]


def go_on(folder, checkpoint, stage, steps):
    """Losses of a loop over deepspeed.initialize from a checkpoint on."""
    import deepspeed
    from transformers import AutoModelForCausalLM
    deepspeed.init_distributed()
    with open(os.path.join(folder, f"zero{stage}.json"), encoding="utf-8") as f:
        config = json.load(f)
    n, rank = deepspeed.comm.get_world_size(), deepspeed.comm.get_rank()
    config.update(train_micro_batch_size_per_gpu=4 // n, gradient_accumulation_steps=1,
                  gradient_clipping=1.0)
    model = AutoModelForCausalLM.from_pretrained(os.path.join(folder, "model"))
    engine = deepspeed.initialize(model=model, config=config)[0]
    path, client = engine.load_checkpoint(folder, checkpoint)
    assert path is not None and client == {}, (path, client)
    assert engine.global_steps == 10 and abs(engine.get_lr()[0] - 1e-2 * 11 / 16) < 1e-9
    losses, data = [], rows()
    for step in range(10, steps):
        ids = data[4 * step + rank * (4 // n):4 * step + (rank + 1) * (4 // n)]
        loss = engine(input_ids=ids, labels=ids).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    engine.destroy()
    return losses


@unittest.skipUnless(HAVE, "ZINC_PROGRAM is not set, or transformers and accelerate are not there")
class Native(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        make_inputs(cls.folder.name)
        cls.want = zinc_train(cls.folder.name, "native", 2, STEPS)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def near(self, got, want, delta=1e-5):
        for x, y in zip(got, want, strict=True):
            self.assertAlmostEqual(x, y, delta=delta)

    def test_a_trainer_run_has_the_losses_of_zinc_train_and_each_continues_the_other(self):
        folder = self.folder.name
        got = support.ranks(2, "test_native", "trainer", folder, "hf", 3, STEPS, folder=folder)[0]
        self.near(got, self.want)
        # Batches are each program's own: this one reads on where ten steps of its order end.
        checkpoint = os.path.join(folder, "hf", "checkpoint-10")
        more = zinc_train(folder, "on", 2, STEPS, "--resume_from_checkpoint", checkpoint)
        self.near(more[-10:], self.want[10:])
        done = subprocess.run([PROGRAM, "export", checkpoint, os.path.join(folder, "model2")],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.weights("model2"), self.weights("hf/checkpoint-10"))
        with open(os.path.join(folder, "model2", "config.json"), encoding="utf-8") as f:
            self.assertEqual(json.load(f)["architectures"], ["LlamaForCausalLM"])

    def test_python_goes_on_from_a_checkpoint_of_zinc_train_on_any_number_of_ranks(self):
        folder = self.folder.name
        for n, stage in ((1, 2), (4, 3)):
            got = support.ranks(n, "test_native", "go_on", folder, "native/checkpoint-10", stage, STEPS,
                                folder=folder)
            mean = [sum(r[i] for r in got) / n for i in range(STEPS - 10)]
            self.near(mean, self.want[10:])

    def weights(self, name):
        from safetensors.torch import load_file
        weights = load_file(os.path.join(self.folder.name, name, "model.safetensors"))
        return {k: v.tolist() for k, v in weights.items()}


if __name__ == "__main__":
    unittest.main()

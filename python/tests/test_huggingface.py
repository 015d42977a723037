# SPDX-License-Identifier: Apache-2.0
"""An unmodified Trainer on two ranks, against the same Trainer alone with twice the batch."""
import importlib.util
import os
import tempfile
import unittest

import support

HAVE = all(importlib.util.find_spec(name) for name in ("transformers", "accelerate"))


def settings(stage):
    return {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
            "bf16": {"enabled": "auto"}, "steps_per_print": float("inf"),
            "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
                                                      "weight_decay": "auto"}},
            "zero_optimization": {"stage": stage, "reduce_bucket_size": "auto",
                                  "stage3_prefetch_bucket_size": "auto",
                                  "stage3_param_persistence_threshold": 0,
                                  "stage3_gather_16bit_weights_on_model_save": True}}


def trainer(stage, folder, out, resume):
    """stage None: torch alone. Losses, norms, evaluation and one text continued."""
    import torch
    from transformers import AutoModelForCausalLM, GPT2Config, Trainer, TrainingArguments
    n = int(os.environ["WORLD_SIZE"])
    torch.manual_seed(0)
    rows = torch.randint(0, 40, (24, 8), generator=torch.Generator().manual_seed(3))
    data = [{"input_ids": r, "labels": r.clone()} for r in rows]
    model_dir = os.path.join(folder, "model")
    args = TrainingArguments(
        output_dir=os.path.join(folder, out), use_cpu=True, max_steps=4, report_to=[], seed=7,
        per_device_train_batch_size=4 // n, gradient_accumulation_steps=2, logging_steps=1,
        learning_rate=5e-3, weight_decay=0.0, max_grad_norm=0.5, save_steps=2, do_eval=True,
        gradient_checkpointing=stage == 3, disable_tqdm=True,
        deepspeed=settings(stage) if stage is not None else None)
    if not os.path.exists(model_dir):  # made by the reference, which runs first
        AutoModelForCausalLM.from_config(GPT2Config(
            vocab_size=40, n_positions=16, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
            use_cache=False)).save_pretrained(model_dir)
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    run = Trainer(model=model, args=args, train_dataset=data, eval_dataset=data[:8])
    run.train(resume_from_checkpoint=os.path.join(folder, out, "checkpoint-2") if resume else None)
    evaluated = run.evaluate()["eval_loss"]
    made = run.model.generate(rows[:1, :4], max_new_tokens=3, do_sample=False)[0].tolist()
    run.save_model()
    log = [h for h in run.state.log_history if "loss" in h]
    return {"losses": [h["loss"] for h in log], "norms": [float(h["grad_norm"]) for h in log],
            "eval": evaluated, "made": made,
            "distributed": str(run.accelerator.distributed_type)}


def names_in(folder):
    from safetensors import safe_open
    with safe_open(os.path.join(folder, "model.safetensors"), "pt") as f:
        return set(f.keys())


@unittest.skipUnless(HAVE, "transformers and accelerate are not installed")
class HuggingFace(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        [cls.want] = support.ranks(1, "test_huggingface", "trainer", None, cls.folder.name, "alone",
                                   False, folder=cls.folder.name)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def compare(self, stage, resume=False):
        got = support.ranks(2, "test_huggingface", "trainer", stage, self.folder.name, f"z{stage}",
                            resume, folder=self.folder.name)
        for rank in got:
            self.assertIn("DEEPSPEED", rank["distributed"])
            self.assertEqual(rank["made"], self.want["made"])
            self.assertAlmostEqual(rank["eval"], self.want["eval"], places=4)
        self.assertLessEqual(names_in(os.path.join(self.folder.name, "alone")),
                             names_in(os.path.join(self.folder.name, f"z{stage}")))
        for key in ("losses", "norms"):
            for x, y in zip(got[0][key], self.want[key], strict=True):
                self.assertAlmostEqual(x, y, places=4)

    def test_stage_2_equals_torch_alone_and_resumes(self):
        self.compare(2)
        self.compare(2, resume=True)

    def test_stage_3_with_recomputed_layers_equals_torch_alone_and_resumes(self):
        self.compare(3)
        self.compare(3, resume=True)


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""Commands as a user types them: the tutorials' configurations under the Trainer, `deepspeed`, torchrun
and accelerate; and a rank that fails, which ends all."""
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

import support

PROGRAM = os.environ.get("ZINC_PROGRAM")
HAVE_HF = all(importlib.util.find_spec(name) for name in ("transformers", "accelerate"))
TUTORIALS = os.path.join(os.path.dirname(os.path.dirname(support.HERE)), "tests", "data", "config")
DEEPSPEED = [sys.executable, "-c", "from deepspeed.launcher.runner import main; main()"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2"]

FAILS = """
import os, signal, sys
import torch, deepspeed
deepspeed.init_distributed()
with open(f"pid{deepspeed.comm.get_rank()}", "w") as f:
    f.write(str(os.getpid()))
engine = deepspeed.initialize(model=torch.nn.Linear(8, 8), config={
    "train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0}})[0]
for step in range(10**9):
    if step == 3 and engine.global_rank == 1:
        if sys.argv[1] == "raise":
            raise ValueError("a bad row in the data")
        os.kill(os.getpid(), signal.SIGKILL)
    engine.backward(engine(torch.ones(2, 8)).sum())
    engine.step()
"""
# Its only line about DeepSpeed is an argument of TrainingArguments.
TRAINS = """
import json, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
args = TrainingArguments(output_dir="./res", deepspeed="./ds_config.json", per_device_train_batch_size=4, fp16=True,
                         max_steps=4, logging_steps=1, report_to=[], disable_tqdm=True, learning_rate=1e-2)
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2, bos_token_id=0,
                                   eos_token_id=0))
row = torch.randint(0, 64, (16,))
trainer = Trainer(model=model, args=args, train_dataset=[{"input_ids": row, "labels": row}] * 64)
trainer.train()
if trainer.is_world_process_zero():
    with open("log.json", "w") as f:
        json.dump([h["loss"] for h in trainer.state.log_history if "loss" in h], f)
"""
LOOP = """
import json, torch
from accelerate import Accelerator, PartialState
PartialState(cpu=True)
accelerator = Accelerator()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(32, 8), torch.zeros(32, 1)), batch_size=4)
model, optimizer, data = accelerator.prepare(model, optimizer, data)
losses = []
for _epoch in range(2):
    for x, y in data:
        loss = torch.nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
if accelerator.is_main_process:
    with open("log.json", "w") as f:
        json.dump([str(accelerator.distributed_type), accelerator.num_processes] + losses, f)
"""


def run(folder, script, *command):
    """The command, in a folder that has script.py."""
    with open(os.path.join(folder, "script.py"), "w", encoding="utf-8") as f:
        f.write(script)
    path = os.pathsep.join(support.path_for(folder))
    first = [os.path.dirname(PROGRAM)] if PROGRAM else []
    env = dict(os.environ, PYTHONPATH=path, OMP_NUM_THREADS="1", MASTER_PORT=str(support.free_port()),
               PATH=os.pathsep.join(first + [os.path.dirname(sys.executable), os.environ["PATH"]]))
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False)


def log_of(folder):
    with open(os.path.join(folder, "log.json"), encoding="utf-8") as f:
        return json.load(f)


class OneFailsAll(unittest.TestCase):
    def ends(self, command, how, code, *texts):
        with tempfile.TemporaryDirectory() as folder:
            done = run(folder, FAILS, *command, "script.py", how)
            self.assertEqual(done.returncode, code, done.stderr[-3000:])
            for text in texts:
                self.assertIn(text, done.stdout + done.stderr)
            for rank in range(2):
                with open(os.path.join(folder, f"pid{rank}"), encoding="ascii") as f:
                    self.assertRaises(ProcessLookupError, os.kill, int(f.read()), 0)

    @unittest.skipUnless(PROGRAM, "ZINC_PROGRAM is not set")
    def test_an_exception_under_the_command_deepspeed(self):
        self.ends(DEEPSPEED + ["--num_gpus", "2", "--master_port", str(support.free_port())], "raise", 1,
                  "rank 1 on localhost exited with code 1", "    [rank1]: ValueError: a bad row in the data")

    @unittest.skipUnless(PROGRAM, "ZINC_PROGRAM is not set")
    def test_a_killed_rank_under_the_command_deepspeed(self):
        self.ends(DEEPSPEED + ["--num_gpus", "2", "--master_port", str(support.free_port())], "kill",
                  128 + signal.SIGKILL, "rank 1 on localhost was ended by signal 9")

    def test_a_killed_rank_under_torchrun(self):
        self.ends(TORCHRUN + ["--master_port", str(support.free_port())], "kill", 1,
                  "failed (exitcode: -9) local_rank: 1")


@unittest.skipUnless(HAVE_HF, "transformers and accelerate are not installed")
class Commands(unittest.TestCase):
    def learns(self, losses):
        self.assertEqual(len(losses), 4)
        self.assertLess(losses[-1], losses[0] - 0.2)

    @unittest.skipUnless(PROGRAM, "ZINC_PROGRAM is not set")
    def test_the_tutorials_configurations_train_once_their_comments_are_taken_out(self):
        for name, start in (("tutorial_zero2.json", TORCHRUN + ["--master_port"]),
                            ("tutorial_zero3_offload.json", DEEPSPEED + ["--num_gpus", "2", "--master_port"])):
            with tempfile.TemporaryDirectory() as folder:
                plain = os.path.join(folder, "ds_config.json")
                subprocess.run([PROGRAM, "config", "check", os.path.join(TUTORIALS, name), "--for", "transformers",
                                "--output", plain], check=True, capture_output=True)
                done = run(folder, TRAINS, *start, str(support.free_port()), "script.py")
                self.assertEqual(done.returncode, 0, done.stderr[-3000:])
                self.learns(log_of(folder))

    @unittest.skipUnless(PROGRAM, "ZINC_PROGRAM is not set")
    def test_comments_are_named_before_a_process_starts(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(os.path.join(TUTORIALS, "tutorial_zero2.json"), folder)
            done = run(folder, "open('started', 'w')", *DEEPSPEED, "--num_gpus", "2", "script.py", "--deepspeed",
                       "tutorial_zero2.json")
            self.assertEqual(done.returncode, 1)
            self.assertIn("tutorial_zero2.json: not valid JSON at line 17", done.stderr)
            self.assertIn("--for transformers", done.stderr)
            self.assertFalse(os.path.exists(os.path.join(folder, "started")))

    def test_a_script_with_one_line_of_deepspeed_trains_without_a_launcher(self):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "ds_config.json"), "w", encoding="utf-8") as f:
                json.dump({"train_batch_size": "auto", "gradient_accumulation_steps": "auto",
                           "fp16": {"enabled": True}, "zero_optimization": {"stage": 2}}, f)
            done = run(folder, TRAINS, sys.executable, "script.py")
            self.assertEqual(done.returncode, 0, done.stderr[-3000:])
            self.learns(log_of(folder))

    def test_accelerate_launch_of_a_plain_loop(self):
        with tempfile.TemporaryDirectory() as folder:
            done = run(folder, LOOP, sys.executable, "-m", "accelerate.commands.accelerate_cli", "launch",
                       "--use_deepspeed", "--zero_stage", "2", "--num_processes", "2", "--main_process_port",
                       str(support.free_port()), "script.py")
            self.assertEqual(done.returncode, 0, done.stderr[-3000:])
            kind, n, *losses = log_of(folder)
            self.assertEqual((kind, n, len(losses)), ("DistributedType.DEEPSPEED", 2, 8))
            self.assertLess(losses[-1], losses[0])


@unittest.skipUnless(os.environ.get("ZINC_TEST_INSTALLED"), "the source tree is tested")
class Installed(unittest.TestCase):
    def test_the_programs_are_beside_python(self):
        for name, args, text in (("zinc", ["--version"], "zinc 0."), ("deepspeed", ["--help"], "zinc launch"),
                                 ("ds_report", [], "(Zinc, not DeepSpeed)"), ("zero_to_fp32.py", ["-h"], "--tag")):
            program = os.path.join(os.path.dirname(sys.executable), name)
            done = subprocess.run([program] + args, capture_output=True, text=True, check=True)
            self.assertIn(text, done.stdout)


if __name__ == "__main__":
    unittest.main()

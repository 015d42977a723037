# SPDX-License-Identifier: Apache-2.0
"""Loops of other models, optimizers and schedules, as scripts have them, on two ranks against torch
alone with twice the batch; and what scripts look at and write on the way."""
import importlib.util
import os
import tempfile
import unittest

import support

HAVE_HF = all(importlib.util.find_spec(name) for name in ("transformers", "peft"))
ROWS, STEPS = 4, 3  # of the global batch; optimizer steps


def conv():
    """A small convolutional net with a plain loss."""
    import torch
    torch.manual_seed(1)

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.body = torch.nn.Sequential(
                torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.GroupNorm(2, 8), torch.nn.ReLU(),
                torch.nn.MaxPool2d(2), torch.nn.Conv2d(8, 8, 3), torch.nn.ReLU())
            self.scale = torch.nn.Parameter(torch.tensor(0.5))
            self.out = torch.nn.Linear(8 * 2 * 2, 5)

        def forward(self, x):
            return self.out(self.body(x).flatten(1)) * self.scale

    def loss_of(model, rows):
        x = torch.randn(ROWS, 3, 8, 8, generator=torch.Generator().manual_seed(7))[rows]
        return torch.nn.functional.cross_entropy(model(x), torch.arange(ROWS)[rows])

    return Net(), loss_of


def language_model(name):
    import torch
    import transformers
    torch.manual_seed(2)
    sizes = dict(vocab_size=40, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                 num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=32,
                 use_cache=False, bos_token_id=0, eos_token_id=1)
    kind = {"qwen2": "Qwen2", "lora": "Llama"}[name]
    model = getattr(transformers, kind + "ForCausalLM")(getattr(transformers, kind + "Config")(**sizes))
    if name == "lora":
        import peft
        model = peft.get_peft_model(model, peft.LoraConfig(
            r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False))

    def loss_of(model, rows):
        ids = torch.randint(0, 40, (ROWS, 12), generator=torch.Generator().manual_seed(8))[rows]
        return model(input_ids=ids, labels=ids).loss

    return model, loss_of


def make(name):
    """(model, loss function, optimizer, schedule)"""
    import torch
    model, loss_of = conv() if name == "conv" else language_model(name)
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(params, lr=0.2, momentum=0.9) if name == "conv" else \
        torch.optim.AdamW(params, lr=1e-2, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5) if name == "conv" else \
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    return model, loss_of, optimizer, schedule


def alone(name):
    import torch
    model, loss_of, optimizer, schedule = make(name)
    losses, rates = [], []
    for _step in range(STEPS):
        loss = loss_of(model, slice(0, ROWS))
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        rates.append(optimizer.param_groups[0]["lr"])
    return {"losses": losses, "rates": rates}


def look_and_write(engine, loss_of, rows):
    """Gradient, states and masters of one parameter, read and written between two steps."""
    import torch
    from deepspeed.utils import (safe_get_full_fp32_param, safe_get_full_grad,
                                 safe_get_full_optimizer_state, safe_set_full_fp32_param,
                                 safe_set_full_optimizer_state)
    engine.offload_states()
    engine.reload_states()
    param = next(p for p in engine.module.parameters() if p.requires_grad)
    assert safe_get_full_grad(param) is None
    engine.backward(loss_of(engine, rows))
    grad = safe_get_full_grad(param)
    engine.step()
    norm = grad.norm().item()
    assert 0 < norm <= engine.get_global_grad_norm() * 1.0001
    state = "exp_avg" if "AdamW" in type(engine.optimizer.optimizer).__name__ else "momentum_buffer"
    safe_set_full_optimizer_state(param, torch.full_like(grad, 0.25), state)
    safe_set_full_fp32_param(param, torch.full_like(grad, 0.125))
    assert (safe_get_full_optimizer_state(param, state) == 0.25).all()
    assert (safe_get_full_fp32_param(param) == 0.125).all()
    assert safe_get_full_optimizer_state(param, "no such state") is None
    import deepspeed
    with deepspeed.zero.GatheredParameters(param):
        assert (param.data == 0.125).all()
    return norm


def scripts(stage):
    """{name: {"losses", "rates"}}, and the largest parameter norm of the writes."""
    import deepspeed
    deepspeed.init_distributed()
    rank, n = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
    rows, out = slice(rank * ROWS // n, (rank + 1) * ROWS // n), {}
    for name in ("conv",) + (("qwen2", "lora") if HAVE_HF else ()):
        model, loss_of, optimizer, schedule = make(name)
        engine = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config={
            "train_micro_batch_size_per_gpu": ROWS // n, "gradient_clipping": 1.0,
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 20}})[0]
        losses, rates = [], []
        for _step in range(STEPS):
            loss = loss_of(engine, rows)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
            rates.append(optimizer.param_groups[0]["lr"])
        out[name] = {"losses": losses, "rates": rates, "norm": look_and_write(engine, loss_of, rows)}
        engine.destroy()
    return out


class Scripts(unittest.TestCase):
    def compare(self, stage):
        with tempfile.TemporaryDirectory() as folder:
            got = support.ranks(2, "test_scripts", "scripts", stage, folder=folder)
        for name in got[0]:
            want = alone(name)
            for i in range(STEPS):
                mean = sum(rank[name]["losses"][i] for rank in got) / len(got)
                self.assertAlmostEqual(mean, want["losses"][i], delta=2e-5, msg=name)
                self.assertAlmostEqual(got[0][name]["rates"][i], want["rates"][i], msg=name)
            self.assertEqual(got[0][name]["norm"], got[1][name]["norm"])

    def test_stage_2_trains_other_models_and_shows_their_states(self):
        self.compare(2)

    def test_stage_3_trains_other_models_and_shows_their_states(self):
        self.compare(3)


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""deepspeed.initialize on plain torch modules, against torch's own optimizers on one process."""
import os
import subprocess
import sys
import tempfile
import unittest

import support

STEPS, GAS, ROWS = 4, 2, 3


def make_model(seed=0):
    import torch
    torch.manual_seed(seed)

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = torch.nn.Linear(6, 10), torch.nn.Linear(10, 6)

        def forward(self, x):
            return x + self.down(torch.tanh(self.up(x)))

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(11, 6)
            self.blocks = torch.nn.ModuleList(Block() for _ in range(3))
            self.norm = torch.nn.LayerNorm(6)
            self.head = torch.nn.Linear(6, 11, bias=False)
            self.head.weight = self.embed.weight
            self.register_buffer("seen", torch.zeros(1))
            self.register_buffer("mask", torch.zeros(2, 3, dtype=torch.bool).t())

        def forward(self, ids):
            x = self.embed(ids)
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Model()


def batch(step, micro, rank):
    import torch
    g = torch.Generator().manual_seed(1000 * step + 10 * micro + rank)
    ids = torch.randint(0, 11, (ROWS, 5), generator=g)
    return ids[:, :-1], ids[:, 1:]


def loss_of(model, step, micro, rank):
    import torch
    ids, want = batch(step, micro, rank)
    return torch.nn.functional.cross_entropy(model(ids).float().flatten(0, 1), want.flatten())


def make_optimizer(params):
    import torch
    params = list(params)
    return torch.optim.AdamW([{"params": params[:3]}, {"params": params[3:], "weight_decay": 0.0}],
                             lr=0.02, weight_decay=0.1)


def reference(n_ranks, clip):
    """The same training by torch alone: losses of rank 0, norms, rates, weights."""
    import torch
    model = make_model()
    optimizer = make_optimizer(model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1 / (1 + s))
    out = {"losses": [], "norms": [], "lr": []}
    for step in range(STEPS):
        for micro in range(GAS):
            for rank in range(n_ranks):
                loss = loss_of(model, step, micro, rank)
                (loss / GAS / n_ranks).backward()
                if rank == 0:
                    out["losses"].append(loss.item())
        out["norms"].append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip).item())
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        out["lr"].append(optimizer.param_groups[0]["lr"])
    out["weights"] = {k: v.flatten().tolist() for k, v in model.named_parameters()}
    return out


def config(stage, **more):
    return dict({"train_micro_batch_size_per_gpu": ROWS, "gradient_accumulation_steps": GAS,
                 "gradient_clipping": 0.3, "zero_optimization": {
                     "stage": stage, "stage3_param_persistence_threshold": 0,
                     "stage3_gather_16bit_weights_on_model_save": True}}, **more)


def steps(engine, first, last):
    losses, norms = [], []
    for step in range(first, last):
        for micro in range(GAS):
            loss = loss_of(engine, step, micro, engine.global_rank)
            losses.append(loss.item())
            engine.backward(loss)
            engine.step()
        norms.append(engine.get_global_grad_norm())
    return losses, norms


def weights_of(engine):
    import torch
    from deepspeed.zero import GatheredParameters
    with GatheredParameters(engine.module.parameters()):
        return {k: v.detach().float().flatten().tolist() for k, v in engine.module.named_parameters()}


def train(stage, folder, how):
    """how: plain | init (zero.Init) | resume."""
    import torch
    import deepspeed
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    deepspeed.init_distributed()
    settings = config(stage)
    rank = deepspeed.comm.get_rank()

    def build():
        if how == "init":
            with deepspeed.zero.Init(config_dict_or_path=settings):
                model = make_model(seed=rank)
            full = dict(make_model().named_parameters())
            for name, param in model.named_parameters():
                assert param.numel() == 0 and param.ds_numel == full[name].numel()
                with deepspeed.zero.GatheredParameters(param, modifier_rank=0):
                    if rank == 0:
                        with torch.no_grad():
                            param.copy_(full[name])
        else:
            model = make_model(seed=0 if rank == 0 else 5)  # rank 0's weights are everyone's
        model.mask.fill_(rank == 0)
        optimizer = make_optimizer(model.parameters())
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1 / (1 + s))
        return deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule,
                                    config=settings)[0]

    engine = build()
    assert engine.module.mask.all()
    losses, norms = steps(engine, 0, STEPS if how != "resume" else 2)
    if how == "resume":
        engine.module.seen += 7
        engine.save_checkpoint(folder, client_state={"epoch": 3})
        master = deepspeed.utils.safe_get_full_fp32_param(engine.module.norm.weight)
        saved = get_fp32_state_dict_from_zero_checkpoint(folder)
        assert torch.equal(saved["norm.weight"], master) and saved["embed.weight"].shape == (11, 6)
        engine.destroy()
        engine = build()
        path, client = engine.load_checkpoint(folder)
        assert path.endswith("global_step2") and client == {"epoch": 3}, (path, client)
        assert engine.module.seen.item() == 7
        more, more_norms = steps(engine, 2, STEPS)
        losses, norms = losses + more, norms + more_norms
        assert engine.load_checkpoint(os.path.join(folder, "nothing")) == (None, {})
    out = {"losses": losses, "norms": norms, "lr": engine.get_lr()[0], "weights": weights_of(engine),
           "empty": all(p.numel() == 0 for p in engine.module.parameters())}
    whole = engine._zero3_consolidated_16bit_state_dict()
    out["names"] = sorted(whole) if whole is not None else None
    assert engine.save_16bit_model(folder)
    engine.destroy()
    engine.destroy()
    return out


class Engine(unittest.TestCase):
    def compare(self, stage, how, n=2):
        want = reference(n, 0.3)
        with tempfile.TemporaryDirectory() as folder:
            got = support.ranks(n, "test_engine", "train", stage, folder, how, folder=folder)
        for x, y in zip(got[0]["losses"], want["losses"], strict=True):
            self.assertAlmostEqual(x, y, places=5)
        for x, y in zip(got[0]["norms"], want["norms"], strict=True):
            self.assertAlmostEqual(x, y, places=5)
        self.assertAlmostEqual(got[0]["lr"], want["lr"][-1], places=9)
        for rank in got:
            self.assertEqual(rank["empty"], stage == 3)
            for name, values in want["weights"].items():
                for x, y in zip(rank["weights"][name], values, strict=True):
                    self.assertAlmostEqual(x, y, delta=3e-5)
        self.assertEqual(len(got[0]["names"]), len(want["weights"]) + 3)  # the tied name, the buffers

    def test_stage_0_trains_as_torch_does(self):
        self.compare(0, "plain")

    def test_stage_2_trains_as_torch_does_and_resumes(self):
        self.compare(2, "resume")

    def test_stage_3_trains_as_torch_does_from_zero_init(self):
        self.compare(3, "init")

    def test_stage_3_without_zero_init_resumes(self):
        self.compare(3, "resume")

    def test_import_does_nothing_and_brings_nothing(self):
        code = ("import sys, torch, torch.distributed as d, os; sys.path.insert(0, %r); was = set(sys.modules);"
                "environment = dict(os.environ); import deepspeed; new = set(sys.modules) - was;"
                "print(sorted(n for n in new if n.split('.')[0] not in ('deepspeed', 'zinc')));"
                "assert environment == dict(os.environ) and not d.is_initialized();"
                "import zinc._lib; assert zinc._lib.lib._dll is None" % os.path.dirname(support.HERE))
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        self.assertEqual(out.stdout, "[]\n")  # what takes time is torch, which the script has anyway


if __name__ == "__main__":
    unittest.main()

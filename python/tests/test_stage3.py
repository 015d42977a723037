# SPDX-License-Identifier: Apache-2.0
"""Stage 3 under autograd: what is freed, frozen parameters, recomputed blocks; and what refuses."""
import os
import tempfile
import unittest

import support
from test_engine import GAS, ROWS, batch, config, loss_of, make_model


def variant(model, how):
    """frozen: embedding and every `up` are frozen; lora: only `down` of the last two blocks trains.
    again, reentrant: blocks are recomputed in backward."""
    import torch.utils.checkpoint as recompute
    if "frozen" in how:
        for name, param in model.named_parameters():
            param.requires_grad = not ("up" in name or "embed" in name)
    if "lora" in how:
        for name, param in model.named_parameters():
            param.requires_grad = name.startswith(("blocks.1.down", "blocks.2.down"))
    if "again" in how or "reentrant" in how:
        for block in model.blocks:
            # The module's own call, hooks and all, runs inside, as transformers' layers do it.
            block.__class__ = type("Again", (type(block),), {
                "__call__": lambda self, x, base=type(block): recompute.checkpoint(
                    super(type(self), self).__call__, x, use_reentrant="reentrant" in how)})
    return model


def reference(how, n_ranks=2, n_steps=3):
    import torch
    model = variant(make_model(), how)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    norms = []
    for step in range(n_steps):
        for micro in range(GAS):
            for rank in range(n_ranks):
                (loss_of(model, step, micro, rank) / GAS / n_ranks).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9).item())
        optimizer.step()
        optimizer.zero_grad()
    return norms


def bytes_of(module):
    return {n: p._zinc.bytes() for n, p in module.named_parameters()}


def norms_of(how, stage):
    import torch
    import deepspeed
    model = variant(make_model(), how)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    engine = deepspeed.initialize(model=model, optimizer=optimizer,
                                  config=config(stage, gradient_clipping=0))[0]
    norms = []
    for step in range(3):
        for micro in range(GAS):
            loss = loss_of(engine, step, micro, engine.global_rank)
            if stage == 3:  # the graph lives, and holds no weight
                assert not any(bytes_of(engine.module).values()), bytes_of(engine.module)
            engine.backward(loss)
            if stage == 3:
                assert not any(bytes_of(engine.module).values()), bytes_of(engine.module)
            engine.step()
        norms.append(engine.get_global_grad_norm())
    if stage == 3:  # counted by libzinc: two units, and between steps nothing
        assert 0 < engine.zinc.stats()["live_peak"] <= engine._most_live(), engine.zinc.stats()
        assert engine.zinc.blocks.bytes() == 0
    engine.destroy()
    return norms


def seen_while_running():
    """Parameters that have their bytes while `up` of block 1 runs, and while its gradient comes."""
    import deepspeed
    model = make_model()
    engine = deepspeed.initialize(model=model, config=config(
        3, optimizer={"type": "AdamW", "params": {"lr": 0.01}}))[0]
    seen = []

    def there():
        return sorted({n.rsplit(".", 2)[0] if n.startswith("blocks") else n.split(".")[0]
                       for n, size in bytes_of(model).items() if size})

    def hook(_module, _args, output):
        seen.append(there())
        output.register_hook(lambda _grad: seen.append(there()))

    model.blocks[1].up.register_forward_hook(hook)
    engine.backward(loss_of(engine, 0, 0, 0))
    # evaluation goes around the engine, and may end in an exception
    try:
        model(batch(0, 0, 0)[0] + 1000)
    except IndexError:
        seen.append(there())
    engine.destroy()
    return seen


def evaluated_then_trained():
    """An engine without an optimizer under stage 3, then one that trains the same model: the losses
    of both before a step, the first norm, and what is left over."""
    import deepspeed
    import torch
    with deepspeed.zero.Init(config_dict_or_path=config(3)):
        model = make_model()
    model.counts = torch.nn.Parameter(torch.arange(3), requires_grad=False)  # no weight
    looking = deepspeed.initialize(model=model, config=config(3))[0]
    assert looking.optimizer is None
    with torch.no_grad():
        before = loss_of(looking, 0, 0, 0).item()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5)
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config(
        3, gradient_accumulation_steps=1, gradient_clipping=0))[0]
    loss = loss_of(engine, 0, 0, 0)
    engine.backward(loss)
    engine.step()
    after = loss_of(model, 0, 0, 0).item()  # around the engine
    left = sum(p._zinc.bytes() for p in model.parameters() if hasattr(p, "_zinc"))
    engine.destroy()
    looking.destroy()
    return [before, loss.item(), after, left, model.counts.tolist()]


class Gated:
    """Rank 1 leaves the second block out: its gradients come in another order, and one not at all."""

    def __call__(self, model, ids):
        x = model.embed(ids)
        for i, block in enumerate(model.blocks):
            x = x if self.rank == 1 and i == 1 else block(x)
        return model.head(model.norm(x))


def gated(rank):
    model = make_model()
    gate = Gated()
    gate.rank = rank
    model.forward = lambda ids: gate(model, ids)
    return model, gate


def unused_on_one_rank(stage):
    import deepspeed
    import torch
    deepspeed.init_distributed()
    model, _gate = gated(deepspeed.comm.get_rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    out = []
    for _again in range(2):  # the second engine takes the first one's hooks off
        engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config(
            stage, gradient_accumulation_steps=1, gradient_clipping=0))[0]
        for step in range(2):
            engine.backward(loss_of(engine, step, 0, engine.global_rank))
            engine.step()
            out.append(engine.get_global_grad_norm())
    return out


def unused_reference():
    import torch
    model, gate = gated(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    out = []
    for step in (0, 1, 0, 1):
        for gate.rank in range(2):
            (loss_of(model, step, 0, gate.rank) / 2).backward()
        out.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9).item())
        optimizer.step()
        optimizer.zero_grad()
    return out


def without_frozen(stage, folder):
    """Saved without frozen parameters; loaded into a model whose frozen ones are others."""
    import os
    import deepspeed
    import torch
    from deepspeed.zero import GatheredParameters
    from safetensors import safe_open

    def build(shift):
        model = variant(make_model(), "frozen")
        with torch.no_grad():
            for param in model.parameters():
                param.add_(shift)
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.5,
                                    momentum=0.9)
        return deepspeed.initialize(model=model, optimizer=optimizer, config=config(
            stage, gradient_accumulation_steps=1))[0]

    def values(engine, names):
        with GatheredParameters(engine.module.parameters()):
            params = dict(engine.module.named_parameters())
            return [params[n].detach().flatten()[:4].tolist() for n in names]

    engine = build(0)
    engine.backward(loss_of(engine, 0, 0, engine.global_rank))
    engine.step()
    engine.save_checkpoint(folder, "t", exclude_frozen_parameters=True)
    saved = values(engine, ["norm.weight", "blocks.0.down.weight"])
    frozen = values(engine, ["embed.weight", "blocks.0.up.weight"])
    names = set()
    for rank in range(2):
        part = os.path.join(folder, "t", f"shard-{rank:05}-of-00002.safetensors")
        with safe_open(part, "pt") as f:
            names |= {k.split("@")[0] for k in f.keys() if "blocks.0" in k}
    names = sorted(names)
    engine.destroy()
    engine = build(1.0)
    engine.load_checkpoint(folder, "t")
    same = values(engine, ["norm.weight", "blocks.0.down.weight"]) == saved
    moved = [[y - x for x, y in zip(a, b)] for a, b in zip(frozen, values(
        engine, ["embed.weight", "blocks.0.up.weight"]))]
    engine.destroy()
    return [same, moved, names]


def written(stage):
    """A parameter is written between two steps: what all ranks then have, and the last norm, which
    shows the momentum of the first step too."""
    import deepspeed
    import torch
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config(
        stage, gradient_accumulation_steps=1, gradient_clipping=0))[0]
    norms = []
    for step in range(3):
        engine.backward(loss_of(engine, step, 0, engine.global_rank))
        engine.step()
        norms.append(engine.get_global_grad_norm())
        with deepspeed.zero.GatheredParameters(model.parameters(), modifier_rank=1), torch.no_grad():
            if step == 0 and engine.global_rank == 1:
                model.norm.weight.copy_(torch.arange(6.0))
        with deepspeed.zero.GatheredParameters(model.norm.weight):
            if step == 0:
                seen = model.norm.weight.tolist()
    engine.destroy()
    return [seen, norms]


def written_reference():
    import torch
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    norms = []
    for step in range(3):
        for rank in range(2):
            (loss_of(model, step, 0, rank) / 2).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 1e9).item())
        optimizer.step()
        optimizer.zero_grad()
        if step == 0:
            model.norm.weight.data = torch.arange(6.0)
    return norms


def unreadable_state(folder):
    import deepspeed
    engine = deepspeed.initialize(model=make_model(), config=config(
        0, optimizer={"type": "AdamW", "params": {"lr": 0.01}}))[0]
    try:
        engine.save_checkpoint(folder, client_state={"f": unittest.TestCase})
    except ValueError as error:
        return str(error)
    finally:
        engine.destroy()


def half():
    """fp16: a gradient that overflows skips the step, and neither weights nor schedule move."""
    import torch
    import deepspeed
    model = make_model()
    made = []

    def schedule(optimizer):
        made.append(torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: 1 / (1 + s)))
        return made[0]

    engine, optimizer, _, scheduler = deepspeed.initialize(
        model=model, lr_scheduler=schedule, model_parameters=model.parameters(),
        config={"train_batch_size": ROWS, "zero_optimization": {"stage": 1},
                "optimizer": {"type": "Adam", "params": {"lr": 0.125}},
                "fp16": {"enabled": True, "initial_scale_power": 4, "hysteresis": 1,
                         "loss_scale_window": 100}})
    assert scheduler is made[0]
    assert {p.dtype for p in model.parameters()} == {torch.float16}
    before = {k: v.clone() for k, v in model.named_parameters()}
    engine.backward(loss_of(engine, 0, 0, 0) * float("inf"))
    engine.step()
    out = {"overflow": optimizer.overflow, "scale": optimizer.loss_scale, "lr": engine.get_lr()[0],
           "same": all(torch.equal(v, before[k]) for k, v in model.named_parameters())}
    engine.backward(loss_of(engine, 0, 0, 0))
    engine.step()
    out["then"] = [optimizer.overflow, engine.get_lr()[0], engine.global_steps, engine.skipped_steps,
                   all(torch.equal(v, before[k]) for k, v in model.named_parameters())]
    engine.destroy()
    return out


class Stage3(unittest.TestCase):
    def check(self, how, stage=3):
        with tempfile.TemporaryDirectory() as folder:
            got = support.ranks(2, "test_stage3", "norms_of", how, stage, folder=folder)
        for rank in got:
            for x, y in zip(rank, reference(how), strict=True):
                self.assertAlmostEqual(x / y, 1, delta=2e-5)

    def test_frozen_parameters_are_gathered_and_not_trained(self):
        self.check("frozen")

    def test_frozen_blocks_before_the_trained_ones(self):
        self.check("lora")

    def test_recomputed_blocks_with_frozen_parameters(self):
        self.check("frozen again")

    def test_recomputed_blocks_of_the_reentrant_kind(self):
        self.check("reentrant")

    def test_one_unit_and_the_tied_one_are_there_at_a_time(self):
        with tempfile.TemporaryDirectory() as folder:
            [seen] = support.ranks(1, "test_stage3", "seen_while_running", folder=folder)
        self.assertEqual(seen, [["blocks.1"], ["blocks.1", "embed"], []])

    def test_a_block_that_one_rank_does_not_use_below_stage_3(self):
        want = unused_reference()
        for stage in (1, 2):
            with tempfile.TemporaryDirectory() as folder:
                got = support.ranks(2, "test_stage3", "unused_on_one_rank", stage, folder=folder)
            for x, y in zip(got[0] + got[1], want + want, strict=True):
                self.assertAlmostEqual(x / y, 1, delta=2e-5)

    def test_a_checkpoint_without_frozen_parameters_leaves_them_as_they_are(self):
        for stage in (2, 3):
            with tempfile.TemporaryDirectory() as folder:
                got = support.ranks(2, "test_stage3", "without_frozen", stage, folder, folder=folder)
            for same, moved, names in got:
                self.assertTrue(same)
                for x in moved[0] + moved[1]:
                    self.assertAlmostEqual(x, 1.0, places=5)
                self.assertEqual(names, [f"{kind}blocks.0.down.{what}" for kind in (
                    "", "momentum_buffer/") for what in ("bias", "weight")])

    def test_a_parameter_written_while_gathered_is_kept_with_all_optimizer_state(self):
        want = written_reference()
        with tempfile.TemporaryDirectory() as folder:
            got = support.ranks(2, "test_stage3", "written", 3, folder=folder)
        for seen, norms in got:
            self.assertEqual(seen, [0, 1, 2, 3, 4, 5])
            for x, y in zip(norms, want, strict=True):
                self.assertAlmostEqual(x / y, 1, delta=2e-5)

    def test_a_model_is_evaluated_without_an_optimizer_and_then_trained(self):
        with tempfile.TemporaryDirectory() as folder:
            [got] = support.ranks(1, "test_stage3", "evaluated_then_trained", folder=folder)
        before, loss, after, left, counts = got
        self.assertAlmostEqual(before, loss, places=6)
        self.assertLess(after, loss - 0.05)
        self.assertEqual((left, counts), (0, [0, 1, 2]))

    def test_a_state_that_could_not_be_read_back_is_refused_when_it_is_saved(self):
        with tempfile.TemporaryDirectory() as folder:
            [got] = support.ranks(1, "test_stage3", "unreadable_state", folder, folder=folder)
        self.assertIn("more than plain data", got)

    def test_an_overflow_in_half_precision_skips_the_step(self):
        with tempfile.TemporaryDirectory() as folder:
            [got] = support.ranks(1, "test_stage3", "half", folder=folder)
        self.assertEqual(got, {"overflow": True, "scale": 8.0, "lr": 0.125, "same": True,
                               "then": [False, 0.0625, 2, 1, False]})


class Refusals(unittest.TestCase):
    def engine(self, stage=0, **more):
        import deepspeed
        model = make_model()
        engine = deepspeed.initialize(model=model, config=config(stage, **more) if more else config(
            stage, optimizer={"type": "AdamW", "params": {"lr": 0.01}}))[0]
        self.addCleanup(engine.destroy)
        return engine

    def test_calls_that_zinc_has_not_are_named(self):
        import deepspeed
        engine = self.engine(2)
        for call, name in ((engine.compile, "compile"), (deepspeed.init_inference, "init_inference"),
                           (deepspeed.tp_model_init, "tp_model_init"),
                           (deepspeed.utils.groups._get_sequence_parallel_group, "Ulysses")):
            with self.assertRaisesRegex(NotImplementedError, "^zinc: .*" + name):
                call()
        with self.assertRaisesRegex(AssertionError, "no_sync"):
            with engine.no_sync():
                pass

    def test_an_optimizer_of_another_kind_is_refused(self):
        import deepspeed
        import torch
        model = make_model()
        with self.assertRaisesRegex(NotImplementedError, "RMSprop"):
            deepspeed.initialize(model=model, optimizer=torch.optim.RMSprop(model.parameters()),
                                 config=config(0))
        with self.assertRaisesRegex(NotImplementedError, "amsgrad"):
            deepspeed.initialize(model=model, config=config(0), optimizer=torch.optim.AdamW(
                model.parameters(), amsgrad=True))

    def test_loss_backward_says_what_to_call(self):
        engine = self.engine(0)
        with self.assertRaisesRegex(RuntimeError, "engine.backward"):
            loss_of(engine, 0, 0, 0).backward()

    def test_batch_sizes_that_accelerate_filled_in_for_one_process_are_named(self):
        from unittest import mock
        from deepspeed._config import check_processes
        config = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4,
                  "gradient_accumulation_steps": 2}
        with mock.patch.dict(os.environ, {"ACCELERATE_USE_DEEPSPEED": "true"}):
            check_processes(config, 1)
            check_processes({**config, "train_batch_size": 16}, 2)
            check_processes({**config, "train_micro_batch_size_per_gpu": "auto"}, 2)
            with self.assertRaisesRegex(ValueError, r"one process where 2 run.*PartialState"):
                check_processes(config, 2)
        check_processes(config, 2)  # not accelerate's doing: libzinc's own message

    def test_configurations_as_files_with_comments_and_as_base64(self):
        import base64
        import json
        from deepspeed._config import as_dict
        text = '{ "a": "x // no # comment", /* here */ "b": [1, 2,], // there\n# and\n "c": {"d": 1,},}'
        want = {"a": "x // no # comment", "b": [1, 2], "c": {"d": 1}}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            f.write(text)
            f.flush()
            self.assertEqual(as_dict(f.name), want)
        self.assertEqual(as_dict(base64.urlsafe_b64encode(json.dumps(want).encode()).decode()), want)
        with self.assertRaisesRegex(ValueError, "\"a\" is there twice"):
            as_dict('{"a": 1, "a": 2}')
        with self.assertRaises(FileNotFoundError):
            as_dict("nowhere.json")


if __name__ == "__main__":
    unittest.main()

# SPDX-License-Identifier: Apache-2.0
"""Stage 3 holds two units' parameters at a time, forward and backward."""
import tempfile
import unittest

import support

LAYERS, WIDTH = 12, 1152  # a layer: two matrices of 5.1 MiB


def make():
    import torch

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.LayerNorm(WIDTH)
            self.up = torch.nn.Linear(WIDTH, WIDTH, bias=False)
            self.down = torch.nn.Linear(WIDTH, WIDTH, bias=False)

        def forward(self, x):
            return x + self.down(torch.relu(self.up(self.norm(x))))

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    return Model()


def measure():
    """Bytes of a unit; {pass: most that torch gave for gathered ones}; most gathered as the engine
    counts it."""
    import deepspeed
    import torch
    torch.manual_seed(0)
    config = {"train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
              "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 2 * WIDTH}}
    with deepspeed.zero.Init(config_dict_or_path=config):
        model = make()
    engine = deepspeed.initialize(model=model, config=config)[0]
    assert engine.zinc.stats()["persistent_elems"] == 2 * LAYERS * WIDTH  # the norms
    rows, seen = torch.randn(2, WIDTH), {}
    what = "train"

    def look(*_):
        seen[what] = max(seen.get(what, 0), engine.zinc.blocks.bytes())

    def watch(_module, _args, output):
        look()
        if output.requires_grad:
            output.register_hook(look)

    for layer in model.layers:
        layer.up.register_forward_hook(watch)
        layer.down.register_forward_hook(watch)
    for _step in range(2):
        engine.backward(engine(rows).pow(2).mean())
        engine.step()
    what = "evaluate"
    with torch.no_grad():
        engine(rows)
    out = {"unit": 4 * 2 * WIDTH * WIDTH, "seen": seen, "live": 4 * engine.zinc.stats()["live_peak"]}
    engine.destroy()
    return out


class Memory(unittest.TestCase):
    def test_at_most_two_of_twelve_units_are_whole(self):
        with tempfile.TemporaryDirectory() as folder:
            results = support.ranks(2, "test_memory", "measure", folder=folder)
        for got in results:
            unit, seen = got["unit"], got["seen"]
            self.assertLessEqual(got["live"], 2 * unit)
            self.assertEqual(seen["train"], 2 * unit)  # one that is used and one that comes
            self.assertEqual(seen["evaluate"], unit)


if __name__ == "__main__":
    unittest.main()

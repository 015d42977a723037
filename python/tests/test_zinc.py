# SPDX-License-Identifier: Apache-2.0
"""The library beneath: engine, ranks over torch.distributed, files, errors."""
import os
import tempfile
import unittest

import support

SETTINGS = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.5,
            "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1}}}


def train(stage, folder):
    """Three steps of two parameters whose gradients differ by rank; masters, norms."""
    import torch
    import torch.distributed as dist
    import zinc
    if int(os.environ["WORLD_SIZE"]) > 1:
        dist.init_process_group("gloo")
    comm = zinc.Comm(timeout_s=60)
    config = zinc.Config(dict(SETTINGS, zero_optimization={"stage": stage}), comm.n_ranks)
    engine = zinc.Engine(comm, config, grad_divisor=2.0)
    first, last = engine.add_unit("first"), engine.add_unit("last")
    params = [engine.add_param("a", first, (3, 5), 15), engine.add_param("b", last, (7,), 7)]
    engine.build()
    start = [torch.arange(15.0) / 10, torch.ones(7)]

    def fill(p, at, n, address):
        import ctypes
        ctypes.memmove(address, start[p][at:at + n].contiguous().data_ptr(), 4 * n)

    engine.fill(fill)
    norms = []
    ranks = [dist.get_rank()] if comm.n_ranks > 1 else [0, 1]
    for step in range(3):
        for i, p in enumerate(params):  # one rank gives the sum of what two give
            grad = sum((r + 1) * torch.linspace(-1, 1, start[i].numel()) * (step + 1) for r in ranks)
            engine.grad_ready(p, grad.data_ptr(), zinc.F32)
        engine.backward_end()
        norms.append(engine.step().grad_norm)
    out = []
    for i, p in enumerate(params):
        value = torch.empty_like(start[i])
        engine.read(zinc.MASTERS, p, value.data_ptr())
        out.append(value.tolist())
    engine.save(folder)
    reader = zinc.Reader(folder)
    shapes = {k: list(v) for k, v in reader.shapes().items()}
    reader.close()
    engine.close()
    comm.close()
    return {"masters": out, "norms": norms, "shapes": shapes}


class Library(unittest.TestCase):
    def test_two_ranks_over_torch_distributed_equal_one_in_every_stage(self):
        with tempfile.TemporaryDirectory() as folder:
            [alone] = support.ranks(1, "test_zinc", "train", 0, folder, folder=folder)
            self.assertEqual(alone["shapes"], {"a": [3, 5], "b": [7]})
            self.assertNotEqual(alone["masters"][1][0], 1.0)
            for stage in (0, 3):
                for rank in support.ranks(2, "test_zinc", "train", stage, folder, folder=folder):
                    for mine, want in zip(rank["masters"], alone["masters"]):
                        for x, y in zip(mine, want):
                            self.assertAlmostEqual(x, y, places=6)
                    for x, y in zip(rank["norms"], alone["norms"]):
                        self.assertAlmostEqual(x, y, places=5)

    def test_a_bad_configuration_is_an_error_that_names_every_key(self):
        import zinc
        with self.assertRaises(zinc.Error) as caught:
            zinc.Config({"train_batch_size": 8, "zero_optimisation": {}, "grad_clip": 1.0}, 1)
        self.assertIn("zero_optimisation", str(caught.exception))
        self.assertIn("grad_clip", str(caught.exception))

    def test_an_exception_in_a_callback_is_the_message_of_the_call(self):
        import zinc
        comm = zinc.Comm()
        engine = zinc.Engine(comm, zinc.Config({"train_batch_size": 1}, 1))
        engine.add_param("w", engine.add_unit("u"), (4,), 4)
        engine.build()

        def fill(*_args):
            raise ValueError("no value for w")

        with self.assertRaisesRegex(zinc.Error, "no value for w"):
            engine.fill(fill)
        engine.close()
        comm.close()


if __name__ == "__main__":
    unittest.main()

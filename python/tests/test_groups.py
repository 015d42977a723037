# SPDX-License-Identifier: Apache-2.0
"""Groups of ranks over torch.distributed: what an FSDP configuration asks for, by the script of the other tests."""
import os
import tempfile
import unittest

import support
from test_engine import config, make_model, make_optimizer, steps

MODES = {"stage 3": {}, "SHARD_GRAD_OP": {"sharding_strategy": "SHARD_GRAD_OP"},
         "NO_WRAP": {"sharding_strategy": "FULL_SHARD", "auto_wrap_policy": "NO_WRAP"},
         "HYBRID_SHARD": {"sharding_strategy": "HYBRID_SHARD"},
         "HYBRID_SHARD_ZERO2": {"sharding_strategy": "HYBRID_SHARD_ZERO2", "shard_size": 1}}


def settings_of(mode):
    settings = config(3, gradient_clipping=0)
    if mode == "hpZ":
        settings["zero_optimization"]["zero_hpz_partition_size"] = 2
    elif MODES[mode]:
        settings["fsdp"] = MODES[mode]
    return settings


def trained(ranks_per_node, *modes):
    import deepspeed
    os.environ["LOCAL_WORLD_SIZE"] = str(ranks_per_node)
    out = {}
    for mode in modes:
        model = make_model()
        engine = deepspeed.initialize(model=model, optimizer=make_optimizer(model.parameters()), config=settings_of(mode))[0]
        out[mode] = steps(engine, 0, 3)
    return out


class Groups(unittest.TestCase):
    def test_strategies_train_alike_over_groups_of_ranks(self):
        modes = [*MODES, "hpZ"]
        with tempfile.TemporaryDirectory() as folder:
            results = support.ranks(4, "test_groups", "trained", 2, *modes, folder=folder)
        for rank, got in enumerate(results):
            losses, norms = got["stage 3"]
            for mode in ("SHARD_GRAD_OP", "NO_WRAP", "hpZ"):
                self.assertEqual(losses, got[mode][0], (rank, mode))
            for mode in ("HYBRID_SHARD", "HYBRID_SHARD_ZERO2"):
                for a, b in zip(losses + norms, got[mode][0] + got[mode][1]):
                    self.assertAlmostEqual(a, b, delta=1e-5 * abs(a), msg=(rank, mode))
            self.assertEqual(norms, results[0]["stage 3"][1])


if __name__ == "__main__":
    unittest.main()

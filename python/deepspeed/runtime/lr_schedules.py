# SPDX-License-Identifier: Apache-2.0
"""deepspeed.runtime.lr_schedules: the schedules of a configuration. libzinc works them out; these
objects show what the next step will use, under the names that scripts look for."""

LR_RANGE_TEST, ONE_CYCLE = "LRRangeTest", "OneCycle"
WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR = "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"
VALID_LR_SCHEDULES = [LR_RANGE_TEST, ONE_CYCLE, WARMUP_LR, WARMUP_DECAY_LR, WARMUP_COSINE_LR]


class _Schedule:
    """Steps with the engine, whose optimizer steps it counts."""

    def __init__(self, *_args, **_kwargs):
        raise NotImplementedError(f"zinc: {type(self).__name__} is made from the \"scheduler\" block of the "
                                  "configuration; it cannot be built by hand")

    @classmethod
    def _of(cls, engine, optimizer):
        out = cls.__new__(cls)
        out._engine, out.optimizer = engine, optimizer
        out._show()
        return out

    def _show(self):
        self.last_batch_iteration = self._engine.progress()["n_applied"] - 1
        self._last_lr = [self._engine.lr] * len(self.optimizer.param_groups)
        for group, lr in zip(self.optimizer.param_groups, self._last_lr):
            group["lr"] = lr

    def step(self, last_batch_iteration=None):
        """The engine has stepped: the rate of the next step."""
        del last_batch_iteration
        self._show()

    def get_last_lr(self):
        return list(self._last_lr)

    get_lr = get_last_lr

    def state_dict(self):
        return {"last_batch_iteration": self.last_batch_iteration}

    def load_state_dict(self, state):
        if state["last_batch_iteration"] != self.last_batch_iteration:
            raise NotImplementedError(
                f"zinc: the schedule stands at step {self.last_batch_iteration}, the saved one at "
                f"{state['last_batch_iteration']}: it goes by the engine's steps. Load the checkpoint with "
                "engine.load_checkpoint")
        self._show()


class LRRangeTest(_Schedule):
    pass


class OneCycle(_Schedule):
    pass


class WarmupLR(_Schedule):
    pass


class WarmupDecayLR(_Schedule):
    pass


class WarmupCosineLR(_Schedule):
    pass


SCHEDULES = {c.__name__: c for c in (LRRangeTest, OneCycle, WarmupLR, WarmupDecayLR, WarmupCosineLR)}

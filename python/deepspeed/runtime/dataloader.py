# SPDX-License-Identifier: Apache-2.0
"""deepspeed.runtime.dataloader."""


class RepeatingLoader:
    """A loader that begins anew where it ends."""

    def __init__(self, loader):
        self.loader, self.data_iter = loader, iter(loader)

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return next(self.data_iter)
        except StopIteration:
            self.data_iter = iter(self.loader)
            return next(self.data_iter)

# SPDX-License-Identifier: Apache-2.0
"""What Zinc does not have says so where it is called."""


def refuse(name, why):
    """A function that raises; also in the place of a class."""

    def refused(*_args, **_kwargs):
        raise NotImplementedError(f"zinc: {name} is not supported: {why}")

    refused.__name__ = name.rsplit(".", 1)[-1]
    return refused

"""`managed_gradient_accumulation: false`: the program says by step() where an accumulation window ends."""

from __future__ import annotations

from zerotorch import _C


class UnmanagedAccumulation:
    """Every step() updates, with all backwards since the last one.

    For the core these backwards are one micro-batch, the only one of its window: gradient_accumulation_steps divides
    losses in Python, and micro-batches are counted here. Everything is local.

    Attributes:
        steps: gradient_accumulation_steps as the program knows it.
        more: micro-batches of past updates beyond those that the core has counted.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.more = 0
        self._backwards = 0

    def count_backward(self) -> None:
        self._backwards += 1

    def end_window(self) -> None:
        self.more += max(self._backwards - 1, 0)
        self._backwards = 0

    def drop_window(self) -> None:
        self._backwards = 0

    def resume(self, core: _C.Engine, more: int) -> None:
        """After a load, which gives the core the steps that another program had set."""
        self.more, self._backwards = more, 0
        if core.gradient_accumulation_steps != 1:
            core.set_gradient_accumulation_steps(1)

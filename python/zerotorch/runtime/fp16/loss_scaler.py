"""Loss scales for loops of a program's own. The engine has its scale itself: `engine.loss_scale()`.

Everything is local.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from zerotorch.core.log import log_dist, logger
from zerotorch.errors import ZeroError

INITIAL_LOSS_SCALE = "init_scale"
SCALE_WINDOW = "scale_window"
DELAYED_SHIFT = "delayed_shift"
CONSECUTIVE_HYSTERESIS = "consecutive_hysteresis"
MIN_LOSS_SCALE = "min_scale"


class LossScalerBase:
    """A factor for the loss, so that small gradients do not vanish in 16 bits."""

    def __init__(self, cur_scale: float) -> None:
        self.cur_scale = cur_scale
        self.dynamic = False

    @property
    def loss_scale(self) -> float:
        return self.cur_scale

    def scale_gradient(self, module: Any, grad_in: Iterable[torch.Tensor], grad_out: Any) -> tuple[torch.Tensor, ...]:
        return tuple(self.loss_scale * gradient for gradient in grad_in)

    def update_scale(self, overflow: bool) -> None:
        """After each step; `overflow`: a gradient was not finite, and the step was skipped."""
        if overflow:
            log_dist("a gradient was not finite: the step was skipped", ranks=[0])

    def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
        return loss * self.loss_scale

    def backward(self, loss: torch.Tensor, retain_graph: bool = False) -> None:
        self.scale_loss(loss).backward(retain_graph=retain_graph)  # type: ignore[no-untyped-call]


class LossScaler(LossScalerBase):
    """One scale throughout."""

    def __init__(self, scale: float = 1) -> None:
        super().__init__(scale)

    def has_overflow(self, params: Iterable[torch.Tensor]) -> bool:
        return False


class DynamicLossScaler(LossScalerBase):
    """Halves the scale at overflows and doubles it after `scale_window` steps without one.

    With `delayed_shift` n the first n - 1 overflows change nothing; the count begins anew when the scale grows, or with
    `consecutive_hysteresis` at each step without an overflow. An overflow at `min_scale` raises ZeroError, unless told
    not to.
    """

    def __init__(
        self,
        init_scale: float,
        scale_window: int,
        min_scale: float,
        delayed_shift: int,
        consecutive_hysteresis: bool,
        raise_error_at_min_scale: bool = True,
        dtype: torch.dtype = torch.half,
    ) -> None:
        super().__init__(init_scale)
        self.cur_iter = 0
        self.last_overflow_iter = -1
        self.scale_factor = 2.0
        self.scale_window = scale_window
        self.min_scale = min_scale
        self.delayed_shift = delayed_shift
        self.cur_hysteresis = delayed_shift
        self.consecutive_hysteresis = consecutive_hysteresis
        self.raise_error_at_min_scale = raise_error_at_min_scale
        self.dynamic = True
        self.dtype = dtype

    def has_overflow_serial(self, params: Iterable[torch.Tensor]) -> bool:
        """Whether a gradient is not finite."""
        return any(param.grad is not None and not bool(param.grad.isfinite().all()) for param in params)

    has_overflow = has_overflow_serial

    def update_scale(self, overflow: bool) -> None:
        if overflow:
            self._overflowed()
        else:
            stable = self.cur_iter - self.last_overflow_iter - 1
            grows = stable > 0 and stable % self.scale_window == 0
            if grows:
                self.cur_scale *= self.scale_factor
            if grows or self.consecutive_hysteresis:
                self.cur_hysteresis = self.delayed_shift
        self.cur_iter += 1

    def _overflowed(self) -> None:
        self.last_overflow_iter = self.cur_iter
        if self.cur_hysteresis > 1 and self.delayed_shift > 1:
            self.cur_hysteresis -= 1
            logger.info(f"overflow at loss scale {self.cur_scale}, which {self.cur_hysteresis} more may keep")
            return
        if self.cur_scale == self.min_scale and self.raise_error_at_min_scale:
            raise ZeroError(f"a gradient overflows at the smallest loss scale, {self.min_scale}: the run has diverged")
        self.cur_scale = max(self.cur_scale / self.scale_factor, self.min_scale)
        logger.info(f"overflow: the loss scale is {self.cur_scale}")


def CreateLossScaler(  # noqa: N802  # DeepSpeed's name
    dtype: torch.dtype, static_loss_scale: float, dynamic_scaling: bool, dynamic_loss_args: dict[str, Any] | None
) -> LossScalerBase:
    """A dynamic scale for fp16 where asked for; 1 for other dtypes."""
    if dtype == torch.half and dynamic_scaling:
        if dynamic_loss_args is None:
            raise ZeroError("a dynamic loss scale needs dynamic_loss_args")
        return DynamicLossScaler(dtype=dtype, **dynamic_loss_args)
    return LossScaler(static_loss_scale if dtype == torch.half else 1.0)

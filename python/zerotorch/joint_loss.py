"""zerotorch.backward(): one loss of several engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from zerotorch.engine import DeepSpeedEngine
from zerotorch.errors import UsageError


def backward(loss: torch.Tensor, engines: Sequence[DeepSpeedEngine], retain_graph: bool = False) -> None:
    """Runs backward from a scalar loss that several engines share, as a generator and a discriminator, or an actor and a
    critic with one loss. Each engine takes the gradients of its own parameters; step() each of them afterwards.
    *Collective.*

    Raises:
        UsageError: no scalar, an engine that does not train, loss scales that differ, or an engine within no_sync().
    """
    if not engines:
        raise UsageError("backward(loss, engines): no engine was given")
    for engine in engines:
        engine._require_training("backward()")
        if engine._boundary is False:
            raise UsageError(
                "backward(loss, engines) where micro-batches do not end their window (no_sync(), "
                "set_gradient_accumulation_boundary(False)): accumulate by gradient_accumulation_steps, or call "
                "loss.backward() and step() of each engine"
            )
    scales = [engine.loss_scale() for engine in engines]
    if len(set(scales)) > 1:
        raise UsageError(
            f"backward(loss, engines): the engines have the loss scales {scales}: give them the same fp16 section with a "
            "fixed loss_scale, or train in bf16"
        )
    scaled: Any = engines[0].scale(loss)
    for engine in engines:
        assert engine.optimizer is not None
        engine.optimizer.before_backward()
    scaled.backward(retain_graph=retain_graph)

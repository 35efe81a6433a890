"""The class of an engine's optimizer that the configuration names: programs look at its name, as monitors of learning
rates do, or ask isinstance()."""

from __future__ import annotations

import functools
import inspect

import torch

from zerotorch.ops.adagrad import DeepSpeedCPUAdagrad
from zerotorch.ops.adam import DeepSpeedCPUAdam, FusedAdam
from zerotorch.ops.lamb import FusedLamb
from zerotorch.ops.lion import DeepSpeedCPULion, FusedLion
from zerotorch.optimizer import ZeroOptimizer

#: What DeepSpeed makes of `optimizer.type` in small letters, on a device and offloaded.
_CLASSES: dict[str, tuple[type, type]] = {
    "adam": (FusedAdam, DeepSpeedCPUAdam),
    "adamw": (FusedAdam, DeepSpeedCPUAdam),
    "adagrad": (torch.optim.Adagrad, DeepSpeedCPUAdagrad),
    "lion": (FusedLion, DeepSpeedCPULion),
    "lamb": (FusedLamb, FusedLamb),
    "sgd": (torch.optim.SGD, torch.optim.SGD),
    "rmsprop": (torch.optim.RMSprop, torch.optim.RMSprop),
}


@functools.cache
def class_of(kind: str, offloaded: bool) -> type[ZeroOptimizer]:
    """A ZeroOptimizer with the name of the class that DeepSpeed makes for `optimizer.type`, and of that class where
    there is one here. Everything it does is ZeroOptimizer's."""
    if kind.lower() == "muon":
        return type("MuonWithAuxAdam", (ZeroOptimizer,), {})
    bases = _CLASSES.get(kind.lower())
    if bases is None:
        return ZeroOptimizer
    base = bases[offloaded]
    names = [name for name in dir(base) if not name.startswith("__") and hasattr(ZeroOptimizer, name)]
    members = {name: inspect.getattr_static(ZeroOptimizer, name) for name in names}  # also what it inherits
    return type(base.__name__, (ZeroOptimizer, base), members)

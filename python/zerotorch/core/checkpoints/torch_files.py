"""Reads files of torch.save without running what is in them, though they hold objects of DeepSpeed's classes."""

from __future__ import annotations

import os
import pickle
import re
import types
import zipfile
from typing import Any

import torch

from zerotorch.errors import CheckpointError


class LossScaler:
    """In place of DeepSpeed's loss scaler of a fixed scale: an object with the attributes that the file has."""


class DynamicLossScaler(LossScaler):
    """In place of DeepSpeed's dynamic loss scaler."""


class ZeroStage(int):
    """In place of DeepSpeed's enumeration of stages."""


class FragmentAddress:
    """In place of DeepSpeed's range of a parameter inside a partition: `numel` and `start`."""

    numel: int
    start: int


_SCALERS = "deepspeed.runtime.fp16.loss_scaler"
# The only classes of DeepSpeed in its own checkpoints, and what is made of them.
_STAND_INS: dict[str, type] = {
    f"{_SCALERS}.LossScalerBase": LossScaler,
    f"{_SCALERS}.LossScaler": LossScaler,
    f"{_SCALERS}.DynamicLossScaler": DynamicLossScaler,
    "deepspeed.runtime.zero.config.ZeroStageEnum": ZeroStage,
    "deepspeed.utils.tensor_fragment.fragment_address": FragmentAddress,
}


class _Unpickler(pickle.Unpickler):
    """Python's own, for trusted files: DeepSpeed's classes become the stand-ins, all others are imported."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        stand_in = _STAND_INS.get(f"{module_name}.{global_name}")
        return stand_in if stand_in is not None else super().find_class(module_name, global_name)


def _load_trusted(file: Any, **options: Any) -> Any:
    return _Unpickler(file, **options).load()


_TRUSTED = types.SimpleNamespace(__name__="trusted", Unpickler=_Unpickler, load=_load_trusted)


def load_torch_file(path: str, trust: bool = False) -> Any:
    """What torch.save wrote to `path`; tensors are on the CPU, in the file's dtypes, and mapped: their bytes are read
    when they are used. Without `trust` only plain values, tensors and DeepSpeed's own few classes are made of it;
    with it, Python's unpickler runs whatever the file says. Throws CheckpointError with the file's name."""
    if not os.path.isfile(path):
        raise CheckpointError(f"{path} is missing: copy it from where the checkpoint was saved")
    mapped = zipfile.is_zipfile(path)
    try:
        if trust:
            return torch.load(path, map_location="cpu", mmap=mapped, weights_only=False, pickle_module=_TRUSTED)
        safe: list[Any] = [(stand_in, name) for name, stand_in in _STAND_INS.items()]
        with torch.serialization.safe_globals(safe):
            return torch.load(path, map_location="cpu", mmap=mapped, weights_only=True)
    except Exception as error:  # torch and pickle raise nearly everything on damaged files
        if mapped and isinstance(error, pickle.UnpicklingError) and not trust:
            unsafe = re.search(r"(?:GLOBAL|class|function) (\S+)", str(error))
            what = unsafe.group(1) if unsafe else "a class that torch does not know"
            raise CheckpointError(
                f"{path} has an object of {what}, and making "
                "objects of other classes can run any code: where you trust the file, read it with trust=True"
            ) from error
        what = "cannot be read" if mapped else "is damaged or truncated: no complete archive of torch.save"
        first_line = str(error).strip().split("\n")[0]
        raise CheckpointError(
            f"{path} {what} ({first_line or type(error).__name__}); copy it again from where the "
            "checkpoint was saved, or take another checkpoint"
        ) from error

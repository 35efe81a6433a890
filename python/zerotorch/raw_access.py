"""Attributes of parameters under an engine, and accesses to them that go past torch's operators."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from zerotorch import _C
from zerotorch.errors import UsageError
from zerotorch.runtime.zero.partition_parameters import ZeroParamStatus
from zerotorch.zero import gathered

_STAGE_OF_SHARDED_PARAMETERS = 3


class _Part:
    """What DeepSpeed-aware programs ask of a parameter's shard: its size, which without an engine is an even share, and,
    by torch's functions and methods, its values. These are copies: writing into them raises RuntimeError."""

    def __init__(self, numel: int) -> None:
        self._engine = EngineOf()
        self._name = ""
        self._dtype = torch.float32
        self._set_numel(numel)

    def _set_numel(self, numel: int) -> None:
        self.ds_numel = numel
        self.ds_shape = self.shape = torch.Size([numel])

    def belongs_to(self, engine: EngineOf, core: Any, name: str, dtype: torch.dtype) -> None:
        self._engine, self._name, self._dtype = engine, name, dtype
        begin, end = core.local_range(name)
        self._set_numel(end - begin)

    def numel(self) -> int:
        return self.ds_numel

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def values(self) -> torch.Tensor:
        """What the rank updates of the parameter, flat, in its dtype. Raises UsageError without an engine. Local."""
        core = self._engine.core()
        if core is None:
            raise UsageError("ds_tensor has values under an engine that trains the parameter")
        with torch.inference_mode():
            mine: torch.Tensor = core.local_weight(self._name)[1].to(self._dtype)
            return mine.clone()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(torch.Tensor, name):
            raise AttributeError(f"ds_tensor has no attribute '{name}'")
        values = self.values()
        return values if name == "data" else getattr(values, name)  # a tensor's data could be written into

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*tree_map_only(cls, cls.values, args), **tree_map_only(cls, cls.values, kwargs or {}))


_ids = itertools.count()


def _marks(parameter: torch.nn.Parameter, ranks: int) -> dict[str, Any]:
    """The attributes by which programs know a parameter of ZeRO-3. Shape and numel() stay those of the whole."""
    part = _Part(-(-parameter.numel() // ranks))
    return {
        "ds_shape": parameter.shape,
        "ds_numel": parameter.numel(),
        "ds_status": ZeroParamStatus.AVAILABLE,
        "ds_tensor": part,
        "ds_secondary_tensor": None,  # shards are of all ranks, not of a part of them
        "ds_persist": False,
        "ds_active_sub_modules": set(),
        "ds_process_group": None,
        "ds_zero_param_process_group": None,
        "partition_numel": part.numel,
        "ds_summary": functools.partial(dict, shape=tuple(parameter.shape)),
    }


def mark(parameter: torch.nn.Parameter, ranks: int) -> None:
    """Gives a parameter these attributes, and an id that no other one has: the same on all ranks, which mark parameters
    in the same order. Local."""
    if not hasattr(parameter, "ds_id"):
        vars(parameter).update(_marks(parameter, ranks), ds_id=next(_ids))


class EngineOf:
    """Leads from a parameter to its engine, and to what is left of it where the program has let go of the engine and
    kept its optimizer; a pickled parameter has none."""

    def __init__(self, engine: Any = None) -> None:
        self._reference = None if engine is None else weakref.ref(engine)
        self._core = None if engine is None else weakref.ref(engine._core)

    def __call__(self) -> Any:
        return None if self._reference is None else self._reference()

    def core(self) -> Any:
        return None if self._core is None else self._core()

    def __reduce__(self) -> tuple[Any, ...]:
        return EngineOf, ()


def _numpy(original: Any) -> Any:
    @functools.wraps(original)
    def numpy(self: torch.Tensor, *, force: bool = False) -> Any:
        if not _C.belongs_to_engine(self) or self.requires_grad and not force:
            return original(self, force=force)
        if gathered.is_modifiable(self):
            return original(self, force=force)
        # The memory of a parameter comes and goes, and other ranks may read it.
        array = original(self.detach().clone(), force=force)
        array.flags.writeable = False
        return array

    return numpy


def _dlpack(original: Any) -> Any:
    @functools.wraps(original)
    def dlpack(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not _C.belongs_to_engine(self) or self.requires_grad or gathered.is_modifiable(self):
            return original(self, *args, **kwargs)
        return original(self.detach().clone(), *args, **kwargs)

    return dlpack


def _like_plain(name: str, original: Any) -> Any:
    """For makers of tensors that ask what kind a tensor is and do not know the one by which uses are seen."""

    @functools.wraps(original)
    def make(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        except RuntimeError as error:
            if "correspond to a device" not in str(error):
                raise
        return getattr(torch.empty(0, dtype=self.dtype, device=self.device), name)(*args, **kwargs)

    return make


@functools.cache
def install() -> None:
    """From here on accesses that would go past the engine to a parameter's memory get a copy. Local."""
    for name in ("new", "new_tensor"):
        setattr(torch.Tensor, name, _like_plain(name, getattr(torch.Tensor, name)))
    torch.Tensor.numpy = _numpy(torch.Tensor.numpy)  # type: ignore[method-assign]
    torch.Tensor.__dlpack__ = _dlpack(torch.Tensor.__dlpack__)  # type: ignore[method-assign]


def attach(
    module: torch.nn.Module, names: dict[torch.nn.Parameter, str], stage: int, engine: Any, ranks: int, *, trained: bool
) -> list[Any]:
    """Makes raw accesses to the module's parameters safe. Returns handles for detach(). Local."""
    install()
    reference = EngineOf(engine)
    for parameter in names:
        if not _C.belongs_to_engine(parameter):  # quantised weights: the module's own, like a buffer
            continue
        parameter._zerotorch_engine = reference  # type: ignore[attr-defined]
        if stage >= _STAGE_OF_SHARDED_PARAMETERS:
            mark(parameter, ranks)
            if parameter.requires_grad and trained:
                part: _Part = parameter.ds_tensor  # type: ignore[attr-defined]
                part.belongs_to(reference, engine._core, names[parameter], parameter.dtype)
    if stage < _STAGE_OF_SHARDED_PARAMETERS:
        return []
    register: Any = torch.nn.Module.register_state_dict_post_hook
    return [register(child, _own_memory) for child in module.modules()]


def detach(parameters: Iterable[torch.nn.Parameter], handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()
    for parameter in parameters:
        for name in (*_marks(parameter, 1), "ds_id", "_zerotorch_engine"):
            vars(parameter).pop(name, None)


def _own_memory(module: torch.nn.Module, state: dict[str, Any], prefix: str, local_metadata: Any) -> None:
    """What a state_dict() has of the module's own parameters gets memory of its own: theirs comes and goes."""
    for name, parameter in module._parameters.items():
        value = state.get(prefix + name)
        if parameter is not None and isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
            with torch.no_grad():
                state[prefix + name] = value.clone()


def persistent_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Buffers that state_dict() has, by name. Local."""
    found = {}
    for prefix, child in module.named_modules(remove_duplicate=False):
        for name, buffer in child._buffers.items():
            if buffer is not None and name not in child._non_persistent_buffers_set:
                found[f"{prefix}.{name}" if prefix else name] = buffer.detach().clone()
    return found

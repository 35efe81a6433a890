"""The attributes by which programs know a parameter under an engine."""

from __future__ import annotations

import enum
import functools
import itertools
import weakref
from collections.abc import Iterable
from typing import Any, NoReturn

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from zerotorch import _C
from zerotorch.core.parameters import raw_access
from zerotorch.core.parameters.owner import EngineOf
from zerotorch.errors import UsageError

_STAGE_OF_SHARDED_PARAMETERS = 3


class ZeroParamStatus(enum.Enum):
    """Whether a parameter's values are here: `parameter.ds_status`."""

    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


_ids = itertools.count()


def _marks(parameter: torch.nn.Parameter, ranks: int) -> dict[str, Any]:
    """The attributes by which programs know a parameter of ZeRO-3. Shape and numel() stay those of the whole."""
    part = _Part.make(parameter, -(-parameter.numel() // ranks))
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
        "partition_numel": functools.partial(int, part.numel()),
        "ds_summary": functools.partial(dict, shape=tuple(parameter.shape)),
    }


@functools.cache
def _own() -> tuple[str, ...]:
    """Names of what parameters have of an engine."""
    return *_marks(torch.nn.Parameter(torch.empty(0)), 1), "ds_id", "_zerotorch_engine", "__reduce_ex__"


def _wait_for_values(engine: EngineOf | None) -> None:
    """The parameters' updated values are there when it returns: for what reads memory without an operator. Local."""
    core = None if engine is None else engine.core()
    if core is not None and not core.is_destroyed:
        core.wait_for_parameters()


class _Reduce:
    """Pickles a parameter as torch does, without what it has of an engine: files of parameters and modules can be read
    where there is none."""

    def __init__(self, parameter: torch.nn.Parameter) -> None:
        self._parameter = weakref.ref(parameter)

    def __call__(self, protocol: int) -> Any:
        parameter = self._parameter()
        assert parameter is not None
        attributes = vars(parameter)
        _wait_for_values(attributes.get("_zerotorch_engine"))
        own = {name: attributes.pop(name) for name in _own() if name in attributes}
        try:
            return type(parameter).__reduce_ex__(parameter, protocol)  # type: ignore[no-untyped-call]
        finally:
            attributes.update(own)


def mark(parameter: torch.nn.Parameter, ranks: int) -> None:
    """Gives a parameter these attributes, and an id that no other one has: the same on all ranks, which mark parameters
    in the same order. Local."""
    if not hasattr(parameter, "ds_id"):
        vars(parameter).update(_marks(parameter, ranks), ds_id=next(_ids))


def _set_part(parameter: torch.nn.Parameter, engine: EngineOf, core: Any, name: str) -> None:
    begin, end = core.local_range(name)
    part = _Part.make(parameter, end - begin, engine, name)
    vars(parameter).update(ds_tensor=part, partition_numel=functools.partial(int, end - begin))


def _refuse_write(*args: Any, **kwargs: Any) -> NoReturn:
    raise UsageError(
        "ds_tensor is a copy of the part that this rank updates, and writing into it changes no parameter: use "
        "zerotorch.utils.safe_set_local_fp32_param(), or write within GatheredParameters(..., modifier_rank=0)"
    )


class _Part(torch.Tensor):
    """What DeepSpeed-aware programs ask of a parameter's shard: a flat tensor without memory, of the part that the rank
    updates, or of an even share without an engine. Its values are read from the engine when an operator needs them; what
    would write into it or a view of it raises UsageError."""

    _engine: EngineOf
    _name: str
    _kept: torch.Tensor | None  # of a view
    final_location: Any = None

    @staticmethod
    def make(like: torch.Tensor, numel: int, engine: EngineOf | None = None, name: str = "") -> _Part:
        return _Part._wrap(torch.empty(numel, dtype=like.dtype, device="meta"), like.device, engine, name)

    @staticmethod
    def _wrap(
        shape: torch.Tensor, device: torch.device, engine: EngineOf | None, name: str, values: torch.Tensor | None = None
    ) -> _Part:
        part: _Part = torch.Tensor._make_wrapper_subclass(
            _Part, shape.shape, strides=shape.stride(), dtype=shape.dtype, device=device
        )
        part._engine, part._name, part._kept = engine or EngineOf(), name, values
        return part

    @property
    def ds_numel(self) -> int:
        return self.numel()

    @property
    def ds_shape(self) -> torch.Size:
        return self.shape

    def read(self) -> torch.Tensor:
        """A copy. Raises UsageError without an engine, and for frozen parameters. Local."""
        if self._kept is not None:
            return self._kept.clone()
        core = self._engine.core()
        if core is None:
            raise UsageError(
                "ds_tensor has values where an engine updates the parameter; it is frozen, or has no engine: read it within "
                "GatheredParameters"
            )
        mine: torch.Tensor = core.local_weight(self._name)[1]
        return mine.to(self.dtype)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        try:
            return f"ds_tensor({self.read()!r})"
        except UsageError:
            return f"ds_tensor({self.numel()} elements, {self.dtype})"

    def numpy(self, *, force: bool = False) -> Any:
        array = self.read().numpy(force=force)
        array.flags.writeable = False
        return array

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def tolist(self) -> Any:
        return self.read().tolist()

    data = property(lambda self: self, _refuse_write)
    untyped_storage = storage = data_ptr = _refuse_write

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given = dict(zip((one.name for one in function._schema.arguments), args, strict=False)) | (kwargs or {})
        for one in function._schema.arguments:
            is_written = one.alias_info is not None and one.alias_info.is_write
            if is_written and any(isinstance(value, cls) for value in tree_leaves(given.get(one.name))):  # also in lists
                _refuse_write()
        values = tree_map_only(cls, cls.read, (args, kwargs or {}))
        result = function(*values[0], **values[1])
        if not any(one.alias_info is not None for one in function._schema.returns):
            return result
        return tree_map_only(torch.Tensor, lambda view: cls._wrap(view, view.device, None, "", view), result)


def attach(
    module: torch.nn.Module, names: dict[torch.nn.Parameter, str], stage: int, engine: Any, ranks: int, *, trained: bool
) -> list[Any]:
    """Makes raw accesses to the module's parameters safe. Returns handles for detach(). Local."""
    raw_access.install()
    reference = EngineOf(engine)
    for parameter in names:
        if not _C.belongs_to_engine(parameter):  # quantised weights: the module's own, like a buffer
            continue
        vars(parameter).update(_zerotorch_engine=reference, __reduce_ex__=_Reduce(parameter))
        if stage >= _STAGE_OF_SHARDED_PARAMETERS:
            mark(parameter, ranks)
            if parameter.requires_grad and trained:
                _set_part(parameter, reference, engine._core, names[parameter])
    if stage < _STAGE_OF_SHARDED_PARAMETERS:
        if stage == 0 or ranks == 1:
            return []
        # What torch.save() then reads without an operator has come from the other ranks.
        register_before: Any = torch.nn.Module.register_state_dict_pre_hook
        return [register_before(child, _Arrived(reference)) for child in module.modules()]
    register: Any = torch.nn.Module.register_state_dict_post_hook
    return [register(child, _own_memory) for child in module.modules()]


class _Arrived:
    """Before a state_dict(): the parameters' updated values are there. Local."""

    def __init__(self, engine: EngineOf) -> None:
        self._engine = engine

    def __call__(self, module: torch.nn.Module, prefix: str, keep_vars: bool) -> None:
        _wait_for_values(self._engine)

    def __reduce__(self) -> Any:
        return (type(self), (EngineOf(),))  # a pickled module has no engine


def detach(parameters: Iterable[torch.nn.Parameter], handles: list[Any]) -> None:
    for handle in handles:
        handle.remove()
    for parameter in parameters:
        for name in _own():
            vars(parameter).pop(name, None)


def _own_memory(module: torch.nn.Module, state: dict[str, Any], prefix: str, local_metadata: Any) -> None:
    """What a state_dict() has of the module's own parameters gets memory of its own: theirs comes and goes."""
    for name, parameter in module._parameters.items():
        value = state.get(prefix + name)
        if parameter is not None and isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
            with torch.no_grad():
                state[prefix + name] = value.clone()

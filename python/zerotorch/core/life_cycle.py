"""The life of an engine: what it has changed on the program's module, and how another engine takes the module over.
docs/python.md, "The life of an engine", has the states and transitions."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from zerotorch.core.log import logger
from zerotorch.core.parameters import marks, partition
from zerotorch.core.parameters.owner import engine_of
from zerotorch.core.trained import Trained

if TYPE_CHECKING:
    from zerotorch import _C

class Flags:
    """Which parameters of a module require a gradient before an engine has it."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._required = [weakref.ref(parameter) for parameter in module.parameters() if parameter.requires_grad]

    def restore(self) -> None:
        """Thaws what has been frozen since. Local."""
        for reference in self._required:
            parameter = reference()
            if parameter is not None and not parameter.requires_grad:
                parameter.requires_grad_(True)

    def keep_frozen(self) -> Flags:
        """What the engine has frozen so far: the rest is the program's to change."""
        self._required = [reference for reference in self._required if not _requires_grad(reference())]
        return self


def _requires_grad(parameter: torch.Tensor | None) -> bool:
    return parameter is None or parameter.requires_grad


class ModuleChanges:
    """What an engine has changed on the program's module and, by `release`, on its optimizer. It refers to parameters
    weakly, as what waits for the end of an engine must keep none of it."""

    def __init__(
        self,
        frozen: Flags,
        parameters: Iterable[torch.nn.Parameter],
        handles: list[Any],
        release: Callable[[], None] | None = None,
    ) -> None:
        self._release = release
        self._frozen: Flags | None = frozen
        self._parameters = [weakref.ref(parameter) for parameter in parameters]
        self._handles = handles

    def restore_with(self, core: _C.Engine) -> None:
        """Restores at the latest when nobody has `core` any more."""
        weakref.finalize(core, self.restore).atexit = False

    def restore(self) -> None:
        """Once; a second call does nothing. Local."""
        if self._frozen is None:
            return
        frozen, self._frozen = self._frozen, None
        marks.detach([p for reference in self._parameters if (p := reference()) is not None], self._handles)
        frozen.restore()
        if self._release is not None:
            self._release()


#: By module: engines that only evaluate, whose shards are nowhere whole. They end with their module, or when another engine
#: takes it over, and not with destroy().
_left: weakref.WeakKeyDictionary[torch.nn.Module, tuple[_C.Engine, list[torch.nn.Parameter]]] = (
    weakref.WeakKeyDictionary()
)


def leave_shards(module: torch.nn.Module, core: _C.Engine, parameters: Iterable[torch.nn.Parameter]) -> None:
    """The module keeps its values, each rank its shards of them. Local."""
    _left[module] = (core, list(parameters))


def forget_shards(module: torch.nn.Module) -> None:
    """Local."""
    _left.pop(module, None)


def _left_by(core: _C.Engine) -> list[torch.nn.Parameter]:
    return next((parameters for other, parameters in _left.values() if other is core), [])


class _Owner:
    """Who has parameters: an engine, or only what is left of one that the program has let go of."""

    def __init__(self, core: _C.Engine, engine: Trained | None) -> None:
        self.core = core
        self.engine = engine

    @property
    def trains(self) -> bool:
        return self.engine is None or self.engine.optimizer is not None

    def is_within(self, parameters: set[torch.nn.Parameter]) -> bool:
        return self.engine is None or parameters.issuperset(self.engine._names)


def owners_of(parameters: Iterable[torch.nn.Parameter]) -> list[_Owner]:
    """In the order of the first parameter of each. Local."""
    found: dict[int, _Owner] = {}
    for parameter in parameters:
        reference = getattr(parameter, "_zerotorch_engine", None)
        if reference is None:
            continue
        core = reference.core()
        if core is not None and not core.is_destroyed:
            found.setdefault(id(core), _Owner(core, reference()))
    return list(found.values())


def take_over(model: torch.nn.Module) -> str | None:
    """Ends the engines whose place a new one takes: those that only evaluate, and those that train nothing but
    parameters of `model`. Others keep what they have, and the new engine is refused. *Collective* where parameters have
    to be gathered. Returns the device that the module has to go to, where its values wait elsewhere."""
    parameters = list(model.parameters())
    device = None
    for owner in owners_of(parameters):
        if owner.trains and not owner.is_within(set(parameters)):
            continue
        if owner.trains:
            logger.warning(
                "initialize() was called again for a module whose engine is alive: the new engine takes the weights over, "
                "and the earlier one's optimizer states are dropped"
            )
        device = _end(owner) or device
    return device


def _end(owner: _Owner) -> str | None:
    engine = owner.engine
    if engine is None:
        left = _left_by(owner.core)
        device = str(owner.core.device)
        kept = partition.keep(owner.core, left) if left else None
        owner.core.destroy()
        if kept is None:
            return None
        kept.give_back()
        return None if device == "cpu" else device
    # Collective only where it must be: a rank may have collected an engine that another one still has.
    if engine._config.delays_updates:
        owner.core.finish_update()
    device = str(owner.core.device)
    kept = partition.keep(owner.core, list(engine._names)) if engine._holds_shards_only else None
    engine._end_as_replaced()
    if kept is None:
        return None
    kept.give_back()
    return None if device == "cpu" else device


def are_released(parameters: Iterable[torch.nn.Parameter]) -> bool:
    """Of an engine that is new: whether this rank has only a shard of some parameter while nothing uses it. Local."""
    return not all(map(_is_there, parameters))


def _is_there(parameter: torch.Tensor) -> bool:
    try:
        return parameter.numel() == 0 or parameter.data_ptr() != 0
    except RuntimeError:
        return False


def only_engine_of(parameters: Iterable[torch.nn.Parameter]) -> Trained | None:
    """The engine that has all of these. Local."""
    engines = {id(engine): engine for engine in map(engine_of, parameters)}
    return next(iter(engines.values())) if len(engines) == 1 else None

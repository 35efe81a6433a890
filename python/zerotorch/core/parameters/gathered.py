"""zero.GatheredParameters: parameters whole on every rank, for a while."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from zerotorch import _C
from zerotorch.core.distributed import first_problem, world_group
from zerotorch.core.log import logger
from zerotorch.core.parameters import partition, raw_access
from zerotorch.core.parameters.owner import engine_of
from zerotorch.errors import UsageError

#: The rank that modifies a parameter in the scope that has it now; None: nobody.
_open: dict[int, int | None] = {}
_said_forgotten = False


class GatheredParameters:
    """While it is open, parameters are whole on every rank, for any access. *Collective* at both ends.

    Args:
        params: a parameter, or any iterable of them; None, tensors and parameters that no engine and no zero.Init has
            are left alone. The order does not matter.
        modifier_rank: what this rank writes in place becomes the parameters' value on all ranks. What others write, and
            what anybody writes without it, is theirs until the end and is forgotten then, with a warning, or with an error
            on all ranks where the configuration says zero_optimization.enable_sanity_checks.
        fwd_module: not used: uses of parameters are seen wherever they are.
        enabled: False: does nothing.

    A scope inside another may have parameters of that one: they stay as they are in it.
    """

    def __init__(
        self,
        params: torch.Tensor | Iterable[torch.Tensor | None],
        modifier_rank: int | None = None,
        fwd_module: Any = None,
        enabled: bool = True,
    ) -> None:
        self.enabled = enabled
        self.src_rank = modifier_rank
        self.params: list[torch.nn.Parameter] = []
        self._scopes: list[_C.Gathered] = []
        self._placed: list[torch.nn.Parameter] = []
        self._before: list[torch.Tensor] = []
        self._storages: set[int] = set()
        self._versions: list[int] = []
        if not enabled:
            return
        given = [params] if isinstance(params, torch.Tensor) else list(params or ())
        managed: list[Any] = [p for p in given if isinstance(p, torch.Tensor) and _is_managed(p)]
        self.params = sorted(dict.fromkeys(managed), key=_place)

    def __enter__(self) -> None:
        if not self.enabled:
            return
        partition.flush()
        mine = [p for p in self.params if id(p) not in _open]
        for p in self.params:
            if id(p) in _open and self.src_rank not in (None, _open[id(p)]):
                raise UsageError(
                    "GatheredParameters inside another one that has the same parameter: only the outer one can spread "
                    f"what is written; give it modifier_rank={self.src_rank}"
                )
        by_engine: dict[int, tuple[Any, list[torch.nn.Parameter]]] = {}
        for p in mine:
            engine = engine_of(p)
            if engine is not None:
                by_engine.setdefault(id(engine), (engine, []))[1].append(p)
            elif partition.placed(p) is not None:
                self._placed.append(p)
        for engine, parameters in by_engine.values():
            self._scopes.append(_C.Gathered(engine._core, parameters, self.src_rank))
        if self._placed:
            partition.meet()  # nobody reads any more what this rank may write from here on
        if self._placed and self.src_rank is None:
            self._before = [p.data.clone() for p in self._placed if _is_first(p)]
        self.params = mine
        for p in mine:
            _open[id(p)] = self.src_rank
        if self.src_rank is None:
            self._versions = [_version(p) for p in mine]
        if self.src_rank is not None and self.src_rank == world_group().rank:
            self._storages = {raw_access.memory_of(p) for p in mine}
            raw_access.writable.update(self._storages)

    def __exit__(self, kind: Any, *error: Any) -> None:
        if not self.enabled:
            return
        for p in self.params:
            del _open[id(p)]
        raw_access.writable.difference_update(self._storages)
        failed = kind is not None
        written = [p for p, before in zip(self.params, self._versions, strict=False) if _version(p) != before]
        for scope in self._scopes:
            scope.close(failed)
        self._scopes = []
        if self._placed:
            for p, values in zip([p for p in self._placed if _is_first(p)], self._before, strict=False):
                p.data.copy_(values)
            self._before = []
            if not failed:
                partition.spread(self._placed, self.src_rank)
        self._placed = []
        if not failed:
            self._check_written(written)

    def _check_written(self, written: list[torch.nn.Parameter]) -> None:
        """Of a scope that nobody modifies. *Collective* where it is an error."""
        global _said_forgotten
        problem = None
        if written:
            problem = (
                f"Detected in-place modification of a parameter of shape {tuple(written[0].shape)} inside "
                "GatheredParameters without modifier_rank: what was written is forgotten; give modifier_rank, the rank "
                "whose values count"
            )
        if self.src_rank is None and any(_is_checked(p) for p in self.params):
            problem = first_problem(problem)
            if problem is not None:
                raise UsageError(problem)
        if problem is not None and not _said_forgotten:
            _said_forgotten = True
            logger.warning(problem)


def _version(parameter: torch.nn.Parameter) -> int:
    """Counts writes, but for tensors of inference mode."""
    return 0 if parameter.is_inference() else parameter._version


def _is_checked(parameter: torch.nn.Parameter) -> bool:
    engine = engine_of(parameter)
    if engine is None:
        return bool(getattr(parameter, "ds_enable_sanity_checks", False))
    return bool(engine._config.checks_writes)


def _is_managed(parameter: torch.Tensor) -> bool:
    """Those of stage 3 and zero.Init, and below it those that the program may write in a scope only."""
    if hasattr(parameter, "ds_id"):
        return True
    engine = engine_of(parameter)
    return engine is not None and engine._config.refuses_writes


def _place(parameter: Any) -> tuple[int, str]:
    """By which parameters have the same order on all ranks."""
    if hasattr(parameter, "ds_id"):
        return int(parameter.ds_id), ""
    return -1, engine_of(parameter)._names[parameter]


def _is_first(parameter: torch.nn.Parameter) -> bool:
    place_of = partition.placed(parameter)
    return place_of is not None and place_of.block.is_first

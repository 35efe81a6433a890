"""zero.Init: a model is built without every rank having a copy of it."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.nn.modules import module as torch_module

from zerotorch.core.config import read
from zerotorch.core.distributed import init_distributed
from zerotorch.core.parameters import partition
from zerotorch.errors import UsageError

_PENDING_NBYTES = 64 * 2**20  # so much is built before it moves to shared memory


class Init:
    """While it is open, parameters that modules register move to memory that the ranks of a host share, with the values
    of rank 0. *Collective*: every rank builds the same modules.

    A parameter stays whole and usable. What a rank other than the first of its host writes into one is its own and is
    forgotten at initialize(), where rank 0's values count; GatheredParameters(modifier_rank=r) spreads what r writes.

    Args:
        module: converts this one instead, at once.
        config_dict_or_path: only its precision and zero_optimization.enable_sanity_checks are looked at; "auto" and
            missing keys are as good as nothing.
        dtype: of floating-point parameters, in place of the configuration's. Buffers keep theirs, as initialize() has
            it: rotary embeddings computed from 16-bit frequencies would be wrong.
        enabled: False: does nothing.
        remote_device: None, "cpu" or "none".
    """

    def __init__(
        self,
        module: torch.nn.Module | None = None,
        data_parallel_group: Any = None,
        mem_efficient_linear: bool = True,
        remote_device: str | None = None,
        pin_memory: bool = False,
        config_dict_or_path: Any = None,
        config: Any = None,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        mpu: Any = None,
        **_: Any,
    ) -> None:
        if remote_device not in (None, "none", "cpu"):
            raise UsageError(f"zero.Init(remote_device='{remote_device}'): parameters are in host memory; leave it out")
        self.enabled = enabled
        if enabled:
            init_distributed()  # programs broadcast by torch.distributed what is not partitioned
        given = _read(config_dict_or_path if config is None else config)
        self.dtype = dtype if dtype is not None else _dtype_of(given)
        self._checks = bool((given.get("zero_optimization") or {}).get("enable_sanity_checks") is True)
        self._handles: list[Any] = []
        self._pending: dict[torch.nn.Parameter, None] = {}
        self._pending_nbytes = 0
        self._touched: list[weakref.ref[torch.nn.Module]] = []
        if module is not None and enabled:
            self._place(list(module.parameters()))

    def __enter__(self) -> Init:
        if self.enabled:
            partition._active.append(self)
            self.resume()
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        if not self.enabled:
            return
        self.pause(flush=kind is None)
        partition._active.remove(self)

    def resume(self) -> None:
        self._handles = [
            torch_module.register_module_module_registration_hook(self._on_child),
            torch_module.register_module_parameter_registration_hook(self._on_parameter),
        ]

    def pause(self, flush: bool = True) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        if flush:
            self._convert_rest()
            self.flush()

    def flush(self) -> None:
        """What was built so far moves. *Collective.*"""
        pending, self._pending, self._pending_nbytes = list(self._pending), {}, 0
        self._place(pending)

    def _place(self, parameters: list[torch.nn.Parameter]) -> None:
        partition.place(parameters, self.dtype)
        for parameter in parameters if self._checks else ():
            parameter.ds_enable_sanity_checks = True  # type: ignore[attr-defined]

    def _on_parameter(self, module: torch.nn.Module, name: str, parameter: Any) -> None:
        if not self._touched or self._touched[-1]() is not module:
            self._touched.append(weakref.ref(module))

    def _on_child(self, module: torch.nn.Module, name: str, child: Any) -> None:
        if child is None:
            return
        for parameter in child.parameters():  # its constructor is done
            self._add(parameter)
        if self._pending_nbytes >= _PENDING_NBYTES:
            self.flush()

    def _convert_rest(self) -> None:
        """Modules that are no other's child."""
        for reference in self._touched:
            module = reference()
            if module is None:
                continue
            for parameter in module.parameters(recurse=False):
                self._add(parameter)
        self._touched = []

    def _add(self, parameter: torch.nn.Parameter) -> None:
        if parameter in self._pending or partition.placed(parameter) is not None or parameter.device.type != "cpu":
            return
        self._pending[parameter] = None
        self._pending_nbytes += parameter.numel() * parameter.element_size()


def _read(config: Any) -> dict[str, Any]:
    if config is None or isinstance(config, dict):
        return config or {}
    return read(config)[0]


def _dtype_of(config: dict[str, Any]) -> torch.dtype | None:
    for key, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16), ("bfloat16", torch.bfloat16)):
        section = config.get(key)
        if isinstance(section, dict) and section.get("enabled") is True:
            return dtype
    return None

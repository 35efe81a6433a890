"""CUDA's GPUs with the interface of DeepSpeed's accelerators: torch.cuda by other names. Memory is in bytes."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from .accelerator import Accelerator

_untyped: Any = torch.cuda


class CUDAAccelerator(Accelerator):
    """A device index is of a GPU of this host; None: the current one."""

    Stream = torch.cuda.Stream
    Event = torch.cuda.Event

    def __init__(self) -> None:
        super().__init__("cuda")

    # Devices

    def is_available(self) -> bool:
        return torch.cuda.is_available()

    def device_name(self, device_index: int | str | None = None) -> str:
        return self._name if device_index is None else f"{self._name}:{int(device_index)}"

    def current_device_name(self) -> str:
        return self.device_name(self.current_device())

    def device(self, device_index: int | None = None) -> contextlib.AbstractContextManager[None]:
        return torch.cuda.device(self.current_device() if device_index is None else device_index)

    def set_device(self, device_index: int) -> None:
        torch.cuda.set_device(device_index)

    def current_device(self) -> int:
        return torch.cuda.current_device()

    def device_count(self) -> int:
        return torch.cuda.device_count()

    def synchronize(self, device_index: int | None = None) -> None:
        torch.cuda.synchronize(device_index)

    def communication_backend_name(self) -> str:
        """The backend of torch.distributed."""
        return "nccl"

    def visible_devices_envs(self) -> list[str]:
        return ["CUDA_VISIBLE_DEVICES"]

    def set_visible_devices_envs(self, current_env: dict[str, str], local_accelerator_ids: list[int]) -> None:
        for name in self.visible_devices_envs():
            current_env[name] = ",".join(map(str, local_accelerator_ids))

    # Random numbers

    def random(self) -> Any:
        return torch.random

    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        return torch.cuda.get_rng_state(self.device_name(device_index))

    def set_rng_state(self, new_state: torch.Tensor, device_index: int | None = None) -> None:
        torch.cuda.set_rng_state(new_state, self.device_name(device_index))

    def manual_seed(self, seed: int) -> None:
        torch.cuda.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.cuda.manual_seed_all(seed)

    def initial_seed(self) -> int:
        return torch.cuda.initial_seed()

    def default_generator(self, device_index: int) -> torch.Generator:
        _untyped.init()
        return torch.cuda.default_generators[device_index]

    # Streams

    def stream(self, stream: torch.cuda.Stream | None) -> contextlib.AbstractContextManager[None]:
        return torch.cuda.stream(stream)

    def current_stream(self, device_index: int | None = None) -> torch.cuda.Stream:
        return torch.cuda.current_stream(device_index)

    def default_stream(self, device_index: int | None = None) -> torch.cuda.Stream:
        return torch.cuda.default_stream(device_index)

    # Memory: of torch's allocator.

    def empty_cache(self) -> None:
        torch.cuda.empty_cache()

    def memory_allocated(self, device_index: int | None = None) -> int:
        return torch.cuda.memory_allocated(device_index)

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        return torch.cuda.max_memory_allocated(device_index)

    def memory_reserved(self, device_index: int | None = None) -> int:
        return torch.cuda.memory_reserved(device_index)

    def max_memory_reserved(self, device_index: int | None = None) -> int:
        return torch.cuda.max_memory_reserved(device_index)

    memory_cached, max_memory_cached = memory_reserved, max_memory_reserved

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        torch.cuda.reset_peak_memory_stats(device_index)

    reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats

    def memory_stats(self, device_index: int | None = None) -> dict[str, Any]:
        return torch.cuda.memory_stats(device_index)

    def total_memory(self, device_index: int | None = None) -> int:
        return torch.cuda.mem_get_info(device_index)[1]

    def available_memory(self, device_index: int | None = None) -> int:
        return torch.cuda.mem_get_info(device_index)[0]

    def pin_memory(self, tensor: torch.Tensor, make_copy: bool = True, match_shape: bool = True) -> torch.Tensor:
        return tensor.pin_memory()

    def unpin_memory(self, tensor: torch.Tensor) -> None:
        pass

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    def is_bf16_supported(self) -> bool:
        return bool(torch.cuda.is_bf16_supported())

    def is_triton_supported(self) -> bool:
        return bool(torch.cuda.get_device_capability()[0] >= 8)

    # Profilers and graphs

    def range_push(self, msg: str, domain: Any = None, category: Any = None) -> None:
        _untyped.nvtx.range_push(msg)

    def range_pop(self, domain: Any = None) -> None:
        _untyped.nvtx.range_pop()

    def lazy_call(self, callback: Callable[[], Any]) -> Any:
        return _untyped._lazy_call(callback)

    def is_current_stream_capturing(self) -> bool:
        return bool(torch.cuda.is_current_stream_capturing())

    def create_graph(self) -> torch.cuda.CUDAGraph:
        return torch.cuda.CUDAGraph()

    def capture_to_graph(self, graph: torch.cuda.CUDAGraph, pool: Any = None, stream: Any = None) -> Any:
        return torch.cuda.graph(graph, pool, stream)

    def replay_graph(self, graph: torch.cuda.CUDAGraph) -> None:
        graph.replay()


CUDA_Accelerator = CUDAAccelerator  # DeepSpeed's name

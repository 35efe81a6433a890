"""`deepspeed.accelerator`: what modules compute on, the CPU or CUDA's GPUs. Everything is local; memory is in bytes."""

from __future__ import annotations

import contextlib
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import torch

from zerotorch.core.local_rank import LocalRank
from zerotorch.errors import ConfigError, NotBuiltError

from .._modules import attach
from ..ops import op_builder

__all__ = [
    "Accelerator",
    "CPUAccelerator",
    "CUDAAccelerator",
    "get_accelerator",
    "is_current_accelerator_supported",
    "set_accelerator",
]

_untyped: Any = torch.cuda


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Nothing."""


def _bytes_of(file: str, field: str) -> int:
    for line in pathlib.Path(file).read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return 0


class Accelerator:
    """Methods by the names of DeepSpeed's abstract accelerator."""

    BFloat16Tensor = torch.BFloat16Tensor
    ByteTensor = torch.ByteTensor
    DoubleTensor = torch.DoubleTensor
    FloatTensor = torch.FloatTensor
    HalfTensor = torch.HalfTensor
    IntTensor = torch.IntTensor
    LongTensor = torch.LongTensor

    def __init__(self, name: str) -> None:
        self._name = name
        self._compile_backend = "inductor"

    def is_available(self) -> bool:
        return True

    def is_synchronized_device(self) -> bool:
        """Whether work is done when its call returns; three more questions have the same answer."""
        return self._name == "cpu"

    use_host_timers = resolves_data_dependency = handles_memory_backpressure = is_synchronized_device

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        return tensor.device.type == self._name

    def export_envs(self) -> list[str]:
        return []

    def random(self) -> Any:
        return torch.random

    def unpin_memory(self, tensor: torch.Tensor) -> None:
        pass

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    # Types and compilers

    def is_bf16_supported(self) -> bool:
        return True

    def is_fp16_supported(self) -> bool:
        return True

    def is_fp64_supported(self) -> bool:
        return True

    def supported_dtypes(self) -> list[torch.dtype]:
        return [torch.float32, torch.bfloat16, torch.float16]

    def is_triton_supported(self) -> bool:
        return False

    def get_compile_backend(self) -> str:
        return self._compile_backend

    def set_compile_backend(self, backend: str) -> None:
        """Of torch.compile. Raises ValueError for a name that torch does not have."""
        known = torch._dynamo.list_backends(exclude_tags=())
        if backend not in known:
            raise ValueError(f"{backend} is no backend of torch.compile; there are {', '.join(known)}")
        self._compile_backend = backend

    def op_builder_dir(self) -> str:
        return "zerotorch.ops.op_builder"

    def create_op_builder(self, class_name: str) -> Any:
        return self.get_op_builder(class_name)()

    def get_op_builder(self, class_name: str) -> Any:
        """A class of `zerotorch.ops.op_builder` by its name."""
        return getattr(op_builder, class_name, op_builder.NotImplementedBuilder)

    def build_extension(self) -> Any:
        """torch's, for a setup.py."""
        from torch.utils.cpp_extension import BuildExtension  # which looks for a compiler

        return BuildExtension


class HostStream:
    """Work on the CPU is done when its call returns: there is nothing to wait for."""

    synchronize = wait_stream = wait_event = _nothing

    def record_event(self, event: HostEvent | None = None) -> HostEvent:
        event = event or HostEvent()
        event.record()
        return event

    def query(self) -> bool:
        return True


class HostEvent:
    """A moment, for timing."""

    def __init__(self, enable_timing: bool = False, **kwargs: Any) -> None:
        self.seconds: float | None = None

    def record(self, stream: HostStream | None = None) -> None:
        self.seconds = time.perf_counter()

    def elapsed_time(self, end: HostEvent) -> float:
        """Milliseconds from this event to `end`. Raises RuntimeError unless both were recorded."""
        if self.seconds is None or end.seconds is None:
            raise RuntimeError("both events must be recorded before the time between them is asked for")
        return 1e3 * (end.seconds - self.seconds)

    synchronize = wait = _nothing

    def query(self) -> bool:
        return True


class CPUAccelerator(Accelerator):
    """A device index is accepted and means nothing."""

    Stream = HostStream
    Event = HostEvent

    def __init__(self) -> None:
        super().__init__("cpu")
        self._stream = HostStream()

    set_device = synchronize = set_visible_devices_envs = empty_cache = range_push = range_pop = _nothing

    # Devices

    def device_name(self, device_index: int | str | None = None) -> str:
        return self._name

    def current_device_name(self) -> str:
        return self._name

    def device(self, device_index: int | None = None) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def current_device(self) -> LocalRank:
        """This process's place on its host; ``tensor.to()`` takes it for the CPU, as programs use it for a GPU."""
        return LocalRank(int(os.environ.get("LOCAL_RANK", "0")))

    def device_count(self) -> int:
        """Ranks that the launcher has started on this host, else its NUMA nodes."""
        ranks = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE")  # the latter is DeepSpeed's
        return int(ranks) if ranks else max(1, len(list(pathlib.Path("/sys/devices/system/node").glob("node[0-9]*"))))

    def communication_backend_name(self) -> str:
        """The backend of torch.distributed."""
        return "gloo"

    def visible_devices_envs(self) -> list[str]:
        return []

    # Random numbers

    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, new_state: torch.Tensor, device_index: int | None = None) -> None:
        torch.set_rng_state(new_state)

    def manual_seed(self, seed: int) -> torch.Generator:
        return torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def initial_seed(self) -> int:
        return torch.initial_seed()

    def default_generator(self, device_index: int | None = None) -> torch.Generator:
        return torch.default_generator

    # Streams

    def stream(self, stream: HostStream | None) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def current_stream(self, device_index: int | None = None) -> HostStream:
        return self._stream

    default_stream = current_stream

    # Memory: of this process, where an accelerator's would be of its allocator.

    def memory_allocated(self, device_index: int | None = None) -> int:
        return _bytes_of("/proc/self/status", "VmRSS")

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        return _bytes_of("/proc/self/status", "VmHWM")

    def reset_max_memory_allocated(self, device_index: int | None = None) -> None:
        with contextlib.suppress(OSError):  # where /proc is read-only the peak stays
            pathlib.Path("/proc/self/clear_refs").write_text("5")

    memory_cached = memory_reserved = memory_allocated
    max_memory_cached = max_memory_reserved = max_memory_allocated
    reset_max_memory_cached = reset_peak_memory_stats = reset_max_memory_allocated

    def memory_stats(self, device_index: int | None = None) -> dict[str, int]:
        now, peak = self.memory_allocated(), self.max_memory_allocated()
        return {"allocated_bytes.all.current": now, "allocated_bytes.all.peak": peak}

    def total_memory(self, device_index: int | None = None) -> int:
        """Of the host."""
        return _bytes_of("/proc/meminfo", "MemTotal")

    def available_memory(self, device_index: int | None = None) -> int:
        """Of the host."""
        return _bytes_of("/proc/meminfo", "MemAvailable")

    def pin_memory(self, tensor: torch.Tensor, make_copy: bool = True, match_shape: bool = True) -> torch.Tensor:
        return tensor

    # Graphs

    def lazy_call(self, callback: Callable[[], Any]) -> Any:
        return callback()

    def is_current_stream_capturing(self) -> bool:
        return False

    def create_graph(self, *args: Any, **kwargs: Any) -> Any:
        raise NotBuiltError("graphs are of a GPU's work, and this is the CPU")

    capture_to_graph = replay_graph = create_graph


def _of_cuda(name: str) -> Callable[..., Any]:
    """torch's function of this name as a method."""

    def call(self: CUDAAccelerator, *args: Any, device_index: Any = None) -> Any:
        return getattr(torch.cuda, name)(*args, *(() if device_index is None else (device_index,)))

    return call


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

    set_device = _of_cuda("set_device")
    current_device = _of_cuda("current_device")
    device_count = _of_cuda("device_count")
    synchronize = _of_cuda("synchronize")

    def communication_backend_name(self) -> str:
        """The backend of torch.distributed."""
        return "nccl"

    def visible_devices_envs(self) -> list[str]:
        return ["CUDA_VISIBLE_DEVICES"]

    def set_visible_devices_envs(self, current_env: dict[str, str], local_accelerator_ids: list[int]) -> None:
        for name in self.visible_devices_envs():
            current_env[name] = ",".join(map(str, local_accelerator_ids))

    # Random numbers

    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        return torch.cuda.get_rng_state(self.device_name(device_index))

    def set_rng_state(self, new_state: torch.Tensor, device_index: int | None = None) -> None:
        torch.cuda.set_rng_state(new_state, self.device_name(device_index))

    manual_seed = _of_cuda("manual_seed")
    manual_seed_all = _of_cuda("manual_seed_all")
    initial_seed = _of_cuda("initial_seed")

    def default_generator(self, device_index: int) -> torch.Generator:
        _untyped.init()
        return torch.cuda.default_generators[device_index]

    # Streams

    stream = _of_cuda("stream")
    current_stream = _of_cuda("current_stream")
    default_stream = _of_cuda("default_stream")

    # Memory: of torch's allocator.

    empty_cache = _of_cuda("empty_cache")
    memory_allocated = _of_cuda("memory_allocated")
    max_memory_allocated = _of_cuda("max_memory_allocated")
    memory_reserved = _of_cuda("memory_reserved")
    max_memory_reserved = _of_cuda("max_memory_reserved")

    memory_cached, max_memory_cached = memory_reserved, max_memory_reserved

    reset_peak_memory_stats = _of_cuda("reset_peak_memory_stats")

    reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats

    memory_stats = _of_cuda("memory_stats")

    def total_memory(self, device_index: int | None = None) -> int:
        return torch.cuda.mem_get_info(device_index)[1]

    def available_memory(self, device_index: int | None = None) -> int:
        return torch.cuda.mem_get_info(device_index)[0]

    def pin_memory(self, tensor: torch.Tensor, make_copy: bool = True, match_shape: bool = True) -> torch.Tensor:
        return tensor.pin_memory()

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


CPU_Accelerator, CUDA_Accelerator = CPUAccelerator, CUDAAccelerator  # DeepSpeed's names

_accelerator: CPUAccelerator | CUDAAccelerator | None = None


def get_accelerator() -> CPUAccelerator | CUDAAccelerator:
    """The one accelerator of this process: that of the environment's DS_ACCELERATOR ("cpu" or "cuda"), else CUDA's where
    torch finds a GPU, else the CPU. Local.

    Raises:
        ConfigError: DS_ACCELERATOR names another one, or CUDA's without a GPU.
    """
    global _accelerator
    if _accelerator is None:
        wanted = os.environ.get("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
        if wanted not in ("cpu", "cuda"):
            raise ConfigError(f"DS_ACCELERATOR is {wanted!r}; there are 'cpu' and 'cuda'")
        if wanted == "cuda" and not torch.cuda.is_available():
            raise ConfigError("DS_ACCELERATOR is 'cuda', and torch finds no GPU; unset it, or set it to 'cpu'")
        _accelerator = CUDAAccelerator() if wanted == "cuda" else CPUAccelerator()
    return _accelerator


def set_accelerator(accel_obj: Any) -> None:
    """From here on get_accelerator() is this object. The engine does not ask it where parameters are. Local."""
    global _accelerator
    _accelerator = accel_obj


def is_current_accelerator_supported() -> bool:
    """True. Local."""
    return True


__getattr__, __dir__ = attach(__name__)

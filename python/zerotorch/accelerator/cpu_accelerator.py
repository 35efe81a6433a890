"""The CPU with the interface of DeepSpeed's accelerators. Everything is local; memory is in bytes."""

import contextlib
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import torch

from ..errors import NotBuiltError
from ..local_rank import LocalRank
from .accelerator import Accelerator


class HostStream:
    """Work on the CPU is done when its call returns: there is nothing to wait for."""

    def synchronize(self) -> None:
        pass

    def wait_stream(self, stream: "HostStream") -> None:
        pass

    def wait_event(self, event: "HostEvent") -> None:
        pass

    def record_event(self, event: "HostEvent | None" = None) -> "HostEvent":
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

    def elapsed_time(self, end: "HostEvent") -> float:
        """Milliseconds from this event to `end`. Raises RuntimeError unless both were recorded."""
        if self.seconds is None or end.seconds is None:
            raise RuntimeError("both events must be recorded before the time between them is asked for")
        return 1e3 * (end.seconds - self.seconds)

    def synchronize(self) -> None:
        pass

    def wait(self, stream: HostStream | None = None) -> None:
        pass

    def query(self) -> bool:
        return True


class CPUAccelerator(Accelerator):
    """A device index is accepted and means nothing."""

    Stream = HostStream
    Event = HostEvent

    def __init__(self) -> None:
        super().__init__("cpu")
        self._stream = HostStream()

    # Devices

    def device_name(self, device_index: int | str | None = None) -> str:
        return self._name

    def current_device_name(self) -> str:
        return self._name

    def device(self, device_index: int | None = None) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def set_device(self, device_index: int) -> None:
        pass

    def current_device(self) -> LocalRank:
        """This process's place on its host; ``tensor.to()`` takes it for the CPU, as programs use it for a GPU."""
        return LocalRank(int(os.environ.get("LOCAL_RANK", "0")))

    def device_count(self) -> int:
        """Ranks that the launcher has started on this host, else its NUMA nodes."""
        ranks = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE")  # the latter is DeepSpeed's
        return int(ranks) if ranks else max(1, len(list(pathlib.Path("/sys/devices/system/node").glob("node[0-9]*"))))

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def communication_backend_name(self) -> str:
        """The backend of torch.distributed."""
        return "gloo"

    def visible_devices_envs(self) -> list[str]:
        return []

    def set_visible_devices_envs(self, current_env: dict[str, str], local_accelerator_ids: list[int]) -> None:
        pass

    # Random numbers

    def random(self) -> Any:
        return torch.random

    def get_rng_state(self, device_index: int | None = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, new_state: torch.Tensor, device_index: int | None = None) -> None:
        torch.set_rng_state(new_state)

    def manual_seed(self, seed: int) -> torch.Generator:
        return torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> torch.Generator:
        return torch.manual_seed(seed)

    def initial_seed(self) -> int:
        return torch.initial_seed()

    def default_generator(self, device_index: int | None = None) -> torch.Generator:
        return torch.default_generator

    # Streams

    def stream(self, stream: HostStream | None) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def current_stream(self, device_index: int | None = None) -> HostStream:
        return self._stream

    def default_stream(self, device_index: int | None = None) -> HostStream:
        return self._stream

    # Memory: of this process, where an accelerator's would be of its allocator.

    def empty_cache(self) -> None:
        pass

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

    def unpin_memory(self, tensor: torch.Tensor) -> None:
        pass

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.is_pinned()

    # Profilers and graphs

    def range_push(self, msg: str, domain: Any = None, category: Any = None) -> None:
        pass

    def range_pop(self, domain: Any = None) -> None:
        pass

    def lazy_call(self, callback: Callable[[], Any]) -> Any:
        return callback()

    def is_current_stream_capturing(self) -> bool:
        return False

    def create_graph(self) -> Any:
        raise NotBuiltError("graphs are of a GPU's work, and this is the CPU")

    def capture_to_graph(self, graph: Any, pool: Any = None, stream: Any = None) -> Any:
        self.create_graph()

    def replay_graph(self, graph: Any) -> None:
        self.create_graph()


def _bytes_of(file: str, field: str) -> int:
    for line in pathlib.Path(file).read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return 0


CPU_Accelerator = CPUAccelerator  # DeepSpeed's name

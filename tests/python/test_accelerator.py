"""`get_accelerator()`: which one, what it is asked for, and where `initialize` puts a module."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import zerotorch
from zerotorch import accelerator
from zerotorch.runtime.engine import DeepSpeedEngine
from zerotorch.errors import ConfigError

#: DeepSpeed 0.19's abstract methods.
NAMES = """
    BFloat16Tensor ByteTensor DoubleTensor Event FloatTensor HalfTensor IntTensor LongTensor Stream available_memory
    build_extension capture_to_graph communication_backend_name create_graph create_op_builder current_device current_device_name current_stream
    default_generator default_stream device device_count device_name empty_cache export_envs get_compile_backend
    get_op_builder get_rng_state handles_memory_backpressure initial_seed is_available is_bf16_supported
    is_fp16_supported is_pinned is_synchronized_device is_triton_supported lazy_call manual_seed manual_seed_all
    max_memory_allocated max_memory_cached max_memory_reserved memory_allocated memory_cached memory_reserved
    memory_stats on_accelerator op_builder_dir pin_memory random range_pop range_push replay_graph reset_max_memory_allocated
    reset_max_memory_cached reset_peak_memory_stats resolves_data_dependency set_compile_backend set_device
    set_rng_state set_visible_devices_envs stream supported_dtypes synchronize total_memory use_host_timers
    visible_devices_envs
""".split()


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "_accelerator", None)


@pytest.mark.parametrize("kind", [accelerator.CPUAccelerator, accelerator.CUDAAccelerator])
def test_has_the_methods_of_deepspeeds(kind: Any) -> None:
    assert [name for name in NAMES if not hasattr(kind, name)] == []


def test_is_chosen_by_the_machine_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert zerotorch.get_accelerator().device_name(3) == "cpu"  # as the tests' environment says
    for found, wanted, name in [(False, None, "cpu"), (True, None, "cuda"), (True, "cpu", "cpu"), (True, "cuda", "cuda")]:
        monkeypatch.setattr(accelerator, "_accelerator", None)
        monkeypatch.setattr(torch.cuda, "is_available", lambda found=found: found)
        monkeypatch.delenv("DS_ACCELERATOR", raising=False)
        if wanted:
            monkeypatch.setenv("DS_ACCELERATOR", wanted)
        assert zerotorch.get_accelerator().device_name() == name


@pytest.mark.parametrize("wanted, said", [("cuda", "no GPU"), ("xpu", "'cpu' and 'cuda'")])
def test_refuses_what_there_is_not(monkeypatch: pytest.MonkeyPatch, wanted: str, said: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("DS_ACCELERATOR", wanted)
    with pytest.raises(ConfigError, match=said):
        zerotorch.get_accelerator()


def test_asks_torch_for_the_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    for name, answer in [("memory_allocated", 7), ("mem_get_info", (2, 5)), ("current_device", 1), ("device_count", 4)]:
        monkeypatch.setattr(torch.cuda, name, lambda *args, name=name, answer=answer: asked.append((name, *args)) or answer)
    gpu = accelerator.CUDAAccelerator()
    assert (gpu.memory_allocated(2), gpu.available_memory(), gpu.total_memory(1)) == (7, 2, 5)
    assert (gpu.current_device_name(), gpu.device_count(), gpu.device_name("2")) == ("cuda:1", 4, "cuda:2")
    assert asked[:3] == [("memory_allocated", 2), ("mem_get_info", None), ("mem_get_info", 1)]
    environment: dict[str, str] = {}
    gpu.set_visible_devices_envs(environment, [1, 3])
    assert environment == {"CUDA_VISIBLE_DEVICES": "1,3"}


class Elsewhere(accelerator.CPUAccelerator):
    """Torch's device without memory, as if it was a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.chosen: list[int] = []

    def device_name(self, device_index: int | str | None = None) -> str:
        return "meta"

    def device_count(self) -> int:
        return 2

    def set_device(self, device_index: int) -> None:
        self.chosen.append(device_index)


def test_a_module_is_moved_to_the_gpu_of_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = Elsewhere()
    monkeypatch.setattr(accelerator, "_accelerator", gpus)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    DeepSpeedEngine.place(model, 3)
    assert gpus.chosen == [1]  # of two
    assert {tensor.device.type for tensor in [*model.parameters(), *model.buffers()]} == {"meta"}
    DeepSpeedEngine.place(model, 3)  # is where it should be
    assert gpus.chosen == [1]


def test_a_module_stays_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "_accelerator", accelerator.CPUAccelerator())
    model = torch.nn.Linear(2, 2)
    DeepSpeedEngine.place(model, 3)
    assert model.weight.device.type == "cpu"

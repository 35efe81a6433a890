"""What DeepSpeed's accelerators have in common. Everything is local; memory is in bytes."""

from typing import Any

import torch


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
        from ..ops import op_builder

        return getattr(op_builder, class_name, op_builder.NotImplementedBuilder)

    def build_extension(self) -> Any:
        """torch's, for a setup.py."""
        from torch.utils.cpp_extension import BuildExtension

        return BuildExtension

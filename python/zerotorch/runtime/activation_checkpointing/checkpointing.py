"""`deepspeed.checkpointing`: parts of a model whose activations are computed again in backward.

Over torch.utils.checkpoint without re-entrance, which works with what the engine does to parameters at every stage.
Everything is local.
"""

import contextlib
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint as torch_checkpoint

from zerotorch.core.log import log_dist
from zerotorch.errors import NotBuiltError, UsageError

from ...accelerator import get_accelerator

__all__ = [
    "CudaRNGStatesTracker",
    "checkpoint",
    "configure",
    "get_cuda_rng_tracker",
    "is_configured",
    "model_parallel_cuda_manual_seed",
    "non_reentrant_checkpoint",
    "partition_activations_in_checkpoint",
    "reset",
    "set_num_layers",
]


@dataclass
class _Settings:
    """By the names of the `activation_checkpointing` section."""

    partition_activations: bool = False
    contiguous_memory_optimization: bool = False
    number_checkpoints: int | None = None
    cpu_checkpointing: bool = False
    synchronize_checkpoint_boundary: bool = False
    profile: bool = False


_settings = _Settings()
_configured = False


def configure(
    mpu_: Any,
    deepspeed_config: str | pathlib.Path | Mapping[str, Any] | None = None,
    partition_activations: bool | None = None,
    contiguous_checkpointing: bool | None = None,
    num_checkpoints: int | None = None,
    checkpoint_in_cpu: bool | None = None,
    synchronize: bool | None = None,
    profile: bool | None = None,
) -> None:
    """Sets how `checkpoint` works; what is not given comes from the `activation_checkpointing` section, if any.

    `checkpoint_in_cpu` keeps the inputs of checkpointed parts in host memory. `partition_activations` and
    `contiguous_checkpointing` divide and lay out what model-parallel ranks hold in common: without such ranks there is
    nothing to divide, and `synchronize` and `profile` have nothing to wait for; all of them are accepted.

    Raises NotBuiltError for `partition_activations` with an `mpu_` of several model-parallel ranks, and UsageError
    where `contiguous_checkpointing` lacks `partition_activations` or `num_checkpoints`.
    """
    global _settings, _configured
    given: dict[str, Any] = {
        "partition_activations": partition_activations,
        "contiguous_memory_optimization": contiguous_checkpointing,
        "number_checkpoints": num_checkpoints,
        "cpu_checkpointing": checkpoint_in_cpu,
        "synchronize_checkpoint_boundary": synchronize,
        "profile": profile,
    }
    settings = replace(
        _settings_of(deepspeed_config), **{name: value for name, value in given.items() if value is not None}
    )
    if settings.contiguous_memory_optimization and not settings.partition_activations:
        raise UsageError("contiguous_checkpointing needs partition_activations")
    if settings.contiguous_memory_optimization and settings.number_checkpoints is None:
        raise UsageError("contiguous_checkpointing needs num_checkpoints")
    if settings.partition_activations:
        if _model_parallel_size(mpu_) > 1:
            raise NotBuiltError("partition_activations over model-parallel ranks is not built")
        log_dist("partition_activations has no effect: there are no model-parallel ranks", ranks=[0])
    _settings = settings
    _configured = True


def is_configured() -> bool:
    """Whether `configure` was called."""
    return _configured


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`function(*args, **kwargs)`, whose activations are not kept but computed again in backward.

    Random numbers are drawn again as they were. Gradients go to tensors among the arguments and to what `function`
    holds.
    """
    hooks = torch.autograd.graph.save_on_cpu() if _settings.cpu_checkpointing else contextlib.nullcontext()
    with hooks:
        return torch_checkpoint(partial(function, **kwargs), *args, use_reentrant=False)


non_reentrant_checkpoint = checkpoint


def reset() -> None:
    """Nothing: there are no buffers that evaluation would fill."""


def partition_activations_in_checkpoint(partition_activation: bool) -> None:
    """Nothing: see `configure`."""


def set_num_layers(nlayers: int) -> None:
    """Nothing: only contiguous buffers would have to know."""


class CudaRNGStatesTracker:
    """Named streams of random numbers beside the default one, for parts of a model that must not share it."""

    def __init__(self) -> None:
        self.states_: dict[str, torch.Tensor] = {}
        self.seeds_: set[int] = set()

    def reset(self) -> None:
        """Forgets all streams."""
        self.states_ = {}
        self.seeds_ = set()

    def get_states(self) -> dict[str, torch.Tensor]:
        """The streams' states by name."""
        return dict(self.states_)

    def set_states(self, states: dict[str, torch.Tensor]) -> None:
        """Goes back to states that `get_states` gave."""
        self.states_ = states

    def add(self, name: str, seed: int) -> None:
        """Starts a stream. Raises UsageError for a name or seed that is taken."""
        if seed in self.seeds_ or name in self.states_:
            raise UsageError(f"there is a stream of random numbers called {name} or with seed {seed} already")
        self.seeds_.add(seed)
        self.states_[name] = torch.Generator().manual_seed(seed).get_state()

    @contextlib.contextmanager
    def fork(self, name: str = "model-parallel-rng") -> Iterator[None]:
        """A context in which random numbers come from a stream. Raises UsageError for a name that was not added."""
        if name not in self.states_:
            raise UsageError(f"there is no stream of random numbers called {name}")
        default = torch.get_rng_state()
        torch.set_rng_state(self.states_[name])
        try:
            yield
        finally:
            self.states_[name] = torch.get_rng_state()
            torch.set_rng_state(default)


_tracker = CudaRNGStatesTracker()

# Names that Megatron's kin takes from here.
_CUDA_RNG_STATE_TRACKER = _tracker


def _set_cuda_rng_state(new_state: torch.Tensor, device: Any = -1) -> None:
    get_accelerator().set_rng_state(new_state)


def get_cuda_rng_tracker() -> CudaRNGStatesTracker:
    """The tracker of this process."""
    return _tracker


def model_parallel_cuda_manual_seed(seed: int) -> None:
    """Seeds the default stream, and "model-parallel-rng" apart from it, anew."""
    _tracker.reset()
    torch.manual_seed(seed)
    _tracker.add("model-parallel-rng", seed + 2718)


def _settings_of(config: str | pathlib.Path | Mapping[str, Any] | None) -> _Settings:
    if config is None:
        return _Settings()
    whole = config if isinstance(config, Mapping) else json.loads(pathlib.Path(config).read_text())
    section = whole.get("activation_checkpointing") or {}
    return _Settings(**{field.name: section[field.name] for field in fields(_Settings) if field.name in section})


def _model_parallel_size(mpu: Any) -> int:
    for name in ("get_tensor_model_parallel_world_size", "get_model_parallel_world_size"):
        if hasattr(mpu, name):
            return int(getattr(mpu, name)())
    return 1

"""`deepspeed.runtime.zero.stage3`."""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from ..base_optimizer import OfStages, ZeROOptimizer
from .memory_estimates import Estimate, largest_layer, print_estimates


class DeepSpeedZeroOptimizer_Stage3(ZeROOptimizer, metaclass=OfStages):
    """For isinstance: `engine.optimizer` at stage 3."""

    stages = (3,)


@contextlib.contextmanager
def unwrap_model_for_generation(model: Any) -> Iterator[Any]:
    """A context in which all parameters of a model are gathered. Collective."""
    from ...zero import GatheredParameters

    with GatheredParameters(model.parameters()):
        yield model


def estimate_zero3_model_states_mem_needs(
    total_params: int,
    largest_layer_params: int,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    cpu_offload: bool = True,
    cpu_offload_params: bool = True,
    zero_init: bool = True,
    additional_buffer_factor: float = 1.5,
) -> tuple[int, int, int]:
    """Bytes in bf16 training: of a host, of an accelerator (0: all is on the host), and of the largest layer in fp32.

    Offload changes nothing. `zero plan` has exact figures. Local.
    """
    estimate = Estimate(3, total_params, num_gpus_per_node, num_nodes, additional_buffer_factor)
    return estimate.host_bytes(zero_init), 0, 4 * largest_layer_params


def estimate_zero3_model_states_mem_needs_all_live(
    model: torch.nn.Module, num_gpus_per_node: int = 1, num_nodes: int = 1, additional_buffer_factor: float = 1.5
) -> None:
    """Prints the estimate for a model. Local."""
    estimate_zero3_model_states_mem_needs_all_cold(
        *largest_layer(model), num_gpus_per_node, num_nodes, additional_buffer_factor
    )


def estimate_zero3_model_states_mem_needs_all_cold(
    total_params: int,
    largest_layer_params: int,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    additional_buffer_factor: float = 1.5,
) -> None:
    """Prints the estimate for a number of parameters. Local."""
    print_estimates(Estimate(3, total_params, num_gpus_per_node, num_nodes, additional_buffer_factor))

"""`deepspeed.runtime.zero.stage_1_and_2`."""

import torch

from ..._lazy import attach
from ..base_optimizer import OfStages, ZeROOptimizer
from .memory_estimates import Estimate, largest_layer, print_estimates


class DeepSpeedZeroOptimizer(ZeROOptimizer, metaclass=OfStages):
    """For isinstance: `engine.optimizer` at stages 1 and 2."""

    stages = (1, 2)


def estimate_zero2_model_states_mem_needs(
    total_params: int,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    cpu_offload: bool = True,
    additional_buffer_factor: float = 1.5,
) -> tuple[int, int]:
    """Bytes in bf16 training: of a host, and of an accelerator (0: all is on the host).

    Offload changes nothing. `zero plan` has exact figures. Local.
    """
    return Estimate(2, total_params, num_gpus_per_node, num_nodes, additional_buffer_factor).host_bytes(), 0


def estimate_zero2_model_states_mem_needs_all_live(
    model: torch.nn.Module, num_gpus_per_node: int = 1, num_nodes: int = 1, additional_buffer_factor: float = 1.5
) -> None:
    """Prints the estimate for a model. Local."""
    total_params, _ = largest_layer(model)
    estimate_zero2_model_states_mem_needs_all_cold(total_params, num_gpus_per_node, num_nodes, additional_buffer_factor)


def estimate_zero2_model_states_mem_needs_all_cold(
    total_params: int, num_gpus_per_node: int = 1, num_nodes: int = 1, additional_buffer_factor: float = 1.5
) -> None:
    """Prints the estimate for a number of parameters. Local."""
    print_estimates(Estimate(2, total_params, num_gpus_per_node, num_nodes, additional_buffer_factor))


__getattr__, __dir__ = attach(__name__)

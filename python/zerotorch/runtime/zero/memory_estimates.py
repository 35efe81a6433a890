"""Rough needs of model states in bf16, by docs/plan.md: what a parameter costs, and from which stage it is sharded.
`zero plan` has exact figures. Everything is local."""

from dataclasses import dataclass

import torch

PARAMETER_BYTES = 2
STATE_BYTES = 2 + 8 + 4  # the rest of the fp32 master, two moments, and the sum of gradients; sharded from stage 1
FP32_BYTES = 4


@dataclass
class Estimate:
    """Of `parameters` on `nodes` hosts with `ranks` ranks each at stage 2 or 3."""

    stage: int
    parameters: int
    ranks: int
    nodes: int
    buffer_factor: float  # for what is not a model state

    def host_bytes(self, zero_init: bool = True) -> int:
        """Of each host; without `zero_init` every rank constructs the whole fp32 module first."""
        copies = 1 / self.nodes if self.stage == 3 else self.ranks
        states = PARAMETER_BYTES * copies + STATE_BYTES / self.nodes
        constructed = 0 if zero_init else FP32_BYTES * self.ranks
        return int(self.parameters * max(states, constructed) * self.buffer_factor)


def largest_layer(model: torch.nn.Module) -> tuple[int, int]:
    """The number of parameters of a model, shared ones once, and of the module that has most of its own."""
    own = [sum(parameter.numel() for parameter in module.parameters(recurse=False)) for module in model.modules()]
    return sum(parameter.numel() for parameter in model.parameters()), max(own)


def print_estimates(estimate: Estimate) -> None:
    """Prints the needs of a host, in units of 2^30 bytes, with and without `zero.Init`."""
    print(
        f"Estimated memory for model states, bf16, ZeRO stage {estimate.stage}: {estimate.parameters / 1e6:.0f}M "
        f"parameters, {estimate.nodes} hosts, {estimate.ranks} ranks on each (exactly: zero plan)"
    )
    for zero_init in (True, False) if estimate.stage == 3 else (False,):
        print(f"  {estimate.host_bytes(zero_init) / 2**30:8.2f} GB on each host | zero_init={int(zero_init)}")


def estimate_zero2_model_states_mem_needs(
    total_params: int,
    num_gpus_per_node: int = 1,
    num_nodes: int = 1,
    cpu_offload: bool = True,
    additional_buffer_factor: float = 1.5,
) -> tuple[int, int]:
    """Bytes in bf16 training: of a host, and of an accelerator (0: all is on the host). Offload changes nothing."""
    return Estimate(2, total_params, num_gpus_per_node, num_nodes, additional_buffer_factor).host_bytes(), 0


def estimate_zero2_model_states_mem_needs_all_live(
    model: torch.nn.Module, num_gpus_per_node: int = 1, num_nodes: int = 1, additional_buffer_factor: float = 1.5
) -> None:
    """Prints the estimate for a model."""
    total_params, _ = largest_layer(model)
    estimate_zero2_model_states_mem_needs_all_cold(total_params, num_gpus_per_node, num_nodes, additional_buffer_factor)


def estimate_zero2_model_states_mem_needs_all_cold(
    total_params: int, num_gpus_per_node: int = 1, num_nodes: int = 1, additional_buffer_factor: float = 1.5
) -> None:
    """Prints the estimate for a number of parameters."""
    print_estimates(Estimate(2, total_params, num_gpus_per_node, num_nodes, additional_buffer_factor))


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
    Offload changes nothing."""
    estimate = Estimate(3, total_params, num_gpus_per_node, num_nodes, additional_buffer_factor)
    return estimate.host_bytes(zero_init), 0, 4 * largest_layer_params


def estimate_zero3_model_states_mem_needs_all_live(
    model: torch.nn.Module, num_gpus_per_node: int = 1, num_nodes: int = 1, additional_buffer_factor: float = 1.5
) -> None:
    """Prints the estimate for a model."""
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
    """Prints the estimate for a number of parameters."""
    print_estimates(Estimate(3, total_params, num_gpus_per_node, num_nodes, additional_buffer_factor))

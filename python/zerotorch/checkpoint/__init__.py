"""`deepspeed.checkpoint`: names in the files of DeepSpeed's checkpoints, for programs that read such files themselves, and
what they call of it. Every checkpoint here is universal: it loads on any number of ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch

from .._modules import attach

# Files and folders.
MODEL_FILE_PREFIX = "mp_rank_"
ZERO_FILE_PREFIX = "zero_pp_rank_"
OPTIM_FILE_SUFFIX = "_optim_states.pt"
MODEL_FILE_SUFFIX = "_model_states.pt"
LAYER_FILE_PREFIX = "layer_"
BF16_ZERO_FILE_PREFIX = "bf16_zero_pp_rank_"
FP16_ZERO_FILE_PREFIX = "fp16_zero_pp_rank_"

# Keys of files with states of optimizers.
FP32_WEIGHT_KEY = "fp32"

# Keys of files with weights.
CHECKPOINT_PARALLEL_DIMS = "checkpoint_parallel_dimensions"
CHECKPOINT_PP_DEGREE = "pp_degree"
CHECKPOINT_TP_DEGREE = "tp_degree"

# Universal checkpoints.
UNIVERSAL_CHECKPOINT_VERSION_KEY = "universal_checkpoint_version"
UNIVERSAL_CHECKPOINT_VERSION_VALUE = 0.4
DS_AUTOTP_UC_META = "ds_autotp_universal_checkpoint_meta"
AFFINE_MAP_VERSION = "version"
AFFINE_MAP_PARAMS = "params"

# Experts.
AUTOEP_LAYERS_KEY = "ds_autoep_layers"
AUTOEP_LAYERS_KEY_LEGACY = "autoep_layers"
AUTOEP_PARAM_LOGICAL_SHAPE = "logical_shape"
AUTOEP_PARAM_EP_RANK = "ep_rank"
AUTOEP_PARAM_LOCAL_EXPERTS = "local_experts"
AUTOEP_ZERO12_REQUIRED_FIELDS = ("expert_key_prefix", "num_experts", "num_local_experts", "ep_size")
AUTOEP_ZERO3_EXPERT_STATE_FORMAT_KEY = "checkpoint_format"
AUTOEP_ZERO3_PARTITIONED_EXPERT_STATE_FORMAT = "zero3_partitioned"
AUTOEP_ZERO3_EXPERT_STATE_FORMAT_VERSION_KEY = "checkpoint_format_version"
AUTOEP_ZERO3_EXPERT_STATE_FORMAT_VERSION = 1
AUTOEP_PLACEMENT_VERSION_KEY = "version"
AUTOEP_PLACEMENT_VERSION = 1
EP_IS_EXPERT_PARAM = "is_expert_param"
FOLDING_METADATA_KEY = "folding"
FOLDING_METADATA_VERSION = 1

#: Names of keys: what the constant begins with, and the keys, which are the rest of it.
_KEYS = {
    "": "optimizer_state_dict fp32_groups fp32_flat_groups base_optimizer_state base_optimizer_state_step "
    "single_partition_of_fp32_groups param_groups group_paddings param_alignment_paddings partition_count "
    "zero_stage clip_grad loss_scaler param param_shapes buffer_names frozen_param_shapes "
    "frozen_param_fragments ds_version universal_checkpoint_info autotp_unsupported_parameter_patterns "
    "affine_map vocab_tensor padded_vocab_size original_vocab_size param_slice_mappings cat_dim "
    "param_n_sub_params sub_param_shape vocabulary_parameter_patterns pipeline_replicated_parameter_patterns "
    "parameter_to_average_patterns parameter_with_row_parallelism_patterns tp_replicated_parameter_patterns "
    "parameter_with_2_sub_params_cat_dim_0 parameter_with_sub_params sub_param_shard_widths sub_params_shape "
    "ds_autoep_uc_meta ep_num_experts expert_parameter_patterns",
    "AUTOEP_PLACEMENT_": "num_experts ep_size ranks rank experts",
    "AUTOEP_": "expert_key_prefix num_experts num_local_experts ep_size expert_placement affine_maps",
    "FOLDING_": "tp_size tp_rank ep_size ep_rank etp_size etp_rank zero_partition_group zero_partition_rank "
    "zero_partition_count dispatch_strategy shared_expert_placement family param_families",
}
globals().update({begins + key.upper(): key for begins, keys in _KEYS.items() for key in keys.split()})


@dataclasses.dataclass
class SubparamShape:
    """Of a parameter that is several in one, such as a fused query, key and value: what tensor parallelism splits."""

    patterns: list[str]
    shape: tuple[Any, ...]
    partition_dim: int


def enable_universal_checkpoint(param_list: Iterable[Any]) -> None:
    """Nothing: checkpoints load on any number of ranks as they are. Local."""


def clone_tensors_for_torch_save(item: Any, device: str | torch.device = "cpu") -> Any:
    """A copy of `item` whose tensors, also inside of lists, tuples and dictionaries, have storages of their own.

    torch.save writes whole storages, so a view would take along all that it is a view of. Tensors come to `device`,
    without gradients; other values are not copied. Local.
    """
    if isinstance(item, torch.Tensor):
        return item.detach().to(device, copy=True).contiguous()
    if isinstance(item, (list, tuple)):
        return type(item)([clone_tensors_for_torch_save(one, device) for one in item])
    if isinstance(item, dict):
        return type(item)({key: clone_tensors_for_torch_save(value, device) for key, value in item.items()})
    return item


__getattr__, __dir__ = attach(__name__)

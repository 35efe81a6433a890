"""`deepspeed.utils.groups`. There is data parallelism only: its group is all ranks, and asking for another one raises.

Everything is local.
"""

from collections.abc import Callable
from typing import Any, NoReturn

from zerotorch.errors import NotBuiltError

from .. import comm


mpu: Any = None  # of a program that has tensor parallelism of its own


def initialize(ep_size: int = 1, mpu: Any = None) -> None:
    """Accepts one expert-parallel rank. Raises NotBuiltError for more."""
    if ep_size != 1:
        raise NotBuiltError("expert parallelism is not built")


def _get_data_parallel_group() -> Any:
    """All ranks; None without a process group."""
    return comm.get_world_group()


def _get_data_parallel_world_size() -> int:
    return comm.get_world_size()


def _get_data_parallel_rank() -> int:
    return comm.get_rank()


def _get_data_parallel_group_ranks() -> list[int]:
    return comm.get_all_ranks_from_group(comm.get_world_group())


def _one() -> int:
    return 1


def _zero() -> int:
    return 0


def _zero_param_parallel_is_initialized() -> bool:
    return False


def _get_expert_parallel_group_dict() -> dict[str, Any]:
    return {}


def _raises(what: str) -> Callable[..., NoReturn]:
    def get(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotBuiltError(f"{what} parallelism is not built: all ranks are data-parallel")

    return get


get_data_parallel_group = _get_data_parallel_group
get_data_parallel_world_size = _get_data_parallel_world_size
get_data_parallel_rank = _get_data_parallel_rank
_clone_world_group = _get_data_parallel_group

_get_broadcast_src_rank = _zero

get_model_parallel_world_size = _get_model_parallel_world_size = get_tensor_model_parallel_world_size = _one
get_model_parallel_rank = get_tensor_model_parallel_rank = get_tensor_model_parallel_src_rank = _zero
get_model_parallel_group = get_tensor_model_parallel_group = _raises("model")

_get_sequence_parallel_world_size = _one
_get_sequence_parallel_rank = _zero
_get_sequence_parallel_group = _raises("sequence")
_get_sequence_data_parallel_world_size = _get_data_parallel_world_size
_get_sequence_data_parallel_rank = _get_data_parallel_rank
_get_sequence_data_parallel_group = _get_data_parallel_group

_get_expert_model_parallel_world_size = _one
_get_expert_parallel_world_size = _get_expert_parallel_rank = _raises("expert")
_get_expert_parallel_group = _get_expert_data_parallel_group = _get_max_expert_parallel_group = _raises("expert")
_get_expert_data_parallel_world_size = _get_expert_data_parallel_rank = _raises("expert")

_get_zero_param_intra_parallel_group = _create_zero_param_parallel_group = _raises("hierarchical (zero_hpz)")

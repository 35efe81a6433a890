"""What programs take of DeepSpeed's small modules; `_tables` has the names that these go by. Local, but where a function
says otherwise."""

from __future__ import annotations

import enum
import functools
import math
import os
import pathlib
import re
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

import torch

from zerotorch.core.log import logger
from zerotorch.core.ranks import world_size
from zerotorch.errors import UsageError

from ..accelerator import get_accelerator
from ..runtime.sections import OffloadStateTypeEnum

P = ParamSpec("P")
R = TypeVar("R")

DEEPSPEED_NVTX_DOMAIN = "DeepSpeed"
enable_nvtx = True
PARAM_COMM_DTYPE_ATTR_NAME = "comm_dtype"
LOWER_PRECISION_SAFE_MODULES = [torch.nn.Linear, torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d]

_SIZES = ("B", "KB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB")
_ONE_WAY = (
    *("send", "recv", "isend", "irecv", "batch_isend_irecv"),
    *("broadcast", "broadcast_object_list", "reduce", "gather", "scatter", "barrier"),
)


# ---- utils ----


def convert_size(size_bytes: int) -> str:
    """ "1.5 KB" for 1536."""
    if size_bytes == 0:
        return "0B"
    power = int(math.floor(math.log(size_bytes, 1024)))
    return f"{round(size_bytes / 1024**power, 2)} {_SIZES[power]}"


def calc_bw_log(comm_op: str, size: float, duration: float) -> tuple[float, float]:
    """Gbit/s of a collective that took `duration` ms: of the algorithm, and of the busiest link. `size` is this rank's
    bytes. Raises ValueError for an operation that it does not know."""
    ranks = world_size()
    others = (ranks - 1) / ranks
    rate = size / duration * 8 / 1e6
    if comm_op in ("all_to_all", "all_to_all_single"):
        return rate, rate * others
    if comm_op in ("all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor"):
        return rate * ranks, rate * ranks * others
    if comm_op in ("all_reduce", "all_reduce_coalesced", "inference_all_reduce"):
        return 2 * rate, 2 * rate * others
    if comm_op in _ONE_WAY:
        return rate, rate
    raise ValueError(f"{comm_op} is no collective whose rate is known")


def instrument_w_nvtx(func: Callable[P, R]) -> Callable[P, R]:
    """The function, each call of which is a range with its name where there is a GPU."""

    @functools.wraps(func)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        get_accelerator().range_push(func.__qualname__)
        try:
            return func(*args, **kwargs)
        finally:
            get_accelerator().range_pop()

    return wrapped


class OnDevice:
    """A context in which new tensors are made on `device` and floating-point ones have `dtype`.

    With device "meta" a module of any size is built without memory. `enabled=False` changes nothing. Local.
    """

    def __init__(self, dtype: torch.dtype, device: str | torch.device = "meta", enabled: bool = True) -> None:
        self.dtype = dtype
        self.device = torch.device(device)
        self.enabled = enabled

    def __enter__(self) -> None:
        if self.enabled:
            self._previous = torch.get_default_dtype()
            torch.set_default_dtype(self.dtype)
            self.device.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.enabled:
            self.device.__exit__(kind, value, trace)
            torch.set_default_dtype(self._previous)


def recursive_getattr(model: torch.nn.Module, module_name: str) -> Any:
    """The member `module_name`, as "layers.0.weight"; the model itself for ""."""
    return functools.reduce(_member, module_name.split(".") if module_name else [], model)


def recursive_setattr(model: torch.nn.Module, module_name: str, module: Any) -> None:
    """Assigns `module` to the member `module_name`."""
    parent, _, name = module_name.rpartition(".")
    setattr(recursive_getattr(model, parent), name, module)


def _member(of: Any, name: str) -> Any:
    return getattr(of, name)


def parse_range(rng: str) -> range:
    """ "3" is 3, "2-4" is 2 to 4. Raises ValueError for anything else, and where the end comes before the start."""
    start, dash, end = rng.partition("-")
    if not start.isdigit() or (dash and not end.isdigit()):
        raise ValueError(f"Bad range: '{rng}', a range is a number or two with a dash between them")
    found = range(int(start), int(end or start) + 1)
    if not found:
        raise ValueError(f"Bad range: '{rng}', its end comes before its start")
    return found


def parse_range_list(range_str: str) -> list[int]:
    """ "0,2-4,6" is [0, 2, 3, 4, 6]. Raises ValueError for ranges that overlap or do not ascend."""
    numbers: list[int] = []
    for part in range_str.split(","):
        found = parse_range(part)
        if numbers and found[0] <= numbers[-1]:
            raise ValueError(f"Bad range: '{range_str}', its parts must ascend and not overlap")
        numbers.extend(found)
    return numbers


def get_numa_cores() -> list[list[int]]:
    """The cores of each NUMA node, as Linux tells them; an empty list where it does not."""
    nodes = sorted(pathlib.Path("/sys/devices/system/node").glob("node[0-9]*"), key=lambda path: int(path.name[4:]))
    texts = [(node / "cpulist").read_text().strip() for node in nodes]
    return [parse_range_list(text) if text else [] for text in texts]


def required_torch_version(min_version: Any = None, max_version: Any = None) -> bool:
    """Whether torch's version is at least `min_version` and at most `max_version`. Raises UsageError without any.

    Local builds ("+cpu") are later than the version itself, as packaging.version orders them. Local.
    """
    if not min_version and not max_version:
        raise UsageError("required_torch_version() needs min_version or max_version")
    installed = _parts(torch.__version__)
    return not (
        (min_version and _parts(str(min_version)) > installed) or (max_version and _parts(str(max_version)) < installed)
    )


def register_grad_hook(param: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> Any:
    """Calls `hook` after a gradient was accumulated in `param`."""
    return param.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]


def jit_script_compat(fn: Callable[..., Any]) -> Any:
    """torch.compile of a function."""
    return torch.compile(fn)


def _parts(version: str) -> tuple[list[int], bool]:
    public, plus, _ = version.partition("+")
    found = re.match(r"\d+(\.\d+)*", public)
    numbers = [int(one) for one in found[0].split(".")] if found else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers, bool(plus)


class ActivationFuncType(enum.IntEnum):
    """Activation functions."""

    UNKNOWN = 0
    GELU = 1
    ReLU = 2
    GATED_GELU = 3
    GATED_SILU = 4


GATED_ACTIVATION_TYPES = [ActivationFuncType.GATED_GELU, ActivationFuncType.GATED_SILU]


class NormType(enum.IntEnum):
    """Normalisations."""

    UNKNOWN = 0
    LayerNorm = 1
    GroupNorm = 2
    RMSNorm = 3


# ---- compression.helper, moe.utils ----


def convert_conv1d_to_linear(model: torch.nn.Module, convert_type: type[torch.nn.Module]) -> Any:
    """The model, with torch.nn.Linear in the place of modules of `convert_type`, transformers' Conv1D.

    A Conv1D has the transposed weight, `[in, out]`. Returns the model that was given, which is changed: of a model
    that has been wrapped as `.module`, the wrapped one.
    """
    unwrapped = getattr(model, "module", model)
    for name, module in [*unwrapped.named_modules()]:
        if isinstance(module, convert_type):
            recursive_setattr(unwrapped, name, _linear(module))
    return unwrapped


def _linear(conv: Any) -> torch.nn.Linear:
    inputs, outputs = conv.weight.shape
    made = torch.nn.Linear(inputs, outputs, bias=conv.bias is not None, device="meta")
    made.weight = torch.nn.Parameter(conv.weight.detach().t().contiguous(), conv.weight.requires_grad)
    if conv.bias is not None:
        made.bias = conv.bias
    return made


def is_moe_param(param: torch.Tensor) -> bool:
    """Whether gradients of the parameter stay within expert-parallel ranks: no."""
    return False


def has_moe_layers(m: torch.nn.Module) -> tuple[bool, int]:
    """Whether the model has expert-parallel layers, and how many experts."""
    return False, 0


def is_moe_param_group(param_group: dict[str, Any]) -> bool:
    """Whether a group of an optimizer has parameters of expert-parallel layers."""
    return False


def split_params_into_different_moe_groups_for_optimizer(
    param_groups: dict[str, Any] | tuple[dict[str, Any], ...] | list[dict[str, Any]], max_group_size: float = 0
) -> list[dict[str, Any]]:
    """The groups as they are, as a list."""
    return [param_groups] if isinstance(param_groups, dict) else list(param_groups)


# ---- runtime.torch_autocast, runtime.checkpoint_engine, runtime.zero.offload_states ----


def has_comm_dtype(param: torch.nn.Parameter) -> bool:
    """Whether a parameter has a dtype of its own for communication."""
    return hasattr(param, PARAM_COMM_DTYPE_ATTR_NAME)


def get_comm_dtype(param: torch.nn.Parameter) -> Any:
    """The dtype in which a parameter is communicated: its own where none was given."""
    return getattr(param, PARAM_COMM_DTYPE_ATTR_NAME, param.dtype)


def get_default_autocast_lower_precision_modules() -> list[str]:
    """Full names of the classes that DeepSpeed casts."""
    return [f"{one.__module__}.{one.__name__}" for one in LOWER_PRECISION_SAFE_MODULES]


class TorchCheckpointEngine:
    """For programs that write files with it, or that replace its methods, which has no effect on an engine."""

    def __init__(self, config_params: Any = None) -> None:
        self.name = type(self).__name__

    def create(self, info: Any) -> None:
        """Nothing."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        os.makedirs(path, exist_ok=exist_ok)

    def save(self, state_dict: Any, path: str) -> None:
        logger.info(f"saving {path}")
        torch.save(state_dict, path)

    def load(self, path: str, map_location: Any = None) -> Any:
        """What is in a file that this process trusts: unpickling may run code of who wrote it."""
        logger.info(f"loading {path}")
        return torch.load(path, map_location=map_location, weights_only=False)

    def commit(self, info: Any) -> bool:
        """True: what was saved is there."""
        return True


def get_state_devices(model: Any, state: Any) -> set[torch.device]:
    """The devices of one kind of an engine's states: where the configuration puts them, before and after
    `offload_states()`, except that states on a GPU are reported on the CPU while they are offloaded."""
    return {model._state_device(OffloadStateTypeEnum(state))}

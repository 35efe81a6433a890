"""`deepspeed.utils`. Members are imported when they are first used."""

from .._lazy import attach
from .logging import log_dist, log_dist_once, logger, set_log_level_from_string

_SAFE = [
    f"safe_{verb}_{what}"
    for verb in ("get", "set")
    for what in (
        "full_fp32_param",
        "full_grad",
        "full_optimizer_state",
        "local_fp32_param",
        "local_grad",
        "local_optimizer_state",
    )
]
_LEAF = (
    "get_z3_leaf_modules",
    "set_z3_leaf_module",
    "set_z3_leaf_modules",
    "set_z3_leaf_modules_by_name",
    "set_z3_leaf_modules_by_suffix",
    "unset_z3_leaf_modules",
    "z3_leaf_module",
    "z3_leaf_parameter",
)

_FULL = ("get_full_hp_param", "get_full_hp_grad", "set_full_hp_param", "set_full_hp_grad")
_GROUPS = [f"get_{axis}_parallel_{what}" for axis in ("data", "model") for what in ("group", "rank", "world_size")]

_ORIGINS = {
    **{name: "zerotorch.utils.tensor_fragment" for name in [*_SAFE, *_FULL, "safe_update_full_grad_vectorized"]},
    **{name: "zerotorch.utils.groups" for name in _GROUPS},
    **{name: "zerotorch.utils.leaf_modules" for name in _LEAF},
    "OnDevice": "zerotorch.utils.init_on_device",
    "RepeatingLoader": "zerotorch.runtime.dataloader",
    "is_initialized": "zerotorch.comm",
    "instrument_w_nvtx": "zerotorch.utils.nvtx",
}

__all__ = ["log_dist", "log_dist_once", "logger", "set_log_level_from_string", *_ORIGINS]  # noqa: PLE0604

__getattr__, __dir__ = attach(__name__, names=_ORIGINS)

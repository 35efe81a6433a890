"""`deepspeed.runtime.config`."""

from typing import Any

from .._lazy import attach
from ..errors import DeepSpeedConfigError
from .config_utils import get_scalar_param
from .constants import GRADIENT_CLIPPING, GRADIENT_CLIPPING_DEFAULT, LOG_LEVEL, LOG_LEVEL_DEFAULT

__all__ = ["DeepSpeedConfigError"]

ADAGRAD_OPTIMIZER = "adagrad"
ADAM_OPTIMIZER = "adam"
ADAMW_OPTIMIZER = "adamw"
LAMB_OPTIMIZER = "lamb"
LION_OPTIMIZER = "lion"
MUON_OPTIMIZER = "muon"
# Not in DeepSpeed any more, and not built; older programs compare names with them.
ONEBIT_ADAM_OPTIMIZER = "onebitadam"
ONEBIT_LAMB_OPTIMIZER = "onebitlamb"
ZERO_ONE_ADAM_OPTIMIZER = "zerooneadam"
DEEPSPEED_OPTIMIZERS = [
    *(ADAGRAD_OPTIMIZER, ADAM_OPTIMIZER, ADAMW_OPTIMIZER, LAMB_OPTIMIZER),
    *("muadam", "muadamw", "musgd", LION_OPTIMIZER, MUON_OPTIMIZER),
]
TORCH_ADAM_PARAM = "torch_adam"
ADAM_W_MODE = "adam_w_mode"
ADAM_W_MODE_DEFAULT = True


def get_gradient_clipping(param_dict: dict[str, Any]) -> Any:
    """What a configuration says, else DeepSpeed's default. Local."""
    return get_scalar_param(param_dict, GRADIENT_CLIPPING, GRADIENT_CLIPPING_DEFAULT)


def get_log_level(param_dict: dict[str, Any]) -> Any:
    """What a configuration says, else None. Local."""
    return get_scalar_param(param_dict, LOG_LEVEL, LOG_LEVEL_DEFAULT)


__getattr__, __dir__ = attach(__name__, names={"DeepSpeedConfig": "zerotorch.config"})

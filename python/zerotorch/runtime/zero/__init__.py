"""`deepspeed.runtime.zero`. Members are imported when they are first used."""

from ..._lazy import attach

_ESTIMATES = [f"estimate_zero{{}}_model_states_mem_needs{ending}" for ending in ("", "_all_live", "_all_cold")]

__getattr__, __dir__ = attach(
    __name__,
    names={
        **{name.format(2): "zerotorch.runtime.zero.stage_1_and_2" for name in _ESTIMATES},
        **{name.format(3): "zerotorch.runtime.zero.stage3" for name in _ESTIMATES},
        "GatheredParameters": "zerotorch.zero",
        "Init": "zerotorch.zero",
        "ZeroParamStatus": "zerotorch.runtime.zero.partition_parameters",
        "ZeroParamType": "zerotorch.runtime.zero.partition_parameters",
        "register_external_parameter": "zerotorch.zero",
        "unregister_external_parameter": "zerotorch.zero",
        "unwrap_model_for_generation": "zerotorch.runtime.zero.stage3",
    },
)

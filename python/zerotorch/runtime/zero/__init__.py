"""`deepspeed.runtime.zero`. Members are imported when they are first used."""

from ..._lazy import attach

__getattr__, __dir__ = attach(
    __name__,
    submodules=("memory_estimates", "partition_parameters", "stage3", "stage_1_and_2"),
    names={
        "GatheredParameters": "zerotorch.zero",
        "Init": "zerotorch.zero",
        "ZeroParamStatus": "zerotorch.runtime.zero.partition_parameters",
        "ZeroParamType": "zerotorch.runtime.zero.partition_parameters",
        "register_external_parameter": "zerotorch.zero",
        "unregister_external_parameter": "zerotorch.zero",
        "unwrap_model_for_generation": "zerotorch.runtime.zero.stage3",
    },
)

"""`deepspeed.utils.zero_to_fp32`: whole fp32 weights from checkpoints."""

from .._lazy import attach

__getattr__, __dir__ = attach(
    __name__,
    names={
        name: "zerotorch.checkpoint_io"
        for name in (
            "convert_zero_checkpoint_to_fp32_state_dict",
            "get_checkpoint_files",
            "get_fp32_state_dict_from_zero_checkpoint",
            "get_model_state_file",
            "get_optim_files",
            "load_state_dict_from_zero_checkpoint",
        )
    },
)

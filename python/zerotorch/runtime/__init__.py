"""`deepspeed.runtime`. Submodules are imported when they are first used."""

from .._lazy import attach

__getattr__, __dir__ = attach(
    __name__,
    submodules=(
        "activation_checkpointing",
        "base_optimizer",
        "config",
        "dataloader",
        "engine",
        "lr_schedules",
        "pipe",
        "sequence_parallel",
        "utils",
        "zero",
    ),
)

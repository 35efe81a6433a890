"""Hugging Face's accelerate, and Trainer and trl above it, on ranks without a GPU."""

from __future__ import annotations

import functools
import os
import sys
from types import ModuleType
from typing import Any

from zerotorch.core.ranks import is_on_several_hosts

_RANKS = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")


def configure() -> None:
    """Has `import deepspeed` find zerotorch, and accelerate count all ranks of this job. Local.

    For programs that import libraries of Hugging Face; it comes before those. ``import zerotorch.as_deepspeed`` and
    ``python -m zerotorch.run`` do the same.

    Raises:
        UsageError: transformers or accelerate have been imported without it and take deepspeed for missing.
    """
    import zerotorch.as_deepspeed  # noqa: F401

    try:
        import accelerate.state
    except ImportError:
        return
    count_ranks(accelerate.state)
    if "transformers.trainer" in sys.modules:
        make_engines_anew(sys.modules["transformers.trainer"])
    if "transformers.training_args" in sys.modules:
        take_bf16_without_gpu(sys.modules["transformers.training_args"])


def count_ranks(state: ModuleType) -> None:
    """Has `accelerate.state` take several ranks without a GPU for one job. Local; a second call does nothing.

    accelerate looks for a backend by the GPUs it finds. Where it finds none it takes each rank for a job of one
    process, unless it is told that all is on the CPU, and then it does not look for deepspeed.
    """
    original = state.PartialState._prepare_backend
    if hasattr(original, "_zerotorch_original"):
        return

    @functools.wraps(original)
    def prepare_backend(self: Any, cpu: bool = False, sagemaker_dp: bool = False, backend: str | None = None) -> Any:
        if is_on_several_hosts():
            from zerotorch.core.distributed import meet_across_hosts

            meet_across_hosts()  # accelerate would take this host's loopback on each
        found, kind = original(self, cpu, sagemaker_dp, backend)
        if found is not None or cpu or not _is_one_of_several_ranks():
            return found, kind
        return "gloo", kind if _is_under_deepspeed() else state.DistributedType.MULTI_CPU

    prepare_backend._zerotorch_original = original  # type: ignore[attr-defined]
    state.PartialState._prepare_backend = prepare_backend


def make_engines_anew(trainer: ModuleType) -> None:
    """Has the Trainer of `transformers.trainer` make another engine where train() has just ended the last one. Local; a
    second call does nothing.

    train() begins with accelerate's free_memory(), which destroys the engine of an earlier train() or evaluate(), and
    goes on with that engine as its wrapped model.
    """
    original = trainer.Trainer._wrap_model
    if hasattr(original, "_zerotorch_original"):
        return

    @functools.wraps(original)
    def wrap_model(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        from zerotorch.core.engine import Engine

        if isinstance(model, Engine) and model.has_ended:
            model, self.deepspeed = self.model, None
        return original(self, model, *args, **kwargs)

    wrap_model._zerotorch_original = original  # type: ignore[attr-defined]
    trainer.Trainer._wrap_model = wrap_model


def take_bf16_without_gpu(training_args: ModuleType) -> None:
    """Has `TrainingArguments(bf16=True)` of `transformers.training_args` be taken on a machine without a GPU where
    deepspeed trains. Local; a second call does nothing.

    It wants to be told use_cpu=True. Recipes with `bf16: true` say nothing of the kind, and trl's arguments have bf16
    by default.
    """
    original = training_args.TrainingArguments.__post_init__
    if hasattr(original, "_zerotorch_original"):
        return

    @functools.wraps(original)
    def post_init(self: Any) -> None:
        import torch

        if torch.cuda.is_available() or not (self.deepspeed or _is_under_deepspeed()):
            original(self)
            return
        asks = training_args.is_torch_bf16_gpu_available
        training_args.is_torch_bf16_gpu_available = lambda: True  # type: ignore[attr-defined]
        try:
            original(self)
        finally:
            training_args.is_torch_bf16_gpu_available = asks  # type: ignore[attr-defined]

    post_init._zerotorch_original = original  # type: ignore[attr-defined]
    training_args.TrainingArguments.__post_init__ = post_init


def _is_under_deepspeed() -> bool:
    """What accelerate's launcher says."""
    return os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() == "true"


def _is_one_of_several_ranks() -> bool:
    return int(os.environ.get("LOCAL_RANK", -1)) >= 0 and any(int(os.environ.get(name) or 1) > 1 for name in _RANKS)

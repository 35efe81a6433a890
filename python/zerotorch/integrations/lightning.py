"""Lightning on zerotorch: ``Trainer(strategy=ZeroStrategy(stage=3), accelerator="cpu", devices=2)``.

It is imported before lightning, which looks for deepspeed while it is imported. Of the packages lightning and
pytorch_lightning it takes the first one that is installed.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import zerotorch.as_deepspeed  # noqa: F401
from zerotorch.core.parameters.owner import engine_of

if TYPE_CHECKING or importlib.util.find_spec("lightning") is not None:
    from lightning.fabric.strategies.deepspeed import DeepSpeedStrategy as _OfFabric
    from lightning.fabric.utilities.seed import reset_seed
    from lightning.pytorch.strategies.deepspeed import DeepSpeedStrategy as _OfTrainer
else:
    from lightning_fabric.strategies.deepspeed import DeepSpeedStrategy as _OfFabric
    from lightning_fabric.utilities.seed import reset_seed
    from pytorch_lightning.strategies.deepspeed import DeepSpeedStrategy as _OfTrainer

__all__ = ["FabricZeroStrategy", "ZeroStrategy"]


class ZeroStrategy(_OfTrainer):  # type: ignore[misc,unused-ignore]
    """DeepSpeedStrategy of Trainer, with its arguments, without its demand for GPUs, and with the gradients of a
    Trainer
    without it: under DeepSpeed those of `accumulate_grad_batches` are divided twice, which clipping notices.

    Batch sizes, accumulation, clipping and precision of the configuration are Trainer's. As DeepSpeed's, a window of
    `accumulate_grad_batches` that an epoch leaves unfinished goes on in the next one.
    """

    strategy_name = "zerotorch"

    def setup_environment(self) -> None:
        super(_OfTrainer, self).setup_environment()

    def _setup_model_and_optimizer(self, model: Any, optimizer: Any, lr_scheduler: Any = None) -> tuple[Any, Any]:
        """A fit begins with the weights that an earlier one has left, also of another Trainer, and with new states."""
        for parameter in model.parameters():
            earlier = engine_of(parameter)
            if earlier is not None:
                earlier.destroy()
        made: tuple[Any, Any] = super()._setup_model_and_optimizer(model, optimizer, lr_scheduler)
        self._engine = made[0]  # Trainer lets go of it when it evaluates, and not of the optimizer
        return made

    def backward(self, closure_loss: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Trainer has divided the loss by `accumulate_grad_batches`; DeepSpeed's engine would do so once more."""
        kwargs.setdefault("scale_wrt_gas", False)
        return super().backward(closure_loss, optimizer, *args, **kwargs)

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Nothing: the engine's checkpoint has it, and Trainer would throw it away."""
        return {}

    def setup_distributed(self) -> None:
        reset_seed()
        self.set_world_ranks()
        self._init_deepspeed_distributed()


class FabricZeroStrategy(_OfFabric):  # type: ignore[misc,unused-ignore]
    """DeepSpeedStrategy of Fabric, with its arguments, without its demand for GPUs."""

    _config_initialized: bool

    def setup_environment(self) -> None:
        super(_OfFabric, self).setup_environment()

    def _setup_distributed(self) -> None:
        reset_seed()
        self._set_world_ranks()
        self._init_deepspeed_distributed()
        if not self._config_initialized:
            self._format_config()
            self._config_initialized = True

"""Members of DeepSpeedConfig that programs read. Everything is local."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zerotorch.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from zerotorch.monitor.config import DeepSpeedMonitorConfig
    from zerotorch.runtime.zero.config import DeepSpeedZeroConfig


class ConfigNames:
    """Base of DeepSpeedConfig. Objects of sections have what was given, and DeepSpeed's defaults."""

    raw: dict[str, Any]
    resolved: dict[str, Any]

    @property
    def world_size(self) -> int:
        from zerotorch import comm

        return comm.get_world_size()

    @property
    def global_rank(self) -> int:
        from zerotorch import comm

        return comm.get_rank()

    def _batch(self) -> tuple[int, int, int]:
        """Samples of an update, samples of a micro-batch, and micro-batches of an update: from those that are given."""
        names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
        total, micro, steps = (self.resolved.get(name) for name in names)
        ranks = self.world_size
        if total is None:
            micro, steps = micro or 1, steps or 1
            return micro * steps * ranks, micro, steps
        if micro is None:
            steps = steps or 1
            return total, total // ranks // steps, steps
        return total, micro, steps or total // micro // ranks

    @property
    def train_batch_size(self) -> int:
        return self._batch()[0]

    @property
    def train_micro_batch_size_per_gpu(self) -> int:
        return self._batch()[1]

    @property
    def gradient_accumulation_steps(self) -> int:
        return self._batch()[2]

    @property
    def gradient_clipping(self) -> float:
        return float(self.resolved["gradient_clipping"])

    @property
    def gradient_allreduce_op(self) -> str:
        """ "mean" or "sum"."""
        return str(self.resolved["gradient_allreduce_op"]).lower()

    @property
    def zero_optimization_stage(self) -> int:
        return int(self.resolved["zero_optimization"]["stage"])

    @property
    def zero_enabled(self) -> bool:
        return self.zero_optimization_stage > 0

    @property
    def zero_config(self) -> DeepSpeedZeroConfig:
        from zerotorch.runtime.zero.config import DeepSpeedZeroConfig, get_zero_config

        sections = self._known("zero_optimization")
        if isinstance(sections.get("zero_optimization"), dict):  # without keys of older releases
            known = DeepSpeedZeroConfig.known_keys()
            section = {key: value for key, value in sections["zero_optimization"].items() if key in known}
            sections["zero_optimization"] = section
        return get_zero_config(sections)

    @property
    def float16_config(self) -> DeepSpeedFP16Config:
        from zerotorch.runtime.precision_config import get_float16_config

        return get_float16_config(self._known("fp16"))

    @property
    def bfloat16_config(self) -> DeepSpeedBF16Config:
        from zerotorch.runtime.precision_config import get_bfloat16_config

        return get_bfloat16_config(self._known("bf16"))

    @property
    def monitor_config(self) -> DeepSpeedMonitorConfig:
        from zerotorch.monitor.config import get_monitor_config

        return get_monitor_config(self._known("tensorboard", "wandb", "csv_monitor", "comet"))

    def _known(self, *sections: str) -> dict[str, Any]:
        """Sections without what is left to its default."""
        return {name: _given(self.raw[name]) for name in sections if self.raw.get(name) is not None}

    @property
    def optimizer_name(self) -> str | None:
        """In small letters, as DeepSpeed compares it."""
        kind = (self.raw.get("optimizer") or {}).get("type")
        return None if kind is None else str(kind).lower()

    @property
    def optimizer_params(self) -> Any:
        return (self.raw.get("optimizer") or {}).get("params")

    @property
    def scheduler_name(self) -> str | None:
        return (self.raw.get("scheduler") or {}).get("type")

    @property
    def scheduler_params(self) -> Any:
        return (self.raw.get("scheduler") or {}).get("params")

    @property
    def tag_validation(self) -> str:
        """What save_checkpoint() does where ranks give different tags: "ignore", "warn" or "fail"."""
        return str((self.raw.get("checkpoint") or {}).get("tag_validation", "Warn")).lower()

    @property
    def steps_per_print(self) -> Any:
        return self.resolved["steps_per_print"]

    @property
    def wall_clock_breakdown(self) -> bool:
        return bool(self.resolved["wall_clock_breakdown"])

    @property
    def _param_dict(self) -> dict[str, Any]:
        return self.raw


def _given(section: Any) -> Any:
    if not isinstance(section, dict):
        return section
    return {key: _given(value) for key, value in section.items() if value is not None and value != "auto"}

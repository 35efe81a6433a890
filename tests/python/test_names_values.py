"""Parts of DeepSpeed that are plain functions give what DeepSpeed 0.19.8 gives; files and errors of some others."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import deepspeed_values
import pytest
import torch
from zerotorch.errors import CheckpointError, ConfigError, NotBuiltError, UsageError

WANTED = json.loads((pathlib.Path(__file__).parent / "data" / "deepspeed_values.json").read_text())


@pytest.fixture(scope="module")
def observed() -> Any:
    return json.loads(json.dumps(deepspeed_values.observe("zerotorch")))


@pytest.mark.parametrize("part", [name for name in WANTED if name != "constants"])
def test_values_are_deepspeeds(part: str, observed: Any) -> None:
    assert observed[part] == WANTED[part]


def test_constants_are_deepspeeds(observed: Any) -> None:
    for module, wanted in WANTED["constants"].items():
        there = observed["constants"][module]
        assert {name: there.get(name) for name in wanted} == wanted


def test_conv1d_becomes_linear() -> None:
    from zerotorch.compression.helper import convert_conv1d_to_linear, recursive_getattr

    class Conv1D(torch.nn.Module):
        """transformers' layout."""

        def __init__(self, outputs: int, inputs: int) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(inputs, outputs))
            self.bias = torch.nn.Parameter(torch.randn(outputs))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight + self.bias

    model = torch.nn.Sequential(torch.nn.Sequential(Conv1D(3, 5)), Conv1D(2, 3))
    x = torch.randn(4, 5)
    wanted = model(x)
    assert convert_conv1d_to_linear(model, Conv1D) is model
    assert isinstance(recursive_getattr(model, "0.0"), torch.nn.Linear) and model[1].weight.shape == (2, 3)
    torch.testing.assert_close(model(x), wanted)


def test_timers_count() -> None:
    from zerotorch.utils.timer import SynchronizedWallClockTimer, ThroughputTimer

    timers = SynchronizedWallClockTimer()
    timers("a").start()
    with pytest.raises(UsageError, match="a timer has already been started"):
        timers("a").start()
    timers("a").stop()
    assert timers.get_mean(["a", "none"])["a"] >= 0 and timers("a").elapsed() == 0
    timers.log(["a"])
    throughput = ThroughputTimer(batch_size=8, start_step=1)
    assert throughput.avg_samples_per_sec() == float("-inf")
    for step in range(4):
        throughput.start()
        throughput.stop(global_step=step % 2 == 1)
    assert (throughput.global_step_count, throughput.micro_step_count) == (2, 4)
    assert throughput.avg_samples_per_sec() == pytest.approx(8 / throughput.total_elapsed_time)
    throughput.update_epoch_count()
    assert (throughput.epoch_count, throughput.micro_step_count) == (1, 0)


def test_a_checkpoint_gets_the_name_of_a_universal_one(tmp_path: pathlib.Path) -> None:
    from zerotorch.checkpoint import ds_to_universal

    source = tmp_path / "global_step3"
    (source / "zero").mkdir(parents=True)
    (source / "zero" / "file").write_text("x")
    options = ["--input_folder", str(source), "--output_folder", str(tmp_path / "universal"), "--inject_missing_state"]
    ds_to_universal.main(ds_to_universal.parse_arguments(options))
    assert (tmp_path / "universal" / "zero" / "file").read_text() == "x"
    assert (tmp_path / "latest_universal").read_text() == "universal"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["global_step3", "latest_universal", "universal"]
    with pytest.raises(CheckpointError, match="exists"):
        ds_to_universal.main(ds_to_universal.parse_arguments(options))
    with pytest.raises(CheckpointError, match="is no folder"):
        ds_to_universal.main(ds_to_universal.parse_arguments(["--input_folder", "/no/such", "--output_folder", "/no"]))


def test_monitors_by_class(tmp_path: pathlib.Path) -> None:
    from zerotorch.monitor.config import CSVConfig, DeepSpeedMonitorConfig, WandbConfig
    from zerotorch.monitor.csv_monitor import csvMonitor
    from zerotorch.monitor.monitor import MonitorMaster
    from zerotorch.monitor.wandb import WandbMonitor

    section = {"enabled": True, "output_path": str(tmp_path), "job_name": "job"}
    csvMonitor(CSVConfig(**section)).write_events([("Train/loss", 0.5, 10)])
    MonitorMaster(DeepSpeedMonitorConfig(csv_monitor=section)).write_events([("Train/loss", 0.25, 20)])
    assert (tmp_path / "job" / "Train_loss.csv").read_text() == "step,loss\n10,0.5\n20,0.25\n"
    wandb = WandbMonitor(WandbConfig(group="g"))
    assert (wandb.enabled, wandb.group, wandb.team, wandb.project) == (False, "g", None, "deepspeed")
    with pytest.raises(NotBuiltError, match="wandb is not built, it needs a service; use csv_monitor or tensorboard"):
        WandbMonitor(WandbConfig(enabled=True))


def test_a_section_of_a_programs_own() -> None:
    from zerotorch.runtime.config_utils import DeepSpeedConfigModel

    class Mine(DeepSpeedConfigModel):
        size: int = 3
        name: str | None = None

    assert Mine(size=5e0) == Mine(size=5) and Mine(name=None).model_dump() == {"size": 3, "name": None}
    with pytest.raises(ConfigError, match=r"Mine has no key 'sise': it has size, name"):
        Mine(sise=1)
    with pytest.raises(ConfigError, match=r"Mine.size must be int, got True"):
        Mine(size=True)


def test_an_accelerator_can_be_put_in_its_place() -> None:
    from zerotorch.accelerator.real_accelerator import get_accelerator, set_accelerator

    before, mine = get_accelerator(), object()
    try:
        set_accelerator(mine)
        assert get_accelerator() is mine
    finally:
        set_accelerator(before)


def test_leaf_modules_by_module_and_by_function() -> None:
    import zerotorch.utils
    from zerotorch.utils.z3_leaf_module import set_z3_leaf_modules

    model = torch.nn.Sequential(torch.nn.Linear(1, 1))
    set_z3_leaf_modules(model, [torch.nn.Linear])
    assert zerotorch.utils.z3_leaf_module(model[0]) and not zerotorch.utils.z3_leaf_module(model)


def test_the_report_of_an_environment(capsys: pytest.CaptureFixture[str]) -> None:
    import zerotorch
    from zerotorch import env_report, git_version_info

    env_report.main()
    printed = capsys.readouterr().out
    assert "cpu_adam" in printed and torch.__version__ in printed
    assert zerotorch.__git_hash__ == zerotorch.__git_branch__ == "[none]"
    numbers = (zerotorch.__version_major__, zerotorch.__version_minor__, zerotorch.__version_patch__)
    assert git_version_info.version.startswith(".".join(map(str, numbers)))
    assert git_version_info.torch_info["version"] == ".".join(torch.__version__.split(".")[:2])


def test_members_of_a_configuration() -> None:
    import zerotorch

    given = {
        "train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.5,
        "fp16": {"enabled": True, "initial_scale_power": 5},
        "optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": 7, "offload_param": {"device": "cpu"}},
    }
    config = zerotorch.DeepSpeedConfig(given)
    assert (config.train_batch_size, config.train_micro_batch_size_per_gpu) == (8, 4)
    assert (config.gradient_accumulation_steps, config.gradient_clipping) == (2, 0.5)
    assert config.zero_enabled and config.zero_optimization_stage == 3 and config.zero_config.prefetch_bucket_size == 7
    assert config.zero_config.offload_param.device == "cpu" and config.zero_config.offload_optimizer is None  # type: ignore[union-attr]
    assert config.float16_config.initial_dynamic_scale() == 32 and not config.bfloat16_config.enabled
    assert config.optimizer_name == "adamw" and config.optimizer_params == {"lr": 0.1} and config.scheduler_name is None
    assert not config.monitor_config.enabled and config._param_dict is given
    assert zerotorch.DeepSpeedConfig({"train_micro_batch_size_per_gpu": 3}).train_batch_size == 3
    older = {"train_batch_size": 1, "zero_optimization": {"stage": 2, "mics_shard_size": -1}}
    assert zerotorch.DeepSpeedConfig(older).zero_config.stage == 2


@pytest.mark.parametrize("value", [-1, float("inf"), float("nan"), True, [], {}, "x"])
def test_loss_scales_that_are_none(value: Any) -> None:
    from zerotorch.runtime.precision_config import DeepSpeedFP16Config

    with pytest.raises(ConfigError, match="fp16.loss_scale must be a number, finite and at least 0"):
        DeepSpeedFP16Config(loss_scale=value)
    assert DeepSpeedFP16Config(loss_scale="3").loss_scale == 3 and DeepSpeedFP16Config(loss_scale="auto").loss_scale == 0


@pytest.mark.parametrize("name", ["loss_scale_window", "min_loss_scale"])
def test_dynamic_loss_scales_need_their_numbers(name: str) -> None:
    from zerotorch.runtime.precision_config import DeepSpeedFP16Config

    for value in (0, -1):
        with pytest.raises(ConfigError, match=f"fp16.{name} must be at least 1, got {value}"):
            DeepSpeedFP16Config(enabled=True, **{name: value})
        assert getattr(DeepSpeedFP16Config(enabled=True, loss_scale=128, **{name: value}), name) == value
        assert getattr(DeepSpeedFP16Config(**{name: value}), name) == value


class FieldInfo:
    """As pydantic's, which this environment may lack."""

    def __init__(self, default: Any, alias: str | None = None, **extra: Any) -> None:
        self.alias, self.json_schema_extra, self._default = alias, extra, default

    def is_required(self) -> bool:
        return self._default is ...

    def get_default(self, *, call_default_factory: bool) -> Any:
        assert call_default_factory
        return self._default


FieldInfo.__module__ = "pydantic.fields"


def test_a_section_with_fields_of_pydantic() -> None:
    from zerotorch.runtime.config_utils import DeepSpeedConfigModel

    class Mine(DeepSpeedConfigModel):
        size: int = FieldInfo(3, alias="width")  # type: ignore[assignment]
        name: str = FieldInfo(...)  # type: ignore[assignment]
        parts: list[str] | None = None
        part: str | None = FieldInfo(  # type: ignore[assignment]
            None, deprecated=True, new_param="parts", new_param_fn=lambda one: [one]
        )

    mine = Mine(name="a")
    assert (mine.size, mine.part, mine.parts) == (3, None, None) and "width" in Mine.known_keys()
    assert Mine(name="a", width=5).size == Mine(name="a", size=5).size == 5
    assert Mine(name="a", part="b").parts == ["b"]
    with pytest.raises(ConfigError, match="'part' is an older name of 'parts': give one of them"):
        Mine(name="a", part="b", parts=["c"])
    with pytest.raises(ConfigError, match="Mine needs a value of 'name'"):
        Mine(size=1)

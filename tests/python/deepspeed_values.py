"""What parts of DeepSpeed that are plain functions give. The same program asks DeepSpeed and zerotorch.

`python deepspeed_values.py deepspeed > data/deepspeed_values.json`, where DeepSpeed 0.19.8 is installed, made the
committed values (DS_ACCELERATOR=cpu; no ranks are started).
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

import torch
import torch.nn as nn
import torch.nn.functional as F


def observe(package: str) -> dict[str, Any]:
    """By part, values that JSON has."""

    def get(module: str) -> Any:
        return importlib.import_module(f"{package}.{module}")

    return {name.removeprefix("of_"): function(get) for name, function in globals().items() if name.startswith("of_")}


def of_partitions(get: Any) -> Any:
    utils = get("runtime.utils")
    weights = ([1, 2, 3, 4, 5, 6], [5, 1, 1, 1, 5, 5], [1] * 7, [9, 1, 1], [2, 2], [1, 1, 10, 1, 1, 1])
    return [
        [utils.partition_uniform(*case) for case in ((10, 3), (3, 5), (8, 4), (7, 7), (0, 2))],
        [[int(one) for one in utils.partition_balanced(case, parts)] for case in weights for parts in (2, 3, 4)],
        utils.call_to_str("f", 1, "a", x=2),
    ]


def of_small_utilities(get: Any) -> Any:
    torch_versions = get("utils.torch").required_torch_version
    timer = get("utils.timer")
    return [
        [get("utils.comms_logging").convert_size(size) for size in (0, 1, 1536, 10**9)],
        get("utils.numa").parse_range_list("0,2-4,6"),
        [timer.trim_mean(*case) for case in (([1, 2, 3, 10], 0.25), ([], 0.1), ([4, 5], 0.1))],
        [torch_versions(min_version=one) for one in ("2.0", 1.9, 99)],
        [torch_versions(max_version=1), torch_versions("1", "99")],
        {name: value for name, value in vars(timer).items() if name.endswith("_TIMER")},
        [[one.name for one in kind] for kind in (get("utils.types").ActivationFuncType, get("utils.types").NormType)],
        get("runtime.zero.utils").is_zero_param(torch.zeros(1)),
    ]


def of_loss_scales(get: Any) -> Any:
    return [_loss_scales(get, shift, each) for shift in (1, 2, 3) for each in (False, True)]


def _loss_scales(get: Any, shift: int, each: bool) -> Any:
    scaler = get("runtime.fp16.loss_scaler").DynamicLossScaler(256, 2, 1, shift, each)
    values = []
    for overflow in (1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 1):
        scaler.update_scale(bool(overflow))
        values.append([scaler.cur_scale, scaler.cur_hysteresis])
    return values


def of_zero_config(get: Any) -> Any:
    make = get("runtime.zero.config").DeepSpeedZeroConfig
    default = make()
    one = make(stage=3, stage3_prefetch_bucket_size=10, offload_optimizer={"device": "cpu", "ratio": 0.5})
    return [
        {name: _plain(getattr(default, name)) for name in type(default).__annotations__ if name != "_aliases"},
        [one.overlap_comm, one.prefetch_bucket_size],
        [one.offload_optimizer.device == "cpu", one.offload_optimizer.ratio],
        [make(stage="auto").stage == 0, make(reduce_bucket_size=5e8).reduce_bucket_size],
        [_raises(make, **case) for case in ({"nonsense": 1}, {"stage": 7}, {"reduce_bucket_size": "x"})],
        [_raises(make, compute_grad_norm=False, stage=3), _raises(make, offload_optimizer={"ratio": 0.5}, stage=2)],
        [[one.value for one in kind] for kind in (_enum(get, "OffloadDeviceEnum"), _enum(get, "OffloadStateTypeEnum"))],
        [[one.name, int(one)] for one in get("runtime.zero.config").ZeroStageEnum],
    ]


def _enum(get: Any, name: str) -> Any:
    return getattr(get("runtime.zero.offload_config"), name)


def _plain(value: Any) -> Any:
    if hasattr(value, "names"):  # marks of leaf modules
        return [value.classes, value.names, value.name_suffixes]
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _raises(function: Any, **arguments: Any) -> str:
    try:
        function(**arguments)
    except AssertionError as error:
        return "ValueError or AssertionError" if isinstance(error, (ValueError, AssertionError)) else ""
    except ValueError:
        return "ValueError or AssertionError"
    return "nothing"


def of_sections(get: Any) -> Any:
    fp16 = get("runtime.precision_config").get_float16_config({"fp16": {"enabled": True, "initial_scale_power": 4}})
    bf16 = get("runtime.precision_config").get_bfloat16_config({"bfloat16": {"enabled": True}})
    monitors = get("monitor.config").get_monitor_config({"csv_monitor": {"enabled": True}})
    config = get("runtime.config")
    return [
        [fp16.initial_dynamic_scale(), fp16.dynamic_loss_scale_args(), fp16.loss_scale, bf16.enabled],
        [bf16.check_grad_overflow, monitors.enabled, monitors.csv_monitor.job_name, monitors.wandb.project],
        [config.get_gradient_clipping({}), config.get_gradient_clipping({"gradient_clipping": 2})],
        [config.get_log_level({}), config.ADAM_OPTIMIZER, config.LAMB_OPTIMIZER],
    ]


def of_curriculum(get: Any) -> Any:
    scheduler = get("runtime.data_pipeline.curriculum_scheduler").CurriculumScheduler
    rising = {"total_curriculum_step": 100, "difficulty_step": 8}
    found = []
    for kind, schedule in (
        ("fixed_linear", rising),
        ("fixed_root", {**rising, "root_degree": 2}),
        ("fixed_discrete", {"difficulty": [2, 20, 50], "max_step": [10, 30]}),
    ):
        config = {"min_difficulty": 2, "max_difficulty": 50, "schedule_type": kind, "schedule_config": schedule}
        one = scheduler(config)
        found.append([one.update_difficulty(step) for step in range(0, 130, 5)])
    return found


def of_hosts(get: Any) -> Any:
    runner = get("launcher.runner")
    filters = (("", ""), ("b:0,2", ""), ("", "b:1"), ("a@b:3", ""), ("", "a"))
    return [
        [dict(runner.parse_inclusion_exclusion({"a": 2, "b": 4}, *one)) for one in filters],
        dict(runner._parse_hostfile(["# hosts", "", "a slots=2", "b  slots=4 "])),
        runner.encode_world_info({"a": [0, 1]}),
    ]


def of_constants(get: Any) -> Any:
    """All of DeepSpeed's are here; the modules may have more."""
    found = {}
    for module in ("checkpoint.constants", "runtime.lr_schedules"):
        found[module] = {name: value for name, value in vars(get(module)).items() if _is_constant(name, value)}
    return found


def _is_constant(name: str, value: Any) -> bool:
    return name.isupper() and isinstance(value, (str, int, float, list, tuple)) and not name.startswith("_")


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.qkv = nn.Linear(8, 24)
        self.norm = nn.LayerNorm(8)
        self.out = nn.Linear(8, 8, bias=False)
        self.mix = nn.Parameter(torch.ones(8, 8))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = F.softmax(q @ k.transpose(-1, -2) * 0.5, -1)
        x = torch.mul(torch.add(x + self.out(scores.matmul(v)), torch.bmm(scores, v)), 2.0)
        q, k, v = (one.view(2, 5, 2, 4).transpose(1, 2) for one in (q, k, v))
        x = x + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(2, 5, 8)
        x = torch.addmm(torch.ones(8), x.view(-1, 8), self.mix).view(2, 5, 8)
        return F.gelu(torch.einsum("bij,jk->bik", x, self.mix)) + F.silu(x)


def _convolutions() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 8, 3, padding="same", groups=4, bias=False), nn.GroupNorm(2, 8), nn.SiLU()),
        *(nn.ConvTranspose2d(8, 4, 2, stride=2), nn.InstanceNorm2d(4, affine=True), nn.LeakyReLU()),
        *(nn.Upsample(scale_factor=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2), nn.Softmax(-1)),
    )


def of_flops(get: Any) -> Any:
    """Operations, multiply-accumulates, parameters."""
    profile = get("profiling.flops_profiler").get_model_profile
    cases: tuple[tuple[nn.Module, dict[str, Any]], ...] = (
        (nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 5)), {"input_shape": (4, 10)}),
        (_convolutions(), {"input_shape": (2, 3, 16, 16)}),
        (_Attention(), {"args": [torch.zeros(2, 5, dtype=torch.long)]}),
        (nn.LSTM(6, 7, num_layers=2, bidirectional=True, batch_first=True), {"input_shape": (3, 4, 6)}),
        (nn.GRU(6, 7, batch_first=True, bias=False), {"input_shape": (3, 4, 6)}),
        (nn.RNNCell(6, 7), {"input_shape": (3, 6)}),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), {"input_shape": (2, 5, 8)}),
    )
    quiet = {"print_profile": False}
    return [
        [list(profile(model, as_string=text, **quiet, **inputs)) for text in (False, True)] for model, inputs in cases
    ]


if __name__ == "__main__":
    name = sys.argv[1]
    if name == "deepspeed":  # its loss scales ask for a rank before they log
        importlib.import_module("deepspeed.comm").get_rank = lambda *_: 0  # type: ignore[attr-defined]
    print(json.dumps(observe(name), sort_keys=True, indent=1))

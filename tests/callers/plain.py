"""Runs a program written for DeepSpeed with plain data parallelism under the name `deepspeed`: the baseline of
scripts/run_callers.py.

  torchrun --nproc-per-node 2 plain.py [--local-rank-argument] program.py args...

Every rank holds the whole model, averages gradients over ranks after each backward, and makes the update of torch's
AdamW on fp32 copies of the parameters, clipped by the global norm. This is for comparison only: it has just the names
that the programs of run_callers.py use, and refuses what it does not compute (stages above 2, other optimizers).
"""

from __future__ import annotations

import contextlib
import os
import runpy
import sys
import types
from typing import Any

import torch
import torch.distributed as dist

PRECISIONS = {"bf16": torch.bfloat16, "bfloat16": torch.bfloat16, "fp32": torch.float32}


class FusedAdam(torch.optim.AdamW):
    """DeepSpeed's, by its defaults: AdamW without weight decay."""

    def __init__(self, params: Any, lr: float = 1e-3, **options: Any) -> None:
        super().__init__(params, lr=lr, **{"weight_decay": 0.0, **options})

    def offload_states(self, **options: Any) -> None:
        """They are in host memory."""


class DeepSpeedEngine(torch.nn.Module):
    def __init__(self, module: torch.nn.Module, optimizer: Any, parameters: Any, scheduler: Any, config: Any) -> None:
        super().__init__()
        self.module = module
        self.config = config
        self.micro_steps = self.global_steps = 0
        world = dist.get_world_size()
        micro_batch = config.get("train_micro_batch_size_per_gpu", 1)
        whole = config.get("train_batch_size", micro_batch * config.get("gradient_accumulation_steps", 1) * world)
        self.accumulation = whole // (micro_batch * world)
        if isinstance(optimizer, torch.optim.Optimizer):
            self.optimizer: Any = optimizer
        else:
            self.optimizer = _optimizer_of(config, parameters)
        for tensor in [*module.parameters(), *module.buffers()]:
            dist.broadcast(tensor.data, src=0)
        self.masters = self._use_masters() if self.optimizer else []
        for p in module.parameters():  # and no buffers, as in DeepSpeed since 0.19
            p.data = p.data.to(_precision(config))
        self.lr_scheduler = scheduler(self.optimizer) if callable(scheduler) else scheduler
        self.tput_timer = types.SimpleNamespace(update_epoch_count=lambda: None)
        self.norm = 0.0

    def _use_masters(self) -> list[tuple[torch.nn.Parameter, torch.nn.Parameter]]:
        """Parameters with their fp32 copies, which the optimizer has from now on."""
        pairs = []
        for group in self.optimizer.param_groups:
            for i, p in enumerate(group["params"]):
                master = torch.nn.Parameter(p.detach().float().clone())
                pairs.append((p, master))
                group["params"][i] = master
        return pairs

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def backward(self, loss: torch.Tensor) -> torch.Tensor:
        loss = loss / self.accumulation
        loss.backward()
        for p, master in self.masters:
            if p.grad is not None:
                part = p.grad.float()
                master.grad = part if master.grad is None else master.grad + part
                p.grad = None
        return loss

    def step(self) -> None:
        self.micro_steps += 1
        if self.micro_steps % self.accumulation != 0:
            return
        for _, master in self.masters:
            master.grad = torch.zeros_like(master) if master.grad is None else master.grad
            dist.all_reduce(master.grad)
            master.grad /= dist.get_world_size()
        masters = [master for _, master in self.masters]
        clip = self.config.get("gradient_clipping") or float("inf")
        self.norm = float(torch.nn.utils.clip_grad_norm_(masters, clip))
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.global_steps += 1
        with torch.no_grad():
            for p, master in self.masters:
                p.copy_(master)
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()

    def get_global_grad_norm(self) -> float:
        return self.norm

    def zero_optimization_stage(self) -> int:
        return int(self.config.get("zero_optimization", {}).get("stage", 0))

    def reload_states(self, non_blocking: bool = False) -> None:
        pass

    def empty_partition_cache(self) -> None:
        pass

    def save_checkpoint(self, save_dir: Any, tag: str | None = None, **kwargs: Any) -> bool:
        return True  # what is compared are losses


def _precision(config: dict[str, Any]) -> torch.dtype:
    for name, dtype in PRECISIONS.items():
        if config.get(name, {}).get("enabled") is True:
            return dtype
    if config.get("fp16", {}).get("enabled") is True:
        raise NotImplementedError("plain.py: fp16 needs a loss scale; compare in bf16")
    return torch.float32


def _optimizer_of(config: dict[str, Any], parameters: Any) -> Any:
    section = config.get("optimizer")
    if section is None or parameters is None:
        return None
    if section["type"] not in ("Adam", "AdamW"):
        raise NotImplementedError(f"plain.py: optimizer {section['type']}")
    options = section.get("params", {})
    return FusedAdam(list(parameters), **{**options, "betas": tuple(options.get("betas", (0.9, 0.999)))})


def initialize(
    args: Any = None,
    model: Any = None,
    optimizer: Any = None,
    model_parameters: Any = None,
    lr_scheduler: Any = None,
    config: Any = None,
    **kwargs: Any,
) -> tuple[Any, ...]:
    if config.get("zero_optimization", {}).get("stage", 0) > 2:
        raise NotImplementedError("plain.py: nothing is sharded here; ask for stage 0 to 2")
    engine = DeepSpeedEngine(model, optimizer, model_parameters, lr_scheduler, config)
    return engine, engine.optimizer, None, engine.lr_scheduler


class Accelerator:
    """The CPU."""

    def __getattr__(self, name: str) -> Any:
        values = {"device_name": "cpu", "current_device_name": "cpu", "device_count": 1, "is_available": True}
        if name in (*values, "set_device", "manual_seed_all", "current_device"):
            return lambda *args: values.get(name)
        raise AttributeError(name)


class Names:
    """Members that are their names."""

    def __getattr__(self, name: str) -> str:
        return name


@contextlib.contextmanager
def GatheredParameters(*args: Any, **kwargs: Any) -> Any:
    yield


def recursive_getattr(module: Any, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module


def recursive_setattr(module: Any, name: str, value: Any) -> None:
    *path, last = name.split(".")
    setattr(recursive_getattr(module, ".".join(path)) if path else module, last, value)


def init_distributed(*args: Any, **kwargs: Any) -> None:
    if not dist.is_initialized():
        dist.init_process_group("gloo")


def make_modules() -> None:
    def get_accelerator(one: Any = Accelerator()) -> Any:  # noqa: B008
        return one

    status = types.SimpleNamespace(NOT_AVAILABLE="NOT_AVAILABLE", AVAILABLE="AVAILABLE")
    zero = types.SimpleNamespace(GatheredParameters=GatheredParameters)
    contents: dict[str, dict[str, Any]] = {
        "": {
            "initialize": initialize,
            "init_distributed": init_distributed,
            "DeepSpeedEngine": DeepSpeedEngine,
            "get_accelerator": get_accelerator,
            "add_config_arguments": lambda parser: parser,
            "zero": zero,
            "__version__": "0.19.8",
            "__path__": [],
        },
        "accelerator": {"get_accelerator": get_accelerator},
        "checkpoint": {"__path__": []},
        "checkpoint.utils": {"clone_tensors_for_torch_save": lambda state: state},
        "comm": {"get_rank": dist.get_rank, "get_world_size": dist.get_world_size},
        "compression": {"__path__": []},
        "compression.helper": {"recursive_getattr": recursive_getattr, "recursive_setattr": recursive_setattr},
        "ops": {"__path__": []},
        "ops.adam": {"FusedAdam": FusedAdam, "DeepSpeedCPUAdam": FusedAdam},
        "runtime": {"__path__": []},
        "runtime.zero": {"__path__": []},
        "runtime.zero.partition_parameters": {"ZeroParamStatus": status},
        "runtime.zero.offload_config": {"OffloadDeviceEnum": Names(), "OffloadStateTypeEnum": Names()},
        "utils": {"set_z3_leaf_modules": lambda model, classes: None},
    }
    for name, content in contents.items():
        full = f"deepspeed.{name}" if name else "deepspeed"
        module = types.ModuleType(full)
        module.__spec__ = __import__("importlib.machinery").machinery.ModuleSpec(full, None)
        module.__dict__.update(content)
        sys.modules[full] = module
        if name:
            parent, _, last = full.rpartition(".")
            setattr(sys.modules[parent], last, module)


def main() -> None:
    arguments = sys.argv[1:]
    passes_local_rank = arguments[0] == "--local-rank-argument"
    program, *rest = arguments[1:] if passes_local_rank else arguments
    torch.set_num_threads(1)
    make_modules()
    local_rank = [f"--local_rank={os.environ['LOCAL_RANK']}"] if passes_local_rank else []
    sys.argv = [program, *local_rank, *rest]
    sys.path[0] = os.path.dirname(os.path.abspath(program))
    init_distributed()
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()

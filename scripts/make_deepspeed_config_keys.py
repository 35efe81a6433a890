#!/usr/bin/env python3
"""Writes tests/python/data/deepspeed_config_keys.json: the keys that an installed DeepSpeed reads from a configuration.

For each: its default, its type where DeepSpeed says one, and whether null is taken. Sections that are pydantic models
are asked for their fields; of others, dictionaries that note who asks them for what are given to DeepSpeedConfig.
tests/python/test_config_keys.py compares them with the keys that zerotorch knows. Needs DeepSpeed (0.19.8 made the
committed file).
Usage: DS_ACCELERATOR=cpu make_deepspeed_config_keys.py [file]
"""
import contextlib
import enum
import io
import json
import logging
import os
import pathlib
import sys
import typing
import warnings

TARGET = pathlib.Path(__file__).parent.parent / "tests/python/data/deepspeed_config_keys.json"

# Sections that are models, and where they are in a configuration.
MODELS = {
    "zero_optimization": ("runtime.zero.config", "DeepSpeedZeroConfig"),
    "zero_optimization.offload_param": ("runtime.zero.offload_config", "DeepSpeedZeroOffloadParamConfig"),
    "zero_optimization.offload_optimizer": ("runtime.zero.offload_config", "DeepSpeedZeroOffloadOptimizerConfig"),
    "zero_optimization.leaf_module": ("runtime.zero.leaf_module_config", "DeepSpeedZeroLeafModuleConfig"),
    "zero_optimization.zenflow": ("runtime.zenflow.zenflow_config", "ZenFlowConfig"),
    "fp16": ("runtime.precision_config", "DeepSpeedFP16Config"),
    "bf16": ("runtime.precision_config", "DeepSpeedBF16Config"),
    "comms_logger": ("comm.config", "CommsLoggerConfig"),
    "compile": ("compile.config", "CompileConfig"),
    "tensorboard": ("monitor.config", "TensorBoardConfig"),
    "wandb": ("monitor.config", "WandbConfig"),
    "csv_monitor": ("monitor.config", "CSVConfig"),
    "comet": ("monitor.config", "CometConfig"),
    "hybrid_engine": ("runtime.config", "HybridEngineConfig"),
    "tensor_parallel": ("runtime.tensor_parallel.config", "TPTrainingConfig"),
    "timers.throughput": ("utils.config", "DeepSpeedThroughputTimerConfig"),
}
NEEDED = {"train_micro_batch_size_per_gpu": 1}
DEPTH = 4  # of sections that are no models


class Noting(dict):
    """A dictionary that notes the keys it is asked for, with the defaults."""

    def __init__(self, path, asked, sections):
        super().__init__()
        self.path, self.asked, self.sections = path, asked, sections
        for name in sections:
            parent, _, key = name.rpartition(".")
            if parent == path:
                super().__setitem__(key, Noting(name, asked, sections))

    def note(self, key, default):
        if isinstance(key, str):
            self.asked.setdefault(f"{self.path}.{key}" if self.path else key, default)

    def get(self, key, default=None):
        self.note(key, default)
        return super().get(key, default)

    def __contains__(self, key):
        self.note(key, None)
        return super().__contains__(key)

    def keys(self):  # "key in section.keys()"
        return self

    def pop(self, key, *default):
        self.note(key, default[0] if default else None)
        return super().pop(key, *default)

    def __missing__(self, key):
        self.note(key, None)
        raise KeyError(key)


def construct(config):
    from deepspeed.runtime.config import DeepSpeedConfig

    with contextlib.redirect_stdout(io.StringIO()):
        return DeepSpeedConfig(config)


def plain_keys():
    """Keys that DeepSpeed asks dictionaries for, by path."""
    asked, sections = {}, []
    for _ in range(DEPTH):
        before = len(asked)
        for name in [None, *sorted(asked)]:
            if name is not None and (name in sections or name in MODELS or name in NEEDED):
                continue
            trial = [*sections, *([name] if name else [])]
            found = {}
            config = Noting("", found, trial)
            config.update(NEEDED)
            with contextlib.suppress(Exception):
                construct(config)
            inside = [key for key in found if name and key.startswith(f"{name}.")]
            if name is None or inside:
                asked.update({key: value for key, value in found.items() if key not in asked})
            if inside:
                sections.append(name)
        if len(asked) == before:
            break
    return asked


def takes(path, value):
    """Whether DeepSpeed takes a value at a path."""
    config = dict(NEEDED)
    section = config
    *parents, key = path.split(".")
    for parent in parents:
        section = section.setdefault(parent, {})
    section[key] = value
    try:
        construct(config)
    except Exception:
        return False
    return True


def plain(value):
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (str, int, float, bool, type(None))):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return None


def model_keys(path, model):
    for name, field in model.model_fields.items():
        key = field.alias or name
        default = field.get_default(call_default_factory=True)
        optional = type(None) in typing.get_args(field.annotation)
        kind = getattr(field.annotation, "__name__", None) or str(field.annotation)
        if optional:
            kind = " or ".join(getattr(one, "__name__", str(one)) for one in typing.get_args(field.annotation))
        yield f"{path}.{key}", {"default": plain(default), "type": kind.replace("NoneType", "null"), "null": optional}


def main():
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    warnings.filterwarnings("ignore")
    import importlib

    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.CRITICAL)
    keys = {}
    for path, default in plain_keys().items():
        if not any(path.startswith(f"{model}.") for model in MODELS):
            kind = type(default).__name__ if default is not None else None
            keys[path] = {"default": plain(default), "type": kind, "null": takes(path, None)}
    for path, (module, name) in MODELS.items():
        keys.update(model_keys(path, getattr(importlib.import_module(f"deepspeed.{module}"), name)))
    written = {"deepspeed": deepspeed.__version__.split("+")[0].strip(), "keys": dict(sorted(keys.items()))}
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in written["keys"].items())
    target = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    target.write_text(f'{{"deepspeed": {json.dumps(written["deepspeed"])}, "keys": {{\n{lines}\n}}}}\n')


if __name__ == "__main__":
    main()

"""An engine goes on from a checkpoint of DeepSpeed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

from zerotorch.core.checkpoints import deepspeed_folder
from zerotorch.core.checkpoints.deepspeed_folder import DeepSpeedCheckpoint
from zerotorch.core.log import log_dist
from zerotorch.core.trained import Trained
from zerotorch.errors import CheckpointError

_GROUP_KEYS = ("lr", "betas", "eps", "weight_decay", "momentum", "dampening", "nesterov", "initial_lr")


@dataclass(frozen=True)
class LoadOptions:
    """Arguments of the engine's load_checkpoint()."""

    module_only: bool
    load_optimizer_states: bool
    load_lr_scheduler_states: bool
    strict: bool
    trust: bool


def load(engine: Trained, folder: str, tag: str, options: LoadOptions) -> tuple[str, dict[str, Any]]:
    """Weights, buffers, optimizer states, counters, scheduler and client state of one of DeepSpeed's folders.
    *Collective.*

    Every rank reads the files, one tensor at a time.

    Raises:
        CheckpointError: before anything is changed, where names, shapes or states are others than the model's.
    """
    saved = deepspeed_folder.read(folder, tag or None, options.trust)
    optimizer = engine.optimizer
    with_states = optimizer is not None and not options.module_only and options.load_optimizer_states
    if with_states and saved.stage == 0:  # which saves states by position
        saved = saved.with_parameter_groups(_names_by_group(engine))
    shapes = {name: tuple(parameter.shape) for parameter, name in engine._names.items()}
    _check(saved, engine, shapes, options.strict)
    if with_states:
        _check_states(saved, engine)
    try:
        _apply(engine, saved, options, shapes, with_states)
    except Exception as error:
        engine._life.load_failed(f"{type(error).__name__}: {error}")
        raise
    engine._life.load_succeeded()
    log_dist(f"load_checkpoint: went on from DeepSpeed {saved.ds_version}, stage {saved.stage}, tag {saved.tag}", [0])
    engine.client_state = saved.client_state
    return os.path.join(folder, saved.tag), saved.client_state


def _apply(
    engine: Trained,
    saved: DeepSpeedCheckpoint,
    options: LoadOptions,
    shapes: dict[str, tuple[int, ...]],
    with_states: bool,
) -> None:
    optimizer = engine.optimizer
    for name, shape in shapes.items():
        if name in saved.weights and tuple(saved.weights.lazy[name].shape) == shape:
            engine._core.set_full_weight(name, saved.weights[name])
    with torch.no_grad():
        for name, buffer in engine.module.named_buffers():
            if name in saved.buffers and saved.buffers[name].shape == buffer.shape:
                buffer.copy_(saved.buffers[name])
    if with_states:
        _load_states(engine, saved)
    if not options.module_only and optimizer is not None:
        if options.load_lr_scheduler_states and engine.lr_scheduler is not None and saved.lr_scheduler:
            engine.lr_scheduler.load_state_dict(saved.lr_scheduler)
            if not all("lr" in group for group in saved.param_groups):  # elastic checkpoints have no hyper-parameters
                for group, rate in zip(optimizer.param_groups, engine.lr_scheduler.get_lr(), strict=True):
                    group["lr"] = rate
        optimizer.push()


def _names_by_group(engine: Trained) -> list[list[str]]:
    assert engine.optimizer is not None
    return [[engine._names[p] for p in group["params"]] for group in engine.optimizer.param_groups]


def _check(
    saved: DeepSpeedCheckpoint, engine: Trained, shapes: dict[str, tuple[int, ...]], strict: bool
) -> None:
    missing = [name for name in shapes if name not in saved.weights]
    known = {name for name, _ in engine.module.named_parameters(remove_duplicate=False)}
    unexpected = [name for name in saved.weights if name not in known]
    other = [
        f"'{name}' is {tuple(saved.weights.lazy[name].shape)} there and {shape} here"
        for name, shape in shapes.items()
        if name in saved.weights and tuple(saved.weights.lazy[name].shape) != shape
    ]
    if not strict or not (missing or unexpected or other):
        return
    problems = [
        *(f"'{name}' is not in the checkpoint" for name in missing),
        *(f"'{name}' is not in the model" for name in unexpected),
        *other,
    ]
    raise CheckpointError(
        f"{saved.folder}: the checkpoint is of another model: {'; '.join(problems[:5])}"
        + (f" and {len(problems) - 5} more" if len(problems) > 5 else "")
        + ". load_module_strict=False loads what fits"
    )


def _states_of(engine: Trained, name: str) -> set[str]:
    return set(engine._core.optimizer_states(name)) if name in engine._names.values() else set()


def _check_states(saved: DeepSpeedCheckpoint, engine: Trained) -> None:
    for name, states in saved.optimizer_states.items():
        mine = _states_of(engine, name)
        if mine and not mine & set(states):
            raise CheckpointError(
                f"{saved.folder}: the checkpoint has the states {sorted(states)} of '{name}' and this engine's optimizer "
                f"{sorted(mine)}: use the same optimizer, or load with load_optimizer_states=False"
            )


def _load_states(engine: Trained, saved: DeepSpeedCheckpoint) -> None:
    assert engine.optimizer is not None
    updates = {}
    for name, states in saved.optimizer_states.items():
        mine = _states_of(engine, name)
        if not mine:
            continue
        for key in mine & set(states):
            engine._core.set_full_optimizer_state(name, key, states[key])
        updates[name] = saved.steps.get(name, 0)
    for group, theirs in zip(engine.optimizer.param_groups, saved.param_groups, strict=False):
        if len(saved.param_groups) == len(engine.optimizer.param_groups):
            group.update({key: theirs[key] for key in _GROUP_KEYS if key in theirs and key in group})
    scaler = saved.loss_scaler or {}
    scale = scaler.get("cur_scale")
    engine._core.set_progress(saved.global_steps, saved.skipped_steps, updates, float(scale) if scale else None)

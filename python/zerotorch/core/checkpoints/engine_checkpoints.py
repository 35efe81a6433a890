"""Checkpoints from Python: what the engine saves, and beside it what only Python knows."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from zerotorch.core.checkpoints import load_deepspeed
from zerotorch.core.checkpoints.load_deepspeed import LoadOptions
from zerotorch.core.checkpoints.model_files import replacing
from zerotorch.core.distributed import first_problem, text_of_first_rank
from zerotorch.core.log import log_dist, logger
from zerotorch.core.trained import Trained
from zerotorch.errors import ArgumentError, CheckpointError, UsageError

#: Marks a client state that this module has written.
_FORMAT = "zerotorch.python"
_VERSION = 1

_SCRIPT = '''#!/usr/bin/env python
"""Whole fp32 weights of a checkpoint in this folder: python zero_to_fp32.py . OUTPUT_FOLDER [--safe_serialization]"""

from zerotorch.utils.zero_to_fp32 import main

if __name__ == "__main__":
    main()
'''


def save(engine: Trained, folder: str, tag: str, state: dict[str, Any], save_latest: bool) -> None:
    """*Collective.* Raises CheckpointError on every rank."""
    engine._life.require_trainable()
    folder, tag = _of_first_rank(engine, folder, tag)
    try:
        text = _to_json(engine, state) if engine._core.rank == 0 else "{}"
    except Exception as error:
        with contextlib.suppress(CheckpointError):  # which tells the other ranks
            engine._core.save_checkpoint(folder, tag, "client_state cannot be saved", save_latest)
        raise CheckpointError(f"client_state cannot be saved: {error}") from error
    with frozen_for_evaluation(engine):
        engine._core.save_checkpoint(folder, tag, text, save_latest)
    if engine._core.rank == 0:
        _write_script(Path(folder) / "zero_to_fp32.py")


def _of_first_rank(engine: Trained, folder: str, tag: str) -> tuple[str, str]:
    """Where rank 0 saves, which is where all do: programs make names of the time, or of random numbers. *Collective.*
    Raises UsageError on all ranks where `checkpoint.tag_validation` is "Fail" and they differ."""
    mode = engine._config.tag_validation
    firsts = tuple(json.loads(text_of_first_rank(json.dumps([folder, tag]))))
    difference = None
    if firsts != (folder, tag):
        difference = f"save_checkpoint() was asked for {(folder, tag)}, and on rank 0 for {firsts}"
    if mode == "fail":
        problem = first_problem(difference)
        if problem is not None:
            raise UsageError(f"{problem}: give the same on all ranks, or set checkpoint.tag_validation to 'Warn'")
    elif mode == "warn" and difference is not None:
        logger.warning("rank %d: %s, which is taken", engine._core.rank, difference)
    return firsts


def path_of(value: Any, argument: str) -> str:
    """Of a folder or file that a program gives. Raises ArgumentError where it gives none."""
    if isinstance(value, (str, os.PathLike)):
        path = os.fspath(value)
        if isinstance(path, str) and path:
            return path
    raise ArgumentError(f"{argument} is {value!r}: give a path (a str or an os.PathLike)")


@contextlib.contextmanager
def frozen_for_evaluation(engine: Trained) -> Iterator[None]:
    """Of an engine that only evaluates the core takes parameters which require a gradient, or have one, for ones to be
    trained."""
    parameters = [] if engine.optimizer is not None else list(engine._names)
    before = [(parameter.requires_grad, parameter.grad) for parameter in parameters]
    for parameter in parameters:
        parameter.requires_grad_(False).grad = None
    try:
        yield
    finally:
        for parameter, (requires_grad, gradient) in zip(parameters, before, strict=True):
            parameter.requires_grad_(requires_grad).grad = gradient


def _write_script(path: Path) -> None:
    """What DeepSpeed's users find in a folder of checkpoints. A folder without it is as good. Local."""
    if path.exists():
        return
    with contextlib.suppress(OSError), replacing(str(path)) as writing:
        Path(writing).write_text(_SCRIPT)


def load(
    engine: Trained, folder: str, tag: str, options: LoadOptions
) -> tuple[str | None, dict[str, Any] | None]:
    """*Collective.* (None, None) where `folder` has no checkpoint and no tag was asked for."""
    if _is_of_deepspeed(folder, tag):
        return load_deepspeed.load(engine, folder, tag, options)
    if not tag and not _has_checkpoint(folder):
        log_dist(f"load_checkpoint: there is no checkpoint in '{folder}'", ranks=[0])
        return None, None
    tag = tag or _latest(folder)
    _check_groups(engine, Path(folder) / tag, options)
    with frozen_for_evaluation(engine):
        report = engine._core.load_checkpoint(
            folder,
            tag,
            options.module_only,
            options.load_optimizer_states,
            options.load_lr_scheduler_states,
            options.strict,
        )
    with _to_the_end(engine):
        saved = _from_json(report["client_state"])
        _apply(engine, saved, options)
    for notice in report["notices"]:
        log_dist(f"load_checkpoint: {notice}", ranks=[0])
    engine.client_state = saved.client_state
    path = os.path.join(folder, report["tag"]) if report["tag"] else report["folder"]
    return path, saved.client_state


def _apply(engine: Trained, saved: _Saved, options: LoadOptions) -> None:
    """What is the program's, after the engine's own."""
    _set_extra_states(engine.module, saved.extra_states or {})
    optimizer = engine.optimizer
    if optimizer is None or options.module_only:
        return
    if engine._unmanaged is not None:
        engine._unmanaged.resume(engine._core, saved.more_micro_batches)
    if options.load_optimizer_states and saved.groups is not None:
        optimizer.load_groups(saved.groups)
    if options.load_lr_scheduler_states and engine.lr_scheduler is not None:
        _load_scheduler(engine, saved.scheduler)
    optimizer.push()


def _check_groups(engine: Trained, folder: Path, options: LoadOptions) -> None:
    """Raises ConfigError before anything is changed. A checkpoint that cannot be read is the engine's to report."""
    if engine.optimizer is None or options.module_only or not options.load_optimizer_states:
        return
    try:
        client_state = json.loads((folder / "manifest.json").read_text())["client_state"]
        groups = _from_json(json.dumps(client_state)).groups
    except Exception:
        return
    if groups is not None:
        engine.optimizer.check_groups(groups)


@contextlib.contextmanager
def _to_the_end(engine: Trained) -> Iterator[None]:
    """Of a load that changes values: where it fails on some rank, all ranks refuse to train until another one succeeds.
    *Collective.* Raises CheckpointError."""
    problem: Exception | None = None
    try:
        yield
    except Exception as error:
        problem = error
    why = first_problem(None if problem is None else f"{type(problem).__name__}: {problem}")
    if why is None:
        engine._life.load_succeeded()
        return
    engine._life.load_failed(why)
    raise CheckpointError(
        f"load_checkpoint() failed after weights had been replaced: {why}. Training and saving are refused until another "
        "load succeeds"
    ) from problem


def write_weights(state: dict[str, torch.Tensor], folder: str, name: str) -> None:
    """One file, complete or not at all. Local."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    with replacing(os.path.join(folder, name)) as writing:
        if name.endswith(".safetensors"):
            from safetensors.torch import save_file

            save_file({key: value.clone() for key, value in state.items()}, writing, metadata={"format": "pt"})
        else:
            torch.save(state, writing)


@dataclass
class _Saved:
    """What was beside the engine's own state."""

    client_state: dict[str, Any]
    groups: Any = None
    scheduler: Any = None
    extra_states: Any = None
    more_micro_batches: int = 0


def _to_json(engine: Trained, state: dict[str, Any]) -> str:
    saved: dict[str, Any] = {_FORMAT: _VERSION, "client_state": {"torch_save": _pickle(state)}}
    if _is_plain(state):
        saved["shown"] = state  # for people who look at the checkpoint
    if engine.optimizer is not None:
        saved["param_groups"] = {"torch_save": _pickle(engine.optimizer.groups_to_save())}
    if engine.lr_scheduler is not None and hasattr(engine.lr_scheduler, "state_dict"):
        saved["lr_scheduler"] = {"torch_save": _pickle(engine.lr_scheduler.state_dict())}
    extra_states = {name: module.get_extra_state() for name, module in _with_extra_states(engine.module)}
    if extra_states:
        saved["extra_states"] = {"torch_save": _pickle(extra_states)}
    if engine._unmanaged is not None:
        saved["more_micro_batches"] = engine._unmanaged.more
    return json.dumps(saved)


def _with_extra_states(module: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """Modules, by name, that keep more than tensors in their state_dict()."""
    none = torch.nn.Module.get_extra_state
    return [(name, part) for name, part in module.named_modules() if type(part).get_extra_state is not none]


def _set_extra_states(module: torch.nn.Module, saved: dict[str, Any]) -> None:
    left = dict(saved)
    for name, part in _with_extra_states(module):
        if name in left:
            part.set_extra_state(left.pop(name))
        else:
            log_dist(f"load_checkpoint: it has no extra state of the module '{name}', which keeps what it has", ranks=[0])
    for name in left:
        log_dist(f"load_checkpoint: its extra state of '{name}' is of no module here", ranks=[0])


def _from_json(text: str) -> _Saved:
    saved = json.loads(text)
    if not isinstance(saved, dict) or _FORMAT not in saved:
        return _Saved(saved if isinstance(saved, dict) else {})  # of a program in C++
    if saved[_FORMAT] != _VERSION:
        raise CheckpointError(f"the checkpoint's client state is of version {saved[_FORMAT]}; this reads {_VERSION}")
    client_state = _unpickle(saved["client_state"])
    parts = [saved.get(name) for name in ("param_groups", "lr_scheduler", "extra_states")]
    groups, scheduler, extra_states = (part and _unpickle(part) for part in parts)
    more = int(saved.get("more_micro_batches", 0))
    return _Saved(client_state, groups, scheduler, extra_states, more_micro_batches=more)


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether JSON has it, for any reader."""
    if depth > 50:
        return False
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(key) for key in value) and all(
            _is_plain(inner, depth + 1) for inner in value.values()
        )
    if isinstance(value, list):
        return all(_is_plain(inner, depth + 1) for inner in value)
    if isinstance(value, str):
        return value.isascii() or value.encode(errors="replace").decode() == value
    if isinstance(value, float):
        return math.isfinite(value)
    return value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**63)


def _pickle(value: Any) -> str:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return base64.b64encode(buffer.getvalue()).decode()


def _unpickle(saved: dict[str, str]) -> Any:
    buffer = io.BytesIO(base64.b64decode(saved["torch_save"]))
    # The program's own objects: as trustworthy as the checkpoint's folder.
    return torch.load(buffer, map_location="cpu", weights_only=False)


def _has_checkpoint(folder: str) -> bool:
    path = Path(folder)
    return (path / "latest").exists() or (path / "manifest.json").exists()


def _latest(folder: str) -> str:
    """The tag that the file `latest` names; empty where `folder` is a checkpoint itself. Raises CheckpointError."""
    path = Path(folder)
    if not (path / "latest").exists():
        return ""
    tag = (path / "latest").read_text().strip()
    if not (path / tag / "manifest.json").exists():
        raise CheckpointError(
            f"the file '{path / 'latest'}' names the checkpoint '{tag}', which is not there or not complete; give the tag "
            "of another one"
        )
    return tag


def _is_of_deepspeed(folder: str, tag: str) -> bool:
    path = Path(folder)
    try:
        path = path / (tag or (path / "latest").read_text().strip())
    except OSError:
        pass
    return not (path / "manifest.json").exists() and any(path.glob("*model_states.pt"))


def _load_scheduler(engine: Trained, saved: Any) -> None:
    scheduler = engine.lr_scheduler
    if saved is not None:
        scheduler.load_state_dict(saved)
        return
    # Of a program in C++, whose schedule is a function of the updates.
    updates = engine._core.global_steps - engine._core.skipped_steps
    if updates > 0 and hasattr(scheduler, "last_batch_iteration"):
        scheduler.step(updates - 1)

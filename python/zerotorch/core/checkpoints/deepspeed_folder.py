"""Checkpoint folders of DeepSpeed 0.14 to 0.19, stages 0 to 3, by name of parameter, whatever the number of ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from zerotorch.core.checkpoints.deepspeed_files import DeepSpeedFiles, check_ranks, find_files
from zerotorch.core.checkpoints.deepspeed_states import States, states_of_partitions, states_of_stage_0
from zerotorch.core.checkpoints.lazy import LazyTensor, LazyTensors
from zerotorch.core.checkpoints.torch_files import load_torch_file
from zerotorch.errors import CheckpointError

# What DeepSpeed itself puts beside the client state.
_OWN_KEYS = frozenset(
    """
    module buffer_names optimizer param_shapes frozen_param_shapes shared_params frozen_param_fragments lr_scheduler
    data_sampler random_ltd sparse_tensor_module_names skipped_steps global_steps global_samples dp_world_size
    mp_world_size ds_config ds_version num_experts checkpoint_parallel_dimensions universal_checkpoint_info
    ds_autoep_layers
    """.split()
)
_SCALER_KEYS = frozenset(
    ("dynamic_loss_scale", "cur_scale", "cur_iter", "last_overflow_iter", "scale_factor", "scale_window")
)


Maker = Callable[[Sequence[Sequence[str]] | None], States]


@dataclass(frozen=True)
class DeepSpeedCheckpoint:
    """One checkpoint; see read(). Tensors are read when asked for, one at a time: `weights` and `optimizer_states` give
    a new tensor on the CPU with each look-up and keep none."""

    tag: str
    folder: str
    stage: int
    world_size: int
    dtype: torch.dtype  #: of the parameters in the module: float32, bfloat16 or float16
    weights: LazyTensors
    """{name: fp32 tensor}: masters of trainable parameters, values of frozen ones; tied ones under every name. At stage
    0 the values of the 16-bit module where it is not known whose the masters are: see has_masters."""
    has_masters: bool  #: every trainable parameter's weight is its fp32 one
    frozen: tuple[str, ...]  #: empty at stage 0 where the names of the trainable ones are not known
    aliases: dict[str, str]  #: {other name: name} of tied parameters
    buffers: dict[str, Tensor]  #: those that the module's state dict has, as stored
    global_steps: int  #: with those skipped for an overflow
    skipped_steps: int
    global_samples: int
    lr_scheduler: Any  #: what its state_dict() gave, or None
    loss_scaler: dict[str, Any] | None
    """Its attributes ("cur_scale", "dynamic" or "dynamic_loss_scale", "cur_iter", "last_overflow_iter", ...), which
    depend on stage and version; None where DeepSpeed keeps none."""
    client_state: dict[str, Any]
    ds_config: dict[str, Any]
    ds_version: str
    _make_states: Maker

    @cached_property
    def _states(self) -> States:
        return self._make_states(None)

    def with_parameter_groups(self, groups: Sequence[Sequence[str]]) -> DeepSpeedCheckpoint:
        """The same, with the names of the optimizer's parameters by group and in its order. Stage 0 saves none; the
        other stages do, and take no notice. Throws CheckpointError when they do not fit."""
        states = self._make_states(groups)
        return replace(
            self,
            weights=LazyTensors(_with_aliases({**self.weights.lazy, **states.masters}, self.aliases)),
            has_masters=True,
            frozen=_frozen(self.weights, states.masters, self.aliases),
            _make_states=lambda _: states,
        )

    @property
    def optimizer_states(self) -> dict[str, LazyTensors]:
        """{name: {kind: tensor}} of trainable parameters: "exp_avg" and "exp_avg_sq" of Adam, fp32. Parameters that
        were never updated have none. Throws CheckpointError when stage 0 does not say whose they are."""
        return {name: LazyTensors(kinds) for name, kinds in self._states.tensors.items()}

    @property
    def steps(self) -> dict[str, int]:
        """{name: updates that its states have counted}. At stage 0 with a 16-bit module DeepSpeed begins at 1, and
        skipped updates do not count. Throws as optimizer_states."""
        return dict(self._states.steps)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Hyper-parameters by group, and the names under "params"; none where the files have no optimizer states.
        Throws as optimizer_states."""
        return [dict(group) for group in self._states.param_groups]


def read(path: str, tag: str | None = None, trust: bool = False) -> DeepSpeedCheckpoint:
    """The checkpoint `tag` of the folder `path`; without it the one that the file `latest` names, or `path` itself
    where that is a tag's folder. Files are opened and their small parts read; tensors later. Unpickling makes plain
    values and tensors only; `trust` lifts that, for client states of any class. Throws CheckpointError, with the file
    and what to do: for missing, damaged and left-over files, and for universal, expert-, pipeline- and tensor-parallel
    folders."""
    files = find_files(path, tag)
    first = _load_model(files.model[0], trust)
    ranks = int(first["dp_world_size"])
    sharded = len(files.model) > 1 or "zero_pp_rank_" in files.model[0].rsplit("/", 1)[-1]
    if sharded:
        check_ranks(files.model, ranks, "model")
    if first.get("param_shapes") is None:
        return _read_stage_0(files, first)
    if not files.optim:
        raise CheckpointError(
            f"{files.folder} has no *_optim_states.pt, which have the fp32 weights: copy them from where "
            "the checkpoint was saved"
        )
    check_ranks(files.optim, ranks, "optimizer")
    optim = [_load_optim(file, trust) for file in files.optim]
    stage = int(optim[0].get("zero_stage", 1))
    _check_partitions(optim, ranks, files)
    if sharded != (stage == 3):
        raise CheckpointError(
            f"{files.model[0]} is not of stage {stage}, of which {files.optim[0]} is: they are of two saves"
        )
    shapes = [{name: tuple(shape) for name, shape in group.items()} for group in first["param_shapes"]]
    states = states_of_partitions(optim, shapes, stage)
    models = [first, *(_load_model(file, trust) for file in files.model[1:])]
    weights = _frozen_shards(models) if stage == 3 else _plain_weights(first)
    weights.update(states.masters)
    return _assemble(
        files,
        first,
        stage,
        weights,
        dict(first["shared_params"] or {}),
        states,
        lambda _: states,
        _scaler(optim[0].get("loss_scaler")),
    )


def _load_model(path: str, trust: bool) -> dict[str, Any]:
    state = load_torch_file(path, trust)
    if not isinstance(state, dict) or not {"module", "buffer_names", "dp_world_size"} <= state.keys():
        raise CheckpointError(f"{path} has no model states of DeepSpeed 0.14 to 0.19: it was written by something else")
    if state.get("num_experts") or state.get("ds_autoep_layers"):
        raise CheckpointError(
            f"{path} is of a mixture-of-experts checkpoint, whose experts are in files of their own and "
            "are not read here: save the consolidated weights with the DeepSpeed that trained it"
        )
    if int(state.get("mp_world_size") or 1) > 1 or state["module"] is None:
        raise CheckpointError(
            f"{path} is of tensor- or pipeline-parallel ranks, which are not read here: merge them first, "
            "with the program that saved them"
        )
    return state


def _load_optim(path: str, trust: bool) -> dict[str, Any]:
    state = load_torch_file(path, trust)
    inner = state.get("optimizer_state_dict") if isinstance(state, dict) else None
    if not isinstance(inner, dict) or not {"single_partition_of_fp32_groups", "fp32_flat_groups"} & inner.keys():
        raise CheckpointError(f"{path} has no optimizer states of DeepSpeed's ZeRO: it was written by something else")
    return inner


def _check_partitions(optim: Sequence[Mapping[str, Any]], ranks: int, files: DeepSpeedFiles) -> None:
    for path, state in zip(files.optim, optim):
        count = state["partition_count"]
        counts = count if isinstance(count, list) else [count]
        if any(int(one) != ranks for one in counts):
            raise CheckpointError(
                f"{path} is one of {counts} parts, and the checkpoint of {ranks} ranks: it is of another "
                "save, or its states are shared out over groups of ranks, which is not read here"
            )


def _plain_weights(model: Mapping[str, Any]) -> dict[str, LazyTensor]:
    """Parameters as the module has them, as fp32; the buffers left out."""
    buffers = set(model["buffer_names"])
    return {
        name: LazyTensor(tuple(value.shape), torch.float32, partial(_fp32, value))
        for name, value in model["module"].items()
        if isinstance(value, Tensor) and name not in buffers
    }


def _frozen_shards(models: Sequence[Mapping[str, Any]]) -> dict[str, LazyTensor]:
    """Frozen parameters at stage 3: each rank's file has its part, the last ones padded."""
    shards = [model.get("frozen_param_fragments") or {} for model in models]

    def read_one(name: str, shape: torch.Size) -> LazyTensor:
        def join() -> Tensor:
            flat = torch.cat([_fp32(shard[name]).reshape(-1) for shard in shards])
            return flat[: shape.numel()].view(shape)

        return LazyTensor(tuple(shape), torch.float32, join)

    shapes = models[0].get("frozen_param_shapes") or {}
    return {name: read_one(name, torch.Size(shape)) for name, shape in shapes.items()}


def _fp32(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.float32, copy=True).contiguous()


def _shared_storages(model: Mapping[str, Any]) -> dict[str, str]:
    """{other name: name} of the module's tied parameters: torch.save keeps that they share a storage."""
    first: dict[tuple[Any, ...], str] = {}
    aliases = {}
    for name, value in model["module"].items():
        if isinstance(value, Tensor) and value.numel() > 0:
            key = (value.data_ptr(), value.shape, value.stride(), value.dtype)
            if first.setdefault(key, name) != name:
                aliases[name] = first[key]
    return aliases


def _read_stage_0(files: DeepSpeedFiles, first: Mapping[str, Any]) -> DeepSpeedCheckpoint:
    aliases, buffers, saved = _shared_storages(first), set(first["buffer_names"]), first["optimizer"]
    parameters = [name for name in first["module"] if name not in aliases and name not in buffers]

    def make(groups: Sequence[Sequence[str]] | None) -> States:
        return States() if saved is None else states_of_stage_0(saved, first["module"], parameters, groups)

    try:
        states: States | None = make(None)
    except CheckpointError:  # without names; asking for states says so
        states = None
    scaler = {key: value for key, value in (saved or {}).items() if key in _SCALER_KEYS}
    weights = {**_plain_weights(first), **(states.masters if states is not None else {})}
    return _assemble(files, first, 0, weights, aliases, states, make, scaler or None)


def _scaler(scaler: Any) -> dict[str, Any] | None:
    return None if scaler is None else dict(vars(scaler))


def _frozen(weights: Mapping[str, Any], masters: Mapping[str, Any], aliases: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(name for name in weights if name not in masters and name not in aliases)


def _with_aliases(weights: Mapping[str, LazyTensor], aliases: Mapping[str, str]) -> dict[str, LazyTensor]:
    return {**weights, **{alias: weights[name] for alias, name in aliases.items() if name in weights}}


def _assemble(
    files: DeepSpeedFiles,
    first: Mapping[str, Any],
    stage: int,
    weights: dict[str, LazyTensor],
    aliases: dict[str, str],
    states: States | None,
    make_states: Maker,
    loss_scaler: dict[str, Any] | None,
) -> DeepSpeedCheckpoint:
    buffers = {name: first["module"][name].detach() for name in first["buffer_names"] if name in first["module"]}
    dtypes = [
        value.dtype
        for name, value in first["module"].items()
        if isinstance(value, Tensor) and value.is_floating_point() and name not in buffers
    ]
    dtype = dtypes[0] if dtypes else torch.float32
    masters = states.masters if states is not None else {}
    return DeepSpeedCheckpoint(
        tag=files.tag,
        folder=files.folder,
        stage=stage,
        world_size=int(first["dp_world_size"]),
        dtype=dtype,
        weights=LazyTensors(_with_aliases(weights, aliases)),
        has_masters=bool(masters) or dtype == torch.float32,
        frozen=_frozen(weights, masters, aliases) if masters else (),
        aliases=aliases,
        buffers=buffers,
        global_steps=int(first["global_steps"]),
        skipped_steps=int(first["skipped_steps"]),
        global_samples=int(first.get("global_samples", 0)),
        lr_scheduler=first.get("lr_scheduler"),
        loss_scaler=loss_scaler,
        client_state={key: value for key, value in first.items() if key not in _OWN_KEYS},
        ds_config=first.get("ds_config") or {},
        ds_version=str(first.get("ds_version", "")),
        _make_states=make_states,
    )

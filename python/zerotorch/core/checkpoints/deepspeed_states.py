"""Masters and optimizer states of the parameters, by name, out of what DeepSpeed's optimizers save."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from zerotorch.core.checkpoints.flat_groups import Placement, place_stage_2, place_stage_3
from zerotorch.core.checkpoints.lazy import LazyTensor
from zerotorch.errors import CheckpointError

Shapes = list[dict[str, tuple[int, ...]]]


@dataclass
class States:
    """`masters` fp32; `tensors` by parameter and kind, in the file's dtype; `values` are those states that are numbers;
    `param_groups` with the names under "params"."""

    masters: dict[str, LazyTensor] = field(default_factory=dict)
    tensors: dict[str, dict[str, LazyTensor]] = field(default_factory=dict)
    values: dict[str, dict[str, float]] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)
    param_groups: list[dict[str, Any]] = field(default_factory=list)


def _gather(placement: Placement, part: Callable[[int, int], Tensor], what: str, dtype: torch.dtype) -> Tensor:
    pieces = []
    for span in placement.spans:
        flat = part(span.rank, span.group).detach().reshape(-1)
        if span.start + span.numel > flat.numel():
            raise CheckpointError(
                f"{what}: rank {span.rank} has {flat.numel()} elements of group {span.group}, and "
                f"{span.start + span.numel} are needed: the ranks' files are of different saves, or the "
                "states were offloaded to NVMe"
            )
        pieces.append(flat[span.start : span.start + span.numel].to(dtype))
    joined = torch.cat(pieces) if pieces else torch.empty(0, dtype=dtype)
    return joined[: placement.numel].view(placement.shape)


def _lazy(placement: Placement, part: Callable[[int, int], Tensor], what: str, dtype: torch.dtype) -> LazyTensor:
    return LazyTensor(placement.shape, dtype, lambda: _gather(placement, part, what, dtype))


def _number(value: Any) -> float:
    return float(value.item()) if isinstance(value, Tensor) else float(value)


def _group_of(group: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    return {**{key: value for key, value in group.items() if key != "params"}, "params": names}


def _add_state(
    states: States, name: str, own: Mapping[str, Any], group: Mapping[str, Any], tensor: Callable[[str], LazyTensor]
) -> None:
    """Of one parameter: a state with dimensions is a tensor, any other a number; the step may be the group's."""
    for kind, value in own.items():
        if isinstance(value, Tensor) and value.dim() > 0:
            states.tensors.setdefault(name, {})[kind] = tensor(kind)
        elif isinstance(value, (Tensor, int, float)):
            states.values.setdefault(name, {})[kind] = _number(value)
    step = states.values.get(name, {}).pop("step", group.get("step"))
    if step is not None and own:
        states.steps[name] = int(_number(step))


def states_of_partitions(optim: Sequence[Mapping[str, Any]], shapes: Shapes, stage: int) -> States:
    """Stages 1 to 3: `optim` by rank, what is under "optimizer_state_dict"; `shapes` of the parameters by flat group,
    in the order in which they are flattened. Throws CheckpointError."""
    masters_key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
    first = optim[0]
    flats: list[list[Tensor]] = [rank[masters_key] for rank in optim]
    if stage == 3:
        placed = place_stage_3(shapes, [flat.numel() for flat in flats[0]], len(optim))
        base_key = "optimizer_state_dict"
    else:
        # Only ZeRO's own optimizer cuts the padding off, and says so; that of bf16 with fp32 sums keeps it.
        cut = first["group_paddings"] if "zero_stage" in first else [0] * len(flats[0])
        sizes = [flat.numel() + padding for flat, padding in zip(flats[0], cut)]
        placed = place_stage_2(shapes, sizes, first.get("param_alignment_paddings"))
        base_key = "base_optimizer_state"
    states = States()
    bases = [rank.get(base_key) for rank in optim]
    groups, owners, base_of = _base_states(bases, len(flats[0]), first)
    names: list[list[str]] = [[] for _ in groups]
    for name, placement in placed.items():

        def master(rank: int, group: int) -> Tensor:
            return flats[rank][group]

        states.masters[name] = _lazy(placement, master, f"the master of '{name}'", torch.float32)
        if not groups:
            continue
        owner = owners[placement.group]
        names[owner].append(name)
        own = base_of(0, placement.group)

        def tensor(kind: str, name: str = name, placement: Placement = placement, own: Any = own) -> LazyTensor:
            return _lazy(
                placement, lambda rank, group: base_of(rank, group)[kind], f"'{kind}' of '{name}'", own[kind].dtype
            )

        _add_state(states, name, own, groups[owner], tensor)
    states.param_groups = [_group_of(group, members) for group, members in zip(groups, names)]
    return states


def _base_states(
    bases: list[Any], flat_groups: int, first: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], list[int], Callable[[int, int], Mapping[str, Any]]]:
    """(parameter groups, the group of each flat group, the states of a flat group on a rank) of the inner
    optimizers."""
    if any(base is None for base in bases):  # removed to save space; the masters are enough for weights
        return [], [0] * flat_groups, lambda rank, group: {}
    if isinstance(bases[0], list):  # "elastic": by flat group, without the hyper-parameters
        step = first.get("base_optimizer_state_step")
        groups: list[dict[str, Any]] = [{} if step is None else {"step": step} for _ in bases[0]]
        return groups, list(range(flat_groups)), lambda rank, group: bases[rank][group]
    groups = bases[0]["param_groups"]
    owners = [owner for owner, group in enumerate(groups) for _ in group["params"]]
    ids = [[one for group in base["param_groups"] for one in group["params"]] for base in bases]
    if len(owners) != flat_groups:
        raise CheckpointError(
            f"the optimizer has {len(owners)} tensors and the masters {flat_groups}: the files were "
            "changed after they were saved, or are of an optimizer that is not read here"
        )

    def base_of(rank: int, group: int) -> Mapping[str, Any]:
        states: Mapping[str, Any] = bases[rank]["state"].get(ids[rank][group], {})
        return states

    return groups, owners, base_of


def states_of_stage_0(
    saved: Mapping[str, Any],
    module: Mapping[str, Tensor],
    parameters: Sequence[str],
    parameter_groups: Sequence[Sequence[str]] | None,
) -> States:
    """Stage 0, where states have no names but positions: those of `parameter_groups` when given, else all `parameters`
    in their order where the optimizer has one group of as many, else each master is looked for among the module's
    values. Throws CheckpointError where that does not say which is which."""
    inner = saved.get("optimizer_state_dict", saved)
    groups = inner["param_groups"]
    if "fp32_groups_flat" in saved:
        return _states_of_flat_stage_0(saved["fp32_groups_flat"], inner, module, parameters, parameter_groups)
    masters: list[Tensor] = [master for group in saved.get("fp32_groups", []) for master in group]
    names = _names_by_position(groups, masters, module, parameters, parameter_groups)
    states = States()
    for group in groups:
        begin = sum(len(before["params"]) for before in groups[: len(states.param_groups)])
        members = names[begin : begin + len(group["params"])]
        states.param_groups.append(_group_of(group, members))
        for position, (name, one) in enumerate(zip(members, group["params"]), begin):
            own = inner["state"].get(one, {})
            shape = tuple(module[name].shape)
            source = masters[position] if masters else module[name]
            for found in (source, *own.values()):
                if isinstance(found, Tensor) and found.dim() > 0 and tuple(found.shape) != shape:
                    raise CheckpointError(
                        f"'{name}' has the shape {shape}, and a state at its position, {position}, "
                        f"{tuple(found.shape)}: give parameter_groups in the optimizer's order"
                    )
            states.masters[name] = _copy(source, torch.float32)

            def tensor(kind: str, own: Any = own) -> LazyTensor:
                return _copy(own[kind], own[kind].dtype)

            _add_state(states, name, own, group, tensor)
    return states


def _copy(source: Tensor, dtype: torch.dtype) -> LazyTensor:
    return LazyTensor(tuple(source.shape), dtype, lambda: source.detach().to(dtype, copy=True).contiguous())


def _states_of_flat_stage_0(
    flats: Sequence[Tensor],
    inner: Mapping[str, Any],
    module: Mapping[str, Tensor],
    parameters: Sequence[str],
    parameter_groups: Sequence[Sequence[str]] | None,
) -> States:
    """As fused optimizers save them: one flat tensor a group."""
    named = [parameters] if parameter_groups is None else parameter_groups
    shapes: Shapes = [{name: tuple(_named(module, name).shape) for name in names} for names in named]
    sizes = [sum(module[name].numel() for name in names) for names in named]
    if sizes != [flat.numel() for flat in flats]:
        raise CheckpointError(
            f"at stage 0 DeepSpeed saves states by position, in flat groups of "
            f"{[flat.numel() for flat in flats]} elements, and the names are of {sizes}: give "
            "parameter_groups, the names by group of the optimizer"
        )
    one_rank = {"single_partition_of_fp32_groups": flats, "base_optimizer_state": inner}
    return states_of_partitions([one_rank], shapes, 0)


def _named(module: Mapping[str, Tensor], name: str) -> Tensor:
    if name not in module:
        raise CheckpointError(f"parameter_groups has '{name}', which the checkpoint does not have")
    return module[name]


def _names_by_position(
    groups: Sequence[Mapping[str, Any]],
    masters: Sequence[Tensor],
    module: Mapping[str, Tensor],
    parameters: Sequence[str],
    parameter_groups: Sequence[Sequence[str]] | None,
) -> list[str]:
    counts = [len(group["params"]) for group in groups]
    if parameter_groups is not None:
        if [len(names) for names in parameter_groups] != counts:
            raise CheckpointError(
                f"parameter_groups has {[len(names) for names in parameter_groups]} names, and the "
                f"optimizer's groups {counts} parameters"
            )
        names = [name for group in parameter_groups for name in group]
        for name in names:
            _named(module, name)
        return names
    if counts == [len(parameters)]:
        return list(parameters)
    found = []
    for master in masters:
        same = [
            name
            for name in parameters
            if module[name].shape == master.shape and torch.equal(master.to(module[name].dtype), module[name])
        ]
        found += same if len(same) == 1 else []
    if len(set(found)) == sum(counts) == len(masters):
        return found
    raise CheckpointError(
        f"at stage 0 DeepSpeed saves states by position, of {counts} parameters by group, and the model "
        f"has {len(parameters)}: give parameter_groups, the names by group of the optimizer"
    )

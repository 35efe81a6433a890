"""Writes a checkpoint of zerotorch as the folder that DeepSpeed 0.19 saves, to go on there at stage 1, 2 or 3."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from zerotorch.checkpoint.deepspeed_folder import OWN_KEYS
from zerotorch.checkpoint.flat_groups import place_stage_2, place_stage_3
from zerotorch.checkpoint.folder import Checkpoint
from zerotorch.checkpoint.torch_files import DynamicLossScaler, LossScaler, save_torch_file
from zerotorch.errors import CheckpointError

DEEPSPEED_VERSION = "0.19.8"
_NOT_STATES = ("weight", "buffer", "random_state", "gradient_sum")


def write_deepspeed(
    checkpoint: Checkpoint,
    path: str,
    *,
    stage: int,
    ranks: int,
    param_groups: Sequence[Mapping[str, Any]] | None = None,
    tag: str | None = None,
    lr_scheduler: Any = None,
    exclude: Collection[str] = (),
    sub_group_size: int = 10**9,
    step_as_number: bool = False,
) -> str:
    """Writes the folder of one tag into `path`, and `latest`; returns the tag's folder. DeepSpeed's load_checkpoint
    takes it with the same stage and as many ranks, and its zero_to_fp32 gives the same bits.

    `param_groups` are the optimizer's, as DeepSpeed will have them: hyper-parameters, and under "params" the names in
    order. Without them all trainable parameters are one group in the checkpoint's order, with the hyper-parameters of
    its configuration. `lr_scheduler` is what the scheduler's state_dict() would give; without it, of a scheduler that
    the configuration names, how many steps it has made. `exclude` are buffers that DeepSpeed's module does not save.
    `sub_group_size` is that of DeepSpeed's configuration (stage 3). `step_as_number` is for DeepSpeed's own optimizers
    (FusedAdam, DeepSpeedCPUAdam); torch's keep the number of updates as a tensor. 16-bit parameters are the masters
    rounded to the nearest, of two as near to the even one, as DeepSpeed does.

    Memory: one rank's part, and for stages 1 and 2 the module. Throws CheckpointError when the tag's folder is there
    already, and for what DeepSpeed's cannot hold: an accumulation window that is not over, parameters that were updated
    less often than others, states that are not fp32 of the parameter's shape. Throws OSError.
    """
    if stage not in (1, 2, 3) or ranks < 1:
        raise CheckpointError(
            f"DeepSpeed's folders are written for stages 1 to 3 and one rank or more, not stage {stage} "
            f"and {ranks} ranks"
        )
    folder = os.path.join(path, tag or checkpoint.tag)
    writer = _Writer(checkpoint, stage, ranks, param_groups, sub_group_size, step_as_number)
    if os.path.exists(folder):
        raise CheckpointError(f"{folder} is there already: give another tag, or remove it")
    os.makedirs(folder)
    prefix = "bf16_" if writer.dtype == torch.bfloat16 else ""
    for rank in range(ranks):
        save_torch_file(
            writer.optim_states(rank), os.path.join(folder, f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        )
        if stage == 3 or rank == 0:
            name = f"zero_pp_rank_{rank}_" if stage == 3 else ""
            state = writer.model_states(rank, lr_scheduler, set(exclude))
            save_torch_file(state, os.path.join(folder, f"{name}mp_rank_00_model_states.pt"))
    with open(os.path.join(path, "latest"), "w", encoding="utf-8") as latest:
        latest.write(tag or checkpoint.tag)
    return folder


class _Writer:
    """One checkpoint in one layout."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        stage: int,
        ranks: int,
        param_groups: Sequence[Mapping[str, Any]] | None,
        sub_group_size: int,
        step_as_number: bool,
    ) -> None:
        self._checkpoint = checkpoint
        self._stage = stage
        self._ranks = ranks
        self._step_as_number = step_as_number
        self._weights = [tensor for tensor in checkpoint.tensors.values() if tensor.kind == "weight"]
        trainable = [tensor.name for tensor in self._weights if tensor.trainable]
        if param_groups is None:
            param_groups = [{**_hyper_parameters(checkpoint), "params": trainable}]
        # DeepSpeed's own Adam looks for that in the group, torch's does not mind.
        self._groups = [{**({"bias_correction": True} if step_as_number else {}), **group} for group in param_groups]
        grouped = [name for group in param_groups for name in group["params"]]
        if sorted(grouped) != sorted(trainable):
            odd = sorted(set(grouped) ^ set(trainable)) or sorted(name for name in grouped if grouped.count(name) > 1)
            raise CheckpointError(
                f"param_groups must have every trainable parameter of {checkpoint.folder} once; not so "
                f"with {', '.join(repr(name) for name in odd[:5])}"
            )
        self._frozen = [tensor.name for tensor in self._weights if not tensor.trainable]
        dtypes = [checkpoint.stored(name).module_dtype for name in grouped or self._frozen]
        self.dtype = dtypes[0] if dtypes else torch.float32
        self._updates, self._kinds = self._states_of(grouped)
        self._flat, self._owners = self._flat_groups(sub_group_size)
        shapes = [{name: self._shape(name) for name in names} for names in self._flat]
        counts = [sum(math.prod(shape) for shape in group.values()) for group in shapes]
        if stage == 3:
            self._sizes = [sum(-(-math.prod(shape) // ranks) for shape in group.values()) for group in shapes]
            self._placed = place_stage_3(shapes, self._sizes, ranks)
        else:
            self._sizes = [-(-count // (2 * ranks)) * 2 for count in counts]  # parts are aligned to two elements
            self._placed = place_stage_2(shapes, self._sizes, None)
        self._paddings = [
            [min(size, max(0, (rank + 1) * size - count)) for size, count in zip(self._sizes, counts)]
            for rank in range(ranks)
        ]

    def _states_of(self, names: list[str]) -> tuple[int, list[str]]:
        """(updates that all parameters had, the kinds of their states)."""
        state = self._checkpoint.state
        if any(kind == "gradient_sum" for _, kind in self._checkpoint.tensors):
            raise CheckpointError(
                f"{self._checkpoint.folder} is from inside an accumulation window, whose sums DeepSpeed's "
                "folders do not hold: save after step()"
            )
        if state.get("program_optimizer") or state.get("parameter_steps"):
            raise CheckpointError(
                f"{self._checkpoint.folder} has a step count by parameter or the states of the program's "
                "own optimizer; DeepSpeed's folders have one count a group: write its weights alone"
            )
        kinds = {kind: None for _, kind in self._checkpoint.tensors if kind not in _NOT_STATES}
        for name in names:
            for kind in kinds:
                found = self._checkpoint.tensors.get((name, kind))
                if found is not None and (
                    found.dtype != torch.float32 or found.shape != self._checkpoint.stored(name).shape
                ):
                    raise CheckpointError(
                        f"'{kind}' of '{name}' is not fp32 of the parameter's shape, which is all that "
                        "DeepSpeed's flat groups hold"
                    )
        return int(state.get("optimizer_steps", 0)), list(kinds)

    def _flat_groups(self, sub_group_size: int) -> tuple[list[list[str]], list[int]]:
        """(names by flat group, the parameter group of each): the groups, cut at stage 3 as DeepSpeed cuts them."""
        flat: list[list[str]] = []
        owners: list[int] = []
        for owner, group in enumerate(self._groups):
            sizes = [-(-self._checkpoint.stored(name).numel // self._ranks) for name in group["params"]]
            cut = self._stage == 3 and sub_group_size < sum(sizes)
            members: list[str] = []
            filled = 0
            for name, size in zip(group["params"], sizes):
                members.append(name)
                filled += size
                if cut and filled >= sub_group_size:
                    flat.append(members)
                    owners.append(owner)
                    members, filled = [], 0
            if members:
                flat.append(members)
                owners.append(owner)
        return flat, owners

    def _shape(self, name: str) -> tuple[int, ...]:
        return self._checkpoint.stored(name).shape

    def _part(self, rank: int, index: int, kind: str) -> Tensor:
        """What the rank has of a flat group, padded with zeros; zeros for parameters without that state."""
        part = torch.zeros(self._sizes[index], dtype=torch.float32)
        for name in self._flat[index]:
            placement = self._placed[name]
            at = 0
            for span in placement.spans:
                if span.rank == rank and (name, kind) in self._checkpoint.tensors:
                    end = min(at + span.numel, placement.numel)  # padding at stage 3
                    read = self._checkpoint.elements(name, kind, min(at, end), end)
                    part[span.start : span.start + end - min(at, end)] = read.to(torch.float32)
                at += span.numel
        return part

    def optim_states(self, rank: int) -> dict[str, Any]:
        """The content of the rank's *_optim_states.pt."""
        states: dict[int, dict[str, Any]] = {}
        if self._updates > 0:
            for index in range(len(self._flat)):
                # A tensor of its own for each: what shares a storage in the file does so when it is loaded.
                step: Any = self._updates if self._step_as_number else torch.tensor(float(self._updates))
                states[index] = {"step": step, **{kind: self._part(rank, index, kind) for kind in self._kinds}}
        groups = [
            {
                **{key: value for key, value in group.items() if key != "params"},
                "params": [index for index, one in enumerate(self._owners) if one == owner],
            }
            for owner, group in enumerate(self._groups)
        ]
        base = {"state": states, "param_groups": groups}
        masters = [self._part(rank, index, "weight") for index in range(len(self._flat))]
        own: dict[str, Any] = {
            "loss_scaler": self._loss_scaler(),
            "overflow": False,
            "zero_stage": self._stage,
            "dynamic_loss_scale": self._dynamic,
        }
        if self._stage == 3:
            own.update(partition_count=self._ranks, optimizer_state_dict=base, fp32_flat_groups=masters)
        else:
            paddings = self._paddings[rank]
            own.update(
                clip_grad=float(self._checkpoint.config.get("gradient_clipping") or 0.0),
                base_optimizer_state=base,
                single_partition_of_fp32_groups=[flat[: flat.numel() - cut] for flat, cut in zip(masters, paddings)],
                group_paddings=paddings,
                param_alignment_paddings=[[0] * len(names) for names in self._flat],
                partition_count=[self._ranks] * len(self._flat),
                ds_version=DEEPSPEED_VERSION,
            )
        return {"optimizer_state_dict": own, "ds_config": self._checkpoint.config, "ds_version": DEEPSPEED_VERSION}

    def model_states(self, rank: int, lr_scheduler: Any, exclude: Collection[str]) -> dict[str, Any]:
        """The content of the rank's *_model_states.pt."""
        checkpoint = self._checkpoint
        module: dict[str, Tensor] = {}
        buffers = []
        for tensor in checkpoint.tensors.values():
            if tensor.kind == "buffer" and tensor.name not in exclude:
                for name in (tensor.name, *tensor.aliases):
                    module[name] = checkpoint.tensor(tensor.name, "buffer")
                    buffers.append(name)
        for tensor in self._weights:
            value = (
                torch.empty(0, dtype=tensor.module_dtype)
                if self._stage == 3
                else checkpoint.tensor(tensor.name, "weight", tensor.module_dtype)
            )
            module.update({name: value for name in (tensor.name, *tensor.aliases)})
        frozen = {name: torch.Size(self._shape(name)) for name in self._frozen} if self._stage > 1 else None
        shared = {alias: tensor.name for tensor in self._weights for alias in tensor.aliases}
        client = checkpoint.client_state if isinstance(checkpoint.client_state, dict) else {}
        if OWN_KEYS & client.keys():
            raise CheckpointError(
                f"the client state has {', '.join(sorted(OWN_KEYS & client.keys()))}, names that "
                "DeepSpeed keeps for itself: rename them"
            )
        steps = checkpoint.global_steps
        skipped = int((checkpoint.state.get("loss_scaler") or checkpoint.state).get("skipped_steps", 0))
        if lr_scheduler is None and checkpoint.config.get("scheduler"):
            lr_scheduler = {"last_batch_iteration": steps - skipped - 1}
        micro_batch = int(checkpoint.config.get("train_micro_batch_size_per_gpu") or 1)
        return {
            **client, "module": module, "buffer_names": buffers, "optimizer": None,
            "param_shapes": [{name: torch.Size(self._shape(name)) for name in names} for names in self._flat],
            "frozen_param_shapes": frozen, "shared_params": shared if rank == 0 else {},
            "frozen_param_fragments": None if frozen is None else {name: self._fragment(name, rank) for name in frozen},
            "lr_scheduler": lr_scheduler, "data_sampler": None, "random_ltd": None, "skipped_steps": skipped,
            "global_steps": steps, "global_samples": int(checkpoint.state.get("micro_batches", 0)) * micro_batch,
            "dp_world_size": self._ranks, "mp_world_size": 1, "ds_config": checkpoint.config,
            "ds_version": DEEPSPEED_VERSION,
        }  # fmt: skip

    def _fragment(self, name: str, rank: int) -> Tensor:
        """A frozen parameter: whole, or at stage 3 the rank's part, padded with zeros."""
        stored = self._checkpoint.stored(name)
        if self._stage < 3:
            return self._checkpoint.tensor(name, "weight", stored.module_dtype)
        size = -(-stored.numel // self._ranks)
        begin, end = min(rank * size, stored.numel), min((rank + 1) * size, stored.numel)
        part = torch.zeros(size, dtype=stored.module_dtype)
        part[: end - begin] = self._checkpoint.elements(name, "weight", begin, end).to(stored.module_dtype)
        return part

    @property
    def _dynamic(self) -> bool:
        return "steps_since_overflow" in (self._checkpoint.state.get("loss_scaler") or {})

    def _loss_scaler(self) -> LossScaler:
        saved = self._checkpoint.state.get("loss_scaler") or {}
        if not self._dynamic:
            return _with(LossScaler(), cur_scale=float(saved.get("scale", 1.0)), dynamic=False)
        settings = self._checkpoint.config.get("fp16") or {}
        steps = self._checkpoint.global_steps
        return _with(
            DynamicLossScaler(),
            cur_scale=float(saved["scale"]),
            dynamic=True,
            cur_iter=steps,
            last_overflow_iter=steps - 1 - int(saved["steps_since_overflow"]),
            scale_factor=2.0,
            scale_window=int(settings.get("loss_scale_window", 1000)),
            min_scale=settings.get("min_loss_scale", 1),
            delayed_shift=int(settings.get("hysteresis", 2)),
            cur_hysteresis=int(saved["hysteresis_left"]),
            consecutive_hysteresis=bool(settings.get("consecutive_hysteresis", False)),
            raise_error_at_min_scale=True,
            dtype=torch.float16,
        )


def _with(scaler: LossScaler, **attributes: Any) -> LossScaler:
    vars(scaler).update(attributes)
    return scaler


def _hyper_parameters(checkpoint: Checkpoint) -> dict[str, Any]:
    """Of the one group that the configuration describes. Throws CheckpointError when the learning rate is another."""
    params = dict((checkpoint.config.get("optimizer") or {}).get("params") or {})
    override = checkpoint.state.get("learning_rate_override")
    if (
        "lr" not in params
        or (override is None and checkpoint.config.get("scheduler"))
        or checkpoint.state.get("learning_rate_overrides")
    ):
        raise CheckpointError(f"{checkpoint.folder} does not say the learning rate at this step: give param_groups")
    if override is not None:
        params["lr"] = override
    if "betas" in params:
        params["betas"] = tuple(params["betas"])
    params["decoupled_weight_decay"] = bool(params.pop("adam_w_mode", True))
    return params

"""Which files a DeepSpeed checkpoint has, and whether it is of a kind that can be read."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from zerotorch.errors import CheckpointError

_MODEL = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)(?:_\d+)?_model_states\.pt")
_OPTIM = re.compile(r"(?:bf16_|fp16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)(?:_\d+)?_?optim_states\.pt")
_OTHERS = (
    (
        re.compile(r"(layer_\d+_)?expert_\d+.*_model_states\.pt|expp_rank_.*_optim_states\.pt"),
        "mixture-of-experts",
        "convert it to one without expert parallelism with the DeepSpeed that saved it",
    ),
    (
        re.compile(r"layer_\d+.*-model_states\.pt"),
        "pipeline-parallel",
        "load it into the pipeline with the DeepSpeed that saved it and save the module's state dict",
    ),
)


@dataclass(frozen=True)
class DeepSpeedFiles:
    """Full paths. `model` has one file, or one by rank at stage 3; `optim` one by rank, or none at stage 0."""

    tag: str
    folder: str
    model: list[str]
    optim: list[str]


def is_deepspeed_folder(folder: str) -> bool:
    """Whether `folder` is that of one tag, as DeepSpeed writes it."""
    return os.path.isdir(folder) and any(
        name.endswith(("_model_states.pt", "optim_states.pt")) for name in os.listdir(folder)
    )


def tag_folder(path: str, tag: str | None) -> tuple[str, str]:
    """(tag, folder): of `tag` in `path`, or without it of the tag that the file `latest` names, or `path` itself where
    that is a checkpoint. Throws CheckpointError."""
    if not os.path.isdir(path):
        raise CheckpointError(f"{path} is no folder: give the one that holds the file 'latest' and the tags")
    if tag is None:
        if is_deepspeed_folder(path) or os.path.exists(os.path.join(path, "manifest.json")):
            return os.path.basename(os.path.normpath(path)), path
        latest = os.path.join(path, "latest")
        if not os.path.isfile(latest):
            raise CheckpointError(f"{path} has no file 'latest', which says what tag was saved last: give the tag")
        with open(latest, encoding="utf-8") as file:
            tag = file.read().strip()
    folder = os.path.join(path, tag)
    if not os.path.isdir(folder):
        tags = sorted(entry.name for entry in os.scandir(path) if entry.is_dir())
        raise CheckpointError(f"{folder} does not exist; tags in {path}: {', '.join(tags) or 'none'}")
    return tag, folder


def find_files(path: str, tag: str | None = None) -> DeepSpeedFiles:
    """The files of one checkpoint. That no rank's is missing is known only when the first is read: see check_ranks.
    Throws CheckpointError for no checkpoint, and for kinds that are not read: universal ones, those of pipelines,
    tensor parallelism and experts."""
    tag, folder = tag_folder(path, tag)
    model: dict[int, str] = {}
    optim: dict[int, str] = {}
    for name in sorted(os.listdir(folder)):
        for pattern, kind, remedy in _OTHERS:
            if pattern.fullmatch(name):
                raise CheckpointError(
                    f"{os.path.join(folder, name)} is of a {kind} checkpoint, which is not read here: {remedy}"
                )
        for pattern, found in ((_MODEL, model), (_OPTIM, optim)):
            match = pattern.fullmatch(name)
            if match is None:
                continue
            if int(match.group(2)) > 0:
                raise CheckpointError(
                    f"{os.path.join(folder, name)} is of a second model-parallel rank, and only "
                    "checkpoints without tensor or pipeline parallelism are read here: merge the "
                    "ranks first, with the program that saved them"
                )
            rank = int(match.group(1) or 0)
            if rank in found:
                raise CheckpointError(
                    f"{folder} has {os.path.basename(found[rank])} and {name}, both of rank {rank}: "
                    "they are of two saves; remove the older files"
                )
            found[rank] = os.path.join(folder, name)
    if not model:
        if os.path.isdir(os.path.join(folder, "zero")):
            raise CheckpointError(
                f"{folder} is a universal checkpoint of DeepSpeed, which is not read here: give the "
                "folder that it was converted from"
            )
        raise CheckpointError(
            f"{folder} has no *_model_states.pt: it is no checkpoint of DeepSpeed, or was copied in part"
        )
    return DeepSpeedFiles(tag, folder, [model[r] for r in sorted(model)], [optim[r] for r in sorted(optim)])


def check_ranks(paths: list[str], ranks: int, what: str) -> None:
    """Throws CheckpointError unless `paths` are those of ranks 0 to `ranks` - 1; `what` is "optimizer" or "model"."""
    by_rank: dict[int, str] = {}
    for path in paths:
        match = re.search(r"zero_pp_rank_(\d+)_", os.path.basename(path))
        by_rank[int(match.group(1)) if match else 0] = path
    for rank, path in by_rank.items():
        if rank >= ranks:
            raise CheckpointError(
                f"{path} is of another save: the checkpoint is of {ranks} ranks; remove what is left of the other one"
            )
    for rank in range(ranks):
        if rank not in by_rank:
            some = paths[0]
            missing = re.sub(r"zero_pp_rank_\d+_", f"zero_pp_rank_{rank}_", some)
            raise CheckpointError(
                f"{missing} is missing, the {what} states of rank {rank} of {ranks}: copy it from the "
                "host that saved it"
            )

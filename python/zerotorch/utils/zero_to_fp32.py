"""`deepspeed.utils.zero_to_fp32`: whole fp32 weights from a checkpoint folder, of DeepSpeed or of zerotorch.

As a program: python -m zerotorch.utils.zero_to_fp32 <folder> <output folder> [--safe_serialization] [--tag TAG]
"""

from __future__ import annotations

import argparse
import glob
import os
import re
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from zerotorch.core.checkpoints.deepspeed_files import tag_folder
from zerotorch.core.checkpoints.deepspeed_folder import read
from zerotorch.core.checkpoints.folder import Checkpoint, is_own_folder
from zerotorch.core.checkpoints.lazy import LazyTensor
from zerotorch.core.checkpoints.model_files import parse_nbytes, write_model


def get_checkpoint_files(checkpoint_dir: str, glob_pattern: str) -> list[str]:
    """Paths in the folder of one tag that match, rank 2 before rank 10. Throws FileNotFoundError when none does."""
    found = glob.glob(os.path.join(glob.escape(checkpoint_dir), glob_pattern))
    if not found:
        raise FileNotFoundError(f"no {glob_pattern} in '{checkpoint_dir}'")
    return sorted(found, key=lambda path: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path)])


def get_optim_files(checkpoint_dir: str) -> list[str]:
    """DeepSpeed's *_optim_states.pt in the folder of one tag. Throws FileNotFoundError."""
    return get_checkpoint_files(checkpoint_dir, "*_optim_states.pt")


def get_model_state_files(checkpoint_dir: str) -> list[str]:
    """DeepSpeed's *_model_states.pt in the folder of one tag. Throws FileNotFoundError."""
    return get_checkpoint_files(checkpoint_dir, "*_model_states.pt")


def get_model_state_file(checkpoint_dir: str, zero_stage: int) -> str:
    """The path of rank 0's *_model_states.pt in the folder of one tag of DeepSpeed. Throws FileNotFoundError."""
    name = "zero_pp_rank_0_mp_rank_00_model_states.pt" if zero_stage == 3 else "mp_rank_00_model_states.pt"
    file = os.path.join(checkpoint_dir, name)
    if not os.path.exists(file):
        raise FileNotFoundError(f"no model states of stage {zero_stage}: '{file}' does not exist")
    return file


def get_fp32_state_dict_from_zero_checkpoint(
    checkpoint_dir: str | os.PathLike[str],
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
    lazy_mode: bool = False,
) -> dict[str, Any]:
    """{name: tensor} for load_state_dict: buffers, then parameters, on the CPU. Parameters are fp32, trainable ones the
    masters; tied ones are under each of their names, as one tensor. Floating-point buffers of a DeepSpeed checkpoint
    are fp32 too, as there; those of zerotorch's as stored, as `zero ckpt export` writes them.

    `checkpoint_dir` has the tags and `latest`, which is followed without a `tag`; a tag's own folder will do as well.
    `lazy_mode` gives in place of tensors objects with `shape`, `dtype` and `contiguous()`, which reads the tensor.
    Throws FileNotFoundError when there is no such folder, ValueError when no tag is given and there is no `latest`, and
    CheckpointError for a checkpoint that is damaged, incomplete or of a kind that is not read.

    Other than with DeepSpeed frozen parameters are fp32 in 16-bit runs as well, and there at stage 1; and stage 0 is
    read where its files say which master belongs to which name.
    """
    lazy = _lazy_state_dict(os.fspath(checkpoint_dir), tag, exclude_frozen_parameters)
    if lazy_mode:
        return dict(lazy)
    tensors: dict[int, Tensor] = {}
    return {
        name: tensors[id(one)] if id(one) in tensors else tensors.setdefault(id(one), one.contiguous())
        for name, one in lazy.items()
    }


def convert_zero_checkpoint_to_fp32_state_dict(
    checkpoint_dir: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    max_shard_size: str | int | None = "5GB",
    safe_serialization: bool = False,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
) -> None:
    """Writes what get_fp32_state_dict_from_zero_checkpoint gives to the folder `output_dir`: model.safetensors with
    `safe_serialization`, else pytorch_model.bin, and numbered ones with an index when it is more than `max_shard_size`
    (None: one file). Memory: a tensor with `safe_serialization`, else a file. Throws the same, and OSError."""
    limit = None if max_shard_size is None else parse_nbytes(max_shard_size)
    lazy = _lazy_state_dict(os.fspath(checkpoint_dir), tag, exclude_frozen_parameters)
    write_model(lazy, os.fspath(output_dir), limit, safe_serialization)


def load_state_dict_from_zero_checkpoint(
    model: nn.Module, checkpoint_dir: str | os.PathLike[str], tag: str | None = None
) -> nn.Module:
    """Moves `model` to the CPU, fills it with the checkpoint's fp32 weights, and returns it. Names that only one side
    has are passed over, as there. Throws as get_fp32_state_dict_from_zero_checkpoint."""
    state_dict = get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag)
    model = model.cpu()
    model.load_state_dict(state_dict, strict=False)
    return model


def _lazy_state_dict(path: str, tag: str | None, exclude_frozen: bool) -> dict[str, LazyTensor]:
    if not os.path.isdir(path):
        raise FileNotFoundError(f"the folder '{path}' does not exist")
    if tag is not None and not os.path.isdir(os.path.join(path, tag)):
        raise FileNotFoundError(f"the folder '{os.path.join(path, tag)}' does not exist")
    if tag is None and not os.path.isfile(os.path.join(path, "latest")) and not _is_tag_folder(path):
        raise ValueError(f"'{path}' has no file 'latest', which says what tag was saved last: give the tag")
    return _of_own(path, tag, exclude_frozen) if is_own_folder(path, tag) else _of_deepspeed(path, tag, exclude_frozen)


def _is_tag_folder(path: str) -> bool:
    return os.path.isfile(os.path.join(path, "manifest.json")) or bool(
        glob.glob(os.path.join(glob.escape(path), "*_model_states.pt"))
    )


def _of_deepspeed(path: str, tag: str | None, exclude_frozen: bool) -> dict[str, LazyTensor]:
    checkpoint = read(path, tag)
    found = {}
    for name, buffer in checkpoint.buffers.items():
        dtype = torch.float32 if buffer.is_floating_point() else buffer.dtype
        found[name] = LazyTensor(tuple(buffer.shape), dtype, partial(buffer.to, dtype, copy=True))
    frozen = set(checkpoint.frozen) if exclude_frozen else set()
    for name, lazy in checkpoint.weights.lazy.items():
        if checkpoint.aliases.get(name, name) not in frozen:
            found[name] = lazy
    return found


def _of_own(path: str, tag: str | None, exclude_frozen: bool) -> dict[str, LazyTensor]:
    checkpoint = Checkpoint(path, tag)
    found = {}
    for kind in ("buffer", "weight"):
        for stored in checkpoint.tensors.values():
            if stored.kind != kind or (exclude_frozen and kind == "weight" and not stored.trainable):
                continue
            widened = torch.float32 if kind == "weight" and stored.dtype.is_floating_point else stored.dtype
            lazy = checkpoint.lazy(stored.name, kind, widened)
            found.update({name: lazy for name in (stored.name, *stored.aliases)})
    return found


def main(arguments: list[str] | None = None) -> None:
    """The program. Throws as convert_zero_checkpoint_to_fp32_state_dict."""
    parser = argparse.ArgumentParser(description="Whole fp32 weights from a checkpoint of DeepSpeed or zerotorch.")
    parser.add_argument("checkpoint_dir", help="folder with the tags and the file 'latest', or a tag's own")
    parser.add_argument("output_dir", help="folder to write to; it is made")
    parser.add_argument("--max_shard_size", default="5GB", help="largest file, as 5GB or 500MB (default 5GB)")
    parser.add_argument("--safe_serialization", action="store_true", help="safetensors in place of torch.save's format")
    parser.add_argument("-t", "--tag", help="which checkpoint; default: what 'latest' names")
    parser.add_argument(
        "--exclude_frozen_parameters", action="store_true", help="trainable parameters and buffers only"
    )
    given = parser.parse_args(arguments)
    convert_zero_checkpoint_to_fp32_state_dict(
        given.checkpoint_dir,
        given.output_dir,
        max_shard_size=given.max_shard_size,
        safe_serialization=given.safe_serialization,
        tag=given.tag,
        exclude_frozen_parameters=given.exclude_frozen_parameters,
    )
    print(f"{os.path.join(tag_folder(given.checkpoint_dir, given.tag)[1])} -> {given.output_dir}")


if __name__ == "__main__":
    main()

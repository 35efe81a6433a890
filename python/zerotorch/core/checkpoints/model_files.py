"""Whole models as files that others load: safetensors, or torch.save's, in parts with an index where they are large."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from zerotorch.core.checkpoints.folder import DTYPES
from zerotorch.core.checkpoints.lazy import LazyTensor

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


def parse_nbytes(size: str | int) -> int:
    """ "5GB" is 5 * 10**9, "5GiB" 5 * 2**30. Throws ValueError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(size))
    if match is None or match.group(2).upper() not in _UNITS or float(match.group(1)) <= 0:
        raise ValueError(f"'{size}' is no size: give bytes, or a number with KB, MB, GB, KiB, MiB or GiB")
    return int(float(match.group(1)) * _UNITS[match.group(2).upper()])


def write_model(tensors: Mapping[str, LazyTensor], folder: str, max_nbytes: int | None, safetensors: bool) -> list[str]:
    """Writes `tensors` to `folder`, which is made: one file (model.safetensors or pytorch_model.bin), or several of at
    most `max_nbytes` (a single tensor may be larger) with their index. Memory: a tensor for safetensors, else a file.
    Returns the files' names."""
    parts: list[dict[str, LazyTensor]] = [{}]
    sizes = [0]
    for name, tensor in tensors.items():
        nbytes = tensor.numel() * tensor.dtype.itemsize
        if max_nbytes is not None and sizes[-1] > 0 and sizes[-1] + nbytes > max_nbytes:
            parts.append({})
            sizes.append(0)
        parts[-1][name] = tensor
        sizes[-1] += nbytes
    os.makedirs(folder, exist_ok=True)
    stem, suffix = ("model", ".safetensors") if safetensors else ("pytorch_model", ".bin")
    files = (
        [stem + suffix]
        if len(parts) == 1
        else [f"{stem}-{index:05}-of-{len(parts):05}{suffix}" for index in range(1, len(parts) + 1)]
    )
    for file, part in zip(files, parts):
        with replacing(os.path.join(folder, file)) as writing, open(writing, "wb") as out:
            if safetensors:
                _write_safetensors(part, out)
            else:  # given a path, torch.save() would write its name into the file
                torch.save(_load_all(part), out)
    if len(parts) > 1:
        index: dict[str, Any] = {
            "metadata": {"total_size": sum(sizes)},
            "weight_map": {name: file for file, part in zip(files, parts) for name in part},
        }
        with replacing(os.path.join(folder, f"{stem}{suffix}.index.json")) as writing:
            Path(writing).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return files


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """A path to write to, which takes the place of `path` at the end of the scope. It is this process's alone: several
    ranks may write the same model, and each then replaces a complete file by an equal one."""
    writing = f"{path}.{socket.gethostname()}-{os.getpid()}.writing"
    try:
        yield writing
        os.replace(writing, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(writing)


def _load_all(part: Mapping[str, LazyTensor]) -> dict[str, Tensor]:
    """One tensor for all names of a tied parameter, so that torch.save writes it once."""
    made: dict[int, Tensor] = {}
    return {name: made.setdefault(id(lazy), lazy.contiguous()) for name, lazy in part.items()}


def _write_safetensors(part: Mapping[str, LazyTensor], out: BinaryIO) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, tensor in part.items():
        end = at + tensor.numel() * tensor.dtype.itemsize
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % 4096)
    out.write(len(text).to_bytes(8, "little") + text)
    for tensor in part.values():
        if tensor.numel() > 0:
            tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tofile(out)

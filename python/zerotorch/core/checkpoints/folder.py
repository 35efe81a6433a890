"""zerotorch's own checkpoints, read without the engine: docs/checkpoint_format.md, versions 1 and 2."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zerotorch.core.checkpoints.deepspeed_files import tag_folder
from zerotorch.core.checkpoints.lazy import LazyTensor
from zerotorch.errors import CheckpointError

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_VERSIONS = (1, 2)


@dataclass(frozen=True)
class StoredTensor:
    """One tensor as the manifest describes it. `dtype` is that of the file, `module_dtype` what the module held."""

    name: str
    kind: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    module_dtype: torch.dtype
    trainable: bool
    aliases: tuple[str, ...]
    boxes: tuple[tuple[tuple[int, int], ...], ...]  #: empty: the whole tensor in one
    dim_order: tuple[int, ...]
    pieces: tuple[tuple[int, int, int, int], ...]  #: file, offset in bytes, first element, elements

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


def is_own_folder(path: str, tag: str | None = None) -> bool:
    """Whether `tag` of the folder `path` (or what `latest` names, or `path` itself) is a checkpoint of this format."""
    try:
        return os.path.isfile(os.path.join(tag_folder(path, tag)[1], "manifest.json"))
    except CheckpointError:
        return False


class Checkpoint:
    """A complete checkpoint. Opening reads the manifest and the files' sizes and headers, not the tensors."""

    def __init__(self, path: str, tag: str | None = None) -> None:
        """`path` is a folder of checkpoints (then `tag`, or the one that `latest` names) or the checkpoint's own.
        Throws CheckpointError, with the file, for what is missing, damaged or of another version. Checksums are not
        compared: `zero ckpt verify` does that."""
        tag, self.folder = tag_folder(path, tag)
        self._manifest_path = os.path.join(self.folder, "manifest.json")
        manifest = self._read_manifest()
        try:
            self.tag = str(manifest["tag"])
            self.version = int(manifest["version"])
            self.world_size = int(manifest["world_size"])
            self.global_steps = int(manifest["global_steps"])
            self.state: dict[str, Any] = manifest["state"]
            self.client_state: Any = manifest["client_state"]
            self.config: dict[str, Any] = manifest["config"]
            self._files = [os.path.join(self.folder, file["name"]) for file in manifest["files"]]
            self._sizes = [int(file["nbytes"]) for file in manifest["files"]]
            headers = [int(file["header_nbytes"]) for file in manifest["files"]]
            tensors = [_stored_tensor(entry) for entry in manifest["tensors"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._damaged(f"lacks or misnames {error}") from error
        self.tensors = {(tensor.name, tensor.kind): tensor for tensor in tensors}
        if len(self.tensors) != len(tensors):
            raise self._damaged("has a tensor twice")
        #: {other name: name} of tied parameters and buffers.
        self.aliases = {alias: tensor.name for tensor in tensors for alias in tensor.aliases}
        for path, size, header in zip(self._files, self._sizes, headers):
            self._check_file(path, size, header, str(manifest["id"]))
        for tensor in tensors:
            self._check_pieces(tensor)

    def stored(self, name: str, kind: str = "weight") -> StoredTensor:
        """Throws CheckpointError when there is none; `name` may be an alias."""
        found = self.tensors.get((name, kind)) or self.tensors.get((self.aliases.get(name, name), kind))
        if found is None:
            raise CheckpointError(f"{self.folder} has no '{kind}' of '{name}'")
        return found

    def tensor(self, name: str, kind: str = "weight", dtype: torch.dtype | None = None) -> Tensor:
        """The whole tensor on the CPU, as stored (F32 of trainable parameters and states) or as `dtype`. A complex
        buffer has a last dimension of 2. Memory: the tensor, twice where its elements lie in another order than row by
        row. Throws CheckpointError."""
        stored = self.stored(name, kind)
        whole = _row_major(self._elements(stored), stored)
        return whole if dtype is None else whole.to(dtype)

    def _elements(self, stored: StoredTensor) -> Tensor:
        """In the file's order."""
        size = stored.dtype.itemsize
        raw = bytearray(stored.numel * size)
        view = memoryview(raw)
        for file, offset, first, numel in stored.pieces:
            self._read(self._files[file], offset, view[first * size : (first + numel) * size])
        return torch.frombuffer(raw, dtype=stored.dtype) if raw else torch.empty(0, dtype=stored.dtype)

    def lazy(self, name: str, kind: str = "weight", dtype: torch.dtype | None = None) -> LazyTensor:
        """tensor(), when it is asked for."""
        stored = self.stored(name, kind)
        return LazyTensor(stored.shape, dtype or stored.dtype, lambda: self.tensor(name, kind, dtype))

    def _damaged(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self._manifest_path} {what}: it is damaged; run `zero ckpt verify`, or take another checkpoint"
        )

    def _read_manifest(self) -> dict[str, Any]:
        if not os.path.isfile(self._manifest_path):
            raise CheckpointError(f"{self.folder} has no manifest.json: it is no checkpoint of zerotorch")
        try:
            with open(self._manifest_path, encoding="utf-8") as file:
                manifest = json.load(file)
        except (OSError, ValueError) as error:
            raise self._damaged(f"cannot be read ({error})") from error
        if not isinstance(manifest, dict) or manifest.get("format") != "zerotorch checkpoint":
            raise CheckpointError(f"{self._manifest_path} is no manifest of a zerotorch checkpoint")
        if manifest.get("version") not in _VERSIONS:
            raise CheckpointError(
                f"{self._manifest_path} is of version {manifest.get('version')}, and this build reads "
                f"{_VERSIONS}: read it with the zerotorch that wrote it"
            )
        return manifest

    def _check_file(self, path: str, size: int, header_nbytes: int, identity: str) -> None:
        if not os.path.isfile(path):
            raise CheckpointError(f"{path} is missing: copy it from where the checkpoint was saved")
        if os.path.getsize(path) != size:
            raise CheckpointError(
                f"{path} has {os.path.getsize(path)} bytes, and the manifest says {size}: it was copied in "
                "part, or is of another save"
            )
        header = bytearray(max(header_nbytes, 8))
        self._read(path, 0, memoryview(header))
        try:
            own = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])["__metadata__"][
                "zerotorch_checkpoint"
            ]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{path} has a damaged header; run `zero ckpt verify`, or take another checkpoint"
            ) from error
        if own != identity:
            raise CheckpointError(
                f"{path} is of another save than the manifest: copy it again from where the checkpoint was saved"
            )

    def _check_pieces(self, tensor: StoredTensor) -> None:
        at = 0
        for file, offset, begin, numel in tensor.pieces:
            if (
                begin != at
                or not 0 <= file < len(self._files)
                or numel < 0
                or offset < 0
                or offset + numel * tensor.dtype.itemsize > self._sizes[file]
            ):
                raise self._damaged(f"has pieces of '{tensor.kind}' of '{tensor.name}' that do not join")
            at += numel
        in_boxes = sum(math.prod(end - begin for begin, end in box) for box in tensor.boxes)
        if at != tensor.numel or (tensor.boxes and in_boxes != tensor.numel):
            raise self._damaged(f"does not have all of '{tensor.kind}' of '{tensor.name}'")

    @staticmethod
    def _read(path: str, offset: int, into: memoryview) -> None:
        with open(path, "rb") as file:
            file.seek(offset)
            done = 0
            while done < len(into):
                count = file.readinto(into[done:])
                if not count:
                    raise CheckpointError(f"{path} ends at {offset + done} bytes: it is damaged")
                done += count


def _stored_tensor(entry: dict[str, Any]) -> StoredTensor:
    shape = tuple(int(size) for size in entry["shape"])
    order = tuple(int(dim) for dim in entry.get("dim_order", range(len(shape))))
    if sorted(order) != list(range(len(shape))) or min(shape, default=0) < 0:
        raise ValueError(f"the shape or dim_order of '{entry['name']}'")
    boxes = tuple(tuple((int(begin), int(end)) for begin, end in box) for box in entry.get("boxes", ()))
    for box in boxes:
        if len(box) != len(shape) or any(not 0 <= begin < end <= size for (begin, end), size in zip(box, shape)):
            raise ValueError(f"the boxes of '{entry['name']}'")
    if not re.fullmatch(r"[a-z0-9_]{1,64}", entry["kind"]):
        raise ValueError(f"the kind of '{entry['name']}'")
    return StoredTensor(
        str(entry["name"]),
        str(entry["kind"]),
        shape,
        DTYPES[entry["dtype"]],
        DTYPES[entry["module_dtype"]],
        bool(entry["trainable"]),
        tuple(entry.get("aliases", ())),
        boxes,
        order,
        tuple(
            (int(piece["file"]), int(piece["offset"]), int(piece["begin"]), int(piece["numel"]))
            for piece in entry["pieces"]
        ),
    )


def _turned(flat: Tensor, shape: Sequence[int], order: Sequence[int]) -> Tensor:
    """`flat` has the dimensions from slowest to fastest as `order` says; a view with those of `shape`."""
    stored = flat.view([shape[dim] for dim in order])
    return stored.permute([order.index(dim) for dim in range(len(shape))])


def _row_major(flat: Tensor, stored: StoredTensor) -> Tensor:
    if not stored.boxes:
        return _turned(flat, stored.shape, stored.dim_order).contiguous()
    whole = torch.empty(stored.shape, dtype=stored.dtype)
    at = 0
    for box in stored.boxes:
        sizes = [end - begin for begin, end in box]
        numel = math.prod(sizes)
        inside = whole[tuple(slice(begin, end) for begin, end in box)]
        inside.copy_(_turned(flat[at : at + numel], sizes, stored.dim_order))
        at += numel
    return whole

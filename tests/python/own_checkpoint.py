"""Makes checkpoints of zerotorch without the engine, for tests of what reads them."""

import json
import pathlib

import torch

from zerotorch.core.checkpoints.deepspeed_folder import DeepSpeedCheckpoint
from zerotorch.core.checkpoints.folder import DTYPES

NAMES = {dtype: name for name, dtype in DTYPES.items()}


def write(folder: pathlib.Path, tensors: list[dict], values: list[torch.Tensor], **more: object) -> pathlib.Path:
    """A checkpoint of one rank: `values` are each tensor's elements in the order of its file."""
    folder.mkdir(parents=True)
    header, data = {"__metadata__": {"zerotorch_checkpoint": "abc"}}, b""
    for tensor, value in zip(tensors, values):
        raw = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        header[f"{tensor['kind']}/{tensor['name']}"] = {
            "dtype": tensor["dtype"], "shape": [value.numel()], "data_offsets": [len(data), len(data) + len(raw)],
        }  # fmt: skip
        tensor["pieces"] = [
            {"file": 0, "offset": 4096 + len(data), "begin": 0, "numel": value.numel(), "checksums": []}
        ]
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (4088 - len(text))
    (folder / "rank_00000.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    manifest = {
        "format": "zerotorch checkpoint", "version": 2, "id": "abc", "tag": folder.name, "created_unix_ns": 1,
        "global_steps": 7, "world_size": 1, "block_nbytes": 1048576, "versions": {}, "state": {"optimizer_steps": 7},
        "client_state": {"epoch": 1}, "config": {}, "tensors": tensors, "checksum": "0" * 16,
        "files": [{"name": "rank_00000.safetensors", "nbytes": 4096 + len(data), "header_nbytes": 4096,
                   "header_checksum": "0" * 16}],
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps({**manifest, **more}))
    return folder


def describe(name: str, shape: list[int], kind: str = "weight", dtype: str = "F32", **more: object) -> dict:
    return {
        "name": name,
        "kind": kind,
        "dtype": dtype,
        "shape": shape,
        "module_dtype": dtype,
        "trainable": True,
        **more,
    }


def from_deepspeed(source: DeepSpeedCheckpoint, folder: pathlib.Path) -> pathlib.Path:
    """What zerotorch would have saved of the same run: the folder of the tag, in `folder`."""
    tensors, values = [], []
    aliases = {}
    for alias, name in source.aliases.items():
        aliases.setdefault(name, []).append(alias)
    for name, weight in source.weights.items():
        if name in source.aliases:
            continue
        trainable = name not in source.frozen
        stored = weight if trainable else weight.to(source.dtype)
        more = {"module_dtype": NAMES[source.dtype], "trainable": trainable, "aliases": aliases.get(name, [])}
        tensors.append(describe(name, list(weight.shape), "weight", NAMES[stored.dtype], **more))
        values.append(stored)
        for kind, state in source.optimizer_states.get(name, {}).items():
            tensors.append(describe(name, list(state.shape), kind, "F32", module_dtype=NAMES[source.dtype]))
            values.append(state)
    for name, buffer in source.buffers.items():
        tensors.append(describe(name, list(buffer.shape), "buffer", NAMES[buffer.dtype], trainable=False))
        values.append(buffer)
    scaler = {"scale": 1.0, "skipped_steps": source.skipped_steps}
    if source.loss_scaler is not None and source.loss_scaler.get("dynamic"):
        taken = source.loss_scaler["cur_iter"] - source.loss_scaler["last_overflow_iter"] - 1
        scaler.update(scale=source.loss_scaler["cur_scale"], steps_since_overflow=taken)
        scaler.update(hysteresis_left=source.loss_scaler["cur_hysteresis"])
    state = {
        "optimizer_steps": min(source.steps.values()),
        "micro_batches": source.global_steps * source.world_size,
        "loss_scaler": scaler,
    }
    config = json.loads(json.dumps(source.ds_config))
    if "fp16" in config:
        config["fp16"].update(loss_scale_window=1000, min_loss_scale=1, consecutive_hysteresis=False)
    more = {"state": state, "client_state": source.client_state, "config": config, "global_steps": source.global_steps}
    return write(folder / source.tag, tensors, values, **more)

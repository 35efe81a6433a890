"""Runs a module, or a script, of a program that takes a GPU and flash-attention for granted on the CPU: OpenRLHF's.

  python without_gpu.py CHECKOUT module args...

torch.cuda's calls that place and wait do nothing, the device mesh is the CPU's, and flash_attn can be imported (it is
called for packed sequences only, and says so).
"""

from __future__ import annotations

import importlib.machinery
import json
import runpy
import sys
import types
from typing import Any

import torch


def refuse(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError("without_gpu.py: flash_attn is not there")


def make_module(name: str, **contents: Any) -> None:
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__dict__.update(contents)
    sys.modules[name] = module


def print_metrics() -> None:
    """What a progress bar shows, in full on a line."""
    from tqdm import tqdm

    def set_postfix(self: Any, values: Any = None, **more: Any) -> None:
        if not self.disable:
            print("metrics", json.dumps({**(values or {}), **more}), flush=True)

    tqdm.set_postfix = set_postfix


def main() -> None:
    local_rank = [argument for argument in sys.argv[1:] if argument.startswith("--local_rank=")]  # the launcher's
    checkout, module, *arguments = [argument for argument in sys.argv[1:] if argument not in local_rank]
    for name, value in (("set_device", None), ("synchronize", None), ("empty_cache", None), ("current_device", "cpu")):
        setattr(torch.cuda, name, lambda *args, answer=value: answer)
    if "flash_attn" not in sys.modules:
        names = ("index_first_axis", "pad_input", "rearrange", "unpad_input")
        make_module("flash_attn", __path__=[], __version__="0")
        make_module("flash_attn.bert_padding", **dict.fromkeys(names, refuse))
        make_module("flash_attn.utils", __path__=[])
        make_module("flash_attn.utils.distributed", all_gather=refuse)

    import torch.distributed.device_mesh as meshes

    plain = meshes.init_device_mesh

    def init_device_mesh(device: str, *args: Any, **kwargs: Any) -> Any:
        return plain("cpu", *args, **kwargs)

    meshes.init_device_mesh = init_device_mesh
    sys.path.insert(0, checkout)
    print_metrics()
    sys.argv = [module, *local_rank, *arguments]
    if module.endswith(".py"):
        runpy.run_path(module, run_name="__main__")
    else:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()

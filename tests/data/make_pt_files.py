"""Writes the small archives of torch.save that full_weights_test reads. Usage: make_pt_files.py <folder>"""
import pathlib
import sys

import torch

folder = pathlib.Path(sys.argv[1])
state = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).state_dict()
for i, tensor in enumerate(state.values()):
    tensor.copy_(torch.arange(tensor.numel()).reshape(tensor.shape) + 10 * i)
state["0.weight"] = torch.arange(12.0).reshape(3, 4).t()  # not contiguous
torch.save(state, folder / "state_dict.pt")
torch.save({"epoch": 3, "model": state, "optimizer": {"lr": 0.1}}, folder / "wrapped.pt")
torch.save({k: v.bfloat16() if v.is_floating_point() else v for k, v in state.items()}, folder / "bf16.pt")
torch.save(torch.nn.Linear(2, 2), folder / "whole_module.pt")
torch.save([1, 2, 3], folder / "list.pt")
torch.save(state, folder / "legacy.pt", _use_new_zipfile_serialization=False)

"""zerotorch's own checkpoints, read in Python: the committed ones, and made ones that are damaged."""

import json
import pathlib
import shutil

import pytest
import torch
from own_checkpoint import describe, write

from zerotorch.core.checkpoints.folder import Checkpoint, is_own_folder
from zerotorch.errors import CheckpointError

DATA = pathlib.Path(__file__).parents[1] / "data"
VERSIONS = ["checkpoint_1", "checkpoint_2"]


def change(folder: pathlib.Path, **members: object) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, **members}))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_committed_ones(version):
    checkpoint = Checkpoint(str(DATA / version))
    manifest = json.loads((DATA / version / "step1" / "manifest.json").read_text())
    assert (checkpoint.tag, checkpoint.global_steps, checkpoint.world_size) == ("step1", 1, 2)
    assert checkpoint.version == int(version[-1])
    assert checkpoint.client_state == manifest["client_state"]
    assert checkpoint.state == manifest["state"]
    for tensor in manifest["tensors"]:
        read = checkpoint.tensor(tensor["name"], tensor["kind"])
        assert list(read.shape) == tensor["shape"]
        raw = b""
        for piece in tensor["pieces"]:
            file = DATA / version / "step1" / manifest["files"][piece["file"]]["name"]
            raw += file.read_bytes()[piece["offset"] : piece["offset"] + piece["numel"] * read.element_size()]
        if "boxes" not in tensor and "dim_order" not in tensor:
            assert read.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() == raw
    assert list(checkpoint.tensors) == [(tensor["name"], tensor["kind"]) for tensor in manifest["tensors"]]


def test_names_and_kinds():
    checkpoint = Checkpoint(str(DATA / "checkpoint_2"), "step1")
    assert checkpoint.aliases == {"tied": "block.weight"}
    assert [kind for name, kind in checkpoint.tensors if name == "block.weight"][:2] == ["weight", "exp_avg"]
    assert torch.equal(checkpoint.tensor("tied").view(torch.int32), checkpoint.tensor("block.weight").view(torch.int32))
    assert checkpoint.stored("counts", "buffer").shape == (3,)
    assert checkpoint.tensor("counts", "buffer").dtype == torch.int64
    assert checkpoint.tensor("block.weight", dtype=torch.bfloat16).dtype == torch.bfloat16
    assert checkpoint.lazy("block.weight").shape == (1001,)
    assert checkpoint.tensor("empty").shape == (0, 5)
    for name, kind in (("block.weight", "momentum_buffer"), ("nothing", "weight")):
        with pytest.raises(CheckpointError, match=f"no '{kind}' of '{name}'"):
            checkpoint.tensor(name, kind)


def test_elements_in_another_order(tmp_path):
    whole = torch.arange(24.0).view(2, 3, 4)
    by_columns = whole.permute(2, 0, 1).reshape(-1)
    halves = torch.cat([whole[:, :, :1].reshape(-1), whole[:, :, 1:].reshape(-1)])
    turned_halves = torch.cat([part.permute(2, 0, 1).reshape(-1) for part in (whole[:1], whole[1:])])
    cut = [[[0, 2], [0, 3], [0, 1]], [[0, 2], [0, 3], [1, 4]]]
    rows = [[[0, 1], [0, 3], [0, 4]], [[1, 2], [0, 3], [0, 4]]]
    folder = write(
        tmp_path / "a",
        [
            describe("plain", [2, 3, 4]),
            describe("columns", [2, 3, 4], dim_order=[2, 0, 1]),
            describe("halves", [2, 3, 4], boxes=cut),
            describe("both", [2, 3, 4], boxes=rows, dim_order=[2, 0, 1]),
            describe("scalar", []),
        ],
        [whole, by_columns, halves, turned_halves, torch.tensor(3.0)],
    )
    checkpoint = Checkpoint(str(folder))
    for name in ("plain", "columns", "halves", "both"):
        assert torch.equal(checkpoint.tensor(name), whole), name
        assert checkpoint.tensor(name).is_contiguous()
    assert checkpoint.tensor("scalar").shape == ()


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U8", "BOOL"])
def test_every_dtype(tmp_path, dtype):
    from zerotorch.core.checkpoints.folder import DTYPES

    value = torch.tensor([0, 1, 1, 0, 1]).to(DTYPES[dtype])
    folder = write(tmp_path / "a", [describe("x", [5], "buffer", dtype)], [value])
    read = Checkpoint(str(folder)).tensor("x", "buffer")
    assert read.dtype == value.dtype and torch.equal(read, value)


def test_is_it_ours(tmp_path):
    assert is_own_folder(str(DATA / "checkpoint_2"))
    assert is_own_folder(str(DATA / "checkpoint_2"), "step1")
    assert is_own_folder(str(DATA / "checkpoint_2" / "step1"))
    assert not is_own_folder(str(DATA / "checkpoint_2"), "step2")
    assert not is_own_folder(str(tmp_path))


def refused(folder: pathlib.Path, match: str) -> None:
    with pytest.raises(CheckpointError, match=match):
        Checkpoint(str(folder))


def test_damage_is_named(tmp_path):
    def fresh(name: str) -> pathlib.Path:
        shutil.copytree(DATA / "checkpoint_2" / "step1", tmp_path / name)
        return tmp_path / name

    folder = fresh("missing")
    (folder / "rank_00001.safetensors").unlink()
    refused(folder, "rank_00001.safetensors is missing")
    folder = fresh("short")
    path = folder / "rank_00001.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    refused(folder, "rank_00001.safetensors has 6331 bytes, and the manifest says 6332")
    folder = fresh("another save")
    shutil.copy(DATA / "checkpoint_2" / "step1" / "rank_00000.safetensors", folder / "rank_00001.safetensors")
    change(folder, id="f" * 32)
    refused(folder, "has 6316 bytes|another save")
    folder = fresh("identity")
    change(folder, id="f" * 32)
    refused(folder, "rank_00000.safetensors is of another save")
    folder = fresh("header")
    path = folder / "rank_00000.safetensors"
    path.write_bytes(b"\xff" * 100 + path.read_bytes()[100:])
    refused(folder, "damaged header")
    folder = fresh("json")
    (folder / "manifest.json").write_text((folder / "manifest.json").read_text()[:1000])
    refused(folder, "manifest.json cannot be read")
    folder = fresh("format")
    change(folder, format="something else")
    refused(folder, "no manifest of a zerotorch checkpoint")
    folder = fresh("version")
    change(folder, version=3)
    refused(folder, "version 3")
    folder = fresh("members")
    change(folder, files=[{}])
    refused(folder, "nbytes|name")
    (tmp_path / "nothing").mkdir()
    refused(tmp_path / "nothing", "latest")


def test_pieces_that_do_not_join(tmp_path):
    for number, spoil in enumerate(
        (
            {"pieces": []},
            {"pieces": [{"file": 0, "offset": 4096, "begin": 0, "numel": 23}]},
            {"pieces": [{"file": 0, "offset": 4100, "begin": 0, "numel": 24}]},
            {"pieces": [{"file": 1, "offset": 4096, "begin": 0, "numel": 24}]},
            {"pieces": [{"file": 0, "offset": 4096, "begin": 1, "numel": 24}]},
            {"boxes": [[[0, 4], [0, 5]]]},
            {"boxes": [[[0, 4], [0, 7]]]},
            {"dim_order": [0, 0]},
            {"shape": [-4, -6]},
            {"dtype": "F31"},
            {"kind": "../weight"},
        )
    ):
        folder = write(tmp_path / str(number), [describe("x", [4, 6])], [torch.arange(24.0)])
        manifest = json.loads((folder / "manifest.json").read_text())
        change(folder, tensors=[{**manifest["tensors"][0], **spoil}])
        refused(folder, "damaged")
    folder = write(tmp_path / "twice", [describe("x", [4]), describe("x", [4])], [torch.ones(4), torch.ones(4)])
    refused(folder, "a tensor twice")

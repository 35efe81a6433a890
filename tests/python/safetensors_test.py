#!/usr/bin/env python3
"""Checkpoints as others read them: opened with Python's safetensors, put together by the manifest alone
(docs/checkpoint_format.md), and compared bit by bit with what `zero ckpt export` wrote.

    safetensors_test.py <zero> <checkpoint_maker>
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import safetensors

try:
    import safetensors.torch
    import torch
except ImportError:
    torch = None

# BF16 as its bits: numpy has no such type.
DTYPES = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "I16": "<i2",
    "I32": "<i4",
    "I64": "<i8",
    "F16": "<f2",
    "BF16": "<u2",
    "F32": "<f4",
    "F64": "<f8",
}
FLOATS = ("F16", "BF16", "F32", "F64")


class Tensor:
    """Elements in row-major order."""

    def __init__(self, dtype, shape, data):
        self.dtype, self.shape = dtype, list(shape)
        self.array = np.frombuffer(data, DTYPES[dtype]).reshape(self.shape)

    def difference(self, other):
        if (self.dtype, self.shape) != (other.dtype, other.shape):
            return f"{self.dtype} {self.shape} and {other.dtype} {other.shape}"
        mine, theirs = self.array.tobytes(), other.array.tobytes()
        if mine == theirs:
            return None
        bits = f"u{self.array.itemsize}"
        differing = np.count_nonzero(np.frombuffer(mine, bits) != np.frombuffer(theirs, bits))
        return f"{differing} of {self.array.size} elements differ"

    def converted(self, dtype):
        """To fp32 (exact) or to bf16 (to nearest, of two as near to the one farther from zero), in integers."""
        if dtype == self.dtype:
            return self
        if (self.dtype, dtype) == ("BF16", "F32"):
            return Tensor(dtype, self.shape, (self.array.astype("<u4") << 16).tobytes())
        assert (self.dtype, dtype) == ("F32", "BF16"), f"{self.dtype} to {dtype}"
        assert not np.isnan(self.array).any()
        bits = self.array.reshape(-1).view("<u4").astype(np.uint64)
        return Tensor(dtype, self.shape, ((bits + 0x8000) >> 16).astype("<u2").tobytes())


def read_file(path):
    """Name to Tensor, and the metadata. The package's two ways of reading have to agree."""
    tensors = {
        name: Tensor(entry["dtype"], entry["shape"], bytes(entry["data"]))
        for name, entry in safetensors.deserialize(path.read_bytes())
    }
    with safetensors.safe_open(path, framework="numpy") as opened:
        assert set(opened.keys()) == set(tensors), f"{path}: other names"
        for name, tensor in tensors.items():
            if tensor.dtype != "BF16":
                assert opened.get_tensor(name).tobytes() == tensor.array.tobytes(), f"{path}: {name}"
        metadata = opened.metadata()
    if torch:
        for name, loaded in safetensors.torch.load_file(path).items():
            assert list(loaded.shape) == tensors[name].shape, f"{path}: {name}"
            raw = loaded.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if loaded.numel() else b""
            assert raw == tensors[name].array.tobytes(), f"{path}: {name}"
    return tensors, metadata


def in_row_major_order(dtype, shape, order, data):
    """`order`: the dimensions from the slowest to the fastest of `data`."""
    if not order:
        return Tensor(dtype, shape, data)
    stored = np.frombuffer(data, DTYPES[dtype]).reshape([shape[d] for d in order])
    return Tensor(dtype, shape, np.ascontiguousarray(stored.transpose(np.argsort(order))).tobytes())


def assemble(folder):
    """The checkpoint's tensors by (kind, name), as the manifest says; and the manifest."""
    manifest = json.loads((folder / "manifest.json").read_text())
    files = []
    for rank, file in enumerate(manifest["files"]):
        raw = (folder / file["name"]).read_bytes()
        assert len(raw) == file["nbytes"], f"{file['name']}: {len(raw)} bytes"
        assert file["header_nbytes"] == 8 + int.from_bytes(raw[:8], "little") and file["header_nbytes"] % 4096 == 0
        tensors, metadata = read_file(folder / file["name"])
        assert metadata["zerotorch_checkpoint"] == manifest["id"] and metadata["zerotorch_version"] == "2"
        assert metadata["zerotorch_rank"] == str(rank)
        files.append((raw, tensors))
    assert len(files) == manifest["world_size"]
    used = [set() for _ in files]
    result = {}
    for tensor in manifest["tensors"]:
        key, data, covered = f"{tensor['kind']}/{tensor['name']}", b"", 0
        for piece in tensor["pieces"]:
            raw, tensors = files[piece["file"]]
            entry = tensors[key]
            assert (entry.dtype, entry.shape) == (tensor["dtype"], [piece["numel"]]), key
            assert piece["begin"] == covered, f"{key}: a gap or an overlap"
            part = entry.array.tobytes()
            assert raw[piece["offset"] : piece["offset"] + len(part)] == part, f"{key}: another offset"
            assert len(piece["checksums"]) == -(-len(part) // manifest["block_nbytes"])
            data, covered = data + part, covered + piece["numel"]
            used[piece["file"]].add(key)
        result[tensor["kind"], tensor["name"]] = in_row_major_order(
            tensor["dtype"], tensor["shape"], tensor.get("dim_order"), data
        )
    assert [set(tensors) for _, tensors in files] == used, "entries that the manifest does not know"
    return result, manifest


def expected_export(checkpoint, dtype):
    tensors, manifest = assemble(checkpoint)
    expected = {}
    for info in manifest["tensors"]:
        tensor = tensors[info["kind"], info["name"]]
        if info["kind"] == "weight" and tensor.dtype in FLOATS:
            tensor = tensor.converted({"fp32": "F32", "bf16": "BF16", "module": info["module_dtype"]}[dtype])
        if info["kind"] in ("weight", "buffer"):
            expected.update({name: tensor for name in [info["name"], *info.get("aliases", [])]})
    return expected


def read_export(folder, max_file_nbytes):
    names = sorted(path.name for path in folder.iterdir())
    if names == ["model.safetensors"]:
        tensors, metadata = read_file(folder / names[0])
        assert metadata == {"format": "pt"}, metadata
        return tensors
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    count = len(files)
    assert files == [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)], files
    assert names == sorted([*files, "model.safetensors.index.json"]), names
    tensors, total = {}, 0
    for file in files:
        part, metadata = read_file(folder / file)
        assert metadata == {"format": "pt"}
        assert set(part) == {name for name, where in index["weight_map"].items() if where == file}, file
        nbytes = sum(tensor.array.nbytes for tensor in part.values())
        not_empty = [tensor for tensor in part.values() if tensor.array.nbytes]
        assert nbytes <= max_file_nbytes or len(not_empty) == 1, f"{file} has {nbytes} bytes"
        total += nbytes
        tensors.update(part)
    assert index["metadata"]["total_size"] == total
    return tensors


def differences(checkpoint, exported, dtype, max_file_nbytes):
    expected, got = expected_export(checkpoint, dtype), read_export(exported, max_file_nbytes)
    found = [f"only in one: {name}" for name in expected.keys() ^ got.keys()]
    for name in expected.keys() & got.keys():
        if difference := expected[name].difference(got[name]):
            found.append(f"{name}: {difference}")
    return found, len(expected)


def with_one_bit_flipped(source, target):
    """A copy of a folder in which one element of one file is another number."""
    shutil.copytree(source, target)
    path = max(target.glob("*.safetensors"), key=lambda file: file.stat().st_size)
    data = bytearray(path.read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    data[(begin + len(data)) // 2] ^= 0x10
    path.write_bytes(data)


def run(*command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"


def check(zero, checkpoint, work):
    compared = 0
    for dtype in ("fp32", "bf16", "module"):
        for max_file_nbytes in (5_000_000_000, 10_000):
            exported = work / "exported"
            run(
                zero,
                "ckpt",
                "export",
                checkpoint,
                exported,
                "--dtype",
                dtype,
                "--max-file-gb",
                f"{max_file_nbytes / 1e9:.9f}",
            )
            found, count = differences(checkpoint, exported, dtype, max_file_nbytes)
            assert not found, found
            if max_file_nbytes < 1_000_000:
                assert len(list(exported.iterdir())) > 3, "that is not in several files"
            compared += count
            # The comparison has to be able to fail.
            with_one_bit_flipped(exported, work / "flipped")
            assert len(differences(checkpoint, work / "flipped", dtype, max_file_nbytes)[0]) == 1
            shutil.rmtree(work / "flipped")
            shutil.rmtree(exported)
    return compared


def main():
    zero, checkpoint_maker = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
    compared = 0
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        for precision, ranks, stage in (("fp32", 2, 3), ("bf16", 2, 3), ("bf16", 3, 1)):
            folder = work / f"{precision}-{ranks}"
            run(checkpoint_maker, folder, ranks, stage, precision, "step2=48", "inside=60")
            for tag in ("step2", "inside"):
                tensors, manifest = assemble(folder / tag)
                kinds = {kind for kind, _ in tensors}
                assert ("gradient_sum" in kinds) == (tag == "inside"), kinds
                assert kinds >= {"weight", "exp_avg", "exp_avg_sq", "buffer", "random_state"}, kinds
                assert any("dim_order" in tensor for tensor in manifest["tensors"])
                assert any("aliases" in tensor for tensor in manifest["tensors"])
                assert any(len(tensor["pieces"]) == ranks for tensor in manifest["tensors"])
                compared += check(zero, folder / tag, work)
    print(
        f"safetensors {safetensors.__version__}{', torch' if torch else ''}: {compared} exported tensors equal "
        "to what the rank files hold, bit by bit"
    )


if __name__ == "__main__":
    main()

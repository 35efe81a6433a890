"""zerotorch.utils.zero_to_fp32 on folders of DeepSpeed and of zerotorch. What `zero ckpt export` writes is compared
where the program is built: ZERO_PROGRAM, or the release build."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import odd_model
import pytest
import torch
from ranks import run
from safetensors import safe_open
from safetensors.torch import load_file

from zerotorch.core.checkpoints.model_files import parse_nbytes
from zerotorch.errors import CheckpointError
from zerotorch.utils import zero_to_fp32

ROOT = pathlib.Path(__file__).parents[2]
DEEPSPEED = pathlib.Path(__file__).parent / "data" / "deepspeed"
OWN = ROOT / "tests" / "data" / "checkpoint_2"
CASES = sorted(path.name for path in DEEPSPEED.iterdir())
PROGRAM = os.environ.get("ZERO_PROGRAM") or str(ROOT / "build" / "release" / "apps" / "zero" / "zero")
TAG = "global_step3"

needs_program = pytest.mark.skipif(not os.access(PROGRAM, os.X_OK), reason=f"{PROGRAM} is not built")


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Shape, dtype and every bit."""
    raw = (one.contiguous().reshape(-1).view(torch.uint8) for one in (a, b))
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(*raw)


def folder_of(case: str) -> pathlib.Path:
    return DEEPSPEED / case / "checkpoint"


@pytest.mark.parametrize("case", [case for case in CASES if "fused" not in case])
def test_weights_of_deepspeed(case):
    weights = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(folder_of(case))
    expected = load_file(DEEPSPEED / case / "expected.safetensors")
    for key, tensor in expected.items():
        kind, name = key.split("/", 1)
        if (kind in ("weight", "buffer")) and name != "mask" and not (name == "fixed" and "no_frozen" in case):
            assert same(weights[name], tensor.float() if tensor.is_floating_point() else tensor), name
    assert weights["head.weight"] is weights["embedding.weight"]
    model = odd_model.OddModel(seed=99)
    model.load_state_dict(weights, strict="no_frozen" not in case)


@pytest.mark.parametrize("case", ["stage2_n2_bf16", "stage3_n3_fp32", "stage0_n2_bf16", "stage1_n2_fp32"])
def test_without_frozen_parameters(case):
    every = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(folder_of(case))
    some = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(folder_of(case), exclude_frozen_parameters=True)
    assert set(every) - set(some) == {"fixed"}


def test_lazily():
    lazy = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(folder_of("stage3_n2_bf16"), lazy_mode=True)
    whole = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(folder_of("stage3_n2_bf16"), TAG)
    assert list(lazy) == list(whole)
    for name, tensor in whole.items():
        assert (lazy[name].shape, lazy[name].dtype) == (tensor.shape, tensor.dtype)
        assert same(lazy[name].contiguous(), tensor)


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("limit", ["5GB", 500, None])
def test_files(tmp_path, safe, limit):
    zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict(
        folder_of("stage3_n3_fp32"), tmp_path / "out", max_shard_size=limit, safe_serialization=safe
    )
    whole = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(folder_of("stage3_n3_fp32"))
    stem = "model.safetensors" if safe else "pytorch_model.bin"
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    if limit == 500:
        index = json.loads((tmp_path / "out" / f"{stem}.index.json").read_text())
        where = index["weight_map"]
        assert sorted({*where.values(), f"{stem}.index.json"}) == names
        assert index["metadata"]["total_size"] == sum(one.numel() * one.element_size() for one in whole.values())
    else:
        assert names == [stem]
        where = dict.fromkeys(whole, stem)
    assert set(where) == set(whole)
    for file in set(where.values()):
        path = tmp_path / "out" / file
        part = load_file(path) if safe else torch.load(path, weights_only=True)
        assert set(part) == {name for name in where if where[name] == file}
        for name, tensor in part.items():
            assert same(tensor, whole[name]), name
        if safe:
            with safe_open(path, "pt") as opened:
                assert opened.metadata() == {"format": "pt"}


def written_at_once(case: str, folder: str, safe: bool) -> None:
    from zerotorch.distributed import init_distributed, world_group

    init_distributed()
    for _ in range(20):
        world_group().barrier()
        zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict(folder_of(case), folder, "200B", safe_serialization=safe)


@pytest.mark.parametrize("safe", [True, False])
def test_all_ranks_may_write_the_same_files(tmp_path, safe):
    alone, together = tmp_path / "alone", tmp_path / "together"
    zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict(folder_of(CASES[0]), alone, "200B", safe_serialization=safe)
    run(2, written_at_once, CASES[0], str(together), safe)
    files = sorted(path.name for path in alone.iterdir())
    assert len(files) > 2 and sorted(path.name for path in together.iterdir()) == files
    for name in files:
        assert (alone / name).read_bytes() == (together / name).read_bytes(), name


def test_tied_weights_are_written_once_by_torch_save(tmp_path):
    zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict(folder_of("stage2_n2_bf16"), tmp_path)
    part = torch.load(tmp_path / "pytorch_model.bin", weights_only=True)
    assert part["head.weight"].data_ptr() == part["embedding.weight"].data_ptr()


def test_into_a_model():
    model = odd_model.OddModel(seed=99)
    assert zero_to_fp32.load_state_dict_from_zero_checkpoint(model, folder_of("stage3_n2_bf16"), TAG) is model
    expected = load_file(DEEPSPEED / "stage3_n2_bf16" / "expected.safetensors")
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, expected[f"weight/{name}"].float())
    assert model.head.weight is model.embedding.weight


def test_files_by_name(tmp_path):
    for rank in (0, 2, 10):
        (tmp_path / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").write_bytes(b"")
    (tmp_path / "mp_rank_00_model_states.pt").write_bytes(b"")
    ranks = [pathlib.Path(path).name.split("_")[3] for path in zero_to_fp32.get_optim_files(str(tmp_path))]
    assert ranks == ["0", "2", "10"]
    assert len(zero_to_fp32.get_model_state_files(str(tmp_path))) == 1
    assert zero_to_fp32.get_model_state_file(str(tmp_path), 2) == str(tmp_path / "mp_rank_00_model_states.pt")
    for refused in (
        lambda: zero_to_fp32.get_model_state_file(str(tmp_path), 3),
        lambda: zero_to_fp32.get_model_state_file(str(tmp_path / "none"), 2),
        lambda: zero_to_fp32.get_checkpoint_files(str(tmp_path), "*.safetensors"),
    ):
        with pytest.raises(FileNotFoundError):
            refused()


def test_exceptions_are_those_of_deepspeed(tmp_path):
    get = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint
    with pytest.raises(FileNotFoundError):
        get(tmp_path / "none")
    with pytest.raises(FileNotFoundError):
        get(tmp_path, "step1")
    with pytest.raises(ValueError, match="latest"):
        get(tmp_path)
    (tmp_path / "step1").mkdir()
    with pytest.raises(CheckpointError, match="no checkpoint of DeepSpeed"):
        get(tmp_path, "step1")


def test_sizes():
    assert [parse_nbytes(size) for size in (7, "7", "5GB", "1.5 MiB", "2kb")] == [7, 7, 5 * 10**9, 1572864, 2000]
    for wrong in ("", "GB", "-5GB", "5 apples", "0"):
        with pytest.raises(ValueError):
            parse_nbytes(wrong)


def test_as_a_program(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "zerotorch.utils.zero_to_fp32", folder_of("stage2_n3_fp32"), tmp_path, "-t", TAG,
         "--safe_serialization", "--exclude_frozen_parameters", "--max_shard_size", "1GB"],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert TAG in done.stdout
    names = set(load_file(tmp_path / "model.safetensors"))
    assert "fixed" not in names and "head.weight" in names


def export(path: pathlib.Path, to: pathlib.Path, *more: str) -> dict[str, torch.Tensor]:
    subprocess.run([PROGRAM, "ckpt", "export", path, to, *more], check=True, timeout=120, capture_output=True)
    return {name: tensor for file in to.glob("*.safetensors") for name, tensor in load_file(file).items()}


@needs_program
@pytest.mark.parametrize("version", ["checkpoint_1", "checkpoint_2"])
def test_own_checkpoints_as_the_program_exports_them(tmp_path, version):
    expected = export(ROOT / "tests" / "data" / version, tmp_path)
    ours = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(ROOT / "tests" / "data" / version)
    assert set(ours) == set(expected)
    for name, tensor in expected.items():
        assert same(ours[name], tensor), name


@needs_program
@pytest.mark.parametrize(("stage", "ranks"), [(0, 1), (3, 2)])
def test_a_trained_model_as_the_program_exports_it(tmp_path, stage, ranks):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("".join(f"{number} is {number * number} " for number in range(9000)))
    subprocess.run(
        [PROGRAM, "train", "--data", tmp_path / "text", "--cache-dir", tmp_path / "cache", "--preset", "gpt-tiny",
         "-n", str(ranks), "--stage", str(stage), "--steps", "2", "--eval-every", "0", "--sample-length", "0", "-q",
         "--run-dir", tmp_path / "run", "--no-tensorboard"],
        check=True, timeout=120, capture_output=True,
    )  # fmt: skip
    expected = export(tmp_path / "run" / "checkpoints", tmp_path / "theirs")
    zero_to_fp32.convert_zero_checkpoint_to_fp32_state_dict(
        tmp_path / "run" / "checkpoints", tmp_path / "ours", safe_serialization=True
    )
    ours = load_file(tmp_path / "ours" / "model.safetensors")
    assert set(ours) == set(expected)
    for name, tensor in expected.items():
        assert same(ours[name], tensor), name


def test_own_checkpoints_without_frozen_parameters(tmp_path):
    shutil.copytree(OWN, tmp_path / "own")
    manifest = tmp_path / "own" / "step1" / "manifest.json"
    content = json.loads(manifest.read_text())
    for tensor in content["tensors"]:
        tensor["trainable"] = tensor["name"] != "cut"
    manifest.write_text(json.dumps(content))
    every = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path / "own")
    some = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(tmp_path / "own", exclude_frozen_parameters=True)
    assert set(every) - set(some) == {"cut"}
    assert "counts" in some


@pytest.mark.parametrize("case", [case for case in CASES if not case.startswith("stage0")])
def test_deepspeeds_own_function_gives_the_same(case):
    theirs = pytest.importorskip("deepspeed.utils.zero_to_fp32")
    expected = theirs.get_fp32_state_dict_from_zero_checkpoint(str(folder_of(case))) if "sums" not in case else {}
    ours = zero_to_fp32.get_fp32_state_dict_from_zero_checkpoint(folder_of(case))
    # Theirs does not read bf16 with fp32 sums, leaves frozen parameters out at stage 1, and in 16 bits elsewhere.
    assert set(ours) - set(expected) <= ({"fixed"} if expected else set(ours))
    for name, tensor in expected.items():
        assert same(ours[name], tensor.float() if tensor.is_floating_point() else tensor), name

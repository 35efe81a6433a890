"""Folders that the real DeepSpeed wrote (scripts/make_deepspeed_checkpoints.py), read without it."""

import json
import os
import pathlib
import shutil

import odd_model
import pytest
import torch
from safetensors.torch import load_file

from zerotorch.core.checkpoints.deepspeed_folder import DeepSpeedCheckpoint, read
from zerotorch.errors import CheckpointError

DATA = pathlib.Path(__file__).parent / "data" / "deepspeed"
CASES = sorted(path.name for path in DATA.iterdir())
TAG = "global_step3"
# Stage 0 has no names: these cannot tell which state belongs to which parameter on their own.
NAMELESS = ("stage0_n1_fp32", "stage0_n1_bf16_fused")


def groups():
    model = odd_model.OddModel()
    names = {parameter: name for name, parameter in model.named_parameters()}
    return [[names[parameter] for parameter in group["params"]] for group in model.groups(1.0, 1.0)]


def read_named(case: str) -> DeepSpeedCheckpoint:
    checkpoint = read(str(DATA / case / "checkpoint"))
    return checkpoint.with_parameter_groups(groups()) if case in NAMELESS else checkpoint


def copy(case: str, to: pathlib.Path) -> pathlib.Path:
    """A copy of a case's checkpoint that a test may spoil; the folder of its tag."""
    shutil.copytree(DATA / case / "checkpoint", to / "checkpoint")
    return to / "checkpoint" / TAG


@pytest.mark.parametrize("case", CASES)
def test_every_tensor_is_what_deepspeed_had(case):
    checkpoint = read_named(case)
    for key, expected in load_file(DATA / case / "expected.safetensors").items():
        kind, name = key.split("/", 1)
        if key == "buffer/mask":  # not persistent
            assert name not in checkpoint.buffers
        elif "no_frozen" in case and name == "fixed":
            assert name not in checkpoint.weights
        elif kind == "buffer":
            assert checkpoint.buffers[name].dtype == expected.dtype
            assert torch.equal(checkpoint.buffers[name], expected)
        else:
            tensors = (
                checkpoint.weights if kind == "weight" else {n: s[kind] for n, s in checkpoint.optimizer_states.items()}
            )
            assert tensors[name].dtype == torch.float32
            assert torch.equal(tensors[name], expected.float()), key
    assert checkpoint.has_masters
    assert torch.equal(checkpoint.weights["head.weight"], checkpoint.weights["embedding.weight"])


@pytest.mark.parametrize("case", CASES)
def test_counters_and_settings(case):
    checkpoint = read_named(case)
    expected = json.loads((DATA / case / "expected.json").read_text())
    assert (checkpoint.tag, checkpoint.stage) == (TAG, expected["stage"])
    assert checkpoint.world_size == expected["ranks"]
    assert checkpoint.dtype == getattr(
        torch, {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[expected["precision"]]
    )
    assert (checkpoint.global_steps, checkpoint.skipped_steps) == (3, expected["skipped_steps"])
    assert checkpoint.global_samples == 12 * expected["ranks"]
    assert checkpoint.client_state == expected["client_state"]
    assert checkpoint.ds_config == expected["config"]
    assert checkpoint.ds_version == expected["deepspeed"]
    assert checkpoint.lr_scheduler == {"last_batch_iteration": 2 - expected["skipped_steps"]}
    assert checkpoint.aliases == {"head.weight": "embedding.weight"}
    assert checkpoint.frozen == (() if "no_frozen" in case else ("fixed",))
    assert sorted(set(checkpoint.steps.values())) == expected["updates"]
    assert [sorted(group["params"]) for group in checkpoint.param_groups] == [sorted(group) for group in groups()]
    if "elastic" not in case:  # which has no hyper-parameters
        assert [group["lr"] for group in checkpoint.param_groups] == expected["lr"]
        assert [group["weight_decay"] for group in checkpoint.param_groups] == [0.1, 0.0]
    if checkpoint.loss_scaler is not None:
        assert checkpoint.loss_scaler["cur_scale"] == expected["loss_scale"]
    assert (checkpoint.loss_scaler is None) == (case in ("stage1_n3_bf16_fp32_sums", *NAMELESS))


def test_updates_that_were_skipped_for_an_overflow():
    checkpoint = read_named("stage3_n2_fp16")
    assert checkpoint.skipped_steps == 1
    assert set(checkpoint.steps.values()) == {2}
    assert checkpoint.loss_scaler["dynamic"] is True
    assert checkpoint.loss_scaler["cur_scale"] == 2.0**17


def test_weights_are_read_anew_each_time():
    weights = read_named("stage2_n2_bf16").weights
    first = weights["up.weight"]
    kept = first.clone()
    first.zero_()
    assert torch.equal(weights["up.weight"], kept)
    assert weights.lazy["up.weight"].shape == (11, 7)
    assert len(weights) == len(list(weights)) == 10


def test_the_folder_of_a_tag_and_a_tag_by_name():
    by_latest = read(str(DATA / "stage2_n2_bf16" / "checkpoint"))
    for other in (
        read(str(DATA / "stage2_n2_bf16" / "checkpoint"), TAG),
        read(str(DATA / "stage2_n2_bf16" / "checkpoint" / TAG)),
    ):
        assert other.tag == by_latest.tag
        assert torch.equal(other.weights["up.bias"], by_latest.weights["up.bias"])


def test_stage_0_without_names():
    checkpoint = read(str(DATA / "stage0_n1_bf16_fused" / "checkpoint"))
    assert not checkpoint.has_masters
    assert checkpoint.weights["up.weight"].dtype == torch.float32
    with pytest.raises(CheckpointError, match="give parameter_groups"):
        checkpoint.optimizer_states
    with pytest.raises(CheckpointError, match="give parameter_groups"):
        read(str(DATA / "stage0_n1_fp32" / "checkpoint")).steps
    for wrong in (groups()[::-1], groups()[:1], [["what"], ["ever"]]):
        for case in NAMELESS:
            with pytest.raises(CheckpointError, match="parameter_groups"):
                read(str(DATA / case / "checkpoint")).with_parameter_groups(wrong)


def test_optimizer_states_that_were_removed(tmp_path):
    folder = copy("stage2_n2_bf16", tmp_path)
    for rank in (0, 1):
        path = folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        state = torch.load(path, weights_only=False, pickle_module=_stand_ins())
        del state["optimizer_state_dict"]["base_optimizer_state"]
        del state["optimizer_state_dict"]["loss_scaler"], state["optimizer_state_dict"]["param_slice_mappings"]
        state["optimizer_state_dict"]["zero_stage"] = 2
        torch.save(state, path)
    checkpoint = read(str(folder))
    assert checkpoint.optimizer_states == {} and checkpoint.steps == {} and checkpoint.param_groups == []
    expected = load_file(DATA / "stage2_n2_bf16" / "expected.safetensors")
    assert torch.equal(checkpoint.weights["down.bias"], expected["weight/down.bias"])


def _stand_ins():
    from zerotorch.core.checkpoints import torch_files

    return torch_files._TRUSTED


def refused(path: pathlib.Path, match: str, tag: str | None = None) -> str:
    with pytest.raises(CheckpointError, match=match) as caught:
        read(str(path), tag)
    return str(caught.value)


@pytest.mark.parametrize(
    ("case", "file"),
    [
        ("stage2_n2_bf16", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"),
        ("stage3_n3_fp32", "zero_pp_rank_2_mp_rank_00_optim_states.pt"),
        ("stage3_n3_fp32", "zero_pp_rank_1_mp_rank_00_model_states.pt"),
        ("stage3_n3_fp32", "zero_pp_rank_0_mp_rank_00_model_states.pt"),
    ],
)
def test_a_file_that_is_missing(tmp_path, case, file):
    folder = copy(case, tmp_path)
    (folder / file).unlink()
    assert file in refused(folder, "is missing")


@pytest.mark.parametrize("kept", [0, 1, 100, 3000, -1])
def test_a_file_that_is_cut_off(tmp_path, kept):
    folder = copy("stage2_n2_bf16", tmp_path)
    path = folder / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    path.write_bytes(path.read_bytes()[:kept])
    assert path.name in refused(folder, "damaged or truncated")


def test_a_file_that_is_no_checkpoint(tmp_path):
    folder = copy("stage2_n2_bf16", tmp_path)
    torch.save({"a": 1}, folder / "mp_rank_00_model_states.pt")
    refused(folder, "written by something else")
    folder = copy("stage2_n2_bf16", tmp_path / "other")
    torch.save({"optimizer_state_dict": {}}, folder / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt")
    refused(folder, "written by something else")


def test_files_of_two_saves(tmp_path):
    folder = copy("stage2_n2_bf16", tmp_path)
    shutil.copy(
        folder / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
        folder / "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt",
    )
    refused(folder, "rank_2.* is of another save")
    folder = copy("stage2_n3_fp32", tmp_path / "ranks")
    shutil.copy(DATA / "stage2_n1_fp32" / "checkpoint" / TAG / "zero_pp_rank_0_mp_rank_00_optim_states.pt", folder)
    refused(folder, "another save")
    folder = copy("stage2_n2_bf16", tmp_path / "prefix")
    shutil.copy(
        folder / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt", folder / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    )
    refused(folder, "two saves")
    folder = copy("stage3_n2_bf16", tmp_path / "stage")
    for file in folder.glob("*_optim_states.pt"):
        shutil.copy(DATA / "stage2_n2_bf16" / "checkpoint" / TAG / file.name, file)
    refused(folder, "two saves")


@pytest.mark.parametrize(
    ("file", "match"),
    [
        ("mp_rank_01_model_states.pt", "tensor or pipeline parallelism"),
        ("layer_0_expert_3_mp_rank_00_model_states.pt", "mixture-of-experts"),
        ("expp_rank_0_mp_rank_00_optim_states.pt", "mixture-of-experts"),
        ("layer_00-model_00-model_states.pt", "pipeline-parallel"),
    ],
)
def test_kinds_that_are_not_read(tmp_path, file, match):
    folder = copy("stage2_n2_bf16", tmp_path)
    (folder / file).write_bytes(b"")
    assert file in refused(folder, match)


def test_kinds_that_are_not_read_by_what_is_in_them(tmp_path):
    for number, (key, value, match) in enumerate(
        [("num_experts", [4], "mixture-of-experts"), ("mp_world_size", 2, "tensor- or pipeline")]
    ):
        folder = copy("stage2_n2_bf16", tmp_path / str(number))
        state = torch.load(folder / "mp_rank_00_model_states.pt", weights_only=True)
        torch.save({**state, key: value}, folder / "mp_rank_00_model_states.pt")
        refused(folder, match)


def test_folders_that_are_no_checkpoint(tmp_path):
    refused(tmp_path / "none", "is no folder")
    refused(tmp_path, "no file 'latest'")
    folder = copy("stage2_n2_bf16", tmp_path)
    assert TAG in refused(folder.parent, "does not exist; tags", "step9")
    (folder.parent / "step9").mkdir()
    refused(folder.parent, "no checkpoint of DeepSpeed", "step9")
    (folder.parent / "step9" / "zero").mkdir()
    refused(folder.parent, "universal checkpoint", "step9")
    for file in folder.glob("*_optim_states.pt"):
        file.unlink()
    refused(folder, r"no \*_optim_states.pt")


class Trap:
    """What an attacker would put into a file."""

    def __reduce__(self):
        return os.mkdir, (os.environ["ZERO_TEST_TRAP"],)


class Custom:
    def __init__(self):
        self.value = 5


def with_client_state(folder: pathlib.Path, value: object) -> None:
    state = torch.load(folder / "mp_rank_00_model_states.pt", weights_only=True)
    torch.save({**state, "mine": value}, folder / "mp_rank_00_model_states.pt")


def test_nothing_is_run(tmp_path, monkeypatch):
    monkeypatch.setenv("ZERO_TEST_TRAP", str(tmp_path / "sprung"))
    folder = copy("stage2_n2_bf16", tmp_path)
    with_client_state(folder, Trap())
    refused(folder, "trust=True")
    assert not (tmp_path / "sprung").exists()


def test_objects_of_the_program_need_trust(tmp_path):
    folder = copy("stage2_n2_bf16", tmp_path)
    with_client_state(folder, Custom())
    assert "Custom" in refused(folder, "trust=True")
    checkpoint = read(str(folder), trust=True)
    assert checkpoint.client_state["mine"].value == 5
    assert checkpoint.loss_scaler["cur_scale"] == 1.0
    expected = load_file(DATA / "stage2_n2_bf16" / "expected.safetensors")
    assert torch.equal(checkpoint.optimizer_states["up.bias"]["exp_avg"], expected["exp_avg/up.bias"])


def test_tensors_in_the_client_state(tmp_path):
    folder = copy("stage2_n2_bf16", tmp_path)
    with_client_state(folder, {"tensor": torch.arange(3), "size": torch.Size([2])})
    assert torch.equal(read(str(folder)).client_state["mine"]["tensor"], torch.arange(3))


def test_masters_that_are_elsewhere(tmp_path):
    """As of states that are offloaded to NVMe: the flat groups are empty."""
    folder = copy("stage3_n2_bf16", tmp_path)
    for file in folder.glob("*_optim_states.pt"):
        state = torch.load(file, weights_only=False, pickle_module=_stand_ins())["optimizer_state_dict"]
        state["fp32_flat_groups"] = [torch.empty(0) for _ in state["fp32_flat_groups"]]
        del state["loss_scaler"]
        torch.save({"optimizer_state_dict": {**state, "zero_stage": 3}}, file)
    refused(folder, "NVMe")

"""DeepSpeed's folders written from zerotorch's checkpoints: against those that DeepSpeed wrote of the same run, and,
where it is installed, loaded by it. The checkpoints are made of DeepSpeed's own folders, so that both are of one
run."""

import importlib.util
import json
import pathlib

import own_checkpoint
import pytest
import torch
from safetensors.torch import load_file

from zerotorch.checkpoint import torch_files
from zerotorch.checkpoint.deepspeed_folder import DeepSpeedCheckpoint, read
from zerotorch.checkpoint.folder import Checkpoint
from zerotorch.checkpoint.write_deepspeed import write_deepspeed
from zerotorch.errors import CheckpointError

ROOT = pathlib.Path(__file__).parents[2]
DATA = pathlib.Path(__file__).parent / "data" / "deepspeed"
TAG = "global_step3"
SAME_LAYOUT = [
    "stage1_n2_fp32", "stage1_n2_bf16", "stage2_n1_fp32", "stage2_n2_bf16", "stage2_n3_fp32", "stage2_n2_fp16",
    "stage3_n1_fp32", "stage3_n2_bf16", "stage3_n3_fp32", "stage3_n2_fp16", "stage3_n3_bf16_sub_groups",
]  # fmt: skip


def source_of(case: str) -> DeepSpeedCheckpoint:
    return read(str(DATA / case / "checkpoint"))


def written(
    case: str, folder: pathlib.Path, stage: int | None = None, ranks: int | None = None, **more
) -> pathlib.Path:
    """The run of `case`, as a checkpoint of ours, as a folder of DeepSpeed."""
    source = source_of(case)
    checkpoint = Checkpoint(str(own_checkpoint.from_deepspeed(source, folder / "own")))
    size = source.ds_config["zero_optimization"].get("sub_group_size", 10**9)
    options = {"param_groups": source.param_groups, "sub_group_size": size, **more}
    to = folder / "deepspeed"
    write_deepspeed(checkpoint, str(to), stage=stage or source.stage, ranks=ranks or source.world_size, **options)
    return to


def assert_same(ours: object, theirs: object, where: str) -> None:
    if isinstance(theirs, torch.Tensor):
        assert isinstance(ours, torch.Tensor) and (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), where
        differ = ours != theirs
        # Where DeepSpeed pads the parts of stage 3 it leaves what was in memory: one or two elements a parameter.
        padded = ("_flat_groups" in where) * 8 + ("fragments" in where) * 2
        assert not (ours * differ).any() and differ.sum() <= padded, where
    elif isinstance(theirs, dict):
        assert isinstance(ours, dict) and ours.keys() == theirs.keys(), (where, set(ours) ^ set(theirs))
        for key in theirs:
            assert_same(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(theirs, (list, tuple)) and not isinstance(theirs, torch.Size):
        assert len(ours) == len(theirs), where
        for index, (a, b) in enumerate(zip(ours, theirs)):
            assert_same(a, b, f"{where}[{index}]")
    elif isinstance(theirs, torch_files.LossScaler):
        assert type(ours) is type(theirs) and vars(ours) == vars(theirs), where
    else:
        assert ours == theirs, where


@pytest.mark.parametrize("case", SAME_LAYOUT)
def test_every_file_is_as_deepspeed_writes_it(case, tmp_path):
    folder = written(case, tmp_path)
    theirs = DATA / case / "checkpoint"
    assert (folder / "latest").read_text() == (theirs / "latest").read_text()
    names = sorted(path.name for path in (theirs / TAG).iterdir())
    assert sorted(path.name for path in (folder / TAG).iterdir()) == names
    for name in names:
        a, b = (torch_files.load_torch_file(str(one / TAG / name)) for one in (folder, theirs))
        for one in (a, b):
            one.pop("ds_config")
            one.pop("checkpoint_parallel_dimensions", None)  # of DeepSpeed's own tools
            one.get("optimizer_state_dict", {}).pop("param_slice_mappings", None)  # of universal checkpoints
        if "module" in b:
            for one in (a, b):
                one["buffer_names"].sort()
            assert b["module"].keys() == a["module"].keys()
        assert_same(a, b, name)


@pytest.mark.parametrize(("stage", "ranks"), [(1, 4), (2, 1), (2, 3), (3, 1), (3, 2), (3, 5)])
def test_any_layout_is_read_to_the_same_bits(stage, ranks, tmp_path):
    source = source_of("stage2_n2_bf16")
    again = read(str(written("stage2_n2_bf16", tmp_path, stage, ranks, sub_group_size=20)))
    assert (again.stage, again.world_size, again.dtype) == (stage, ranks, torch.bfloat16)
    assert set(again.weights) == set(source.weights)
    for name, weight in source.weights.items():
        assert torch.equal(again.weights[name], weight), name
    for name, states in source.optimizer_states.items():
        assert set(again.optimizer_states[name]) == set(states)
        for kind, state in states.items():
            assert torch.equal(again.optimizer_states[name][kind], state), (name, kind)
    assert again.steps == source.steps
    assert again.param_groups == source.param_groups
    assert again.client_state == source.client_state
    assert (again.global_steps, again.aliases, again.lr_scheduler) == (3, source.aliases, source.lr_scheduler)
    for name, buffer in source.buffers.items():
        assert torch.equal(again.buffers[name], buffer)


def test_options(tmp_path):
    folder = written(
        "stage2_n2_bf16", tmp_path, tag="mine", exclude=("mean",), lr_scheduler={"a": 1}, step_as_number=True
    )
    checkpoint = read(str(folder))
    assert checkpoint.tag == "mine"
    assert set(checkpoint.buffers) == {"count"}
    assert checkpoint.lr_scheduler == {"a": 1}
    assert set(checkpoint.steps.values()) == {3}
    state = torch_files.load_torch_file(str(folder / "mine" / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"))
    assert state["optimizer_state_dict"]["base_optimizer_state"]["state"][0]["step"] == 3


def own(tmp_path: pathlib.Path, case: str = "stage2_n2_bf16") -> pathlib.Path:
    return own_checkpoint.from_deepspeed(source_of(case), tmp_path / "own")


def change(folder: pathlib.Path, member: str, **values: object) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest[member].update(values)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_groups_of_the_configuration(tmp_path):
    folder = own(tmp_path)
    with pytest.raises(CheckpointError, match="learning rate"):
        write_deepspeed(Checkpoint(str(folder)), str(tmp_path / "out"), stage=2, ranks=2)
    change(folder, "config", scheduler=None)
    write_deepspeed(Checkpoint(str(folder)), str(tmp_path / "out"), stage=2, ranks=2)
    group = read(str(tmp_path / "out")).param_groups[0]
    assert (group["lr"], group["betas"], len(group["params"])) == (0.02, (0.9, 0.95), 8)
    change(folder, "state", learning_rate_override=0.5)
    with pytest.raises(CheckpointError, match="there already"):
        write_deepspeed(Checkpoint(str(folder)), str(tmp_path / "out"), stage=3, ranks=2)
    write_deepspeed(Checkpoint(str(folder)), str(tmp_path / "out"), stage=3, ranks=2, tag="again")
    assert read(str(tmp_path / "out")).tag == "again"
    assert read(str(tmp_path / "out")).param_groups[0]["lr"] == 0.5


def test_what_deepspeed_cannot_hold(tmp_path):
    groups = source_of("stage2_n2_bf16").param_groups

    def refused(match: str, folder: pathlib.Path, **more) -> None:
        options = {"stage": 2, "ranks": 2, "param_groups": groups, **more}
        with pytest.raises(CheckpointError, match=match):
            write_deepspeed(Checkpoint(str(folder)), str(tmp_path / "out"), **options)

    folder = own(tmp_path / "plain")
    refused("stages 1 to 3", folder, stage=0)
    refused("one rank or more", folder, ranks=0)
    refused(
        "'up.weight'",
        folder,
        param_groups=[{"params": [n for n in groups[0]["params"] if n != "up.weight"]}, groups[1]],
    )
    refused("'scale'", folder, param_groups=[*groups, {"params": ["scale"]}])
    folder = own(tmp_path / "client")
    change(folder, "client_state", global_steps=5)
    refused("global_steps", folder)
    folder = own(tmp_path / "steps")
    change(folder, "state", parameter_steps={"scale": 1})
    refused("step count by parameter", folder)
    for number, spoil in enumerate(({"kind": "gradient_sum"}, {"dtype": "I32"}, {"shape": [77]})):
        folder = own(tmp_path / str(number))
        manifest = json.loads((folder / "manifest.json").read_text())
        next(t for t in manifest["tensors"] if t["kind"] == "exp_avg" and t["name"] == "up.weight").update(spoil)
        (folder / "manifest.json").write_text(json.dumps(manifest))
        refused("accumulation window" if number == 0 else "not fp32", folder)


def peers():
    """The program that runs DeepSpeed, as a module."""
    pytest.importorskip("deepspeed")
    spec = importlib.util.spec_from_file_location("peers", ROOT / "scripts" / "make_deepspeed_checkpoints.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("case", [*SAME_LAYOUT[:1], *SAME_LAYOUT[3:6], *SAME_LAYOUT[7:]])
def test_deepspeed_goes_on_with_the_same_bits(case, tmp_path):
    """As the run that was never interrupted: DeepSpeed's losses of three steps more, of every rank."""
    module = peers()
    expected = json.loads((DATA / case / "expected.json").read_text())
    resumed = module.resume(case, written(case, tmp_path), tmp_path)
    assert resumed["losses"] == expected["losses_after"]
    assert (resumed["global_steps"], resumed["skipped_steps"]) == (3, expected["skipped_steps"])
    assert (resumed["updates"], resumed["lr"]) == (expected["updates"], expected["lr"])
    assert resumed["client_state"] == expected["client_state"]
    loaded = load_file(tmp_path / "loaded.safetensors")
    for name, tensor in load_file(DATA / case / "expected.safetensors").items():
        if name != "buffer/mask":
            assert torch.equal(loaded[name], tensor), name


@pytest.mark.parametrize(("case", "stage"), [("stage2_n2_bf16", 3), ("stage3_n3_fp32", 2), ("stage3_n2_bf16", 1)])
def test_deepspeed_goes_on_at_another_stage(case, stage, tmp_path):
    """Close, but not the same: between stages DeepSpeed itself differs. It sums gradients in another order, and at
    stage 3 linear layers are a product and a sum, which in bf16 (8 bits of precision) are rounded separately."""
    module = peers()
    expected = json.loads((DATA / case / "expected.json").read_text())["losses_after"]
    other = case.replace(f"stage{case[5]}", f"stage{stage}")
    resumed = module.resume(other, written(case, tmp_path, stage), tmp_path)["losses"]
    bound = 1e-6 if "fp32" in case else 1e-2
    for ours, theirs in zip(resumed, expected):
        assert max(abs(a - b) for a, b in zip(ours, theirs)) < bound


@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_goes_on_with_its_own_adam(stage, tmp_path):
    """Which keeps the number of updates as a number, and rounds otherwise than torch's."""
    module = peers()
    expected = json.loads((DATA / "stage1_n2_fp32" / "expected.json").read_text())["losses_after"]
    folder = written("stage1_n2_fp32", tmp_path, stage, step_as_number=True)
    resumed = module.resume(f"stage{stage}_n2_fp32", folder, tmp_path, fused=True)
    assert resumed["updates"] == [3]
    for ours, theirs in zip(resumed["losses"], expected):
        assert max(abs(a - b) for a, b in zip(ours, theirs)) < 1e-5


@pytest.mark.parametrize("case", ["stage2_n3_fp32", "stage3_n3_bf16_sub_groups", "stage3_n2_bf16"])
def test_deepspeeds_zero_to_fp32_reads_it_to_the_same_bits(case, tmp_path):
    theirs = pytest.importorskip("deepspeed.utils.zero_to_fp32")
    weights = theirs.get_fp32_state_dict_from_zero_checkpoint(str(written(case, tmp_path)))
    source = source_of(case)
    for name, weight in source.weights.items():
        assert torch.equal(weights[name].float(), weight), name

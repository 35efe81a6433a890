"""utils, runtime.utils, accelerator, monitor and other small things that programs call."""

import argparse
import logging
import pathlib
import time
import weakref
from typing import Any

import pytest
import torch
import zerotorch.utils as utils
from zerotorch.accelerator import get_accelerator
from zerotorch.arguments import add_config_arguments
from zerotorch.checkpoint.utils import clone_tensors_for_torch_save
from zerotorch.errors import ConfigError, DeepSpeedConfigError, NotBuiltError, UsageError, ZeroError, ZeroIOError
from zerotorch.monitor.monitor import MonitorMaster
from zerotorch.runtime import utils as runtime_utils
from zerotorch.runtime.base_optimizer import DeepSpeedOptimizer, ZeROOptimizer
from zerotorch.runtime.zero import partition_parameters, stage3, stage_1_and_2
from zerotorch.core import log as ds_logging
from zerotorch.utils import tensor_fragment


def test_errors_are_what_deepspeed_raises() -> None:
    assert issubclass(UsageError, (AssertionError, RuntimeError)) and issubclass(UsageError, AssertionError)
    assert DeepSpeedConfigError is ConfigError and issubclass(ConfigError, ValueError)
    assert issubclass(NotBuiltError, NotImplementedError) and issubclass(ZeroIOError, OSError)
    assert isinstance(ZeroIOError("x"), ZeroError) and str(ZeroIOError("one text")) == "one text"


# Logging


@pytest.fixture
def level() -> Any:
    before = utils.logger.level
    yield
    utils.logger.setLevel(before)
    ds_logging._log_dist_once.cache_clear()
    ds_logging.warning_once.cache_clear()


def test_log_dist(level: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert utils.logger.name == "DeepSpeed" and utils.logger is ds_logging.logger
    utils.log_dist("not seen")
    utils.set_log_level_from_string("info")
    for ranks in (None, [0], [-1], [1, 0]):
        utils.log_dist(f"for {ranks}", ranks)
        assert f"[Rank 0] for {ranks}" in (seen := capsys.readouterr().err) and "test_utils.py" in seen
    utils.log_dist("of another", [1])
    utils.log_dist("low", level=logging.DEBUG)
    for _ in range(2):
        utils.log_dist_once("once", [0])
        ds_logging.warning_once("warned")
    seen = capsys.readouterr().err
    assert seen.count("[Rank 0] once") == seen.count("warned") == 1 and seen.count("test_utils.py") == 2
    assert "of another" not in seen and "low" not in seen
    ds_logging.print_dist("printed")
    assert capsys.readouterr().out == "[Rank 0] printed\n"


def test_log_levels(level: None) -> None:
    assert not ds_logging.should_log_le("info") and ds_logging.should_log_le("error")
    ds_logging.set_log_level_from_string("DEBUG")
    assert ds_logging.get_current_level() == logging.DEBUG
    with pytest.raises(ValueError, match="loud is no level"):
        ds_logging.set_log_level_from_string("loud")


# Leaf modules


class Expert(torch.nn.Linear):
    pass


def model() -> torch.nn.Module:
    return torch.nn.ModuleDict({"gate": torch.nn.Linear(1, 1), "one": Expert(1, 1), "two": Expert(1, 1)})


@pytest.mark.parametrize("wanted", [Expert, "Expert", f"{__name__}.Expert"])
def test_leaf_modules_by_class(wanted: Any) -> None:
    net = model()
    marked = utils.set_z3_leaf_modules(net, [wanted])
    assert marked == [net["one"], net["two"]] == utils.get_z3_leaf_modules(net)
    assert utils.z3_leaf_module(net["one"]) and not utils.z3_leaf_module(net["gate"])
    assert utils.unset_z3_leaf_modules(net, [wanted]) == marked and utils.get_z3_leaf_modules(net) == []


def test_leaf_modules_by_name() -> None:
    net = model()
    assert utils.set_z3_leaf_modules_by_name(net, ["two"]) == ([net["two"]], [])
    assert utils.set_z3_leaf_modules_by_suffix(net, ["ne", "e", "none"], raise_if_not_found=False) == (
        [net["one"], net["gate"]],
        ["none"],
    )
    utils.set_z3_leaf_module(net["two"], False)
    assert utils.get_z3_leaf_modules(net) == [net["gate"], net["one"]]


def test_leaf_modules_that_are_not_there() -> None:
    net = model()
    with pytest.raises(ValueError, match="Conv2d"):
        utils.set_z3_leaf_modules(net, [torch.nn.Conv2d])
    assert utils.set_z3_leaf_modules(net, ["No"], raise_if_not_found=False) == []
    with pytest.raises(ValueError, match="three"):
        utils.set_z3_leaf_modules_by_name(net, ["one", "three"])
    with pytest.raises(ValueError, match="three"):
        utils.set_z3_leaf_modules_by_suffix(net, ["three"])
    with pytest.raises(AssertionError, match="classes or their names"):
        utils.set_z3_leaf_modules(net, [3])
    assert utils.get_z3_leaf_modules(net) == []


# Parts of parameters


class Engine:
    """Records what it is asked."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Any:
        def record(param: torch.Tensor, *more: Any) -> torch.Tensor | None:
            self.calls.append((name, *more))
            return None if "set" in name else torch.tensor([1.0])

        return record


def test_fragments_go_to_the_engine() -> None:
    engine, param, value = Engine(), torch.nn.Parameter(torch.zeros(1)), torch.ones(1)
    param._zerotorch_engine = weakref.ref(engine)
    param.ds_id = 0
    for what, own in (
        ("full_fp32_param", "full_weight"),
        ("full_grad", "full_gradient"),
        ("local_fp32_param", "local_fp32"),
        ("local_grad", "local_gradient"),
    ):
        assert getattr(utils, f"safe_get_{what}")(param) == value
        getattr(utils, f"safe_set_{what}")(param, value)
        assert engine.calls[-2:] == [(f"_{own}",), (f"_set_{own}", value)]
    for what in ("full_optimizer_state", "local_optimizer_state"):
        assert getattr(utils, f"safe_get_{what}")(param, "exp_avg") == value
        getattr(utils, f"safe_set_{what}")(param, value, "exp_avg")
        assert engine.calls[-2:] == [(f"_{what}", "exp_avg"), (f"_set_{what}", "exp_avg", value)]
    utils.safe_update_full_grad_vectorized([param], lambda grad, of: grad * 3)
    assert engine.calls[-1] == ("_set_full_gradient", torch.tensor([3.0]))
    utils.get_full_hp_param(param)
    utils.get_full_hp_param(param, "exp_avg")
    utils.set_full_hp_param(param, value)
    utils.set_full_hp_param(param, value, "exp_avg")
    assert [call[0] for call in engine.calls[-4:]] == [
        "_full_weight", "_full_optimizer_state", "_set_full_weight", "_set_full_optimizer_state"
    ]  # fmt: skip


def test_groups_are_all_ranks() -> None:
    assert utils.get_data_parallel_rank() == utils.get_model_parallel_rank() == 0
    assert utils.get_data_parallel_world_size() == utils.get_model_parallel_world_size() == 1
    assert utils.get_data_parallel_group() is utils.groups._get_data_parallel_group()
    with pytest.raises(NotBuiltError, match="model parallelism"):
        utils.get_model_parallel_group()


def test_fragments_without_an_engine() -> None:
    param = torch.nn.Parameter(torch.zeros(2))
    param.ds_id = 0
    assert utils.safe_get_full_fp32_param(param) is utils.safe_get_full_grad(param) is None
    assert utils.safe_get_full_optimizer_state(param, "exp_avg") is None
    for call in (utils.safe_set_full_fp32_param, utils.safe_set_full_grad, utils.safe_set_local_grad):
        with pytest.raises(AssertionError, match="engine"):
            call(param, torch.ones(2))
    param.grad = torch.ones(2)
    utils.safe_update_full_grad_vectorized([param], lambda grad, of: grad * 3)
    assert utils.safe_get_full_grad(param).tolist() == [3, 3]
    engine = Engine()
    param._zerotorch_engine = weakref.ref(engine)
    del engine
    assert utils.safe_get_full_fp32_param(param) is None


def test_local_fragments_are_of_stage_3() -> None:
    engine, param = Engine(), torch.nn.Parameter(torch.zeros(2))
    param._zerotorch_engine = weakref.ref(engine)
    with pytest.raises(AssertionError, match="ZeRO-3 partitioned parameters only"):
        tensor_fragment.safe_get_local_fp32_param(param)


# Constructing, repeating, copying


def test_on_device() -> None:
    with utils.OnDevice(dtype=torch.bfloat16, device="meta"):
        made = torch.nn.Linear(2, 2)
    assert (made.weight.device.type, made.weight.dtype) == ("meta", torch.bfloat16)
    with utils.OnDevice(dtype=torch.bfloat16, enabled=False):
        assert torch.nn.Linear(2, 2).weight.dtype == torch.float32
    assert torch.zeros(1).dtype == torch.float32 and torch.zeros(1).device.type == "cpu"


def test_repeating_loader() -> None:
    loader = utils.RepeatingLoader([1, 2])
    assert [next(loader) for _ in range(5)] == [1, 2, 1, 2, 1] and iter(loader) is loader
    with pytest.raises(StopIteration):
        next(utils.RepeatingLoader([]))


def test_clones_have_storages_of_their_own() -> None:
    whole = torch.arange(1000.0, requires_grad=True)
    item = {"view": whole[:2], "list": [whole[2:4], 3], "tuple": (whole[4:5].t(), "text")}
    clone = clone_tensors_for_torch_save(item)
    for tensor in (clone["view"], clone["list"][0], clone["tuple"][0]):
        assert tensor.untyped_storage().nbytes() == 4 * tensor.numel() and not tensor.requires_grad
    assert clone["list"][1] == 3 and clone["tuple"][1] == "text" and clone["view"].tolist() == [0, 1]
    assert clone_tensors_for_torch_save(whole, "meta").device.type == "meta"


def test_move_to_device() -> None:
    item = {"a": [torch.zeros(1), (torch.zeros(2), 5)]}
    moved = runtime_utils.move_to_device(item, "meta")
    assert moved["a"][0].is_meta and moved["a"][1][0].is_meta and moved["a"][1][1] == 5
    some = runtime_utils.move_to_device(item, "meta", lambda one: one.numel() == 2)
    assert not some["a"][0].is_meta and some["a"][1][0].is_meta


# runtime.utils


def test_see_memory_usage(capsys: pytest.CaptureFixture[str]) -> None:
    runtime_utils.see_memory_usage("quiet")
    assert capsys.readouterr().out == ""
    runtime_utils.see_memory_usage("after step", force=True)
    assert "after step\nprocess: " in capsys.readouterr().out


def test_clip_grad_norm() -> None:
    param = torch.nn.Parameter(torch.zeros(2))
    param.grad = torch.tensor([3.0, 4.0])
    assert runtime_utils.clip_grad_norm_([param], 1.0).item() == 5.0
    assert runtime_utils.clip_grad_norm_(param, 10.0).item() == pytest.approx(1.0)
    param._zerotorch_engine = None
    with pytest.raises(UsageError, match="gradient_clipping"):
        runtime_utils.clip_grad_norm_(iter([param]), 1.0)


def test_global_norm() -> None:
    assert runtime_utils.get_global_norm([3.0, 4.0]) == 5.0
    for bad in (float("nan"), float("inf"), -1.0):
        assert runtime_utils.get_global_norm([1.0, bad]) == float("inf")


def test_seeds_and_folders(tmp_path: pathlib.Path) -> None:
    numpy = pytest.importorskip("numpy")
    runtime_utils.set_random_seed(2**40)
    first = (torch.rand(1), numpy.random.rand())
    runtime_utils.set_random_seed(2**40)
    assert (torch.rand(1), numpy.random.rand()) == first
    runtime_utils.ensure_directory_exists(str(tmp_path / "a/b/file"))
    assert (tmp_path / "a/b").is_dir()
    runtime_utils.empty_cache()


# The accelerator


def test_accelerator() -> None:
    cpu = get_accelerator()
    assert cpu is get_accelerator() and cpu.is_available()
    assert cpu.device_name() == cpu.device_name(3) == cpu.current_device_name() == "cpu"
    assert cpu.device_count() >= 1 and cpu.communication_backend_name() == "gloo"
    assert cpu.on_accelerator(torch.zeros(1)) and not cpu.on_accelerator(torch.zeros(1, device="meta"))
    assert {torch.float32, torch.bfloat16, torch.float16} == set(cpu.supported_dtypes())
    assert cpu.is_bf16_supported() and cpu.is_fp16_supported() and not cpu.is_triton_supported()
    cpu.set_device(0), cpu.synchronize(), cpu.empty_cache(), cpu.range_push("x"), cpu.range_pop()
    assert cpu.lazy_call(lambda: 3) == 3 and cpu.pin_memory(tensor := torch.zeros(1)) is tensor
    assert cpu.get_op_builder("FusedAdamBuilder").NAME == "fused_adam"
    assert cpu.create_op_builder("FusedAdamBuilder").is_compatible()
    assert not cpu.create_op_builder("NoSuchBuilder").is_compatible()
    assert cpu.FloatTensor([1.0]).dtype == torch.float32


def test_accelerators_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "5")
    assert (get_accelerator().current_device(), get_accelerator().device_count()) == (3, 5)
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    monkeypatch.setenv("LOCAL_SIZE", "2")  # of DeepSpeed's launcher
    assert get_accelerator().device_count() == 2


def test_the_current_device_is_one_that_tensors_go_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_RANK", "1")
    here = get_accelerator().current_device()
    assert torch.ones(1).to(here).device.type == torch.zeros(1, device=here).device.type == "cpu"
    assert f"{here}" == "1" and [4, 5][here] == 5


def test_accelerators_memory_is_the_process() -> None:
    cpu = get_accelerator()
    before = cpu.memory_allocated()
    held = torch.ones(32 << 20, dtype=torch.uint8)
    assert cpu.memory_allocated() >= before + (30 << 20)
    peak = cpu.max_memory_allocated()
    assert peak >= before + (30 << 20) and cpu.memory_stats()["allocated_bytes.all.peak"] == cpu.max_memory_reserved()
    del held
    cpu.reset_peak_memory_stats()
    assert cpu.max_memory_allocated() <= peak
    assert 0 < cpu.available_memory() <= cpu.total_memory()


def test_accelerators_random_numbers() -> None:
    cpu = get_accelerator()
    cpu.manual_seed(5)
    state = cpu.get_rng_state()
    first = torch.rand(1)
    cpu.set_rng_state(state)
    assert torch.rand(1) == first and cpu.initial_seed() == cpu.default_generator().initial_seed() == 5


def test_accelerators_events() -> None:
    cpu = get_accelerator()
    start, end = cpu.Event(enable_timing=True), cpu.Event(enable_timing=True)
    with pytest.raises(RuntimeError, match="recorded"):
        start.elapsed_time(end)
    with cpu.stream(cpu.Stream()), cpu.device(0):
        start.record()
        time.sleep(0.002)
        cpu.current_stream().record_event(end)
    end.synchronize()
    assert 2 <= start.elapsed_time(end) < 1000 and end.query()


# Names that libraries read and assign


def test_partition_parameters() -> None:
    assert partition_parameters._orig_torch_arange is torch.arange
    assert partition_parameters.get_accelerator().device_name("0") == "cpu"
    make = partition_parameters.zero_wrapper_for_fp_tensor_constructor(torch.ones, torch.bfloat16, torch.device("meta"))
    assert make(2).dtype == torch.bfloat16 and make(2).is_meta and make(2, device="cpu").device.type == "cpu"
    assert make(2, dtype=torch.int64).dtype == torch.int64
    statuses = [status.name for status in partition_parameters.ZeroParamStatus]
    assert statuses == ["AVAILABLE", "NOT_AVAILABLE", "INFLIGHT"]


def test_optimizer_bases_mix_with_torchs() -> None:
    class Facade(stage3.DeepSpeedZeroOptimizer_Stage3, torch.optim.Optimizer):
        def __init__(self) -> None:
            torch.optim.Optimizer.__init__(self, [torch.nn.Parameter(torch.zeros(1))], {"lr": 1.0})

    assert isinstance(Facade(), (ZeROOptimizer, torch.optim.Optimizer)) and isinstance(Facade(), DeepSpeedOptimizer)
    assert not isinstance(Facade(), stage_1_and_2.DeepSpeedZeroOptimizer)


def test_memory_estimates(capsys: pytest.CaptureFixture[str]) -> None:
    host, device, layer = stage3.estimate_zero3_model_states_mem_needs(10**9, 10**7, 4, 2, additional_buffer_factor=1.0)
    assert (host, device, layer) == (8 * 10**9, 0, 4 * 10**7)
    assert stage3.estimate_zero3_model_states_mem_needs(10**9, 10**7, 8, zero_init=False)[0] == 48 * 10**9
    zero2 = stage_1_and_2.estimate_zero2_model_states_mem_needs(10**9, 4, additional_buffer_factor=1.0)
    assert zero2 == (22 * 10**9, 0)
    stage3.estimate_zero3_model_states_mem_needs_all_live(torch.nn.Linear(1000, 1000), num_gpus_per_node=2)
    stage_1_and_2.estimate_zero2_model_states_mem_needs_all_live(torch.nn.Linear(1000, 1000))
    assert capsys.readouterr().out.count("1M parameters, 1 hosts") == 2


def test_config_arguments() -> None:
    parser = add_config_arguments(argparse.ArgumentParser())
    options = parser.parse_args(["--deepspeed", "--deepspeed_config", "x.json"])
    assert (options.deepspeed, options.deepspeed_config, options.deepscale, options.deepscale_config) == (
        True,
        "x.json",
        False,
        None,
    )


def test_monitor_writes_csv(tmp_path: pathlib.Path) -> None:
    csv = {"enabled": True, "output_path": str(tmp_path), "job_name": "job"}
    config = {"csv_monitor": csv, "wandb": {"enabled": False}}
    for value in (0.5, torch.tensor(0.25)):
        monitor = MonitorMaster(config)
        monitor.write_events([("Train/My loss", value, 7)])
    assert monitor.enabled and (tmp_path / "job/Train_My_loss.csv").read_text() == "step,My loss\n7,0.5\n7,0.25\n"
    assert not MonitorMaster({}).enabled
    with pytest.raises(NotBuiltError, match="wandb"):
        MonitorMaster({"wandb": {"enabled": True}})

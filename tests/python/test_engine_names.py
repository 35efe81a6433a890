"""Members of an engine and its optimizer that programs touch besides forward, backward and step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import run
from torch import nn


def config(stage: int, **more: Any) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 0,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": stage},
        **more,
    }


def make(stage: int, **more: Any) -> Any:
    import zerotorch

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return zerotorch.initialize(
        model=model, model_parameters=model.parameters(), config=config(stage, **more), optimizer=None
    )[0]


def train(engine: Any, steps: int) -> None:
    for step in range(steps):
        engine.backward(engine(torch.full((2, 4), 0.1 * step)).mean())
        engine.step()


def throughput(stage: int) -> tuple[int, int, int, float]:
    engine = make(stage, gradient_accumulation_steps=2)
    assert not engine.tput_timer.initialized
    train(engine, 8)
    assert engine.tput_timer.initialized and not engine.tput_timer.started
    engine.eval()
    engine(torch.ones(2, 4))  # an evaluation is no step
    engine.tput_timer.update_epoch_count()
    timer = engine.tput_timer
    speed = timer.avg_samples_per_sec()
    assert speed == pytest.approx(engine.train_batch_size() * 2 / timer.total_elapsed_time)
    engine.destroy()
    return timer.epoch_count, timer.global_step_count, timer.micro_step_count, speed


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_the_throughput_timer_counts(stage: int) -> None:
    for epochs, steps, micro_steps, speed in run(2, throughput, stage):
        assert (epochs, steps, micro_steps) == (1, 4, 0) and 0 < speed < float("inf")


def moves(stage: int) -> None:
    from zerotorch.errors import ConfigError, UsageError
    from zerotorch.runtime.zero.offload_config import OffloadDeviceEnum, OffloadStateTypeEnum
    from zerotorch.runtime.zero.offload_states import get_state_devices

    engine = make(stage)
    train(engine, 1)
    before = engine._core.full_weight("0.weight")
    engine.offload_states()
    engine.optimizer.offload_states(
        include=[OffloadStateTypeEnum.optim_states, "hp_params"], device=OffloadDeviceEnum.cpu, non_blocking=True
    )
    for kind in OffloadStateTypeEnum:
        assert get_state_devices(engine, kind) == {torch.device("cpu")}
    engine.reload_states(non_blocking=True)
    engine.optimizer.reload_states()
    assert torch.equal(engine._core.full_weight("0.weight"), before)
    train(engine, 1)
    engine.offload_states(device="none")
    with pytest.raises(ValueError, match="NVMe offload is not supported for offloading states"):
        engine.offload_states(device=OffloadDeviceEnum.nvme)
    with pytest.raises(ValueError):
        engine.offload_states(include=["weights"])
    assert issubclass(ConfigError, ValueError)
    engine.destroy()
    engine = make(3, zero_optimization={"stage": 3, "offload_param": {"device": "cpu"}})
    with pytest.raises(AssertionError, match="not supported for offloaded parameters"):
        engine.offload_states()
    engine.destroy()
    assert issubclass(UsageError, AssertionError)


@pytest.mark.parametrize("stage", [1, 3])
def test_states_are_where_they_should_be(stage: int) -> None:
    run(2, moves, stage)


def without_an_optimizer() -> None:
    import zerotorch

    engine = zerotorch.initialize(model=nn.Linear(2, 2), config={"train_micro_batch_size_per_gpu": 1})[0]
    for call in (engine.offload_states, engine.reload_states):
        with pytest.raises(AssertionError, match="not supported without an optimizer"):
            call()
    engine.destroy()


def test_there_is_nothing_to_move_without_an_optimizer() -> None:
    run(1, without_an_optimizer)


def coalesced(stage: int) -> list[float]:
    engine = make(stage)
    with engine.coalesce_grad_reduction():
        for step in range(3):
            engine.backward(engine(torch.full((2, 4), 0.3 * step + 0.1)).mean())
        with pytest.raises(AssertionError, match="illegal to call Engine.step"):
            engine.step()
        with pytest.raises(AssertionError, match="cannot be nested"), engine.coalesce_grad_reduction():
            pass
    engine.step()
    assert engine.global_steps == 1
    norm = engine.get_global_grad_norm()
    engine.destroy()
    return [norm]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_backwards_of_a_block_are_one_micro_batch(stage: int) -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    sum(model(torch.full((2, 4), 0.3 * step + 0.1)).mean() for step in range(3)).backward()  # type: ignore[union-attr]
    wanted = torch.linalg.vector_norm(torch.cat([p.grad.flatten() for p in model.parameters()])).item()  # type: ignore[union-attr]
    for (norm,) in run(2, coalesced, stage):
        assert norm == pytest.approx(wanted, rel=1e-5)


def not_at_stage_0() -> None:
    engine = make(0)
    with pytest.raises(NotImplementedError, match="requires ZeRO stage 1/2/3"), engine.coalesce_grad_reduction():
        pass
    engine.destroy()


def test_stage_0_has_no_sync() -> None:
    run(1, not_at_stage_0)


def names() -> None:
    engine = make(2, fp16={"enabled": True, "auto_cast": True, "initial_scale_power": 4}, steps_per_print=5)
    optimizer = engine.optimizer
    assert optimizer.state[engine.module[0].weight] == {} or optimizer.state[engine.module[0].weight]["step"] == 0
    train(engine, 3)
    assert optimizer.state[engine.module[0].weight]["step"] == 3
    assert {"exp_avg", "exp_avg_sq"} <= optimizer.state[engine.module[0].weight].keys()
    assert optimizer.needs_scaler() and optimizer.dynamic_loss_scale and optimizer.loss_scaler.dynamic
    assert optimizer.loss_scaler.loss_scale == optimizer.loss_scaler.cur_scale == engine.loss_scale() == 16
    assert optimizer.loss_scaler.scale_loss(torch.tensor(2.0)) == 32
    settings = optimizer.loss_scale_config
    assert settings.dynamic_loss_scale and settings.use_grad_scaling and settings.cur_scale == 16
    assert settings.min_loss_scale == optimizer.loss_scaler.min_scale and settings.cur_iter == engine.global_steps
    with pytest.raises(AssertionError, match="the engine does it at each step"):
        optimizer.loss_scaler.update_scale(True)
    assert engine.initial_dynamic_scale() == 16 and engine.dynamic_loss_scale_args()["init_scale"] == 16
    assert optimizer.get_lr() == 0.1 and optimizer.clip_grad == 0 and optimizer.dtype == torch.float16
    optimizer.set_lr(0.5)
    assert engine.get_lr() == [0.5]
    assert engine.log_level() is None and engine.optimizer_name() == "adamw" and engine.scheduler_name() is None
    assert engine.zero_reduce_bucket_size() == 500_000_000 and engine.zero_overlap_comm() is not True
    assert engine.zero_offload_param() is None and not engine.zero_cpu_offload() and engine.zero_partial_offload() == 1
    assert engine.get_data_types() == (torch.float16, torch.float32) and engine.postscale_gradients()
    assert engine.get_data_parallel_rank() == engine.global_rank and engine.mp_world_size == 1 and engine.mpu is None
    assert engine.seq_dp_world_size == engine.world_size == 2 and engine.dist_backend == "gloo"
    assert set(engine.param_names.values()) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert engine._global_grad_norm == engine.get_global_grad_norm() and engine.client_optimizer is None
    engine.timers("mine").start()
    engine.timers("mine").stop()
    assert not engine.monitor.enabled
    engine.monitor.write_events([("loss", 1.0, 1)])
    engine.destroy()


def test_names_are_there() -> None:
    run(2, names)


def offloaded() -> None:
    section = {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": True}}
    engine = make(2, zero_optimization=section)
    assert engine.zero_cpu_offload() and engine.zero_offload_optimizer().pin_memory
    assert engine.zero_offload_optimizer().device == "cpu" and not engine.zero_nvme_offload_optimizer()
    engine.destroy()


def test_sections_of_offload() -> None:
    run(1, offloaded)


def what_deepspeeds_tests_read(stage: int) -> tuple[list[int], list[float], int | None, bool]:
    import zerotorch
    from zerotorch.utils import safe_get_full_fp32_param

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    model[0].weight.requires_grad_(False)
    fp16 = {"enabled": True, "loss_scale": 0, "initial_scale_power": 4, "loss_scale_window": 2, "hysteresis": 1}
    engine = zerotorch.initialize(model=model, model_parameters=model.parameters(), config=config(stage, fp16=fp16))[0]
    scaler = engine.optimizer.loss_scaler
    assert (scaler.scale_window, scaler.scale_factor, scaler.min_scale, scaler.delayed_shift) == (2, 2, 1, 1)
    scales = []
    for step in range(4):
        engine.backward(engine(torch.full((2, 4), 0.1 * step).half()).mean())
        engine.step()
        assert scaler.cur_iter == step + 1
        scales.append(scaler.cur_scale)
    assert engine._config.gradient_allreduce_op == "mean" and not engine.sparse_tensor_module_names
    with pytest.raises(AssertionError, match="scalar tensor"):
        engine.scale(torch.ones(2))
    part = model[2].weight.ds_tensor.numel() if stage == 3 else None
    assert engine.checkpoint_tag_validation_enabled() and not engine.checkpoint_tag_validation_fail()
    with pytest.raises(AttributeError, match=r"set_train_micro_batch_size: .*set_train_batch_size"):
        engine.set_train_micro_batch_size(2)
    gathered = torch.zeros(zerotorch.comm.get_world_size(), dtype=torch.int32)
    zerotorch.comm.all_gather_into_tensor(gathered, torch.tensor(zerotorch.comm.get_rank() + 1, dtype=torch.int32))
    frozen_is_none = safe_get_full_fp32_param(model[0].weight) is None
    engine.destroy()
    return gathered.tolist(), scales, part, frozen_is_none


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("stage", [1, 3])
def test_what_deepspeeds_tests_read(stage: int, ranks: int) -> None:
    parts = []
    for gathered, scales, part, frozen_is_none in run(ranks, what_deepspeeds_tests_read, stage):
        assert gathered == list(range(1, ranks + 1))
        assert scales == [16, 16, 32, 32]
        assert frozen_is_none
        parts.append(part)
    assert sum(parts) == 8 if stage == 3 else parts == [None] * ranks


def classes_by_stage(stage: int) -> list[bool]:
    from zerotorch.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
    from zerotorch.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

    class Mine(DeepSpeedZeroOptimizer_Stage3):
        pass

    engine = make(stage)
    optimizer = engine.optimizer
    assert not isinstance(optimizer, Mine) and not isinstance(torch.nn.Linear(1, 1), DeepSpeedZeroOptimizer)
    found = [isinstance(optimizer, kind) for kind in (DeepSpeedZeroOptimizer, DeepSpeedZeroOptimizer_Stage3)]
    engine.destroy()
    return found


@pytest.mark.parametrize(("stage", "wanted"), [(0, [False] * 2), (1, [True, False]), (3, [False, True])])
def test_optimizers_are_instances_of_the_class_of_their_stage(stage: int, wanted: list[bool]) -> None:
    assert run(1, classes_by_stage, stage) == [wanted]


def weights_by_group(stage: int) -> tuple[int, float]:
    import zerotorch

    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    model[0].bias.requires_grad_(False)
    groups = [{"params": list(layer.parameters()), "weight_decay": 0.1 * i} for i, layer in enumerate((model[0], model[2]))]
    engine, optimizer, _, _ = zerotorch.initialize(model=model, model_parameters=groups, config=config(stage))
    train(engine, 2)
    flat = optimizer.single_partition_of_fp32_groups
    assert len(flat) == 2 and all(one.dtype == torch.float32 and one.dim() == 1 for one in flat)
    for one in optimizer.fp32_partitioned_groups_flat:
        with pytest.raises(RuntimeError, match="inference tensor"):
            one.zero_()  # a copy: it would be lost
    again = optimizer.fp32_partitioned_groups_flat
    assert all(torch.equal(one, other) for one, other in zip(flat, again, strict=True))
    own = [engine._local_fp32(one) for group in optimizer.param_groups for one in group["params"] if one.requires_grad]
    assert torch.equal(torch.cat(flat), torch.cat(own))
    engine.destroy()
    return sum(one.numel() for one in flat), sum(float(one.square().sum()) for one in flat)


@pytest.mark.parametrize("stage", [1, 3])
def test_fp32_weights_by_group(stage: int) -> None:
    ((numel, squares),) = run(1, weights_by_group, stage)
    assert numel == 4 * 8 + 8 + 1
    parts = run(2, weights_by_group, stage)
    assert sum(part[0] for part in parts) == numel
    assert sum(part[1] for part in parts) == pytest.approx(squares, rel=1e-6)


def a_backward_of_its_own(stage: int) -> list[float]:
    norms = []
    for own in (False, True):
        engine = make(stage)
        loss = engine(torch.full((2, 4), 0.5)).mean()
        if own:
            loss.backward()
            engine._backward_epilogue()
        else:
            engine.backward(loss)
        engine.step()
        norms.append(engine.get_global_grad_norm())
        assert engine._get_optimizer_ckpt_name("folder", "tag", 1) == "folder/tag/expp_rank_1_mp_rank_00_optim_states.pt"
        engine.destroy()
    return norms


@pytest.mark.parametrize("stage", [1, 3])
def test_nothing_is_left_to_do_after_a_backward(stage: int) -> None:
    for with_engine, own in run(2, a_backward_of_its_own, stage):
        assert own == with_engine > 0


def gradients_of_its_own(stage: int) -> None:
    engine = make(stage)
    for parameter in engine.parameters():
        parameter.grad = torch.ones_like(parameter)
    with pytest.raises(AssertionError, match=r"give it to zerotorch.utils.safe_set_full_grad\(\) after backward"):
        engine.step()
    engine.destroy()


@pytest.mark.parametrize("stage", [0, 3])
def test_assigned_gradients_are_an_error_with_the_function_for_it(stage: int) -> None:
    run(1, gradients_of_its_own, stage)


def norms_of_skipped_updates(stage: int) -> list[float | None]:
    engine = make(stage, fp16={"enabled": True, "initial_scale_power": 4, "hysteresis": 1})
    norms = [engine.get_global_grad_norm()]
    for value in (0.1, float("nan"), float("inf"), 0.1):
        engine.backward(engine(torch.full((2, 4), value).half()).mean())
        engine.step()
        norms.append(engine.get_global_grad_norm())
    assert engine.skipped_steps == 2
    engine.destroy()
    return norms


@pytest.mark.parametrize("stage", [0, 3])
def test_the_norm_of_a_skipped_update_is_infinite(stage: int) -> None:
    (norms,) = run(1, norms_of_skipped_updates, stage)
    assert norms[0] is None and norms[2] == norms[3] == float("inf")
    assert 0 < norms[1] < 10 and 0 < norms[4] < 10


def names_of_sparse_gradients(sparse: bool) -> set[str]:
    import zerotorch

    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 1))
    settings = config(1, sparse_gradients=sparse)
    engine = zerotorch.initialize(model=model, model_parameters=model.parameters(), config=settings)[0]
    names: set[str] = engine.sparse_tensor_module_names
    engine.destroy()
    return names


def test_weights_with_sparse_gradients_are_named() -> None:
    assert run(1, names_of_sparse_gradients, True) == [{"0.weight"}]
    assert run(1, names_of_sparse_gradients, False) == [set()]


def loads_a_module(stage: int) -> None:
    engine = make(stage)
    with torch.no_grad():
        wanted = {name: torch.full(p.shape, 0.25) for name, p in engine.module.state_dict().items()}
    engine.load_module_state_dict({"module": wanted})
    for name, p in engine.module.named_parameters():
        torch.testing.assert_close(engine._core.full_weight(name), wanted[name], rtol=0, atol=0)

    def load(src: dict[str, torch.Tensor], dst: torch.nn.Module) -> None:
        with torch.no_grad():
            for name, parameter in dst.named_parameters():
                parameter.copy_(2 * src[name])

    engine.load_module_state_dict({"module": wanted}, custom_load_fn=load)
    for name, _ in engine.module.named_parameters():
        torch.testing.assert_close(engine._core.full_weight(name), 2 * wanted[name], rtol=0, atol=0)
    engine.destroy()


@pytest.mark.parametrize("stage", [0, 3])
def test_a_state_dict_of_the_module_is_loaded(stage: int) -> None:
    run(2, loads_a_module, stage)


def muons_groups(stage: int) -> dict[bool, tuple[float, int]]:
    import zerotorch

    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    muon = {"type": "Muon", "params": {"muon_lr": 0.04, "adam_lr": 1e-3}}
    engine = zerotorch.initialize(
        model=model, model_parameters=model.parameters(), config={**config(stage), "optimizer": muon}
    )[0]
    train(engine, 2)
    found = {group["use_muon"]: (group["lr"], len(group["params"])) for group in engine.basic_optimizer.param_groups}
    engine.destroy()
    return found


@pytest.mark.parametrize("stage", [1, 3])
def test_groups_of_muon_say_which_they_are(stage: int) -> None:
    assert run(2, muons_groups, stage) == [{True: (0.04, 2), False: (1e-3, 2)}] * 2


def optimizers_class(kind: str, offload: bool) -> tuple[str, bool, bool]:
    import zerotorch
    from zerotorch.ops.adam import DeepSpeedCPUAdam
    from zerotorch.optimizer import ZeroOptimizer

    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    zero = {"stage": 2, **({"offload_optimizer": {"device": "cpu"}} if offload else {})}
    settings = {**config(2), "optimizer": {"type": kind}, "zero_optimization": zero}
    engine, optimizer, _, _ = zerotorch.initialize(
        model=model, model_parameters=model.parameters(), config=settings
    )
    train(engine, 2)
    engine.destroy()
    inner = optimizer.optimizer
    return type(inner).__name__, isinstance(inner, DeepSpeedCPUAdam), isinstance(optimizer, ZeroOptimizer)


@pytest.mark.parametrize(
    ("kind", "offload", "name"),
    [
        ("Adam", False, "FusedAdam"),
        ("AdamW", True, "DeepSpeedCPUAdam"),
        ("SGD", False, "SGD"),
        ("Lamb", False, "FusedLamb"),
        ("Muon", False, "MuonWithAuxAdam"),
        ("Adafactor", False, "ZeroOptimizer"),
    ],
)
def test_a_configured_optimizer_has_the_class_of_its_type(kind: str, offload: bool, name: str) -> None:
    assert run(1, optimizers_class, kind, offload) == [(name, name == "DeepSpeedCPUAdam", True)]


def grown(kind: str) -> None:
    import zerotorch

    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    settings = {**config(2), "optimizer": {"type": kind, "params": {"lr": 1e-2}}}
    engine, optimizer, _, _ = zerotorch.initialize(model=model, model_parameters=model.parameters(), config=settings)
    with pytest.raises(zerotorch.UsageError, match=r"add_param_group\(\): the optimizer has got a parameter group"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    train(engine, 2)  # nothing has changed
    engine.destroy()


@pytest.mark.parametrize("kind", ["Adam", "SGD", "Lamb"])
def test_groups_are_given_at_the_beginning(kind: str) -> None:
    run(1, grown, kind)

"""What public training programs hand to DeepSpeed: configurations in the shapes of their files through Trainer, and the
calls of reinforcement learning between an engine's steps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import hf_trainer as hf
import pytest
import torch
from ranks import run
from support import needs

needs("transformers", "accelerate")

BATCHES = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
}
CPU = {"device": "cpu", "pin_memory": True}
AUTO_BF16 = {"enabled": "auto"}
FINE_TUNED = {"overlap_comm": True, "contiguous_gradients": True, "sub_group_size": 0}
SIZES = {
    "reduce_bucket_size": "auto",
    "stage3_prefetch_bucket_size": "auto",
    "stage3_param_persistence_threshold": "auto",
}
LIVE = {"stage3_max_live_parameters": 1e9, "stage3_max_reuse_distance": 1e9, "sub_group_size": 1e9}
OLD_NAMES = {"max_live_parameters": 0, "max_reuse_distance": 0, "gather_16bit_weights_on_model_save": True}
SCALES = {"loss_scale": 0, "loss_scale_window": 1000, "hysteresis": 2, "min_loss_scale": 1}
AXOLOTL_FP16 = {"enabled": "auto", "auto_cast": False, "initial_scale_power": 32, **SCALES}
AXOLOTL: dict[str, Any] = {"bf16": AUTO_BF16, "fp16": AXOLOTL_FP16, **BATCHES, "wall_clock_breakdown": False}
FACTORY: dict[str, Any] = {
    **BATCHES,
    "zero_allow_untested_optimizer": True,
    "fp16": {"enabled": "auto", "initial_scale_power": 16, **SCALES},
    "bf16": AUTO_BF16,
}
FACTORY_2 = {
    "stage": 2,
    "allgather_partitions": True,
    "allgather_bucket_size": 5e8,
    "overlap_comm": False,
    "reduce_scatter": True,
    "reduce_bucket_size": 5e8,
    "contiguous_gradients": True,
    "round_robin_gradients": True,
}
FACTORY_3 = {
    "stage": 3,
    "overlap_comm": False,
    "contiguous_gradients": True,
    **SIZES,
    **LIVE,
    "stage3_gather_16bit_weights_on_model_save": True,
}
AUTO_ADAMW = {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}}

#: Shapes of axolotl's, LLaMA-Factory's and open-instruct's files.
FILES: dict[str, dict[str, Any]] = {
    "axolotl zero1": {"zero_optimization": {"stage": 1, "overlap_comm": True}, **AXOLOTL},
    "axolotl zero2": {
        "zero_optimization": {
            "stage": 2,
            "offload_optimizer": {"device": "cpu"},
            "contiguous_gradients": True,
            "overlap_comm": True,
        },
        **AXOLOTL,
    },
    "axolotl zero3": {"zero_optimization": {"stage": 3, **FINE_TUNED, **SIZES, **OLD_NAMES}, **AXOLOTL},
    "axolotl zero3 bf16": {
        "zero_optimization": {"stage": 3, **FINE_TUNED, **SIZES, **OLD_NAMES},
        "bf16": {"enabled": True},
        **BATCHES,
        "wall_clock_breakdown": False,
    },
    "axolotl zero3 bf16 offload": {
        "zero_force_ds_cpu_optimizer": False,
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": CPU,
            "offload_param": CPU,
            **FINE_TUNED,
            **SIZES,
            **OLD_NAMES,
        },
        "bf16": {"enabled": True},
        **BATCHES,
        "wall_clock_breakdown": False,
    },
    "LLaMA-Factory z2": {**FACTORY, "_comment": "a line of text", "zero_optimization": FACTORY_2},
    "LLaMA-Factory z2 offload": {**FACTORY, "zero_optimization": {**FACTORY_2, "offload_optimizer": CPU}},
    "LLaMA-Factory z3": {**FACTORY, "zero_optimization": FACTORY_3},
    "LLaMA-Factory z3 offload": {
        **FACTORY,
        "zero_optimization": {**FACTORY_3, "offload_optimizer": CPU, "offload_param": CPU},
    },
    "LLaMA-Factory z3 fp8": {  # a monitor without a file, an optimizer that is forced
        **{key: value for key, value in FACTORY.items() if key != "train_batch_size"},
        "fp16": {"enabled": False, "initial_scale_power": 16, **SCALES},
        "zero_force_ds_cpu_optimizer": True,
        "zero_optimization": {
            **FACTORY_3,
            "offload_optimizer": {"device": "cpu", "pin_memory": False},
            "reduce_bucket_size": 12845056,
            "stage3_prefetch_bucket_size": 11560550,
            "stage3_param_persistence_threshold": 35840,
        },
        "steps_per_print": 10000000,
        "comms_config": {"verbose": False},
        "monitor_config": {"enabled": True, "tag": "DeepSpeedMonitor", "csv_monitor": {"enabled": False}},
    },
    "open-instruct stage3": {
        "bf16": AUTO_BF16,
        "optimizer": AUTO_ADAMW,
        "scheduler": {
            "type": "WarmupDecayLR",
            "params": {
                "total_num_steps": "auto",
                "warmup_min_lr": "auto",
                "warmup_max_lr": "auto",
                "warmup_num_steps": "auto",
            },
        },
        "zero_optimization": {**FACTORY_3, "overlap_comm": True},
        **BATCHES,
        "steps_per_print": 1e5,
        "wall_clock_breakdown": False,
    },
}


def train(folder: str, pretrained: str, settings: Any, half: bool) -> list[float]:
    from transformers import AutoModelForCausalLM

    # A recipe says bf16 and nothing of the CPU; a plain Trainer is told.
    args = hf.arguments(folder, settings, bf16=half, **({} if settings else {"use_cpu": True}))
    trainer = hf.make_trainer(AutoModelForCausalLM.from_pretrained(pretrained, dtype=torch.float32), args)
    trainer.train()
    if settings:
        assert (trainer.model_wrapped.module.lm_head.weight.dtype == torch.bfloat16) == half
        trainer.model_wrapped.destroy()
    return [entry["loss"] for entry in hf.logged(trainer, "loss")]


def through_trainer(name: str) -> tuple[list[float], list[float]]:
    half = FILES[name]["bf16"]["enabled"] is True
    with hf.libraries(), hf.shared_folder() as folder:
        pretrained = hf.save_model(folder)
        mine = train(folder, pretrained, FILES[name], half)
        with hf.libraries(), hf.alone():
            return mine, train(folder, pretrained, None, half)


@pytest.mark.parametrize("name", FILES)
def test_files_of_others_train_as_a_plain_trainer(name: str) -> None:
    half = FILES[name]["bf16"]["enabled"] is True
    for mine, plain in run(2, through_trainer, name):
        # WarmupDecayLR of the file is another schedule from the third update on.
        count = 2 if "scheduler" in FILES[name] else 6
        assert len(mine) == len(plain) == 6
        assert mine[:count] == pytest.approx(plain[:count], rel=2e-2 if half else 2e-5)


def bf16_by_recipe() -> list[str]:
    """What TrainingArguments(bf16=True) says without deepspeed, with it, and under accelerate's launcher."""
    import os
    from unittest import mock

    said = []
    with hf.libraries(), hf.shared_folder() as folder:
        for settings, launched in ((None, False), (FILES["axolotl zero3 bf16"], False), (None, True)):
            environment = {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "2"}
            with hf.libraries(), mock.patch.dict(os.environ, environment if launched else {}):
                try:
                    args = hf.arguments(folder, settings, bf16=True)
                    said.append(f"{args.parallel_mode.name} of {args.world_size}")
                except ValueError as error:
                    said.append(str(error))
    return said


def test_bf16_of_a_recipe_needs_no_word_of_the_cpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("the library knows what this GPU can do")
    for plain, by_file, launched in run(2, bf16_by_recipe):
        assert "You need to assign use_cpu" in plain  # without deepspeed it is as it was
        assert by_file == launched == "DISTRIBUTED of 2"


# ---- calls of reinforcement learning ----


def policy_config(stage: int, adam_offload: bool) -> dict[str, Any]:
    """As OpenRLHF and open-instruct make it."""
    return {
        "steps_per_print": 100,
        "zero_optimization": {
            "stage": stage,
            "offload_param": {"device": "none"},
            "offload_optimizer": {"device": "cpu" if adam_offload else "none", "pin_memory": True},
            "sub_group_size": "auto",
            "stage3_max_live_parameters": "auto",
            "stage3_max_reuse_distance": "auto",
            "stage3_param_persistence_threshold": "auto",
            "stage3_prefetch_bucket_size": "auto",
            "reduce_bucket_size": "auto",
            "zero_hpz_partition_size": 1,
            "zero_quantized_weights": False,
            "zero_quantized_gradients": False,
        },
        "bf16": {"enabled": False},
        "fp16": {"enabled": False},
        "gradient_clipping": 1.0,
        "prescale_gradients": False,
        "wall_clock_breakdown": False,
        "data_types": {"grad_accum_dtype": None},
        "checkpoint": {"load_universal": False},
        "compile": {"deepcompile": False},
        "tensor_parallel": {"autotp_size": 1},
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": 1e-2, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1},
        },
        "train_micro_batch_size_per_gpu": 2,
        "train_batch_size": 2 * 2 * hf.ranks(),
    }


def groups(model: torch.nn.Module) -> list[dict[str, Any]]:
    """The second group may be empty."""
    names = ("bias", "layer_norm.weight", "layernorm.weight", "norm.weight", "ln_f.weight")
    decays = [p for name, p in model.named_parameters() if not any(part in name for part in names)]
    exempt = [p for name, p in model.named_parameters() if any(part in name for part in names)]
    return [{"params": decays, "weight_decay": 0.1}, {"params": exempt, "weight_decay": 0.0}]


def rate(optimizer: Any) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 1 / (1 + update))


@contextlib.contextmanager
def away(engine: Any, offload: bool) -> Iterator[None]:
    """The states are off the accelerator, where a program generates with another engine."""
    if offload:
        from zerotorch.runtime.zero.offload_config import OffloadDeviceEnum, OffloadStateTypeEnum

        kinds = OffloadStateTypeEnum
        include = [kinds.optim_states, kinds.contiguous_grad_buffer, kinds.hp_params, kinds.lp_grads]
        engine.optimizer.offload_states(
            include=include, device=OffloadDeviceEnum.cpu, pin_memory=True, non_blocking=True
        )
        engine.empty_partition_cache()
        torch.distributed.barrier()
    yield
    if offload:
        engine.reload_states(non_blocking=True)
        torch.distributed.barrier()


def to_fetch(parameters: list[Any]) -> list[Any]:
    from zerotorch.runtime.zero.partition_parameters import ZeroParamStatus

    return [p for p in parameters if hasattr(p, "ds_id") and p.ds_status == ZeroParamStatus.NOT_AVAILABLE]


def follow(model: Any, average: Any, stage: int) -> None:
    """A moving average of the weights in a second engine, which only evaluates."""
    import zerotorch

    with torch.no_grad():
        for p, mean in zip(model.parameters(), average.parameters(), strict=True):
            fetched = to_fetch([p, mean]) if stage == 3 else []
            with zerotorch.zero.GatheredParameters(fetched, enabled=len(fetched) > 0):
                data = p.data.to("cpu")
                mean.data.copy_(0.1 * data + 0.9 * mean.data)


def reinforce(stage: int, adam_offload: bool) -> dict[str, Any]:
    """Losses of a policy whose states go and come back between updates, of one whose do not, and plain torch's; and
    what its moving average says at the end."""
    import zerotorch
    from zerotorch.accelerator import get_accelerator

    zerotorch.init_distributed()
    device = get_accelerator().current_device_name()
    tokens = hf.Sentences(32, all_labels=True).tokens
    rank, count = torch.distributed.get_rank(), hf.ranks()
    curves, says = [], []
    for offload in (True, False):
        policy, _, _, scheduler = zerotorch.initialize(
            model=(model := hf.causal_model()),
            optimizer=None,
            model_parameters=groups(model),
            lr_scheduler=rate,
            config=policy_config(stage, adam_offload),
            args={"local_rank": rank},
            dist_init_required=True,
        )
        evaluation = policy_config(stage if stage == 3 else 0, False)
        evaluation.pop("optimizer")
        average, *_ = zerotorch.initialize(model=hf.causal_model(), config=evaluation)
        average.eval()
        losses, rates = [], []
        for update in range(3):
            for micro in range(2):
                first = (update * 2 + micro) * 2 * count + 2 * rank
                batch = tokens[first : first + 2].to(device)
                loss = policy(input_ids=batch, labels=batch).loss
                policy.backward(loss)
                policy.step()
                losses.append(loss.item())
            rates.append(scheduler.get_last_lr()[0])
            follow(policy, average, stage)
            with away(policy, offload), torch.no_grad():  # as the log-probabilities of a rollout
                policy.eval()
                says_now = policy(input_ids=tokens[:2].to(device)).logits.sum().item()
                policy.train()
        curves.append(losses)
        with torch.no_grad():
            says.append([says_now, average(input_ids=tokens[:2].to(device)).logits.abs().sum().item()])
        assert policy.get_global_grad_norm() > 0
        policy.destroy()
        average.destroy()
    return {"curves": curves, "says": says, "rates": rates, "plain": plainly(tokens, rank, count)}


def plainly(tokens: torch.Tensor, rank: int, count: int) -> tuple[list[float], float]:
    model, average = hf.causal_model(), hf.causal_model()
    optimizer = torch.optim.AdamW(groups(model), lr=1e-2, betas=(0.9, 0.95))
    scheduler = rate(optimizer)
    losses = []
    for update in range(3):
        for part in range(2 * count):
            first = (update * 2 * count + part) * 2
            batch = tokens[first : first + 2]
            loss = model(input_ids=batch, labels=batch).loss
            (loss / (2 * count)).backward()
            if part % count == rank:
                losses.append(loss.item())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        with torch.no_grad():
            for p, mean in zip(model.parameters(), average.parameters(), strict=True):
                mean.copy_(0.1 * p + 0.9 * mean)
    with torch.no_grad():
        return losses, average(input_ids=tokens[:2]).logits.abs().sum().item()


@pytest.mark.parametrize("adam_offload", [False, True], ids=["", "adam_offload"])
@pytest.mark.parametrize("stage", [2, 3])
def test_a_policy_whose_states_come_and_go(stage: int, adam_offload: bool) -> None:
    for one in run(2, reinforce, stage, adam_offload):
        assert one["curves"][0] == one["curves"][1] and one["says"][0] == one["says"][1]
        losses, average = one["plain"]
        assert one["curves"][0] == pytest.approx(losses, rel=2e-5)
        assert one["says"][0][1] == pytest.approx(average, rel=1e-4)
        assert one["rates"] == pytest.approx([1e-2 / (1 + update) for update in range(1, 4)])

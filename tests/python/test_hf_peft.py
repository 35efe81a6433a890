"""peft's LoRA on zerotorch at stage 3: a frozen base, adapters of either precision, and gradient checkpointing."""

from __future__ import annotations

import contextlib
from typing import Any

import hf_trainer as hf
import pytest
import torch
from ranks import run
from support import needs

needs("transformers", "accelerate", "peft")

STEPS = 3


def config(stage: int, **more: Any) -> dict[str, Any]:
    return {
        "train_batch_size": hf.GLOBAL_BATCH,
        "train_micro_batch_size_per_gpu": hf.MICRO_BATCH,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.0}},
        "zero_optimization": {"stage": stage},
        **more,
    }


def lora(model: Any, *, autocast: bool = True) -> Any:
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(4)
    options = LoraConfig(
        r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], init_lora_weights="gaussian", task_type="CAUSAL_LM"
    )
    return get_peft_model(model, options, autocast_adapter_dtype=autocast)


def base(pretrained: str, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(pretrained, dtype=dtype)


def batches() -> list[list[dict[str, torch.Tensor]]]:
    data = hf.Sentences()
    updates = [range(i, i + hf.GLOBAL_BATCH, hf.MICRO_BATCH) for i in range(0, hf.SAMPLES, hf.GLOBAL_BATCH)][:STEPS]
    return [
        [{key: torch.stack([data[i + j][key] for j in range(hf.MICRO_BATCH)]) for key in data[0]} for i in update]
        for update in updates
    ]


def checkpointing(model: Any, kind: str) -> None:
    if kind != "none":
        model.gradient_checkpointing_enable({"use_reentrant": kind == "reentrant"})
        model.enable_input_require_grads()


def train(kind: str, base_dtype: torch.dtype, adapter_dtype: torch.dtype, built: bool, store: str) -> dict[str, Any]:
    """`built`: the base is built under ZeRO-3."""
    with hf.libraries(), hf.shared_folder() as folder:
        import zerotorch
        from peft import PeftModel
        from transformers.integrations import HfDeepSpeedConfig

        pretrained = hf.save_model(folder)
        of_base = {"bf16": {"enabled": True}} if base_dtype == torch.bfloat16 else {}
        settings = config(3, zerotorch={"store": store}, **of_base)
        keep = HfDeepSpeedConfig(settings) if built else None
        model = lora(base(pretrained, base_dtype), autocast=adapter_dtype != base_dtype)
        del keep
        with hf.fresh():
            plain = lora(base(pretrained, base_dtype), autocast=adapter_dtype != base_dtype)
        for one in (model, plain):
            checkpointing(one, kind)
            one.train()
        with torch.no_grad():
            for p, q in zip(plain.parameters(), model.parameters(), strict=True):
                assert p.dtype == q.dtype
                p.copy_(q)
        dtypes = {p.dtype for p in model.parameters() if p.requires_grad}
        assert dtypes == {adapter_dtype}
        engine, _, _, _ = zerotorch.initialize(
            model=model, model_parameters=[p for p in model.parameters() if p.requires_grad], config=settings
        )
        optimizer = torch.optim.AdamW([p for p in plain.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.0)
        losses, wanted = [], []
        for update in batches():
            for i, batch in enumerate(update):
                if i % engine.world_size == engine.global_rank:
                    loss = engine(**batch).loss
                    engine.backward(loss)
                    engine.step()
                    losses.append(loss.item())
                loss = plain(**batch).loss
                (loss / len(update)).backward()
                if i % engine.world_size == engine.global_rank:
                    wanted.append(loss.item())
            torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        trained = dict(plain.named_parameters())
        difference = max(
            ((engine._core.full_weight(name) - trained[name].float()).norm() / trained[name].float().norm()).item()
            for name, p in model.named_parameters()
            if p.requires_grad
        )
        model.save_pretrained(f"{folder}/adapter", is_main_process=engine.global_rank == 0)
        torch.distributed.barrier()
        with hf.fresh():
            loaded = PeftModel.from_pretrained(base(pretrained, base_dtype), f"{folder}/adapter")
        mine = dict(model.named_parameters())
        for name, p in loaded.named_parameters():
            assert torch.equal(p.to(mine[name].dtype), mine[name]), name
        merged = merge(engine, plain, update[0])
        engine.destroy()
        return {"losses": losses, "wanted": wanted, "difference": difference, "merged": merged}


def merge(engine: Any, plain: Any, batch: dict[str, torch.Tensor]) -> float:
    """The adapter merged for a while, as trl does for generation: the largest difference of logits from a plain
    merge."""
    import zerotorch

    model = engine.module
    model.eval(), plain.eval()
    with torch.no_grad():
        before = model(**batch).logits
        with zerotorch.zero.GatheredParameters(list(model.parameters())):
            model.merge_adapter()
            inside = model(**batch).logits
            model.unmerge_adapter()
        after = model(**batch).logits
        with zerotorch.zero.GatheredParameters(list(model.parameters())):
            model.merge_adapter()  # forgotten at the end
        for module in model.modules():
            if hasattr(module, "merged_adapters"):
                module.merged_adapters = []
        forgotten = model(**batch).logits
        plain.merge_adapter()
        wanted = plain(**batch).logits
        plain.unmerge_adapter()
    assert torch.equal(before, after) and torch.equal(before, forgotten)
    assert not torch.equal(before, inside)
    return (inside - wanted).abs().max().item()


CASES = {
    "fp32": (torch.float32, torch.float32),
    "fp32 on bf16": (torch.bfloat16, torch.float32),
    "bf16": (torch.bfloat16, torch.bfloat16),
}


@pytest.mark.parametrize("built", [False, True], ids=["", "zero.Init"])
@pytest.mark.parametrize("kind", ["none", "reentrant", "not reentrant"])
@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.parametrize("store", ["auto", "copying"])
def test_lora(store: str, case: str, kind: str, built: bool) -> None:
    base_dtype, adapter_dtype = CASES[case]
    for one in run(2, train, kind, base_dtype, adapter_dtype, built, store):
        # The plain run computes fp32 adapters in fp32, and has no fp32 master of bf16 ones.
        assert one["losses"] == pytest.approx(one["wanted"], rel=1e-6 if case == "fp32" else 1e-3)
        assert one["difference"] < (1e-5 if case == "fp32" else 5e-2)
        assert one["merged"] < (1e-6 if case == "fp32" else 2e-2)


def trainer(stage: int, kind: str) -> tuple[list[float], list[float], bool]:
    """Losses of Trainer with adapters and of a plain one, and whether the adapter was saved as it was trained."""
    curves, same = [], False
    with hf.libraries(), hf.shared_folder() as folder:
        from safetensors.torch import load_file

        pretrained = hf.save_model(folder)
        for settings in ({**config(stage), "gradient_accumulation_steps": "auto"}, None):
            with hf.libraries(), contextlib.nullcontext() if settings else hf.alone():
                args = hf.arguments(
                    folder,
                    settings,
                    gradient_checkpointing=kind != "none",
                    gradient_checkpointing_kwargs={"use_reentrant": kind == "reentrant"},
                    weight_decay=0.0,
                    lr_scheduler_type="constant",
                    warmup_steps=0,
                )
                one = hf.make_trainer(lora(base(pretrained, torch.float32)), args)
                one.train()
                curves.append([entry["loss"] for entry in hf.logged(one, "loss")])
                if settings is None:
                    continue
                one.save_model(f"{folder}/adapter")
                torch.distributed.barrier()
                saved = load_file(f"{folder}/adapter/adapter_model.safetensors")
                trained = {
                    name.replace(".default.", "."): one.model_wrapped._core.full_weight(name)
                    for name, p in one.model_wrapped.module.named_parameters()
                    if p.requires_grad
                }
                same = saved.keys() == trained.keys() and all(torch.equal(saved[name], trained[name]) for name in saved)
                one.model_wrapped.destroy()
    return curves[0], curves[1], same


@pytest.mark.parametrize("kind", ["none", "reentrant", "not reentrant"])
@pytest.mark.parametrize("stage", [2, 3])
def test_lora_with_trainer(stage: int, kind: str) -> None:
    for mine, plain, same in run(2, trainer, stage, kind):
        assert len(mine) == 6 and mine == pytest.approx(plain, rel=1e-5) and same

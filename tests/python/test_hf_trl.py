"""trl's trainers on zerotorch: the losses of a plain run."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import hf_trainer as hf
import pytest
import torch
from ranks import run
from support import needs
from test_hf_trainer import config

needs("transformers", "accelerate", "datasets", "trl")

WORDS = [f"w{i}" for i in range(hf.VOCAB - 3)]


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["<pad>", "<s>", "</s>", *WORDS])}, "w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


def sentences(generator: torch.Generator, longest: int) -> str:
    count = int(torch.randint(2, longest, (), generator=generator))
    return " ".join(WORDS[int(i)] for i in torch.randint(len(WORDS), (count,), generator=generator))


def dataset(kind: str) -> Any:
    from datasets import Dataset

    generator = torch.Generator().manual_seed(3)
    rows = []
    for _ in range(hf.SAMPLES):
        row = {"prompt": sentences(generator, 5), "completion": " " + sentences(generator, 9)}
        if kind == "dpo":
            row = {"prompt": row["prompt"], "chosen": row["completion"], "rejected": " " + sentences(generator, 9)}
        rows.append(row)
    return Dataset.from_list(rows)


def from_disk(kind: str, folder: str) -> Any:
    """The data set as others have it, from files: what trl computes of it is cached beside them, for all ranks of a
    job."""
    import torch.distributed as dist
    from datasets import load_from_disk

    folder = f"{folder}/data-of-{hf.ranks()}" if "WORLD_SIZE" in os.environ else f"{folder}/data-{dist.get_rank()}"
    if "WORLD_SIZE" not in os.environ or dist.get_rank() == 0:
        dataset(kind).save_to_disk(folder)
    if "WORLD_SIZE" in os.environ:
        dist.barrier()
    return load_from_disk(folder)


def make(kind: str, folder: str, pretrained: str, settings: Any, lora: bool, options: dict[str, Any]) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.trainer_callback import PrinterCallback
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    arguments, trainer = (SFTConfig, SFTTrainer) if kind == "sft" else (DPOConfig, DPOTrainer)
    count = hf.ranks() if settings is not None else 1
    args = arguments(
        output_dir=folder,
        deepspeed=settings,
        per_device_train_batch_size=hf.MICRO_BATCH,
        gradient_accumulation_steps=hf.GLOBAL_BATCH // hf.MICRO_BATCH // count,
        learning_rate=1e-2,
        warmup_steps=1,
        max_steps=4,
        max_length=16,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        bf16=False,
        seed=9,
        **options,
    )
    model = AutoModelForCausalLM.from_pretrained(pretrained)
    extra: dict[str, Any] = {}
    if lora:
        from peft import LoraConfig

        extra["peft_config"] = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
        torch.manual_seed(1)
    elif kind == "dpo" and not options.get("precompute_ref_log_probs"):
        extra["ref_model"] = AutoModelForCausalLM.from_pretrained(pretrained)
    data = from_disk(kind, folder) if options.get("precompute_ref_log_probs") else dataset(kind)
    made = trainer(model=model, args=args, train_dataset=data, processing_class=tokenizer(), **extra)
    made.remove_callback(PrinterCallback)
    return made


def compare(kind: str, stage: int, lora: bool, options: dict[str, Any]) -> list[list[float]]:
    curves = []
    with hf.libraries(), hf.shared_folder() as folder:
        pretrained = hf.save_model(folder)
        for settings in (config(stage), None):
            with hf.libraries(), contextlib.nullcontext() if settings else hf.alone():
                trainer = make(kind, folder, pretrained, settings, lora, options)
                trainer.train()
                curves.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
                if settings:
                    trainer.model_wrapped.destroy()
    return curves


@pytest.mark.parametrize("lora", [False, True], ids=["", "lora"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["", "checkpointing"])
@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("kind", ["sft", "dpo"])
def test_trains_as_a_plain_trainer(kind: str, stage: int, checkpointing: bool, lora: bool) -> None:
    if lora:
        needs("peft")
    for mine, plain in run(2, compare, kind, stage, lora, {"gradient_checkpointing": checkpointing}):
        assert len(mine) == 4 and mine == pytest.approx(plain, rel=1e-5)


@pytest.mark.parametrize("stage", [2, 3])
def test_a_model_that_is_its_own_reference_trains_afterwards(stage: int) -> None:
    """An engine without an optimizer evaluates it first."""
    for mine, plain in run(2, compare, "dpo", stage, False, {"precompute_ref_log_probs": True}):
        assert len(mine) == 4 and mine == pytest.approx(plain, rel=1e-5)


def generate(stage: int) -> tuple[bool, bool]:
    """What trl generates with the policy while it is trained: the tokens of a plain model with its weights, and whether
    the engine trains on as if nothing had happened."""
    with hf.libraries(), hf.shared_folder() as folder:
        from transformers import AutoModelForCausalLM
        from trl.models.utils import unwrap_model_for_generation

        pretrained = hf.save_model(folder)
        losses = []
        for asks in (True, False):
            with hf.libraries():
                trainer = make("sft", folder, pretrained, config(stage), False, {"gradient_checkpointing": False})
                trainer.train()
                engine, accelerator = trainer.model_wrapped, trainer.accelerator
                prompt = torch.tensor([[5, 6, 7], [8, 9, 10]])
                if asks:
                    with hf.fresh():
                        plain = AutoModelForCausalLM.from_pretrained(pretrained)
                    with torch.no_grad():
                        for name, p in plain.named_parameters():
                            p.copy_(engine._core.full_weight(name))
                    length = 5 + 4 * engine.global_rank
                    with unwrap_model_for_generation(engine, accelerator) as model:
                        tokens = model.generate(prompt, max_new_tokens=length, do_sample=False)
                    same = torch.equal(tokens, plain.generate(prompt, max_new_tokens=length, do_sample=False))
                engine.set_gradient_accumulation_boundary(True)
                for _ in range(2):
                    loss = engine(input_ids=prompt, labels=prompt).loss
                    engine.backward(loss)
                    engine.step()
                losses.append(loss.item())
                engine.destroy()
        return same, losses[0] == losses[1]


@pytest.mark.parametrize("stage", [2, 3])
def test_generates_while_it_trains(stage: int) -> None:
    assert run(2, generate, stage) == [(True, True), (True, True)]


def length_of(completions: list[str], **_: Any) -> list[float]:
    return [float(len(completion)) for completion in completions]


def reinforce() -> list[list[dict[str, float]]]:
    """What GRPO logs at stages 2 and 3 and with torch's data-parallel module, all with the same random numbers."""
    with hf.libraries(), hf.shared_folder() as folder:
        from datasets import Dataset
        from transformers import AutoModelForCausalLM
        from transformers.trainer_callback import PrinterCallback
        from trl import GRPOConfig, GRPOTrainer

        pretrained = hf.save_model(folder)
        prompts = Dataset.from_list([{"prompt": f"w{i} w{i + 1}"} for i in range(8)])
        logs = []
        for settings in (config(2), config(3), None):
            with hf.libraries():
                args = GRPOConfig(
                    output_dir=folder,
                    deepspeed=settings,
                    per_device_train_batch_size=2,
                    num_generations=2,
                    gradient_accumulation_steps=2,
                    max_completion_length=6,
                    max_steps=2,
                    beta=0.1,
                    learning_rate=1e-2,
                    logging_steps=1,
                    save_strategy="no",
                    report_to=[],
                    disable_tqdm=True,
                    bf16=False,
                )
                trainer = GRPOTrainer(
                    model=AutoModelForCausalLM.from_pretrained(pretrained),
                    reward_funcs=length_of,
                    args=args,
                    train_dataset=prompts,
                    processing_class=tokenizer(),
                )
                trainer.remove_callback(PrinterCallback)
                assert trainer.accelerator.num_processes == hf.ranks()
                trainer.train()
                keys = ("loss", "reward", "grad_norm", "kl")
                logs.append([{key: one[key] for key in keys} for one in trainer.state.log_history if "loss" in one])
                if settings:
                    trainer.model_wrapped.destroy()
        return logs


def test_reinforces_as_a_data_parallel_module() -> None:
    for stage_2, stage_3, plain in run(2, reinforce):
        assert stage_2 == stage_3 and len(plain) == 2
        for mine, wanted in zip(stage_3, plain, strict=True):
            assert mine == pytest.approx(wanted, rel=1e-3, abs=1e-6)
        assert plain[1]["kl"] > 0


def prefer() -> list[list[dict[str, float]]]:
    """What a reward model logs at stages 2 and 3 and with torch's data-parallel module."""
    with hf.libraries(), hf.shared_folder() as folder:
        from transformers import AutoModelForSequenceClassification
        from transformers.trainer_callback import PrinterCallback
        from trl import RewardConfig, RewardTrainer

        pretrained = hf.save_model(folder)
        logs = []
        for settings in (config(2), config(3), None):
            with hf.libraries():
                torch.manual_seed(5)  # its head is random
                args = RewardConfig(
                    output_dir=folder,
                    deepspeed=settings,
                    per_device_train_batch_size=2,
                    max_steps=4,
                    learning_rate=1e-2,
                    logging_steps=1,
                    save_strategy="no",
                    report_to=[],
                    disable_tqdm=True,
                    bf16=False,
                    gradient_checkpointing=False,
                )
                with hf.fresh():
                    model = AutoModelForSequenceClassification.from_pretrained(pretrained, num_labels=1, pad_token_id=0)
                trainer = RewardTrainer(
                    model=model, args=args, train_dataset=dataset("dpo"), processing_class=tokenizer()
                )
                trainer.remove_callback(PrinterCallback)
                assert trainer.accelerator.num_processes == hf.ranks()
                trainer.train()
                keys = ("loss", "grad_norm", "mean_reward")
                logs.append([{key: one[key] for key in keys} for one in trainer.state.log_history if "loss" in one])
                if settings:
                    trainer.model_wrapped.destroy()
        return logs


def test_learns_preferences_as_a_data_parallel_module() -> None:
    for stage_2, stage_3, plain in run(2, prefer):
        assert stage_2 == stage_3 and len(plain) == 4
        for mine, wanted in zip(stage_3, plain, strict=True):
            assert mine == pytest.approx(wanted, rel=1e-3, abs=1e-6)

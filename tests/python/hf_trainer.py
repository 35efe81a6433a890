"""Runs of transformers' Trainer for tests, under zerotorch and without it. A rank's process runs many of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import torch

VOCAB = 32
SAMPLES = 24
GLOBAL_BATCH = 8  # samples of an update, over all ranks
MICRO_BATCH = 2


class Sentences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Token sequences of one length; how many of the tokens have a label differs, so that averages show how they are
    made."""

    def __init__(self, samples: int = SAMPLES, length: int = 8, seed: int = 5, all_labels: bool = False) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(VOCAB, (samples, length), generator=generator)
        self.labels = self.tokens.clone()
        for i in range(0 if all_labels else samples):
            self.labels[i, : int(torch.randint(length - 2, (), generator=generator))] = -100

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.labels[index]}


def llama_config(**more: Any) -> Any:
    from transformers import LlamaConfig

    return LlamaConfig(
        **{
            "vocab_size": VOCAB,
            "hidden_size": 16,
            "intermediate_size": 24,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 64,
            "tie_word_embeddings": False,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
            **more,
        }
    )


def causal_model(config: Any = None, seed: int = 3) -> Any:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config or llama_config())


def save_model(folder: str, **more: Any) -> str:
    """Writes the weights from which runs begin; at ZeRO-3 a new model has other random numbers. Rank 0's are used."""
    import torch.distributed as dist

    if dist.get_rank() == 0:
        with fresh():
            causal_model(llama_config(**more)).save_pretrained(f"{folder}/pretrained")
    dist.barrier()
    return f"{folder}/pretrained"


@contextlib.contextmanager
def libraries() -> Iterator[None]:
    """transformers and accelerate as in a fresh process, with zerotorch for deepspeed."""
    import zerotorch.as_deepspeed  # noqa: F401
    from accelerate.state import AcceleratorState, GradientState
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config
    from transformers.utils import logging

    def forget() -> None:
        for name in [name for name in os.environ if name.startswith("ACCELERATE")]:
            del os.environ[name]
        unset_hf_deepspeed_config()
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    forget()
    try:
        yield
    finally:
        forget()


@contextlib.contextmanager
def fresh() -> Iterator[None]:
    """Models that are built inside are not for ZeRO-3."""
    from transformers.integrations import deepspeed

    before = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = before


def ranks() -> int:
    return int(os.environ["WORLD_SIZE"])


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """This rank as a job of one process, for what is to be compared with."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)


def arguments(folder: str, deepspeed: Any = None, **more: Any) -> Any:
    """For updates of GLOBAL_BATCH samples on any number of ranks."""
    from transformers import TrainingArguments

    count = ranks() if deepspeed is not None else 1
    return TrainingArguments(
        **{
            "output_dir": folder,
            "deepspeed": deepspeed,
            "per_device_train_batch_size": MICRO_BATCH,
            "per_device_eval_batch_size": MICRO_BATCH,
            "gradient_accumulation_steps": GLOBAL_BATCH // MICRO_BATCH // count,
            "num_train_epochs": 2,
            "learning_rate": 1e-2,
            "weight_decay": 0.1,
            "warmup_steps": 2,
            "lr_scheduler_type": "linear",
            "max_grad_norm": 1.0,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
            "seed": 9,
            "data_seed": 9,
            "optim": "adamw_torch",
            **more,
        }
    )


def make_trainer(model: Any, args: Any, **more: Any) -> Any:
    from transformers import Trainer
    from transformers.trainer_callback import PrinterCallback

    # An evaluation's average is by batch, and by tokens inside the batches of all ranks.
    evaluated = Sentences(12, seed=6, all_labels=True)
    trainer = Trainer(**{"model": model, "args": args, "train_dataset": Sentences(), "eval_dataset": evaluated, **more})
    trainer.remove_callback(PrinterCallback)
    return trainer


def logged(trainer: Any, *keys: str) -> list[dict[str, float]]:
    """What was logged of each update."""
    return [{key: entry[key] for key in keys} for entry in trainer.state.log_history if "loss" in entry]


@contextlib.contextmanager
def shared_folder() -> Iterator[str]:
    """The same new folder on all ranks."""
    import torch.distributed as dist
    from zerotorch import init_distributed

    init_distributed()
    name = [tempfile.mkdtemp(prefix="zerotorch-test-") if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(name, src=0)
    try:
        yield str(name[0])
    finally:
        dist.barrier()
        if dist.get_rank() == 0:
            shutil.rmtree(str(name[0]), ignore_errors=True)

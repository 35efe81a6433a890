"""An engine goes on from checkpoints that the real DeepSpeed has saved, with the losses that DeepSpeed went on with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import odd_model
import pytest
import torch
from ranks import run

FOLDER = Path(__file__).parent / "data" / "deepspeed"
CASES = sorted(path.name for path in FOLDER.iterdir() if path.is_dir())

# DeepSpeed's stage 0 goes on as if losses were not scaled, while gradients of these weights overflow at the scale it
# has saved, in plain torch as well: only the loss before the first update can be compared.
OVERFLOWS = ("stage0_n1_fp16",)

# Losses are compared after updates by another library, whose order of operations is its own.
TOLERANCE = {"fp32": 2e-5, "bf16": 4e-3, "fp16": 2e-3}


def go_on(case: str, stage: int, steps: int) -> tuple[list[float], Any, list[float], int]:
    import zerotorch

    expected = json.loads((FOLDER / case / "expected.json").read_text())
    config = {key: value for key, value in expected["config"].items() if key != "data_types"}
    params = config["optimizer"]["params"]
    config["zero_optimization"] = {"stage": stage}
    no_frozen = case.endswith("no_frozen")
    model = odd_model.OddModel(seed=7 if no_frozen else 99)  # other values than the checkpoint's
    engine = zerotorch.initialize(
        model=model, model_parameters=model.groups(params["lr"], params["weight_decay"]), config=config
    )[0]
    path, state = engine.load_checkpoint(FOLDER / case / "checkpoint", load_module_strict=not no_frozen)
    assert path is not None
    rates = engine.get_lr()
    first = engine.global_steps
    losses = []
    for step in range(first, first + steps):
        loss = engine(*odd_model.batch(step, engine.global_rank))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    engine.destroy()
    return losses, state, rates, first


@pytest.mark.parametrize("case", CASES)
def test_goes_on_as_deepspeed_did(case: str) -> None:
    expected = json.loads((FOLDER / case / "expected.json").read_text())
    wanted = expected["losses_after"]
    tolerance = TOLERANCE[expected["precision"]]
    for rank, (losses, state, rates, first) in enumerate(
        run(expected["ranks"], go_on, case, 3 if expected["stage"] < 3 else 1, len(wanted[0]))
    ):
        compared = 1 if case in OVERFLOWS else len(losses)
        assert losses[:compared] == pytest.approx(wanted[rank][:compared], rel=tolerance)
        assert rates == pytest.approx(expected["lr"])
        assert first == expected["global_steps"]
        assert state == expected["client_state"]


def of_another_model() -> list[str]:
    import zerotorch

    model = torch.nn.Sequential(torch.nn.Linear(7, 11))
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW"}}
    engine = zerotorch.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
    before = model.state_dict()["0.weight"].clone()
    with pytest.raises(zerotorch.CheckpointError, match="of another model") as raised:
        engine.load_checkpoint(FOLDER / "stage2_n1_fp32" / "checkpoint")
    assert torch.equal(model.state_dict()["0.weight"], before)
    engine.destroy()
    return [str(raised.value)]


def test_a_checkpoint_of_another_model_changes_nothing() -> None:
    ((message,),) = run(1, of_another_model)
    assert "'0.weight' is not in the checkpoint" in message

"""save_checkpoint() and load_checkpoint() from Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import models
import pytest
import torch
from ranks import run
from safetensors.torch import load_file

import zerotorch

PER_STEP = 6


def config(stage: int, ranks: int, **more: Any) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": PER_STEP // ranks,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        "scheduler": {
            "type": "WarmupDecayLR",
            "params": {"warmup_num_steps": 2, "total_num_steps": 9, "warmup_max_lr": 0.02},
        },
        "zero_optimization": {"stage": stage},
        "zerotorch": {"seed": 3},
        **more,
    }


def train(engine: Any, first: int, last: int) -> list[float]:
    """Losses of this rank in the steps [first, last)."""
    losses = []
    for number, batches in enumerate(models.micro_batches(last, PER_STEP)):
        if number < first:
            continue
        for i, batch in enumerate(batches):
            if i % engine.world_size == engine.global_rank:
                loss = models.loss_of(engine, batch)
                engine.backward(loss)
                engine.step()
                losses.append(loss.item())
    return losses


def make(stage: int, ranks: int, **more: Any) -> Any:
    import zerotorch

    model = models.make()
    return zerotorch.initialize(model=model, model_parameters=model.parameters(), config=config(stage, ranks, **more))[
        0
    ]


STATE = {
    "epoch": 3,
    "note": ("a", 1),
    "rng": torch.arange(3),
    5: {"nested": [1.5, None]},
    "best_loss": float("inf"),
    "large": 2**70,
    "z": 1,
    "a": 2,
}


def save(folder: str, stage: int, ranks: int) -> list[float]:
    engine = make(stage, ranks)
    train(engine, 0, 2)
    assert engine.save_checkpoint(folder, client_state=STATE)
    losses = train(engine, 2, 4)
    engine.destroy()
    return losses


def resume(folder: str, stage: int, ranks: int) -> tuple[list[float], str, Any, list[float]]:
    engine = make(stage, ranks)
    path, state = engine.load_checkpoint(folder)
    rates = engine.get_lr()
    assert engine.global_steps == 2
    losses = train(engine, 2, 4)
    engine.destroy()
    return losses, path, state, rates


@pytest.mark.parametrize(("stage", "ranks"), [(0, 1), (2, 2), (3, 3)])
def test_goes_on_with_the_same_losses(tmp_path: Path, stage: int, ranks: int) -> None:
    saved = run(2, save, str(tmp_path), 3, 2)
    by_number = {}
    for rank, losses in enumerate(saved):
        by_number.update({2 * i + rank: loss for i, loss in enumerate(losses)})
    for rank, (losses, path, state, rates) in enumerate(run(ranks, resume, str(tmp_path), stage, ranks)):
        assert losses == [by_number[number] for number in range(rank, 2 * PER_STEP, ranks)]
        assert path == str(tmp_path / "global_step2")
        assert state["note"] == ("a", 1) and state["epoch"] == 3 and state[5] == {"nested": [1.5, None]}
        assert torch.equal(state["rng"], STATE["rng"])
        assert state["best_loss"] == float("inf") and state["large"] == 2**70 and list(state) == list(STATE)
        assert rates == pytest.approx([0.02])


def nothing_there(folder: str) -> Any:
    engine = make(2, 2)
    result = engine.load_checkpoint(folder)
    with pytest.raises(Exception, match="no_such_tag"):
        engine.load_checkpoint(folder, tag="no_such_tag")
    train(engine, 0, 1)
    engine.destroy()
    return result


def test_a_folder_without_checkpoints(tmp_path: Path) -> None:
    assert run(2, nothing_there, str(tmp_path)) == [(None, None)] * 2


def live_rates(folder: str, use_client: bool) -> list[Any]:
    """Rates that the program has set itself come back."""
    import zerotorch

    def fresh() -> Any:
        model = models.make()
        plain = {key: value for key, value in config(2, 1).items() if key not in ("scheduler", "optimizer")}
        groups = [
            {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.3},
            {"params": [p for p in model.parameters() if p.dim() <= 1], "lr": 0.5},
        ]
        if use_client:
            client = torch.optim.AdamW(groups, lr=0.25)
            return zerotorch.initialize(model=model, optimizer=client, config=plain)[0]
        plain["optimizer"] = {"type": "AdamW", "params": {"lr": 0.25}}
        return zerotorch.initialize(model=model, model_parameters=groups, config=plain)[0]

    engine = fresh()
    for group in engine.optimizer.param_groups:
        group["lr"] *= 0.5
        group["betas"] = (0.8, 0.9)
    train(engine, 0, 1)
    engine.save_checkpoint(folder)
    expected = train(engine, 1, 2)
    engine.destroy()
    engine = fresh()
    engine.load_checkpoint(folder)
    facts = [[group["lr"], group["weight_decay"], group["betas"]] for group in engine.optimizer.param_groups]
    assert train(engine, 1, 2) == expected
    engine.destroy()
    return facts


def test_the_folder_has_deepspeeds_script(tmp_path: Path) -> None:
    run(2, save, str(tmp_path), 3, 2)
    done = subprocess.run(
        [sys.executable, "zero_to_fp32.py", ".", "weights", "--safe_serialization"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    found = load_file(tmp_path / "weights" / "model.safetensors")
    assert {name for name, _ in models.make().named_parameters(remove_duplicate=True)} <= set(found)


@pytest.mark.parametrize(("saved", "loaded"), [("torch", "AdamW"), ("torch", "AdamW8bit"), ("AdamW", "torch"), ("AdamW", "AdamW8bit")])
def test_goes_on_with_another_source_of_the_optimizer(tmp_path: Path, saved: str, loaded: str) -> None:
    """Keys of parameter groups that only one of them has stay with it."""

    def source(kind: str) -> Any:
        model = models.make()
        settings = config(2, 1)
        del settings["scheduler"]
        if kind != "torch":
            settings["optimizer"]["type"] = kind
            return zerotorch.initialize(model=model, model_parameters=model.parameters(), config=settings)[0]
        del settings["optimizer"]
        return zerotorch.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2), config=settings)[0]

    first = source(saved)
    train(first, 0, 3)
    first.save_checkpoint(tmp_path)
    wanted = train(first, 3, 6)
    first.destroy()
    second = source(loaded)
    second.load_checkpoint(tmp_path)
    got = train(second, 3, 6)
    second.destroy()
    if loaded == "AdamW8bit":
        assert got == pytest.approx(wanted, rel=0.05)  # its states are rounded
    else:
        assert got == wanted


@pytest.mark.parametrize("use_client", [False, True])
def test_hyper_parameters_of_groups_come_back(tmp_path: Path, use_client: bool) -> None:
    (facts,) = run(1, live_rates, str(tmp_path), use_client)
    other = 0.01 if use_client else 0.0
    assert facts == [[0.125, 0.3, (0.8, 0.9)], [0.25, other, (0.8, 0.9)]]


def weights_alone(folder: str) -> None:
    engine = make(3, 2)
    train(engine, 0, 1)
    engine.save_checkpoint(folder, tag="t")
    digest = models.digest(engine.module.state_dict())
    engine.destroy()
    engine = make(3, 2)
    engine.load_checkpoint(folder, tag="t", load_module_only=True)
    assert engine.global_steps == 0 and models.digest(engine.module.state_dict()) == digest
    assert engine.save_16bit_model(folder, "whole.bin")
    assert engine.save_16bit_model(folder, "whole.safetensors")
    engine.save_full_weights(f"{folder}/hf")
    torch.distributed.barrier()
    plain = models.OddModel()
    plain.load_state_dict(torch.load(f"{folder}/whole.bin"))
    assert models.digest(plain.state_dict()) == digest
    engine.destroy()
    engine = make(3, 2)
    engine.load_full_weights(f"{folder}/hf")
    assert models.digest(engine.module.state_dict()) == digest
    missing = engine.module.load_state_dict(plain.state_dict())
    assert not missing.missing_keys
    assert models.digest(engine.module.state_dict()) == digest
    train(engine, 0, 1)
    engine.destroy()


def test_weights_alone(tmp_path: Path) -> None:
    run(2, weights_alone, str(tmp_path))


def unpicklable(folder: str) -> str:
    engine = make(2, 2)
    train(engine, 0, 1)
    state = {"lambda": (lambda: 1) if engine.global_rank == 0 else "fine"}
    with pytest.raises(zerotorch.CheckpointError) as error:
        engine.save_checkpoint(folder, client_state=state)
    engine.save_checkpoint(folder, client_state={"after": (lambda: 1) if engine.global_rank == 1 else 1})
    found = engine.load_checkpoint(folder)[1]
    assert found == {"after": 1}
    engine.destroy()
    return str(error.value)


def test_a_client_state_that_cannot_be_saved_is_told_on_all_ranks(tmp_path: Path) -> None:
    first, second = run(2, unpicklable, str(tmp_path), timeout_s=60)
    assert "client_state" in first and "client_state" in second


def latest_of_nothing(folder: str) -> None:
    engine = make(1, 1)
    train(engine, 0, 1)
    engine.save_checkpoint(folder, tag="s1")
    (Path(folder) / "latest").write_text("s2")
    with pytest.raises(zerotorch.CheckpointError, match="'s2'"):
        engine.load_checkpoint(folder)
    assert engine.load_checkpoint(folder, tag="s1")[0] is not None
    engine.destroy()


def test_latest_that_names_nothing_is_an_error(tmp_path: Path) -> None:
    run(1, latest_of_nothing, str(tmp_path))


# ---- loads that fail ----


class Picky(torch.nn.Linear):
    """Refuses its extra state on one rank."""

    refuses = True

    def get_extra_state(self) -> Any:
        return {"kind": "picky"}

    def set_extra_state(self, state: Any) -> None:
        if Picky.refuses and torch.distributed.get_rank() == torch.distributed.get_world_size() - 1:
            raise ValueError("not this state")


def of_two_layers(picky: bool, groups: int, scheduler: Any = None) -> Any:
    import zerotorch

    torch.manual_seed(groups)
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), (Picky if picky else torch.nn.Linear)(4, 1))
    parameters = [{"params": list(part.parameters()), "lr": 0.1} for part in module]
    client = torch.optim.AdamW(parameters if groups == 2 else module.parameters())
    settings = {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}
    return zerotorch.initialize(model=module, optimizer=client, lr_scheduler=scheduler, config=settings)[0]


def one_step(engine: Any) -> None:
    engine.backward(engine(torch.ones(1, 3)).square().mean())
    engine.step()


class OfAnother:
    refuses = True

    def step(self) -> None:
        pass

    def state_dict(self) -> Any:
        return {}

    def load_state_dict(self, state: Any) -> None:
        if self.refuses:
            raise KeyError("last_epoch")


def refused_before(folder: str) -> None:
    import zerotorch

    saved = of_two_layers(False, 1)
    one_step(saved)
    saved.save_checkpoint(folder)
    engine = of_two_layers(False, 2)
    one_step(engine)
    before = [p.detach().clone() for p in engine.module.parameters()]
    with pytest.raises(zerotorch.ConfigError, match="1 parameter groups and the optimizer 2"):
        engine.load_checkpoint(folder)
    assert all(torch.equal(a, b) for a, b in zip(engine.module.parameters(), before, strict=True))
    one_step(engine)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_checkpoint_of_other_groups_changes_nothing(tmp_path: Path, ranks: int) -> None:
    run(ranks, refused_before, str(tmp_path))


def refused_half_way(folder: str, of_scheduler: bool) -> None:
    import zerotorch

    Picky.refuses = OfAnother.refuses = True
    scheduler = OfAnother() if of_scheduler else None
    engine = of_two_layers(not of_scheduler, 1, scheduler)
    one_step(engine)
    engine.save_checkpoint(folder)
    with pytest.raises(zerotorch.CheckpointError, match="KeyError" if of_scheduler else "not this state"):
        engine.load_checkpoint(folder)
    loss = engine(torch.ones(1, 3)).sum()
    for call in (
        lambda: engine.backward(loss),
        engine.step,
        engine.optimizer.step,
        lambda: engine.save_checkpoint(folder),
    ):
        with pytest.raises(zerotorch.CheckpointError, match="failed after weights had been replaced"):
            call()
    Picky.refuses = OfAnother.refuses = False
    engine.load_checkpoint(folder)
    one_step(engine)


@pytest.mark.parametrize("of_scheduler", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_load_that_fails_half_way_ends_training_until_another_succeeds(
    tmp_path: Path, ranks: int, of_scheduler: bool
) -> None:
    run(ranks, refused_half_way, str(tmp_path), of_scheduler)


def without_a_folder(folder: str) -> None:
    import zerotorch

    engine = of_two_layers(False, 1)
    for given in (None, "", 5, b"folder"):
        for call in (
            engine.save_checkpoint,
            engine.load_checkpoint,
            engine.save_16bit_model,
            engine.load_full_weights,
            engine.save_full_weights,
            lambda name: engine.save_16bit_model(folder, name),
        ):
            with pytest.raises(ValueError, match="give a path") as error:
                call(given)
            assert isinstance(error.value, zerotorch.UsageError)
    engine.save_checkpoint(Path(folder) / "saved")
    engine.save_16bit_model(Path(folder) / "weights")
    engine.load_checkpoint(Path(folder) / "saved")
    assert sorted(path.name for path in Path(folder).iterdir()) == ["saved", "weights"]


def test_what_is_no_path_is_refused(tmp_path: Path) -> None:
    run(1, without_a_folder, str(tmp_path))


def of_many_names(folder: str, mode: str, by_tag: bool) -> list[str]:
    """What this rank warns of, where each rank asks for another place."""
    from zerotorch.utils.logging import logger

    torch.manual_seed(1)
    model = torch.nn.Linear(4, 2)
    with_mode = config(2, 2, checkpoint={"tag_validation": mode})
    engine = zerotorch.initialize(model=model, model_parameters=model.parameters(), config=with_mode)[0]
    said: list[str] = []
    earlier, logger.warning = logger.warning, lambda text, *args: said.append(text % args)
    mine = f"of_{engine.global_rank}"
    try:
        engine.save_checkpoint(folder if by_tag else f"{folder}/{mode}_{mine}", tag=mine if by_tag else "step")
    except AssertionError as error:
        said.append(f"refused: {error}")
    finally:
        logger.warning = earlier
        engine.destroy()
    return said


@pytest.mark.parametrize("by_tag", [True, False])
def test_ranks_save_where_rank_0_does(tmp_path: Path, by_tag: bool) -> None:
    refused = "refused: rank 1: "
    for mode, first, other in (("Fail", refused, refused), ("Ignore", "", ""), ("Warn", "", "rank 1: ")):
        folder = tmp_path / mode
        firsts, others = run(2, of_many_names, str(folder), mode, by_tag)
        assert [text[: len(first)] for text in firsts] == ([first] if first else [])
        assert [text[: len(other)] for text in others] == ([other] if other else [])
        saved = sorted(str(path.parent.relative_to(folder)) for path in folder.rglob("manifest.json"))
        assert saved == ([] if mode == "Fail" else ["of_0" if by_tag else f"{mode}_of_0/step"])

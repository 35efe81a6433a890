"""Lightning's Trainer and Fabric on zerotorch, on ranks without a GPU: the curve of a plain run, resuming,
evaluation."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

import hf_trainer as hf
import models
import pytest
import torch
from ranks import run
from support import needs, python, script
from torch import nn

needs("lightning")

SAMPLES = 24
GLOBAL_BATCH = 4
MICRO_BATCH = 2
CLIP = 0.5


@pytest.fixture(scope="module", params=[1, 2], ids=["1 rank", "2 ranks"])
def ranks(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def ranks_here() -> int:
    return int(os.environ["LOCAL_WORLD_SIZE"])  # Lightning takes WORLD_SIZE away


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 9), nn.GELU(), nn.LayerNorm(9), nn.Linear(9, 1))


def loader(of_all: bool = False) -> Any:
    """This rank's batches, in the order of a run of one process: Lightning would shuffle them for several."""
    generator = torch.Generator().manual_seed(1)
    data = torch.utils.data.TensorDataset(
        torch.randn(SAMPLES, 5, generator=generator), torch.randn(SAMPLES, 1, generator=generator)
    )
    batches = [[i, i + 1] for i in range(0, SAMPLES, MICRO_BATCH)]
    if not of_all:
        batches = batches[torch.distributed.get_rank() :: torch.distributed.get_world_size()]
    mine = torch.utils.data.Subset(data, [i for batch in batches for i in batch])
    return torch.utils.data.DataLoader(mine, batch_size=MICRO_BATCH)


def make_module(build_late: bool = False) -> Any:
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.rates: list[float] = []
            self.net = None if build_late else network()

        def configure_model(self) -> None:  # under zero.Init at stage 3
            if self.net is None:
                self.net = network()

        def _loss(self, batch: Any) -> torch.Tensor:
            x, y = batch
            return nn.functional.mse_loss(self.net(x).float(), y)  # type: ignore[misc]

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            self.rates.append(self.optimizers().param_groups[0]["lr"])  # type: ignore[union-attr]
            return self._loss(batch)

        def validation_step(self, batch: Any, number: int) -> None:
            self.log("validation", self._loss(batch), sync_dist=True)

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=2e-2, weight_decay=0.1)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda update: 1 / (1 + update))
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    return Module()


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    import logging

    import zerotorch.integrations.lightning  # noqa: F401

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
    before = dict(os.environ)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    os.environ.update({name: before[name] for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE") if name in before})


def make_trainer(stage: int | None, epochs: int = 2, **more: Any) -> Any:
    import lightning.pytorch as pl
    from zerotorch.integrations.lightning import ZeroStrategy

    count = 1 if stage is None else ranks_here()
    return pl.Trainer(
        accelerator="cpu",
        devices=count,
        strategy="auto" if stage is None else ZeroStrategy(stage=stage),
        max_epochs=epochs,
        accumulate_grad_batches=GLOBAL_BATCH // MICRO_BATCH // count,
        gradient_clip_val=CLIP,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=True,
        **more,
    )


def weights(trainer: Any) -> dict[str, torch.Tensor]:
    engine = trainer.strategy.model
    return {name: engine._core.full_weight(name) for name, _ in engine.module.named_parameters()}


def fit(stage: int, build_late: bool) -> dict[str, Any]:
    with quiet():
        import zerotorch

        zerotorch.init_distributed()
        module = make_module(build_late)
        trainer = make_trainer(stage)
        trainer.fit(module, loader())
        assert trainer.world_size == ranks_here() and trainer.global_step == 2 * SAMPLES // GLOBAL_BATCH
        mine = weights(trainer)
        whole = {name: value.clone() for name, value in module.state_dict().items()}
        same = all(torch.equal(whole[name], value) for name, value in mine.items())
        evaluated = trainer.validate(module, loader(), verbose=False)[0]["validation"]
        with pytest.raises(zerotorch.UsageError, match="only evaluates"):
            trainer.strategy.model.backward(torch.zeros((), requires_grad=True))
        mine = {name: value.clone() for name, value in module.state_dict().items()}  # evaluating has left them
        again = make_trainer(stage, epochs=1)
        again.fit(module, loader())
        with hf.alone():
            plain = make_module()
            other = make_trainer(None)
            other.fit(plain, loader(of_all=True))
            trained = {name: p.detach().clone() for name, p in plain.named_parameters()}
            wanted = other.validate(plain, loader(of_all=True), verbose=False)[0]["validation"]
            once_more = make_trainer(None, epochs=1)
            once_more.fit(plain, loader(of_all=True))
        pairs = [(mine, trained), (weights(again), dict(plain.named_parameters()))]
        difference = max(((a[name] - p).norm() / p.norm()).item() for a, b in pairs for name, p in b.items())
        step = len(plain.rates) // len(module.rates)
        return {
            "difference": difference,
            "same": same,
            "rates": module.rates == plain.rates[::step],
            "evaluated": abs(evaluated / wanted - 1),
            "digest": models.digest(mine),
        }


_hashes: set[str] = set()


@pytest.mark.parametrize("build_late", [False, True], ids=["", "configure_model"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_fits_as_a_plain_trainer(ranks: int, stage: int, build_late: bool) -> None:
    results = run(ranks, fit, stage, build_late)
    for one in results:
        assert one["same"] and one["rates"]
        assert one["difference"] < 1e-4 and one["evaluated"] < 1e-5
        _hashes.add(one["digest"])
    assert len(_hashes) == 1  # of all stages and numbers of ranks


def resume(stage: int) -> tuple[bool, int, list[float], list[float]]:
    with quiet(), hf.shared_folder() as folder:
        first = make_module()
        trainer = make_trainer(stage, epochs=1)
        trainer.fit(first, loader())
        trainer.save_checkpoint(f"{folder}/checkpoint")
        trainer.strategy.model.destroy()
        ends, rates = [], []
        for resumes in (True, False):
            module = make_module()
            trainer = make_trainer(stage)
            trainer.fit(module, loader(), ckpt_path=f"{folder}/checkpoint" if resumes else None)
            ends.append(weights(trainer))
            rates.append(module.rates)
            trainer.strategy.model.destroy()
        same = all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
        return same, trainer.global_step, rates[0], rates[1][len(rates[1]) // 2 :]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_resumes_with_the_same_bits(ranks: int, stage: int) -> None:
    for same, steps, rates, wanted in run(ranks, resume, stage):
        assert same and steps == 2 * SAMPLES // GLOBAL_BATCH and rates == wanted


PROGRAM = """
    import sys
    sys.path.insert(0, {tests!r})
    from zerotorch.integrations.lightning import ZeroStrategy
    import lightning.pytorch as pl
    import test_lightning as tests

    module = tests.make_module()
    trainer = pl.Trainer(accelerator="cpu", devices=2, strategy=ZeroStrategy(stage=3), max_steps=2, logger=False,
                         enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(module, tests.loader(of_all=True))
    print(" ".join(["RESULT", *map(str, (trainer.global_rank, trainer.world_size, trainer.global_step))]))
"""


def test_trainer_starts_its_ranks(tmp_path: Any) -> None:
    """A script run by python itself: Lightning runs it again for the second rank."""
    code = PROGRAM.format(tests=os.path.dirname(__file__))
    done = python(script(tmp_path, code), timeout=120, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert "RESULT 0 2 2" in done.stdout and "RESULT 1 2 2" in done.stdout


def fabric(stage: int) -> tuple[float, bool, Any]:
    with quiet(), hf.shared_folder() as folder:
        import lightning
        from zerotorch.integrations.lightning import FabricZeroStrategy

        ends = []
        for resumes in (False, True):
            strategy = FabricZeroStrategy(stage=stage)
            made = lightning.Fabric(accelerator="cpu", devices=ranks_here(), strategy=strategy)
            made.launch()
            with made.init_module():
                model: Any = network()
            with torch.no_grad():
                for p in model.parameters():  # rank 0's seed counts at stage 3
                    assert p.isfinite().all()
            optimizer: Any = torch.optim.AdamW(model.parameters(), lr=2e-2, weight_decay=0.1)
            model, optimizer = made.setup(model, optimizer)
            state = {"model": model, "optimizer": optimizer, "note": {"epoch": 1, "numbers": torch.arange(3)}}
            if resumes:
                state["note"] = None
                made.load(f"{folder}/checkpoint", state)
            epochs = 1 if resumes else 2
            for _ in range(epochs):
                for x, y in loader():
                    loss = nn.functional.mse_loss(model(x), y)
                    made.backward(loss)
                    optimizer.step()
                    optimizer.zero_grad()
                if not resumes and _ == 0:
                    made.save(f"{folder}/checkpoint", state)
            engine = strategy._deepspeed_engine
            ends.append({name: engine._core.full_weight(name) for name, p in engine.module.named_parameters()})
            engine.destroy()
        plain = network()
        optimizer = torch.optim.AdamW(plain.parameters(), lr=2e-2, weight_decay=0.1)
        count = torch.distributed.get_world_size()
        for _ in range(2):
            for i, (x, y) in enumerate(loader(of_all=True)):
                (nn.functional.mse_loss(plain(x), y) / count).backward()
                if (i + 1) % count == 0:
                    nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
        difference = max(((ends[0][name] - p).norm() / p.norm()).item() for name, p in plain.named_parameters())
        same = all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
        return difference, same, state["note"]


@pytest.mark.parametrize("stage", [2, 3])
def test_fabric(ranks: int, stage: int) -> None:
    for difference, same, note in run(ranks, fabric, stage):
        assert difference < 1e-4 and same
        assert note["epoch"] == 1 and note["numbers"].tolist() == [0, 1, 2]

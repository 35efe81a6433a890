"""16-bit products on the CPU from Python: the same operators as in C++, under an engine and without one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import run
from torch import nn

DTYPES = [torch.bfloat16, torch.float16]


def network() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(24, 40), nn.GELU(), nn.Linear(40, 7))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_scope_computes_in_fp32_and_rounds_once(dtype: torch.dtype) -> None:
    from zerotorch.cpu_products import CpuProducts

    module, x = network()[0].to(dtype), torch.randn(5, 24).to(dtype)
    wanted = nn.functional.linear(x.float(), module.weight.float(), module.bias.float()).to(dtype)
    with CpuProducts("fp32", dtype) as chosen:
        assert list(chosen.values()) == ["fp32"]
        torch.testing.assert_close(module(x), wanted, rtol=0, atol=1e-3)
    with CpuProducts("native", dtype) as chosen:
        assert list(chosen.values()) == ["native"]


def test_measured_speeds_and_wrong_dtypes() -> None:
    from zerotorch.cpu_products import CpuProducts, measure
    from zerotorch.errors import ConfigError

    assert measure(torch.bfloat16, 64).in_fp32 > 0
    assert measure(torch.float32, 64) > (0, -1)
    assert measure(torch.float32, 64).in_fp32 == 0
    for dtype in (torch.float64, torch.int8):
        with pytest.raises(ConfigError, match="want torch.bfloat16"):
            measure(dtype)
    with pytest.raises(ConfigError, match="'both'; want auto, native or fp32"), CpuProducts("both"):
        pass


def trained(half: str, way: str, stage: int, accumulation: int) -> list[float]:
    """Losses of four micro-batches in each of three steps, by global micro-batch."""
    import torch.distributed as dist
    import zerotorch

    model = network()
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": accumulation,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        half: {"enabled": True},
        "zero_optimization": {"stage": stage},
        "zerotorch": {"cpu_products": way},
    }
    engine: Any = zerotorch.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
    losses = []
    for step in range(3):
        for micro in range(accumulation):
            index = 4 * step + micro * engine.world_size + engine.global_rank
            x = torch.randn(2, 24, generator=torch.Generator().manual_seed(index)).to(next(model.parameters()).dtype)
            loss = engine(x).float().square().mean()
            engine.backward(loss)
            engine.step()
            every = [torch.zeros(()) for _ in range(engine.world_size)]
            if engine.world_size > 1:
                dist.all_gather(every, loss.detach())
            else:
                every = [loss.detach()]
            losses += [value.item() for value in every]
    engine.destroy()
    return losses


@pytest.mark.parametrize("half", ["bf16", "fp16"])
def test_ranks_and_stages_have_the_same_bits(half: str) -> None:
    wanted = run(1, trained, half, "fp32", 0, 4)[0]
    for ranks in (1, 2, 4):
        for stage in (0, 2, 3):
            assert run(ranks, trained, half, "fp32", stage, 4 // ranks)[0] == wanted


def two_engines() -> str:
    import zerotorch
    from zerotorch.errors import ConfigError

    def make(way: str) -> Any:
        model = network()
        config = {
            "train_micro_batch_size_per_gpu": 1,
            "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
            "bf16": {"enabled": True},
            "zerotorch": {"cpu_products": way},
        }
        return zerotorch.initialize(model=model, model_parameters=model.parameters(), config=config)[0]

    first = make("fp32")
    try:
        make("native")
    except ConfigError as error:
        said = str(error)
    first.destroy()
    make("native").destroy()
    return said


def under_autocast(dtype: torch.dtype) -> tuple[str, bool]:
    """What auto takes, and whether an engine with fp32 parameters holds the process to it."""
    import zerotorch
    from zerotorch.cpu_products import CpuProducts
    from zerotorch.errors import ConfigError

    model = network()
    optimizer = {"type": "AdamW", "params": {"lr": 1e-2}}
    config = {"train_micro_batch_size_per_gpu": 2, "optimizer": optimizer}
    engine = zerotorch.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
    with CpuProducts("auto", dtype) as chosen:
        (way,) = chosen.values()
    x = torch.randn(2, 24)
    with torch.autocast("cpu", dtype):
        y = engine(x)
    engine.backward(y.float().sum())
    engine.step()
    try:
        with CpuProducts("native" if way == "fp32" else "fp32", dtype):
            held = False
    except ConfigError:
        held = True
    engine.destroy()
    with CpuProducts("native", dtype):
        pass
    return way, held


@pytest.mark.parametrize("dtype", DTYPES)
def test_fp32_parameters_under_autocast(dtype: torch.dtype) -> None:
    found = run(2, under_autocast, dtype)
    assert found[0] == found[1]
    assert found[0] in (("fp32", True), ("native", False))


def test_engines_of_a_process_agree() -> None:
    (said,) = run(1, two_engines)
    assert "zerotorch.cpu_products" in said
    assert "end that one first" in said

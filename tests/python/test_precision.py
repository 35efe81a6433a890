"""torch_autocast and data_types.buffer_dtype, beside plain torch under autocast."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import run
from torch import nn

WAYS = [(1, 0, ""), (2, 1, ""), (2, 2, ""), (2, 3, ""), (2, 3, "copying")]


def config(stage: int = 0, store: str = "", **more: Any) -> dict[str, Any]:
    own: dict[str, Any] = {"store": store, "unit_numel": 64} if store else {}
    return {
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "gradient_clipping": 0,
        "zerotorch": {"cpu_products": "fp32", **own},
        **more,
    }


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.norm, self.last = nn.Linear(17, 40), nn.LayerNorm(40), nn.Linear(40, 5)
        self.register_buffer("scale", torch.full((5,), 1.2345678))
        self.seen: list[torch.dtype] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        normal = self.norm(hidden)
        self.seen = [hidden.dtype]
        return self.last(torch.nn.functional.gelu(normal)).float() * self.scale


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(4, 17, generator=torch.Generator().manual_seed(10 * step + rank))


def plain(ranks: int) -> list[torch.Tensor]:
    from zerotorch.cpu_products import CpuProducts

    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0)
    for step in range(4):
        optimizer.zero_grad()
        for rank in range(ranks):
            with CpuProducts("fp32", torch.bfloat16):
                with torch.autocast("cpu", torch.bfloat16):
                    loss = model(batch(step, rank)).square().mean() / ranks
                loss.backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def trains_under_autocast(ranks: int, stage: int, store: str) -> None:
    import zerotorch

    model = Net()
    section = {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": ["torch.nn.modules.linear.Linear"]}
    engine = zerotorch.initialize(model=model, config=config(stage, store, torch_autocast=section))[0]
    assert engine.torch_autocast_enabled() and engine.torch_autocast_dtype() == torch.bfloat16
    assert engine.get_data_types()[0] == torch.float32
    for step in range(4):
        loss = engine(batch(step, engine.global_rank)).square().mean()
        assert model.seen[0] == torch.bfloat16
        engine.backward(loss)
        engine.step()
    with zerotorch.zero.GatheredParameters(list(model.parameters())):
        for mine, theirs in zip(model.parameters(), plain(ranks), strict=True):
            assert mine.dtype == torch.float32
            torch.testing.assert_close(mine.detach(), theirs, rtol=1e-4, atol=1e-5)
    engine.destroy()
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(("ranks", "stage", "store"), WAYS)
def test_autocast_trains_as_plain_torch(ranks: int, stage: int, store: str) -> None:
    run(ranks, trains_under_autocast, ranks, stage, store)


def refuses() -> None:
    import zerotorch

    for section, more, words in (
        ({"enabled": True, "dtype": "float16"}, {}, "loss scale"),
        ({"enabled": True}, {"fp16": {"enabled": True}}, "give both the same"),
        ({"enabled": "yes"}, {}, "neither true nor false"),
        ({"enabled": True, "dtyp": "bf16"}, {}, "torch_autocast.dtyp"),
        ({"enabled": True, "dtype": "int8"}, {}, "torch_autocast.dtype"),
        ([], {}, "is not an object"),
    ):
        with pytest.raises(zerotorch.ConfigError, match=words):
            zerotorch.initialize(model=Net(), config=config(torch_autocast=section, **more))
    for off in (None, {}, {"enabled": False, "dtype": "float16"}):
        engine = zerotorch.initialize(model=Net(), config=config(torch_autocast=off))[0]
        assert not engine.torch_autocast_enabled()
        engine.destroy()
    # Parameters of the same dtype: a norm still computes in fp32 where autocast says so.
    module = Net()
    engine = zerotorch.initialize(model=module, config=config(torch_autocast={"enabled": True}, bf16={"enabled": True}))[0]
    with torch.no_grad():
        assert torch.nn.functional.softmax(torch.ones(2, dtype=torch.bfloat16), 0).dtype == torch.bfloat16
        assert engine(batch(0, 0)).dtype == torch.float32 and module.seen == [torch.bfloat16]
    engine.destroy()
    with pytest.raises(zerotorch.ConfigError, match=r"data_types.buffer_dtype: 'int8'"):
        zerotorch.initialize(model=Net(), config=config(data_types={"buffer_dtype": "int8"}))


def test_what_it_refuses() -> None:
    run(1, refuses)


def buffers() -> None:
    import zerotorch

    for given, wanted in ((None, torch.float32), ("fp32", torch.float32), ("bf16", torch.bfloat16)):
        model = Net()
        types = {} if given is None else {"buffer_dtype": given}
        engine = zerotorch.initialize(model=model, config=config(2, bf16={"enabled": True}, data_types=types))[0]
        assert model.scale.dtype == wanted and model.first.weight.dtype == torch.bfloat16
        engine.destroy()
    # Without 16-bit parameters it has no effect, as in DeepSpeed.
    model = Net()
    model.scale = model.scale.half()
    engine = zerotorch.initialize(model=model, config=config(2, data_types={"buffer_dtype": "fp32"}))[0]
    assert model.scale.dtype == torch.float16
    engine.destroy()
    model = Net()
    model.scale = model.scale.double()
    types = {"buffer_dtype": "fp32"}
    engine = zerotorch.initialize(model=model, config=config(2, bf16={"enabled": True}, data_types=types))[0]
    assert model.scale.dtype == torch.float32
    engine.destroy()


def test_buffers_get_their_dtype() -> None:
    run(1, buffers)

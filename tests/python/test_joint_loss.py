"""zerotorch.backward(): one loss of two engines beside plain torch with two optimizers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import run
from torch import nn

CONFIG = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0}


def build() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(3)
    return nn.Linear(5, 7), nn.Linear(7, 1)


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(2, 5, generator=torch.Generator().manual_seed(10 * step + rank))


def engines_of(modules: tuple[nn.Module, nn.Module], stage: int, **more: Any) -> list[Any]:
    import zerotorch

    config = {**CONFIG, "zero_optimization": {"stage": stage}, **more}
    return [
        zerotorch.initialize(model=module, optimizer=torch.optim.SGD(module.parameters(), lr=0.1), config=config)[0]
        for module in modules
    ]


def trained_jointly(stage: int, accumulation: int, in_backward: bool) -> list[torch.Tensor]:
    import zerotorch

    modules = build()
    more: dict[str, Any] = {"gradient_accumulation_steps": accumulation}
    if in_backward:
        more["zerotorch"] = {"update": "in_backward"}
    first, second = engines_of(modules, stage, **more)
    for step in range(4):
        loss = second(first(batch(step, first.global_rank))).square().mean()
        zerotorch.backward(loss, [first, second])
        first.step()
        second.step()
    with zerotorch.zero.GatheredParameters([p for module in modules for p in module.parameters()]):
        return [p.detach().clone() for module in modules for p in module.parameters()]


def trained_in_plain_torch(ranks: int, accumulation: int) -> list[torch.Tensor]:
    modules = build()
    parameters = [p for module in modules for p in module.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for step in range(4):
        for rank in range(ranks):
            (modules[1](modules[0](batch(step, rank))).square().mean() / (ranks * accumulation)).backward()
        if (step + 1) % accumulation == 0:
            optimizer.step()
            optimizer.zero_grad()
    return [p.detach() for p in parameters]


@pytest.mark.parametrize(
    ("stage", "accumulation", "in_backward"), [(0, 1, False), (2, 2, False), (3, 1, False), (2, 1, True)]
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_has_plain_torchs_numbers(ranks: int, stage: int, accumulation: int, in_backward: bool) -> None:
    wanted = trained_in_plain_torch(ranks, accumulation)
    for weights in run(ranks, trained_jointly, stage, accumulation, in_backward):
        torch.testing.assert_close(weights, wanted, rtol=1e-5, atol=1e-6)


def refusals() -> None:
    import zerotorch

    modules = build()
    first, second = engines_of(modules, 1)
    scout = zerotorch.initialize(model=nn.Linear(1, 1), config=CONFIG)[0]

    def loss() -> torch.Tensor:
        return second(first(batch(0, 0))).square().mean()

    for engines, words in (([], "no engine"), ([first, scout], "only evaluates")):
        with pytest.raises(zerotorch.UsageError, match=words):
            zerotorch.backward(loss(), engines)
    for vector in (first(batch(0, 0)), 1.0):
        with pytest.raises(zerotorch.UsageError, match="needs a scalar tensor"):
            first.scale(vector)
    with first.no_sync(), pytest.raises(zerotorch.UsageError, match="do not end their window"):
        zerotorch.backward(loss(), [first, second])
    first.backward(loss())
    first.step()
    with pytest.raises(zerotorch.ModelError, match=r"zerotorch\.backward\(loss, \[a, b\]\)"):
        second.step()
    second.zero_grad()
    zerotorch.backward(loss(), [first, second])
    second.destroy()
    with pytest.raises(zerotorch.UsageError, match="was destroyed"):
        zerotorch.backward(loss(), [first, second])


def test_says_what_it_cannot_do() -> None:
    run(1, refusals)

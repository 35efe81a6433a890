"""What an engine takes over of a module: parameters whose memory others know of, and modules that have an engine."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ranks import run
from torch import nn

CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "optimizer": {"type": "SGD", "params": {"lr": 1.0}},
    "gradient_clipping": 0,
    "zero_optimization": {"stage": 3},
}


def make(module: nn.Module, **more: Any) -> Any:
    import zerotorch

    return zerotorch.initialize(model=module, model_parameters=module.parameters(), config={**CONFIG, **more})[0]


def asked_for() -> None:
    """Loaders of files ask for storages."""
    module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3, bias=False))
    before = [p.detach().clone() for p in module.parameters()]
    for p in module.parameters():
        p.untyped_storage().data_ptr()
    flat = torch.cat([p.detach().flatten() for p in module[0].parameters()])
    flat.untyped_storage()
    module[0].weight.data, module[0].bias.data = flat[:9].view(3, 3), flat[9:]
    del flat
    engine = make(module)
    assert all(torch.equal(p, value) for p, value in zip(module.parameters(), before, strict=True))
    engine.destroy()


def test_storages_that_were_asked_for() -> None:
    run(1, asked_for)


def shared(how: str) -> str:
    import zerotorch

    module: Any = nn.Linear(3, 3)
    if how == "storage":
        keep: Any = module.weight.untyped_storage()
    elif how == "view":
        module.weight.untyped_storage()
        keep = module.weight.detach()
    else:
        module.weight.untyped_storage()
        module.other = nn.Parameter(module.weight.data)
        keep = None
    with pytest.raises(zerotorch.ModelError) as error:
        make(module)
    del keep
    return str(error.value)


@pytest.mark.parametrize("how, says", [("storage", "shares"), ("view", "share"), ("tied", "share memory but are two")])
def test_memory_that_somebody_else_has(how: str, says: str) -> None:
    assert says in run(1, shared, how)[0]


def thrown_away() -> None:
    import zerotorch

    with zerotorch.zero.Init():
        first = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    kept = first[1].weight
    engine = make(nn.Sequential(first[0]))
    assert kept.isfinite().all()
    engine.destroy()


def test_a_parameter_of_a_model_that_is_thrown_away() -> None:
    run(2, thrown_away)


def beside() -> None:
    import zerotorch

    module = nn.Linear(3, 1)
    engine = make(module)
    one, optimizer, _, _ = zerotorch.initialize(model=module, config={"train_micro_batch_size_per_gpu": 1})
    assert optimizer is None
    x = torch.ones(1, 3)
    for _ in range(2):
        with torch.no_grad():
            assert torch.equal(one(x), engine(x))
        engine.backward(engine(x).sum())
        engine.step()
    with pytest.raises(zerotorch.UsageError, match="only evaluates"):
        one.backward(one(x).sum())
    with pytest.raises(zerotorch.ConfigError, match="bfloat16"):
        zerotorch.initialize(model=module, config={"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}})
    one.destroy()
    assert engine(x).isfinite().all() and zerotorch.utils.safe_get_full_fp32_param(module.weight) is not None
    engine.destroy()
    make(module).destroy()


def test_evaluating_beside_the_engine_that_trains() -> None:
    run(2, beside)


def without_its_engine() -> str:
    import zerotorch

    module = nn.Linear(3, 1)
    engine = make(module)
    keep = engine.optimizer
    del engine
    with pytest.raises(zerotorch.UsageError) as error, zerotorch.zero.GatheredParameters(module.weight):
        pass
    keep._core.destroy()
    return str(error.value)


def test_an_optimizer_without_its_engine() -> None:
    assert "keep the engine as well" in run(1, without_its_engine)[0]


def with_spectral_norms(stage: int) -> None:
    """Of the old kind, whose tensor shares the parameter's memory until the first forward."""

    def build() -> nn.Module:
        torch.manual_seed(3)
        norm = torch.nn.utils.spectral_norm
        module = nn.Sequential(norm(nn.Linear(5, 7)), nn.Tanh(), norm(nn.Linear(7, 3)))
        if stage == 3:
            module(torch.ones(1, 5))  # its graph holds the parameter
        return module

    plain, sharded = build(), build()
    engine = make(sharded, zero_optimization={"stage": stage}, gradient_accumulation_steps=1)
    optimizer = torch.optim.SGD(plain.parameters(), lr=1.0)
    for step in range(4):
        x = torch.randn(2, 5, generator=torch.Generator().manual_seed(step))
        expected, got = plain(x).square().mean(), engine(x).square().mean()
        assert abs(expected.item() - got.item()) < 1e-6, step
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        engine.backward(got)
        engine.step()
    engine.destroy()


@pytest.mark.parametrize("stage", [0, 3])
@pytest.mark.parametrize("ranks", [1, 2])
def test_spectral_norms_of_the_old_kind_have_plain_torchs_numbers(ranks: int, stage: int) -> None:
    run(ranks, with_spectral_norms, stage)


def without_parameters() -> None:
    import zerotorch

    with pytest.raises(zerotorch.ConfigError, match="nothing to train"):
        zerotorch.initialize(model=nn.Sequential(nn.ReLU()), config=CONFIG)
    with pytest.raises(zerotorch.ModelError, match="the model has no parameters"):  # an engine that only evaluates
        zerotorch.initialize(model=nn.Sequential(nn.ReLU()), config={"train_micro_batch_size_per_gpu": 1})


def test_a_module_without_parameters_is_refused() -> None:
    run(1, without_parameters)

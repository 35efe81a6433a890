"""The life of an engine (docs/python.md): it ends, is forgotten, is replaced, evaluates first, or shares a module. After
each transition training goes on as in plain torch."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from ranks import run
from torch import nn

CONFIG = {"train_micro_batch_size_per_gpu": 2, "gradient_clipping": 0}
STAGES = ["0", "2", "3", "3 copying"]
WAYS = [(1, "0"), (1, "3"), (2, "0"), (2, "2"), (2, "3")]


def config(stage: str, **more: Any) -> dict[str, Any]:
    number, _, store = stage.partition(" ")
    zero: dict[str, Any] = {"stage": int(number)}
    own: dict[str, Any] = {}
    if store:
        zero["stage3_param_persistence_threshold"] = 0
        own = {"store": store, "unit_numel": 64}
    return {**CONFIG, "zero_optimization": zero, "zerotorch": own, **more}


def build() -> nn.Sequential:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(5, 16), nn.Tanh(), nn.Linear(16, 3))


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(2, 5, generator=torch.Generator().manual_seed(10 * step + rank))


def sgd(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=0.1, momentum=0.9)


def make(module: nn.Module, stage: str, **more: Any) -> Any:
    import zerotorch

    return zerotorch.initialize(model=module, optimizer=sgd(module), config=config(stage, **more))[0]


def evaluating(module: nn.Module, stage: str) -> Any:
    import zerotorch

    return zerotorch.initialize(model=module, config=config(stage))[0]


def train(engine: Any, first: int = 0, last: int = 3) -> None:
    for step in range(first, last):
        engine.backward(engine(batch(step, engine.global_rank)).square().mean())
        engine.step()


def train_plain(module: nn.Module, ranks: int, first: int = 0, last: int = 3) -> nn.Module:
    optimizer = sgd(module)
    for step in range(first, last):
        optimizer.zero_grad()
        for rank in range(ranks):
            (module(batch(step, rank)).square().mean() / ranks).backward()
        optimizer.step()
    return module


def weights(module: nn.Module) -> list[torch.Tensor]:
    import zerotorch

    with zerotorch.zero.GatheredParameters(list(module.parameters())):
        return [p.detach().clone() for p in module.parameters()]


def assert_same(module: nn.Module, expected: nn.Module) -> None:
    torch.testing.assert_close(weights(module), [p.detach() for p in expected.parameters()], rtol=1e-5, atol=1e-6)


# ---- evaluated, then trained ----


def evaluated_then_trained(ranks: int, stage: str, end: str, in_a_larger_one: bool) -> None:
    module = build()
    scout = evaluating(module, stage)
    with torch.no_grad():
        seen = scout(batch(0, 0))
    kept = scout if end == "kept" else None
    if end == "destroyed":
        scout.destroy()
    del scout
    assert all(p.requires_grad for p in module.parameters())
    whole, plain = (nn.Sequential(module, nn.Linear(3, 2)) if in_a_larger_one else module), build()
    if in_a_larger_one:
        plain = nn.Sequential(plain, nn.Linear(3, 2))
        plain[1].load_state_dict(whole[1].state_dict())
    engine = make(whole, stage)
    with torch.no_grad():
        assert torch.equal(module(batch(0, 0)), seen)
        if kept is not None:
            assert torch.equal(kept(batch(0, 0)), seen)
    train(engine)
    assert_same(whole, train_plain(plain, ranks))
    engine.destroy()


@pytest.mark.parametrize("in_a_larger_one", [False, True])
@pytest.mark.parametrize("end", ["destroyed", "forgotten", "kept"])
@pytest.mark.parametrize(("ranks", "stage"), WAYS)
def test_a_module_that_was_evaluated_trains_as_in_plain_torch(
    ranks: int, stage: str, end: str, in_a_larger_one: bool
) -> None:
    run(ranks, evaluated_then_trained, ranks, stage, end, in_a_larger_one)


@pytest.mark.parametrize("in_a_larger_one", [False, True])
@pytest.mark.parametrize("end", ["destroyed", "forgotten", "kept"])
def test_values_that_only_shards_have_are_taken_over(end: str, in_a_larger_one: bool) -> None:
    run(2, evaluated_then_trained, 2, "3 copying", end, in_a_larger_one)


def shards_end_with_their_module() -> None:
    module = build()
    evaluating(module, "3 copying").destroy()
    core = weakref.ref(next(module.parameters())._zerotorch_engine.core())
    assert core() is not None
    del module
    gc.collect()
    assert core() is None


def test_shards_of_an_engine_that_evaluated_end_with_their_module() -> None:
    run(2, shards_end_with_their_module)


def evaluates_as_plain_torch(stage: str) -> None:
    """With gradients on: of the input, and of the module's own parameters."""
    module, plain = build(), build()
    engine = evaluating(module, stage)
    for step in range(2):
        x, y = batch(step, 0).requires_grad_(), batch(step, 0).requires_grad_()
        engine(x).square().mean().backward()
        plain(y).square().mean().backward()
        assert torch.equal(x.grad, y.grad)
    for p, q in zip(module.parameters(), plain.parameters(), strict=True):
        assert p.requires_grad and torch.equal(p.grad, q.grad)
    engine.destroy()
    assert all(p.grad is not None for p in module.parameters())


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("ranks", [1, 2])
def test_an_engine_that_evaluates_leaves_gradients_alone(ranks: int, stage: str) -> None:
    run(ranks, evaluates_as_plain_torch, stage)


def evaluated_engine_loads(folder: str, stage: str) -> None:
    trained = build()
    engine = make(trained, stage)
    train(engine)
    engine.save_checkpoint(folder)
    module = build()
    scout = evaluating(module, stage)
    scout(batch(0, 0)).sum().backward()
    scout.load_checkpoint(folder)
    assert all(torch.equal(a, b) for a, b in zip(weights(module), weights(trained), strict=True))
    assert all(p.requires_grad and p.grad is not None for p in module.parameters())
    scout.destroy()
    engine.destroy()


@pytest.mark.parametrize(("ranks", "stage"), [(1, "0"), (2, "3")])
def test_an_engine_that_evaluates_loads_a_checkpoint(tmp_path: Any, ranks: int, stage: str) -> None:
    run(ranks, evaluated_engine_loads, str(tmp_path), stage)


# ---- made again ----


def made_again(ranks: int, stage: str) -> None:
    import zerotorch

    module, plain = build(), build()
    first = make(module, stage)
    beside = evaluating(module, stage)
    train(first)
    train_plain(plain, ranks)
    first.backward(first(batch(0, 0)).sum())  # a window that is not over goes with its engine
    second = make(module, stage)
    for call in (first.step, lambda: first.backward(first(batch(0, 0)).sum()), first.optimizer.step):
        with pytest.raises(zerotorch.UsageError, match="was replaced"):
            call()
    train(second, 3, 6)
    train_plain(plain, ranks, 3, 6)
    assert_same(module, plain)
    with torch.no_grad():
        wanted = plain(batch(9, 0))
        for engine in (first, beside, second):
            torch.testing.assert_close(engine(batch(9, 0)), wanted, rtol=1e-5, atol=1e-6)
    first.destroy()  # changes nothing any more
    train(second, 6, 7)
    second.destroy()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("ranks", [1, 2])
def test_initialize_again_replaces_the_engine(ranks: int, stage: str) -> None:
    run(ranks, made_again, ranks, stage)


def only_its_optimizer_is_left(stage: str) -> None:
    import zerotorch

    module = build()
    optimizer = make(module, stage).optimizer
    gc.collect()
    engine = make(module, stage)
    train(engine)
    with pytest.raises(zerotorch.UsageError, match="destroyed"):
        optimizer.step()
    engine.destroy()


def test_what_is_left_of_a_forgotten_engine_gives_way() -> None:
    run(1, only_its_optimizer_is_left, "3")


def shares_a_part(stage: str) -> None:
    import zerotorch

    module = build()
    engine = make(module, stage)
    with pytest.raises(zerotorch.ModelError, match="another engine"):
        make(nn.Sequential(module[0], nn.Linear(16, 1)), stage)
    train(engine)
    engine.destroy()


def test_an_engine_that_trains_more_keeps_its_parameters() -> None:
    run(2, shares_a_part, "2")


# ---- at the end ----


def head_only(module: nn.Sequential, stage: str) -> Any:
    import zerotorch

    optimizer = torch.optim.SGD(module[2].parameters(), lr=0.1)
    return zerotorch.initialize(model=module, optimizer=optimizer, config=config(stage))[0]


def forgotten(module: nn.Sequential, stage: str) -> None:
    train(head_only(module, stage))
    gc.collect()


def destroyed(module: nn.Sequential, stage: str) -> None:
    engine = head_only(module, stage)
    train(engine)
    assert [p.requires_grad for p in module.parameters()] == [False, False, False, True, True]
    engine.destroy()


def refused(module: nn.Sequential, stage: str) -> None:
    import zerotorch

    with pytest.raises(zerotorch.ConfigError):
        head_only(module, stage + " no such store")


ENDS: dict[str, Callable[[nn.Sequential, str], None]] = {
    "forgotten": forgotten,
    "destroyed": destroyed,
    "refused": refused,
}


def as_it_was(stage: str, end: str) -> None:
    module = build()
    frozen = nn.Parameter(torch.ones(3), requires_grad=False)
    module.register_parameter("frozen", frozen)
    before = [set(vars(p)) for p in module.parameters()], [len(m._state_dict_hooks) for m in module.modules()]
    ENDS[end](module, stage)
    after = [set(vars(p)) for p in module.parameters()], [len(m._state_dict_hooks) for m in module.modules()]
    assert after == before
    assert [p.requires_grad for p in module.parameters()] == [False, True, True, True, True]


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("stage", ["0", "3"])
def test_the_module_is_as_it_was(stage: str, end: str) -> None:
    run(1, as_it_was, stage, end)


def goes_on_in_plain_torch(stage: str) -> None:
    import zerotorch

    module, plain = build(), build()
    client = sgd(module)
    engine = zerotorch.initialize(model=module, optimizer=client, config=config(stage))[0]
    train(engine)
    engine.backward(engine(batch(0, 0)).sum())
    engine.destroy()
    for call in (engine.step, lambda: engine.backward(engine(batch(0, 0)).sum()), engine.optimizer.step):
        with pytest.raises(zerotorch.UsageError, match="was destroyed"):
            call()
    train_plain(plain, 1)
    with torch.no_grad():
        torch.testing.assert_close(engine(batch(9, 0)), plain(batch(9, 0)), rtol=1e-5, atol=1e-6)
    module(batch(3, 0)).square().mean().backward()
    client.step()
    assert_same(module, train_plain(plain, 1, 3, 4))


@pytest.mark.parametrize("stage", STAGES)
def test_a_destroyed_engine_leaves_an_ordinary_module_and_optimizer(stage: str) -> None:
    run(1, goes_on_in_plain_torch, stage)


def optimizer_outlives_its_engine(stage: str) -> None:
    """An engine that is collected leaves the program's optimizer ordinary, also where another has followed it."""
    import zerotorch

    module, plain = build(), build()
    client = sgd(module)
    engine = zerotorch.initialize(model=module, optimizer=client, config=config(stage))[0]
    train(engine)
    del engine
    gc.collect()
    assert client.state_dict()["state"] == {}
    module(batch(3, 0)).square().mean().backward()
    client.step()
    train_plain(plain, 1)
    assert_same(module, train_plain(plain, 1, 3, 4))
    client = sgd(module)
    engine = zerotorch.initialize(model=module, optimizer=client, config=config(stage))[0]
    following = zerotorch.initialize(model=module, optimizer=client, config=config(stage))[0]
    del engine
    gc.collect()
    with pytest.raises(zerotorch.UsageError, match="sharded"):
        client.state_dict()
    train(following)
    following.destroy()


@pytest.mark.parametrize("stage", STAGES)
def test_an_optimizer_outlives_its_engine(stage: str) -> None:
    run(1, optimizer_outlives_its_engine, stage)


def evaluates_after_its_trainer(stage: str) -> None:
    module = build()
    engine = make(module, stage)
    beside = evaluating(module, stage)
    train(engine)
    with torch.no_grad():
        wanted = beside(batch(0, 0))
        engine.destroy()
        assert torch.equal(beside(batch(0, 0)), wanted)
    beside.destroy()


@pytest.mark.parametrize(("ranks", "stage"), WAYS)
def test_an_engine_evaluates_beside_one_that_ends(ranks: int, stage: str) -> None:
    run(ranks, evaluates_after_its_trainer, stage)

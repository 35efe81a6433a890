"""A program's optimizer beside plain torch: what it, its hooks and its groups do in a step, and what it must not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import run
from torch import nn
from torch.optim import optimizer as torch_optimizer

STEPS = 4
CONFIG = {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0, "zero_allow_untested_optimizer": True}
Make = Callable[[nn.Module], torch.optim.Optimizer]


class Counting(torch.optim.Optimizer):
    """Keeps a number in its groups, and lowers its rate itself."""

    def __init__(self, params: Any, lr: float = 1.0) -> None:
        super().__init__(params, {"lr": lr, "k": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["k"] += 1
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(p.grad, alpha=-group["lr"] / group["k"])
            group["lr"] *= 0.9


class OfWholeTensors(torch.optim.Optimizer):
    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1, "d": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["d"] = sum(float(p.grad.norm()) for p in group["params"] if p.grad is not None)


def halve(optimizer: Any, *_: Any) -> None:
    for group in optimizer.param_groups:
        group["lr"] *= 0.5


def counting(module: nn.Module) -> torch.optim.Optimizer:
    return Counting(module.parameters())


def counting_in_groups(module: nn.Module) -> torch.optim.Optimizer:
    weights = [p for p in module.parameters() if p.dim() > 1]
    biases = [p for p in module.parameters() if p.dim() == 1]
    return Counting([{"params": weights}, {"params": []}, {"params": biases, "lr": 0.3, "k": 1}])


def halved(kind: Any) -> Make:
    def make(module: nn.Module) -> torch.optim.Optimizer:
        optimizer = kind(module.parameters(), lr=0.1)
        optimizer.register_step_pre_hook(halve)
        optimizer.register_step_post_hook(lambda o, *_: o.param_groups[0].update(weight_decay=0.1))
        return optimizer

    return make


def halved_by_closure(kind: Any) -> Make:
    def make(module: nn.Module) -> torch.optim.Optimizer:
        optimizer = kind(module.parameters(), lr=0.1)
        optimizer.register_step_pre_hook(lambda *_: halve(optimizer))
        return optimizer

    return make


def coupled(module: nn.Module) -> torch.optim.Optimizer:
    groups = [{"params": list(module.parameters()), "decoupled_weight_decay": False}]
    return torch.optim.AdamW(groups, lr=0.1, weight_decay=0.5)


def adagrad(module: nn.Module) -> torch.optim.Optimizer:
    groups = [{"params": list(module.parameters()), "initial_accumulator_value": 0.5}]
    return torch.optim.Adagrad(groups, lr=0.1)


CASES: dict[str, Make] = {
    "its own numbers": counting,
    "its own numbers, in groups": counting_in_groups,
    "hooks of SGD": halved(torch.optim.SGD),
    "hooks of AdamW": halved(torch.optim.AdamW),
    "hooks of NAdam": halved(torch.optim.NAdam),
    "hooks that know SGD": halved_by_closure(torch.optim.SGD),
    "hooks that know NAdam": halved_by_closure(torch.optim.NAdam),
    "AdamW": lambda module: torch.optim.AdamW(module.parameters(), lr=0.1, weight_decay=0.5),
    "Adam": lambda module: torch.optim.Adam(module.parameters(), lr=0.1, weight_decay=0.5),
    "Adam with decoupled_weight_decay": lambda module: torch.optim.Adam(
        module.parameters(), lr=0.1, weight_decay=0.5, decoupled_weight_decay=True
    ),
    "AdamW without decoupled_weight_decay": coupled,
    "Adagrad with a value of a group": adagrad,
}


def build() -> nn.Module:
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def batch(step: int) -> torch.Tensor:
    return torch.randn(2, 5, generator=torch.Generator().manual_seed(step))


def numbers_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def plain(make: Make) -> tuple[list[torch.Tensor], list[dict[str, Any]]]:
    module = build()
    optimizer = make(module)
    for step in range(STEPS):
        optimizer.zero_grad()
        module(batch(step)).square().mean().backward()
        optimizer.step()
    return [p.detach() for p in module.parameters()], numbers_of(optimizer)


def trained(case: str, stage: int, accumulation: int) -> tuple[list[torch.Tensor], list[dict[str, Any]]]:
    import zerotorch

    module = build()
    optimizer = CASES[case](module)
    config = {**CONFIG, "gradient_accumulation_steps": accumulation, "zero_optimization": {"stage": stage}}
    engine = zerotorch.initialize(model=module, optimizer=optimizer, config=config)[0]
    for step in range(STEPS):
        for _ in range(accumulation):
            engine.backward(engine(batch(step)).square().mean())
            engine.step()
    with zerotorch.zero.GatheredParameters(list(module.parameters())):
        weights = [p.detach().clone() for p in module.parameters()]
    engine.destroy()
    return weights, numbers_of(optimizer)


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_plain_torchs(case: str) -> None:
    weights, numbers = plain(CASES[case])
    first = None
    for ranks, stage, accumulation in ((1, 0, 1), (1, 3, 2), (2, 1, 2), (2, 3, 1)):
        for result, its_numbers in run(ranks, trained, case, stage, accumulation):
            torch.testing.assert_close(result, weights, rtol=1e-5, atol=1e-6)
            assert its_numbers == numbers
            first = first or result
            assert all(torch.equal(a, b) for a, b in zip(result, first, strict=True))


def calls_of_hooks(accumulation: int) -> list[int]:
    import zerotorch

    module = build()
    client = torch.optim.SGD(module.parameters(), lr=0.1)
    config = {**CONFIG, "gradient_accumulation_steps": accumulation}
    engine = zerotorch.initialize(model=module, optimizer=client, config=config)[0]
    calls = [0, 0, 0]

    def count(index: int) -> Callable[..., None]:
        return lambda *_: calls.__setitem__(index, calls[index] + 1)

    engine.optimizer.register_step_pre_hook(count(0))
    client.register_step_post_hook(count(1))
    everyones = torch_optimizer.register_optimizer_step_post_hook(count(2))
    for step in range(8):
        engine.backward(engine(batch(step)).square().mean())
        engine.step()
    everyones.remove()
    return calls


@pytest.mark.parametrize("accumulation", [1, 2, 4])
def test_hooks_are_called_once_an_update(accumulation: int) -> None:
    assert run(1, calls_of_hooks, accumulation) == [[8 // accumulation] * 3]


class OnOneRank(torch.optim.Optimizer):
    """Changes numbers of its groups on one rank only."""

    rank = 0

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if torch.distributed.get_rank() == self.rank:
            self.param_groups[0]["found"] = 1.0


class OnTheOther(OnOneRank):
    rank = 1


def of_whole_tensors(kind: Callable[[Any], torch.optim.Optimizer]) -> str:
    import zerotorch

    module = build()
    config = {**CONFIG, "zero_optimization": {"stage": 1}}
    engine = zerotorch.initialize(model=module, optimizer=kind(module.parameters()), config=config)[0]
    engine.backward(engine(batch(0)).square().mean())
    try:
        engine.step()
    except zerotorch.UsageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("kind", "says"), [(OfWholeTensors, "group 0: d"), (OnOneRank, "changed nothing"), (OnTheOther, "group 0: found")]
)
def test_ranks_that_make_different_numbers_are_an_error(
    kind: Callable[[Any], torch.optim.Optimizer], says: str
) -> None:
    for said in run(2, of_whole_tensors, kind):
        assert "rank 1: it has" in said and "treats elements one by one" in said and says in said


def whose_states_it_were() -> None:
    import zerotorch

    module = build()
    client = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    before = client.state_dict()
    engine = zerotorch.initialize(model=module, optimizer=client, config=CONFIG)[0]
    for what in (
        lambda: client.state.clear(),
        lambda: client.load_state_dict(before),
        lambda: client.state_dict(),
        lambda: engine.optimizer.state.clear(),
        lambda: setattr(engine.optimizer, "state", {}),
    ):
        with pytest.raises(zerotorch.UsageError, match="sharded over the ranks"):
            what()
    engine.destroy()
    assert client.state_dict() == before


def test_states_are_the_engines() -> None:
    run(1, whose_states_it_were)


def changed_too_late() -> None:
    import zerotorch

    def engine_of(make: Make) -> tuple[Any, torch.optim.Optimizer]:
        module = build()
        client = make(module)
        engine = zerotorch.initialize(model=module, optimizer=client, config=CONFIG)[0]
        engine.backward(engine(batch(0)).square().mean())
        return engine, client

    engine, client = engine_of(CASES["Adam"])
    client.param_groups[0]["decoupled_weight_decay"] = True
    with pytest.raises(zerotorch.UsageError, match="another decoupled_weight_decay"):
        engine.step()
    for make in (CASES["AdamW"], counting):
        engine, client = engine_of(make)
        client.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
        with pytest.raises(zerotorch.UsageError, match="has got a parameter group since initialize"):
            engine.step()


def test_what_an_engine_takes_once_cannot_change() -> None:
    run(1, changed_too_late)


def another_step() -> list[str]:
    import zerotorch

    said: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    zerotorch.logger.addHandler(Listener())
    module = build()
    module[0].weight.grad = torch.ones(7, 5)
    client = torch.optim.SGD(module.parameters(), lr=0.1)
    torch.optim.lr_scheduler.StepLR(client, 1)
    engine = zerotorch.initialize(model=module, optimizer=client, config=CONFIG)[0]
    for step in range(3):
        if step == 1:
            client.step = lambda *_: None  # type: ignore[method-assign]
        engine.backward(engine(batch(step)).square().mean())
        engine.step()
        said.append(str(step))
    return said


def test_a_step_that_is_not_called_is_told() -> None:
    said = run(1, another_step)[0]
    where = [i for i, text in enumerate(said) if "was replaced by another" in text]
    assert len(where) == 1 and said.index("0") < where[0] < said.index("1")
    assert sum("gradients from before initialize()" in text for text in said) == 1


def test_different_decays_are_refused_by_their_name() -> None:
    import zerotorch

    module = build()
    first, *rest = module.parameters()
    client = torch.optim.Adam([{"params": [first], "decoupled_weight_decay": True}, {"params": rest}], lr=0.1)
    with pytest.raises(zerotorch.ConfigError, match="decoupled_weight_decay is true in some"):
        zerotorch.initialize(model=module, optimizer=client, config=CONFIG)


def asked_of_the_engine() -> None:
    import zerotorch

    module = build()
    client = torch.optim.SGD(module.parameters(), lr=0.1)
    engine = zerotorch.initialize(model=module, optimizer=client, config=CONFIG)[0]
    engine.set_lr(0.25)
    assert engine.get_lr() == [0.25] == [client.param_groups[0]["lr"]]
    assert not engine.dynamic_loss_scale() and not engine.wall_clock_breakdown() and engine.steps_per_print() >= 0
    assert not hasattr(engine, "train_batch")
    with pytest.raises(AttributeError, match="pipelines are not built"):
        engine.train_batch()


def test_members_of_deepspeeds_engine() -> None:
    run(1, asked_of_the_engine)


def goes_without_the_collector() -> list[bool]:
    import gc
    import weakref

    import torch._dynamo  # which keeps what imports it first
    import zerotorch

    gone = []
    for make in (CASES["hooks of AdamW"], counting):
        gc.collect()
        gc.disable()
        module = build()
        engine = zerotorch.initialize(model=module, optimizer=make(module), config=CONFIG)[0]
        engine.backward(engine(batch(0)).square().mean())
        engine.step()
        optimizer = weakref.ref(engine.optimizer)
        del engine, module
        gone.append(optimizer() is None)
        gc.enable()
    return gone


def test_an_engine_with_a_programs_optimizer_goes_at_once() -> None:
    assert run(1, goes_without_the_collector) == [[True, True]]


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 3)
        self.seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return self.linear(x)

    def get_extra_state(self) -> Any:
        return {"seen": self.seen, "table": torch.arange(3)}

    def set_extra_state(self, state: Any) -> None:
        assert torch.equal(state["table"], torch.arange(3))
        self.seen = state["seen"]


def remembered(folder: str, stage: int) -> int:
    import zerotorch

    def start() -> Any:
        module = nn.Sequential(nn.Identity(), Remembers())
        config = {**CONFIG, "zero_optimization": {"stage": stage}}
        client = torch.optim.SGD(module.parameters(), lr=0.1)
        return zerotorch.initialize(model=module, optimizer=client, config=config)[0]

    engine = start()
    for step in range(3):
        engine.backward(engine(batch(step)).square().mean())
        engine.step()
    engine.save_checkpoint(folder)
    engine.destroy()
    engine = start()
    engine.load_checkpoint(folder)
    return engine.module[1].seen


@pytest.mark.parametrize(("ranks", "stage"), [(1, 0), (2, 3)])
def test_extra_states_of_modules_are_saved(tmp_path: Path, ranks: int, stage: int) -> None:
    assert run(ranks, remembered, str(tmp_path), stage) == [3] * ranks


# ---- states over shards ----


class Keeping(torch.optim.Optimizer):
    """Momentum with a state of a given kind beside it."""

    def __init__(self, params: Any, kind: str) -> None:
        super().__init__(params, {"lr": 0.1})
        self.kind = kind

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for p in self.param_groups[0]["params"]:
            if p.grad is None:
                continue
            state = self.state[p]
            if not state:
                state["momentum"] = torch.zeros_like(p, dtype=torch.bfloat16 if self.kind == "bf16" else None)
                state["count"] = torch.zeros((1,)) if self.kind == "(1,)" else 0
                if self.kind == "vector":
                    state["count"] = torch.zeros(3)
            state["count"] += 1
            state["momentum"].mul_(0.5).add_(p.grad.to(state["momentum"].dtype))
            p.sub_(state["momentum"].float() * (0.1 / float(torch.as_tensor(state["count"]).max())))


def kept(folder: str, kind: str, stage: int) -> list[torch.Tensor]:
    import zerotorch

    def start() -> Any:
        module = build()
        config = {**CONFIG, "zero_optimization": {"stage": stage}}
        return zerotorch.initialize(model=module, optimizer=Keeping(module.parameters(), kind), config=config)[0]

    def step(engine: Any, number: int) -> None:
        engine.backward(engine(batch(number)).square().mean())
        engine.step()

    engine = start()
    if kind == "vector":
        with pytest.raises(zerotorch.UsageError, match="its state 'count' is a torch.float32 tensor of shape"):
            step(engine, 0)
        return []
    step(engine, 0)
    step(engine, 1)
    engine.save_checkpoint(folder)
    engine.destroy()
    engine = start()
    engine.load_checkpoint(folder)
    step(engine, 2)
    with zerotorch.zero.GatheredParameters(list(engine.module.parameters())):
        return [p.detach().clone() for p in engine.module.parameters()]


@pytest.mark.parametrize("kind", ["number", "(1,)", "bf16", "vector"])
@pytest.mark.parametrize(("ranks", "stage"), [(1, 0), (2, 2)])
def test_states_are_saved_or_refused_at_once(tmp_path: Path, ranks: int, stage: int, kind: str) -> None:
    module = build()
    optimizer = Keeping(module.parameters(), kind)
    for step in range(3):
        optimizer.zero_grad()
        module(batch(step)).square().mean().backward()
        optimizer.step()
    for weights in run(ranks, kept, str(tmp_path), kind, stage):
        if kind != "vector":
            torch.testing.assert_close(weights, [p.detach() for p in module.parameters()], rtol=1e-5, atol=1e-6)


class Both(torch.optim.Optimizer):
    """Made of two others, whose states it does not have."""

    def __init__(self, module: Any) -> None:
        self.parts = [
            torch.optim.SGD(module[0].parameters(), lr=0.1, momentum=0.9),
            torch.optim.AdamW(module[2].parameters(), lr=0.01),
        ]
        super().__init__([group for part in self.parts for group in part.param_groups], {})
        self.param_groups = [group for part in self.parts for group in part.param_groups]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for part in self.parts:
            part.step()


def made_of_two(folder: str, stage: int) -> list[torch.Tensor]:
    import zerotorch

    def start() -> Any:
        module = build()
        config = {**CONFIG, "zero_allow_untested_optimizer": stage > 0, "zero_optimization": {"stage": stage}}
        return zerotorch.initialize(model=module, optimizer=Both(module), config=config)[0]

    engine = start()
    for step in range(4):
        if step == 2:
            engine.save_checkpoint(folder)
            engine.destroy()
            engine = start()
            engine.load_checkpoint(folder)
        engine.backward(engine(batch(step)).square().mean())
        engine.step()
    with zerotorch.zero.GatheredParameters(list(engine.module.parameters())):
        return [p.detach().clone() for p in engine.module.parameters()]


@pytest.mark.parametrize(("ranks", "stage"), [(1, 0), (2, 0), (2, 2), (2, 3)])
def test_an_optimizer_that_is_made_of_others(tmp_path: Path, ranks: int, stage: int) -> None:
    module = build()
    optimizer = Both(module)
    for step in range(4):
        module.zero_grad()
        module(batch(step)).square().mean().backward()
        optimizer.step()
    for weights in run(ranks, made_of_two, str(tmp_path), stage):
        torch.testing.assert_close(weights, [p.detach() for p in module.parameters()], rtol=1e-5, atol=1e-6)


class ScheduleFree(torch.optim.Optimizer):
    """SGD whose weights are an average in eval()."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1, "k": 0, "train_mode": True})

    @torch.no_grad()
    def _exchange(self, train_mode: bool) -> None:
        for group in self.param_groups:
            if group["train_mode"] == train_mode:
                continue
            group["train_mode"] = train_mode
            for p in group["params"]:
                if "other" in self.state[p]:
                    mine = p.clone()
                    p.copy_(self.state[p]["other"])
                    self.state[p]["other"].copy_(mine)

    def train(self) -> None:
        self._exchange(True)

    def eval(self) -> None:
        self._exchange(False)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            assert group["train_mode"]
            group["k"] += 1
            for p in group["params"]:
                if p.grad is not None:
                    average = self.state[p].setdefault("other", p.clone())
                    p.sub_(p.grad * group["lr"])
                    average.lerp_(p, 1 / group["k"])


def schedule_free(stage: int, of_client: bool) -> list[torch.Tensor]:
    import zerotorch

    module = build()
    client = ScheduleFree(module.parameters())
    config = {**CONFIG, "zero_optimization": {"stage": stage}}
    engine = zerotorch.initialize(model=module, optimizer=client, config=config)[0]
    optimizer = client if of_client else engine.optimizer
    seen = []
    for step in range(3):
        optimizer.train()
        engine.backward(engine(batch(step)).square().mean())
        engine.step()
        optimizer.eval()
        with torch.no_grad():
            seen.append(engine(batch(9)).clone())
    assert not client.param_groups[0]["train_mode"]
    engine.destroy()
    return seen


@pytest.mark.parametrize("of_client", [False, True])
@pytest.mark.parametrize(("ranks", "stage"), [(1, 0), (1, 3), (2, 2), (2, 3)])
def test_schedule_free_optimizers_exchange_weights(ranks: int, stage: int, of_client: bool) -> None:
    module = build()
    optimizer = ScheduleFree(module.parameters())
    wanted = []
    for step in range(3):
        optimizer.train()
        optimizer.zero_grad()
        module(batch(step)).square().mean().backward()
        optimizer.step()
        optimizer.eval()
        with torch.no_grad():
            wanted.append(module(batch(9)))
    for seen in run(ranks, schedule_free, stage, of_client):
        torch.testing.assert_close(seen, wanted, rtol=1e-5, atol=1e-6)


# ---- groups that a program edits ----


def sgd_of_all(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1)


def sgd_in_two_groups(module: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": module[0].parameters()}, {"params": module[2].parameters(), "lr": 0.0}], lr=0.1)


def sgd_of_the_last(module: Any) -> torch.optim.Optimizer:
    module[0].requires_grad_(False)
    return torch.optim.SGD(module[2].parameters(), lr=0.1)


def nadam_of_all(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.NAdam(module.parameters(), lr=0.1)


def takes_out(module: Any, optimizer: torch.optim.Optimizer) -> None:
    group = optimizer.param_groups[-1]
    group["params"] = [p for p in group["params"] if p is not module[2].weight]


def moves(module: Any, optimizer: torch.optim.Optimizer) -> None:
    takes_out(module, optimizer)
    optimizer.param_groups[0]["params"].append(module[2].weight)


def freezes_and_takes_out(module: Any, optimizer: torch.optim.Optimizer) -> None:
    module[2].weight.requires_grad_(False)
    takes_out(module, optimizer)


def unfreezes(module: Any, optimizer: torch.optim.Optimizer) -> None:
    module[0].requires_grad_(True)


def unfreezes_and_adds(module: Any, optimizer: torch.optim.Optimizer) -> None:
    unfreezes(module, optimizer)
    optimizer.param_groups[0]["params"] += list(module[0].parameters())


def adds_a_stranger(module: Any, optimizer: torch.optim.Optimizer) -> None:
    optimizer.param_groups[0]["params"].append(nn.Parameter(torch.ones(1)))


EDITS: dict[str, tuple[Make, Callable[[Any, torch.optim.Optimizer], None], str]] = {
    "taken out": (sgd_of_all, takes_out, "'2.weight' was taken out of group 0"),
    "taken out, over shards": (nadam_of_all, takes_out, "'2.weight' was taken out of group 0"),
    "moved": (sgd_in_two_groups, moves, "group 0 of the optimizer has got parameter '2.weight'"),
    "unfrozen, in no group": (sgd_of_the_last, unfreezes, "'0.weight' requires a gradient and is in no"),
    "a stranger": (sgd_of_all, adds_a_stranger, "no parameter of the engine's module"),
    "frozen and taken out": (sgd_of_all, freezes_and_takes_out, ""),
    "unfrozen and added": (sgd_of_the_last, unfreezes_and_adds, ""),
}


def edited(case: str, stage: int, own_backward: bool) -> list[torch.Tensor] | None:
    """Weights after another step; None where it was refused and nothing has changed."""
    import zerotorch

    make, edit, refusal = EDITS[case]
    module = build()
    client = make(module)
    config = {**CONFIG, "zero_optimization": {"stage": stage}}
    engine = zerotorch.initialize(model=module, optimizer=client, config=config)[0]

    def weights() -> list[torch.Tensor]:
        with zerotorch.zero.GatheredParameters(list(module.parameters())):
            return [p.detach().clone() for p in module.parameters()]

    def step(number: int) -> None:
        loss = engine(batch(number)).square().mean()
        loss.backward() if own_backward else engine.backward(loss)
        engine.step()

    step(0)
    edit(module, client)
    before = weights()
    if not refusal:
        step(1)
        return weights()
    with pytest.raises(zerotorch.UsageError, match=refusal):
        step(1)
    assert all(torch.equal(a, b) for a, b in zip(weights(), before, strict=True))
    return None


@pytest.mark.parametrize("own_backward", [False, True])
@pytest.mark.parametrize(("ranks", "stage"), [(1, 2), (2, 3)])
@pytest.mark.parametrize("case", EDITS)
def test_groups_that_a_program_edits_are_followed_or_refused(
    case: str, ranks: int, stage: int, own_backward: bool
) -> None:
    make, edit, refusal = EDITS[case]
    module = build()
    optimizer = make(module)
    for step in range(2):
        optimizer.zero_grad()
        module(batch(step)).square().mean().backward()
        optimizer.step()
        if step == 0:
            edit(module, optimizer)
    for weights in run(ranks, edited, case, stage, own_backward):
        assert (weights is None) == bool(refusal)
        if weights is not None:
            torch.testing.assert_close(weights, [p.detach() for p in module.parameters()], rtol=1e-5, atol=1e-6)


# ---- updates in backward ----


def scheduled(how: str, optimizer: torch.optim.Optimizer) -> Callable[[int], None]:
    """What a program does before each step."""
    group = optimizer.param_groups[0]
    if how == "schedule":
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.1)
        return lambda step: schedule.step() if step > 0 else None
    if how == "hook":
        optimizer.register_step_pre_hook(halve)
        return lambda step: None
    edits = {"lr": ("lr", 0.0), "decay": ("weight_decay", 0.5), "betas": ("betas", (0.5, 0.6))}
    key, value = edits[how]
    return lambda step: group.update({key: value}) if step == 2 else None


def adamw(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=0.1)


def updated_in_backward(how: str, own_backward: bool) -> list[torch.Tensor]:
    import zerotorch

    module = build()
    client = adamw(module)
    config = {**CONFIG, "zero_optimization": {"stage": 2}, "zerotorch": {"update": "in_backward"}}
    engine = zerotorch.initialize(model=module, optimizer=client, config=config)[0]
    before = scheduled(how, client)
    for step in range(STEPS):
        before(step)
        loss = engine(batch(step)).square().mean()
        loss.backward() if own_backward else engine.backward(loss)
        engine.step()
    weights = [p.detach().clone() for p in module.parameters()]
    engine.destroy()
    return weights


@pytest.mark.parametrize("own_backward", [False, True])
@pytest.mark.parametrize("how", ["schedule", "lr", "decay", "betas", "hook"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_an_update_in_backward_goes_by_what_the_groups_say(ranks: int, how: str, own_backward: bool) -> None:
    module = build()
    optimizer = adamw(module)
    before = scheduled(how, optimizer)
    for step in range(STEPS):
        before(step)
        optimizer.zero_grad()
        module(batch(step)).square().mean().backward()
        optimizer.step()
    for weights in run(ranks, updated_in_backward, how, own_backward):
        torch.testing.assert_close(weights, [p.detach() for p in module.parameters()], rtol=1e-5, atol=1e-6)


def warmed_up(in_backward: bool) -> list[torch.Tensor]:
    import zerotorch

    module = build()
    config = {
        **CONFIG,
        "zero_optimization": {"stage": 2},
        "optimizer": {"type": "SGD", "params": {"lr": 1.0}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1.0, "warmup_num_steps": 10}},
        "zerotorch": {"update": "in_backward" if in_backward else "after_backward"},
    }
    engine = zerotorch.initialize(model=module, model_parameters=module.parameters(), config=config)[0]
    moved = []
    for step in range(STEPS):
        before = module[0].weight.detach().clone()
        engine.backward(engine(batch(step)).square().mean())
        engine.step()
        moved.append(module[0].weight.detach() - before)
    engine.destroy()
    return moved


def test_a_warm_up_is_the_same_where_backward_updates() -> None:
    usual, in_backward = run(1, warmed_up, False)[0], run(1, warmed_up, True)[0]
    assert not usual[0].any() and usual[3].any()
    torch.testing.assert_close(in_backward, usual, rtol=1e-5, atol=1e-7)

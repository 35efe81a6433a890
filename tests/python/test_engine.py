"""The engine's contracts: optimizers, schedulers, errors, several engines, signals, processes."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import models
import pytest
import torch
from ranks import run
from support import program
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

import zerotorch
from zerotorch.ops.ademamix import AdEMAMix

STEPS = 4


def config(**more: Any) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 0,
        "zero_optimization": {"stage": 3},
        "zerotorch": {"seed": 3},
        **more,
    }


def adamw(**params: Any) -> dict[str, Any]:
    return {"optimizer": {"type": "AdamW", "params": {"lr": 1e-2, **params}}}


def batches(rank: int, size: int) -> list[torch.Tensor]:
    return [step[rank] for step in models.micro_batches(STEPS, size)]


def train(engine: Any) -> list[float]:
    losses = []
    for batch in batches(engine.global_rank, engine.world_size):
        loss = models.loss_of(engine, batch)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


# ---- optimizers ----

CLIENTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "AdamW": (torch.optim.AdamW, {"lr": 1e-2, "betas": (0.8, 0.95), "weight_decay": 0.2}),
    "Adam": (torch.optim.Adam, {"lr": 1e-2, "weight_decay": 0.2, "amsgrad": True}),
    "SGD": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.05, "lr_decay": 0.1, "initial_accumulator_value": 0.2}),
    "RMSprop": (torch.optim.RMSprop, {"lr": 1e-2, "momentum": 0.5, "centered": True}),
    "decoupled Adam": (torch.optim.Adam, {"lr": 1e-2, "weight_decay": 0.2, "decoupled_weight_decay": True}),
    "AdEMAMix": (AdEMAMix, {"lr": 1e-2, "betas": (0.8, 0.95, 0.99), "alpha": 4.0, "t_alpha": 3, "t_beta3": 6}),
    "Adafactor": (torch.optim.Adafactor, {"lr": 1e-2, "weight_decay": 0.1}),
    "NAdam": (torch.optim.NAdam, {"lr": 1e-2}),  # over shards
    "Adamax": (torch.optim.Adamax, {"lr": 1e-2}),
}


def client(name: str, scheduled: bool, stage: int) -> list[float]:
    kind, options = CLIENTS[name]
    model = models.make()
    optimizer = kind([p for p in model.parameters() if p.requires_grad], **options)
    scheduler = LambdaLR(optimizer, lambda step: 1 / (step + 1)) if scheduled else None
    engine, facade, _, returned = zerotorch.initialize(
        model=model,
        optimizer=optimizer,
        lr_scheduler=scheduler,
        config=config(zero_allow_untested_optimizer=True, zero_optimization={"stage": stage}),
    )
    assert isinstance(facade, torch.optim.Optimizer) and returned is scheduler
    assert engine.basic_optimizer is optimizer and facade.param_groups is optimizer.param_groups
    losses = train(engine)
    if scheduled:
        assert engine.get_lr() == [pytest.approx(options["lr"] / (STEPS + 1))]
    engine.destroy()
    return losses


def plain(name: str, scheduled: bool, ranks: int) -> list[list[float]]:
    kind, options = CLIENTS[name]
    model = models.make()
    optimizer = kind([p for p in model.parameters() if p.requires_grad], **options)
    scheduler = LambdaLR(optimizer, lambda step: 1 / (step + 1)) if scheduled else None
    losses: list[list[float]] = [[] for _ in range(ranks)]
    for step in models.micro_batches(STEPS, ranks):
        for rank, batch in enumerate(step):
            loss = models.loss_of(model, batch)
            loss.backward()
            losses[rank].append(loss.item())
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= ranks
        optimizer.step()
        optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()
    return losses


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("name", list(CLIENTS))
def test_clients_optimizers_have_torchs_numbers(name: str, scheduled: bool) -> None:
    wanted = plain(name, scheduled, 2)
    for rank, losses in enumerate(run(2, client, name, scheduled, 3 if scheduled else 1)):
        assert losses == pytest.approx(wanted[rank], rel=1e-5)


def hooked(stage: int) -> list[int]:
    model = models.make()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    calls = [0, 0]

    def before(*_: Any) -> None:
        calls[0] += 1

    def after(*_: Any) -> None:
        calls[1] += 1

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)
    engine = zerotorch.initialize(model=model, optimizer=optimizer, config=config(gradient_accumulation_steps=2))[0]
    train(engine)
    engine.destroy()
    return calls


def test_step_hooks_of_a_clients_optimizer_are_called() -> None:
    assert run(1, hooked, 2) == [[STEPS // 2, STEPS // 2]]


def whole_tensors_are_refused() -> None:
    for kind, options in ((torch.optim.LBFGS, {}), (torch.optim.Muon, {})):
        model = nn.Linear(4, 4, bias=False)
        with pytest.raises(zerotorch.ConfigError, match="whole parameters|several times a step"):
            zerotorch.initialize(
                model=model,
                optimizer=kind(model.parameters(), **options),
                config=config(zero_allow_untested_optimizer=True),
            )


def test_optimizers_of_whole_parameters_are_refused() -> None:
    run(1, whole_tensors_are_refused)


def goes_without_the_collector() -> bool:
    import weakref

    gc.collect()
    gc.disable()
    try:
        model = models.make()
        engine = zerotorch.initialize(model=model, model_parameters=model.parameters(), config=config(**adamw()))[0]
        train(engine)
        core = weakref.ref(engine.optimizer)
        del engine, model
        return core() is None
    finally:
        gc.enable()


def test_an_engine_that_is_dropped_goes_at_once() -> None:
    assert run(1, goes_without_the_collector) == [True]


def live_groups() -> list[Any]:
    model = models.make()
    engine = zerotorch.initialize(
        model=model,
        model_parameters=[
            {"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.5, "name": "matrices"},
            {"params": [p for p in model.parameters() if p.dim() <= 1 and p.requires_grad]},
        ],
        config=config(**adamw()),
    )[0]
    groups = engine.optimizer.param_groups
    facts: list[Any] = [groups[0]["name"], groups[0]["weight_decay"], groups[1]["weight_decay"], groups[1]["betas"]]
    train(engine)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    groups[1]["lr"] = 0.0  # that group stays where it is
    groups[0]["lr"] = torch.tensor(1e-3)
    loss = models.loss_of(engine, batches(0, 1)[0])
    engine.backward(loss)
    engine.step()
    facts.append(torch.equal(before["gain"], model.gain.detach()))
    facts.append(torch.equal(before["embedding.weight"], model.embedding.weight.detach()))
    groups[0]["lr"] = -1.0
    with pytest.raises(zerotorch.ConfigError, match="lr"):
        engine.backward(models.loss_of(engine, batches(0, 1)[0]))
        engine.step()
    groups[0]["lr"] = 1e-3
    engine.step()
    engine.destroy()
    return facts


def test_groups_are_live() -> None:
    assert run(1, live_groups) == [["matrices", 0.5, 0.0, (0.9, 0.999), True, False]]


def untested_optimizers_are_refused() -> None:
    model = models.make()
    with pytest.raises(AssertionError, match="zero_allow_untested_optimizer"):
        zerotorch.initialize(
            model=model, optimizer=torch.optim.NAdam(p for p in model.parameters() if p.requires_grad), config=config()
        )
    engine = zerotorch.initialize(
        model=model, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1), config=config()
    )[0]
    assert engine.optimizer.kind == "SGD"
    with pytest.raises(zerotorch.UsageError, match="save_checkpoint"):
        engine.optimizer.state_dict()
    engine.destroy()


def test_untested_optimizers_are_refused() -> None:
    run(1, untested_optimizers_are_refused)


def not_in_a_group() -> list[bool]:
    """What the optimizer does not hold is not trained."""
    model = models.make()
    before = model.gain.detach().clone()
    held = [p for p in model.parameters() if p is not model.gain]
    engine = zerotorch.initialize(model=model, model_parameters=held, config=config(**adamw()))[0]
    train(engine)
    facts = [torch.equal(model.gain.detach(), before), model.gain.requires_grad]
    engine.destroy()
    return facts


def test_what_the_optimizer_does_not_hold_is_not_trained() -> None:
    assert run(2, not_in_a_group) == [[True, False]] * 2


# ---- engines ----


def evaluation_engine() -> list[Any]:
    model = models.make()
    batch = torch.zeros(2, 4, dtype=torch.long)
    wanted = models.make()(batch)
    engine, optimizer, loader, scheduler = zerotorch.initialize(model=model, config=config())
    assert (optimizer, loader, scheduler) == (None, None, None)
    engine.eval()
    facts = [torch.equal(engine(batch), wanted)]
    loss = models.loss_of(engine, batch)
    with pytest.raises(AssertionError, match="optimizer"):
        engine.backward(loss)
    # Another engine trains beside it.
    policy = zerotorch.initialize(model=models.make(), config=config(**adamw()), model_parameters=None)[0]
    train(policy)
    facts.append(torch.equal(engine(batch), wanted))
    facts.append(not torch.equal(policy(batch), wanted))
    policy.destroy()
    engine.destroy()
    return facts


def test_an_engine_for_evaluation_beside_one_that_trains() -> None:
    assert run(2, evaluation_engine) == [[True, True, True]] * 2


def of_another_kind() -> None:
    model = models.make()
    engine = zerotorch.initialize(model=model, config=config())[0]
    with pytest.raises(zerotorch.UsageError, match=r"engine\.module\.load_state_dict\(\)") as error:
        engine.load_state_dict(model.state_dict())
    assert len(str(error.value)) < 400
    assert not engine.load_state_dict(engine.state_dict()).missing_keys
    engine.module.load_state_dict(models.make().state_dict())


def test_a_state_dict_of_the_module_is_not_the_engines() -> None:
    run(1, of_another_kind)


def with_leaf_modules(classes: list[str]) -> list[str]:
    from zerotorch.utils import get_z3_leaf_modules

    zero = {"stage": 3, "leaf_module": {"classes": classes}}
    engine = zerotorch.initialize(model=models.make(), config=config(zero_optimization=zero, **adamw()))[0]
    train(engine)
    leaves = get_z3_leaf_modules(engine.module)
    text = engine._config.resolved["zero_optimization"]["leaf_module"]["names"]
    assert [engine.module.get_submodule(name) for name in text] == leaves
    engine.destroy()
    return text


def test_leaf_modules_by_their_class() -> None:
    assert run(2, with_leaf_modules, ["ModuleDict"]) == [["layers.0", "layers.1"]] * 2
    assert run(2, with_leaf_modules, ["torch.nn.modules.rnn.GRU"]) == [["gru"]] * 2


def with_named_leaf_modules(stage: int) -> list[str]:
    from zerotorch.utils import get_z3_leaf_modules

    zero = {"stage": stage, "leaf_module": {"classes": ["GRU"], "names": ["layers.0"], "name_suffixes": ["1"]}}
    engine = zerotorch.initialize(model=models.make(), config=config(zero_optimization=zero, **adamw()))[0]
    train(engine)
    marked = get_z3_leaf_modules(engine.module)
    found = [name for name, module in engine.module.named_modules() if any(module is one for one in marked)]
    engine.destroy()
    return found


def test_leaf_modules_by_their_name() -> None:
    assert run(1, with_named_leaf_modules, 3) == [["layers.0", "layers.1", "gru"]]
    assert run(1, with_named_leaf_modules, 2) == [[]]


def sanity_checked() -> None:
    engine = zerotorch.initialize(
        model=models.make(),
        config=config(zero_optimization={"stage": 2, "enable_sanity_checks": True}, **adamw()),
    )[0]
    train(engine)
    # A write that no operator sees, which the check finds.
    weight = engine.module.gain
    ctypes.c_float.from_address(weight.data_ptr()).value += 1
    with pytest.raises(zerotorch.ModelError, match="written through a raw pointer"):
        train(engine)


def test_sanity_checks_are_made() -> None:
    run(1, sanity_checked)


def test_no_thread_is_left_over() -> None:
    code = """
        import threading, zerotorch
        zerotorch.init_distributed()
        print([thread.name for thread in threading.enumerate()])
    """
    assert program(code) == "['MainThread']"


def parameters_of_another_model_are_refused() -> None:
    with pytest.raises(zerotorch.ConfigError, match="no parameter of the model"):
        zerotorch.initialize(model=models.make(), model_parameters=models.make().parameters(), config=config(**adamw()))
    with pytest.raises(AssertionError, match="requires a model"):
        zerotorch.initialize(model=None, config=config())
    with pytest.raises(zerotorch.ConfigError, match="no configuration"):
        zerotorch.initialize(model=models.make())
    with pytest.raises(zerotorch.ConfigError, match="zero_optimization.stage"):
        zerotorch.initialize(model=models.make(), config=config(zero_optimization={"stage": 7}))
    with pytest.raises(zerotorch.ConfigError, match="gradient_clipping.*auto|auto.*Trainer"):
        zerotorch.initialize(model=models.make(), config=config(gradient_clipping="auto"))


def test_arguments_that_are_refused() -> None:
    run(1, parameters_of_another_model_are_refused)


def contracts(stage: int) -> None:
    model = models.make()
    engine = zerotorch.initialize(
        model=model,
        model_parameters=model.parameters(),
        config=config(
            zero_optimization={"stage": stage}, gradient_accumulation_steps=2, steps_per_print=float("inf"), **adamw()
        ),
    )[0]
    assert type(engine) is zerotorch.DeepSpeedEngine and isinstance(engine, nn.Module)
    assert engine.get_batch_info() == (4 * engine.world_size // 1, 2, 2)
    assert engine.zero_optimization_stage() == stage and engine.loss_scale() == 1
    assert engine.get_global_grad_norm() is None
    assert engine.vocab_of_module == "found"
    batch = batches(0, 1)[0]
    loss = models.loss_of(engine, batch)
    assert engine.backward(loss, retain_graph=True).item() == pytest.approx(loss.item() / 2)
    with pytest.raises(RuntimeError, match=r"safe_set_full_grad\(\).*engine\.step\(\) takes the place"):
        next(p.grad for p in model.parameters() if p.grad is not None).abs()
    assert not engine.is_gradient_accumulation_boundary()
    engine.step()
    assert (engine.global_steps, engine.micro_steps, engine.was_step_applied()) == (0, 1, False)
    engine.zero_grad()
    model.zero_grad()
    engine.backward(models.loss_of(engine, batch))
    engine.step()
    assert (engine.global_steps, engine.micro_steps, engine.was_step_applied()) == (1, 2, True)
    assert engine.get_global_grad_norm() > 0
    with pytest.raises(AssertionError, match="scalar"):
        engine.backward(engine(batch))
    with pytest.raises(AssertionError, match="float64|torch.float64"):
        engine.double()
    assert engine.to("cpu") is engine and engine.float() is engine
    if stage >= 2:
        with pytest.raises(AssertionError, match="incompatible with gradient partitioning"):
            with engine.no_sync():
                pass
    else:
        with engine.no_sync():
            engine.backward(models.loss_of(engine, batch))
            with pytest.raises(AssertionError, match="illegal to call Engine.step"):
                engine.step()
        engine.backward(models.loss_of(engine, batch))
        engine.step()
        assert engine.global_steps == 2
    engine.destroy()


@pytest.mark.parametrize("stage", [1, 3])
def test_contracts(stage: int) -> None:
    models.OddModel.vocab_of_module = "found"  # type: ignore[attr-defined]
    run(1, _with_attribute, stage)


def _with_attribute(stage: int) -> None:
    models.OddModel.vocab_of_module = "found"  # type: ignore[attr-defined]
    contracts(stage)


class Replaces(nn.Module):
    """Assigns its buffer anew in every forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = self.seen + 1
        self.mean = x.detach().mean(0)
        return self.linear(x).square().mean()


def buffers(folder: str) -> list[Any]:
    model = Replaces()
    engine = zerotorch.initialize(model=model, model_parameters=model.parameters(), config=config(**adamw()))[0]
    for _ in range(3):
        engine.backward(engine(torch.ones(2, 4)))
        engine.step()
    engine.save_checkpoint(folder, tag="t")
    facts = [model.seen.item(), model.mean.tolist()]
    engine.destroy()
    other = Replaces()
    engine = zerotorch.initialize(model=other, model_parameters=other.parameters(), config=config(**adamw()))[0]
    engine.load_checkpoint(folder, tag="t")
    facts += [other.seen.item(), other.mean.tolist()]
    engine.destroy()
    return facts


def test_buffers_that_are_replaced_are_saved(tmp_path: Path) -> None:
    assert run(1, buffers, str(tmp_path)) == [[3.0, [1.0] * 4] * 2]


def loader() -> list[Any]:
    data = [(torch.full((3,), float(i)), i) for i in range(10)]
    model = nn.Linear(3, 1)
    engine, _, batches_of_rank, _ = zerotorch.initialize(
        model=model, model_parameters=model.parameters(), training_data=data, config=config(**adamw())
    )
    seen = []
    for _ in range(2):
        numbers = [n for _, labels in batches_of_rank for n in labels.tolist()]
        seen.append(numbers)
    assert len(batches_of_rank) == 3 and engine.training_dataloader is batches_of_rank
    engine.destroy()
    return seen


def test_training_data_is_divided() -> None:
    first, second = run(2, loader)
    for one, other in zip(first, second, strict=True):
        assert sorted(one + other) == list(range(10))
    assert first[0] != first[1]


# ---- torch.compile ----


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(models.VOCAB, 13)
        self.layers = nn.ModuleList(nn.Linear(13, 13) for _ in range(3))
        self.head = nn.Linear(13, models.VOCAB)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + nn.functional.gelu(layer(x))
        return self.head(x)


def compiled(way: str, backend: str, store: str) -> Any:
    torch.manual_seed(7)
    model: Any = Residual()
    if way == "before":
        model = torch.compile(model, backend=backend)
    sharded = {
        "stage": 3,
        "stage3_max_live_parameters": 1,
        "stage3_max_reuse_distance": 0,
        "stage3_param_persistence_threshold": 0,
    }
    engine = zerotorch.initialize(
        model=model,
        model_parameters=model.parameters(),
        config=config(zero_optimization=sharded, zerotorch={"seed": 3, "store": store}, **adamw()),
    )[0]
    if way == "engine":
        engine.compile(backend=backend)
    try:
        return train(engine)
    except RuntimeError as error:
        return str(error)
    finally:
        engine.destroy()


@pytest.mark.parametrize("way", ["before", "engine"])
def test_compiled_modules_have_the_same_numbers(way: str) -> None:
    wanted = run(2, compiled, "no", "", "node_shared")
    assert run(2, compiled, way, "aot_eager", "node_shared") == wanted
    assert run(2, compiled, way, "aot_eager", "copying") == wanted


@pytest.mark.skipif("ZERO_TEST_INDUCTOR" not in os.environ, reason="ZERO_TEST_INDUCTOR=1 compiles kernels: a minute")
def test_compiled_kernels_read_no_released_memory() -> None:
    wanted = run(2, compiled, "no", "", "node_shared")
    for losses, plain_losses in zip(run(2, compiled, "before", "inductor", "node_shared"), wanted, strict=True):
        assert losses == pytest.approx(plain_losses, rel=1e-6)  # kernels that inductor has fused
    for message in run(2, compiled, "before", "inductor", "copying"):
        assert "is sharded and its values are not gathered" in message


# ---- processes ----


def _start(code: str, ranks: int) -> list[subprocess.Popen[str]]:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    job = os.urandom(6).hex()
    environment = {**os.environ, "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank), "ZERO_JOB_ID": job},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]


ENGINE = """
    import sys, time, torch, zerotorch
    model = torch.nn.Linear(4, 4)
    config = {"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW"}, "zero_optimization": {"stage": 2}}
    engine = zerotorch.initialize(model=model, model_parameters=model.parameters(), config=config)[0]
    def step():
        engine.backward(engine(torch.ones(1, 4)).mean())
        engine.step()
    step()
    print("ready", flush=True)
"""


def test_ctrl_c_ends_a_wait_within_a_second() -> None:
    waits, sleeps = _start(
        ENGINE
        + """
    if engine.global_rank == 1:
        time.sleep(60)
    try:
        step()
    except KeyboardInterrupt:
        print(time.time(), flush=True)
        sys.exit(0)
    """,
        2,
    )
    try:
        assert waits.stdout is not None and waits.stdout.readline() == "ready\n"
        time.sleep(1.0)
        begin = time.time()
        waits.send_signal(signal.SIGINT)
        assert waits.wait(30) == 0
        assert float(waits.stdout.read()) - begin < 1
    finally:
        for process in (waits, sleeps):
            process.kill()
            process.communicate()


def test_an_exception_on_one_rank_ends_all() -> None:
    processes = _start(
        ENGINE
        + """
    if engine.global_rank == 1:
        raise ValueError("the data ended")
    step()
    """,
        2,
    )
    try:
        outputs = [process.communicate(timeout=40) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [1, 1]
    assert outputs[1][1].count("the data ended") == 1
    assert "CommError" in outputs[0][1] and "rank 1" in outputs[0][1]
    assert "Traceback" not in outputs[0][1]


def workers(method: str) -> int:
    from torch.utils.data import DataLoader

    model = models.make()
    engine = zerotorch.initialize(model=model, model_parameters=model.parameters(), config=config(**adamw()))[0]
    data = DataLoader(
        [torch.zeros(models.SEQ + 1, dtype=torch.long)] * 8, 2, num_workers=2, multiprocessing_context=method
    )
    for batch in data:
        engine.backward(models.loss_of(engine, batch))
        engine.step()
    steps = engine.global_steps
    engine.destroy()
    return steps


def test_data_loaders_with_processes() -> None:
    # Ranks of run() are daemons, which may have no children: a process of its own.
    done = _start(
        """
    import sys, test_engine
    if __name__ == "__main__":
        print([test_engine.workers(method) for method in ("fork", "spawn")])
    """,
        1,
    )[0]
    out, err = done.communicate(timeout=90)
    assert out.strip().endswith("[4, 4]"), err


def engines_come_and_go() -> tuple[int, int]:
    def once() -> None:
        model = models.make()
        engine = zerotorch.initialize(model=model, model_parameters=model.parameters(), config=config(**adamw()))[0]
        train(engine)

    def shared() -> int:
        job = os.environ["ZERO_JOB_ID"]  # tests that run beside this one have files there, too
        return sum(name.startswith("zerotorch") and job in name for name in os.listdir("/dev/shm"))

    once()
    gc.collect()
    before = shared()
    for _ in range(10):
        once()
    gc.collect()
    return before, shared()


def test_engines_that_are_forgotten_leave_nothing() -> None:
    for before, after in run(2, engines_come_and_go):
        assert after <= before

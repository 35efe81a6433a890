"""Parameters as programs of DeepSpeed handle them: zero.Init, GatheredParameters, raw access, whole values."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import models
import numpy as np
import pytest
import torch
from ranks import run
from torch import nn

STORES = ["node_shared", "copying"]

#: Nothing stays gathered that is not in use.
_STRICT = {
    "stage": 3,
    "stage3_max_live_parameters": 1,
    "stage3_max_reuse_distance": 0,
    "stage3_param_persistence_threshold": 0,
}


def config(store: str = "node_shared", **more: Any) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        "zero_optimization": dict(_STRICT),
        "zerotorch": {"store": store},
        **more,
    }


def engine_of(model: nn.Module, store: str = "node_shared", **more: Any) -> Any:
    import zerotorch

    return zerotorch.initialize(model=model, model_parameters=model.parameters(), config=config(store, **more))[0]


def step(engine: Any, seed: int = 0) -> float:
    generator = torch.Generator().manual_seed(100 * seed + engine.global_rank)
    loss = models.loss_of(engine, torch.randint(models.VOCAB, (2, models.SEQ + 1), generator=generator))
    engine.backward(loss)
    engine.step()
    return loss.item()


# ---- GatheredParameters ----


def gathered(store: str) -> dict[str, Any]:
    import zerotorch
    from zerotorch.zero import GatheredParameters

    engine = engine_of(models.make(), store)
    weight = engine.module.layers[0]["up"].weight
    bias = engine.module.layers[0]["up"].bias
    rank = engine.global_rank
    before = weight.detach().clone()
    seen: dict[str, Any] = {}
    with GatheredParameters([None, weight, bias, weight, torch.ones(2)], modifier_rank=1):
        weight.data.fill_(float(rank))  # all write; rank 1's counts
        if rank == 1:
            bias.data.numpy()[:] = 5.0
    seen["spread"] = (weight.detach().unique().tolist(), bias.detach().unique().tolist())
    seen["master"] = engine._core.full_weight("layers.0.up.weight").unique().tolist()
    with GatheredParameters(weight):
        weight.data.mul_(0)
        weight.data.add_(rank + 10)
        seen["own"] = weight.detach().unique().tolist()
        with GatheredParameters(iter([weight, bias])):
            seen["nested"] = weight.detach().unique().tolist()
    seen["dropped"] = weight.detach().unique().tolist()
    with GatheredParameters(engine.module.parameters(), modifier_rank=0):
        if rank == 0:
            weight.data.copy_(before)
    seen["back"] = torch.equal(weight.detach(), before)
    # Assigned, not written in place.
    with GatheredParameters([weight, bias], modifier_rank=1):
        weight.data = torch.full(weight.shape, float(rank))
        if rank == 1:
            bias.data = torch.full(bias.shape, 7.0)
    seen["assigned"] = (weight.detach().unique().tolist(), bias.detach().unique().tolist())
    seen["assigned master"] = engine._core.full_weight("layers.0.up.weight").unique().tolist()
    # A scope that has failed has written nothing, on no rank.
    for modifier in (0, 1):
        with pytest.raises(KeyError):
            with GatheredParameters([weight, bias], modifier_rank=modifier):
                weight.data.fill_(50.0 + rank)
                bias.data = torch.full(bias.shape, 60.0 + rank)
                raise KeyError
    seen["failed"] = (weight.detach().unique().tolist(), bias.detach().unique().tolist())
    tokens = torch.arange(2 * (models.SEQ + 1)).remainder(models.VOCAB).view(2, -1)
    with torch.no_grad():
        seen["loss"] = float(models.loss_of(engine, tokens))
    with GatheredParameters(weight, modifier_rank=0):
        weight.data.copy_(before)
    with pytest.raises(zerotorch.UsageError, match="modifier_rank=1"):
        with GatheredParameters(weight, modifier_rank=0):
            with GatheredParameters(weight, modifier_rank=1):
                pass
    seen["disabled"] = GatheredParameters(weight, enabled=False).params
    step(engine)
    engine.destroy()
    return seen


@pytest.mark.parametrize("store", STORES)
def test_gathered_parameters(store: str) -> None:
    ranks = run(2, gathered, store)
    assert ranks[0]["loss"] == ranks[1]["loss"]
    for rank, seen in enumerate(ranks):
        assert seen["spread"] == ([1.0], [5.0])
        assert seen["master"] == [1.0]
        assert seen["own"] == [rank + 10.0]
        assert seen["nested"] == [rank + 10.0]
        assert seen["dropped"] == [1.0]
        assert seen["assigned"] == ([1.0], [7.0])
        assert seen["assigned master"] == [1.0]
        assert seen["failed"] == ([1.0], [7.0])
        assert seen["back"]
        assert seen["disabled"] == []


def writes_that_are_dropped_change_nothing(store: str) -> list[float]:
    from zerotorch.zero import GatheredParameters

    engine = engine_of(models.make(), store)
    losses = []
    for i in range(3):
        with GatheredParameters(list(engine.module.parameters())):
            for parameter in engine.module.parameters():
                parameter.data.add_(1.0)
            models.loss_of(engine.module, torch.zeros(1, 3, dtype=torch.long))
        losses.append(step(engine, i))
    engine.destroy()
    return losses


def three_steps(store: str) -> list[float]:
    engine = engine_of(models.make(), store)
    losses = [step(engine, i) for i in range(3)]
    engine.destroy()
    return losses


@pytest.mark.parametrize("store", STORES)
def test_writes_that_are_dropped_change_nothing(store: str) -> None:
    assert run(2, writes_that_are_dropped_change_nothing, store) == run(2, three_steps, store)


# ---- zero.Init ----


def built_in_init(ranks_differ: bool) -> tuple[list[float], list[bool]]:
    import zerotorch
    from zerotorch.zero import GatheredParameters, Init

    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else int(_env("RANK"))
    facts = []
    zerotorch.init_distributed()
    with Init(config_dict_or_path={"zero_optimization": {"stage": 3}, "train_batch_size": "auto"}):
        torch.manual_seed(7 + (rank if ranks_differ else 0))
        model = models.OddModel()
    facts.append(all(hasattr(p, "ds_id") and p.ds_numel == p.numel() for p in model.parameters()))
    facts.append(model.head.weight is model.embedding.weight)
    if ranks_differ:
        # What every rank writes is rank 0's; what a scope's rank writes is everybody's.
        with torch.no_grad():
            model.gain.fill_(float(rank + 1))
        with GatheredParameters(model.shift, modifier_rank=1):
            if rank == 1:
                model.shift.data.fill_(0.5)
        facts.append(bool((model.shift == 0.5).all()))
        with GatheredParameters(model.shift, modifier_rank=1):
            model.shift.data = torch.full(model.shift.shape, 0.75 + rank)
        facts.append(bool((model.shift == 1.75).all()))
        with GatheredParameters(model.shift, modifier_rank=0):
            model.shift.data = torch.full(model.shift.shape, 0.5 + rank)
        facts.append(bool((model.shift == 0.5).all()))
        with GatheredParameters([model.shift, model.gain]):
            model.shift.data.zero_()
        facts.append(bool((model.shift == 0.5).all()))
        with GatheredParameters([model.shift], modifier_rank=0):
            if rank == 0:
                model.shift.data.fill_(0.25)
    engine = engine_of(model)
    if ranks_differ:
        facts.append(bool((model.gain == 1.0).all()))
    losses = [step(engine, i) for i in range(3)]
    engine.destroy()
    return losses, facts


def _env(name: str) -> str:
    import os

    return os.environ[name]


@pytest.mark.parametrize("ranks_differ", [False, True])
def test_init_gives_rank_0s_values(ranks_differ: bool) -> None:
    plain = run(2, three_steps, "node_shared")
    for rank, (losses, facts) in enumerate(run(2, built_in_init, ranks_differ)):
        assert all(facts)
        assert losses == plain[rank]


def memory_of_init() -> tuple[int, int]:
    """Proportional bytes of this process for a model of 64 MB built in zero.Init, and by itself."""
    import zerotorch
    from zerotorch.zero import Init

    zerotorch.init_distributed()

    def build() -> nn.Module:
        return nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(16)))

    before = _proportional()
    with Init():
        model = build()
    inside = _proportional() - before
    assert sum(p.sum().item() for p in model.parameters()) != 0
    return inside, 16 * 1024 * 1024 * 4


def _proportional() -> int:
    with open("/proc/self/smaps_rollup") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    raise AssertionError("no Pss")


def test_init_holds_a_model_once_per_host() -> None:
    parts = run(2, memory_of_init)
    whole = parts[0][1]
    assert sum(inside for inside, _ in parts) < 1.6 * whole  # and not 2


def test_init_of_a_module_and_disabled() -> None:
    from zerotorch.zero import Init

    module = nn.Linear(3, 5)
    before = module.weight.detach().clone()
    with Init(enabled=False):
        untouched = nn.Linear(2, 2)
    assert not hasattr(untouched.weight, "ds_id")
    Init(module=module, dtype=torch.bfloat16)
    assert module.weight.dtype == torch.bfloat16
    assert torch.equal(module.weight.detach(), before.bfloat16())


# ---- raw access ----


def raw_access(store: str) -> dict[str, str]:
    """What each access gives: "right", or an exception."""
    engine = engine_of(models.make(), store)
    step(engine)
    parameter = engine.module.gain
    right = engine._core.full_weight("gain")
    batch = torch.zeros(1, 3, dtype=torch.long)
    seen = {}

    def check(name: str, access: Any) -> None:
        models.loss_of(engine.module, batch)  # something else is gathered
        try:
            value = access()
        except RuntimeError as error:
            seen[name] = "names it" if "'gain'" in str(error) else repr(error)
            return
        for _ in range(2):
            models.loss_of(engine.module, batch)  # its memory is used again
        tensor = value if isinstance(value, torch.Tensor) else torch.tensor(np.asarray(value))
        seen[name] = "right" if torch.equal(tensor.detach(), right) else f"WRONG: {value}"

    def pickled(save: Any, load: Any) -> Any:
        buffer = io.BytesIO()
        save(buffer)
        buffer.seek(0)
        return load(buffer)

    check("numpy", lambda: parameter.detach().numpy())
    check("asarray", lambda: np.asarray(parameter.detach()))
    check("numpy(force)", lambda: parameter.numpy(force=True))
    check("np.from_dlpack", lambda: np.from_dlpack(parameter.detach()))
    check("torch.from_dlpack", lambda: torch.from_dlpack(parameter.detach()))
    check("tolist", lambda: parameter.tolist())
    check("deepcopy", lambda: copy.deepcopy(parameter))
    check("deepcopy of the module", lambda: copy.deepcopy(engine.module).gain)
    check("pickle", lambda: pickle.loads(pickle.dumps(parameter)))
    check(
        "torch.save", lambda: pickled(lambda f: torch.save(parameter, f), lambda f: torch.load(f, weights_only=False))
    )
    check("state_dict", lambda: engine.module.state_dict()["gain"])
    check("engine.state_dict", lambda: engine.state_dict()["module.gain"])
    check(
        "saved state_dict",
        lambda: pickled(lambda f: torch.save(engine.module.state_dict(), f), lambda f: torch.load(f))["gain"],
    )
    check("data", lambda: parameter.data)
    check("copy_", lambda: torch.empty_like(right).copy_(parameter.detach()))
    check("data_ptr", lambda: (parameter.data_ptr(), parameter.detach().clone())[1])
    array = parameter.detach().numpy()
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1.0
    assert "gain" not in repr(parameter) and "Parameter containing" in repr(parameter)
    engine.destroy()
    return seen


@pytest.mark.parametrize("store", STORES)
def test_raw_access_is_right_or_says_why(store: str) -> None:
    for seen in run(2, raw_access, store):
        assert set(seen.values()) <= {"right", "names it"}, seen
        for name in ("numpy", "asarray", "tolist", "deepcopy", "state_dict", "saved state_dict", "torch.from_dlpack"):
            assert seen[name] == "right", (name, seen[name])


def alone(store: str) -> str:
    """One rank looks at everything while the other waits for it elsewhere."""
    engine = engine_of(models.make(), store)
    step(engine)
    if engine.global_rank == 0:
        repr(engine.module.gain)
        models.digest(engine.module.state_dict())
    torch.distributed.barrier()
    step(engine)
    engine.destroy()
    return "alive"


@pytest.mark.parametrize("store", STORES)
def test_one_rank_may_look_alone(store: str) -> None:
    assert run(2, alone, store, timeout_s=30) == ["alive", "alive"]


# ---- whole values ----


def safe_functions(store: str) -> dict[str, Any]:
    from zerotorch import utils

    engine = engine_of(models.make(), store)
    model = engine.module
    generator = torch.Generator().manual_seed(engine.global_rank)
    loss = models.loss_of(engine, torch.randint(models.VOCAB, (2, models.SEQ + 1), generator=generator))
    engine.backward(loss)
    gradient = utils.safe_get_full_grad(model.gain)
    engine.step()
    seen: dict[str, Any] = {"gradient": gradient.norm().item(), "shape": tuple(gradient.shape)}
    weight = utils.safe_get_full_fp32_param(model.gain)
    seen["state"] = torch.allclose(
        utils.safe_get_full_optimizer_state(model.gain, "exp_avg"), 0.1 * gradient, atol=1e-7
    )
    utils.safe_set_full_fp32_param(model.gain, weight + 1)
    seen["set"] = torch.equal(utils.safe_get_full_fp32_param(model.gain), weight + 1)
    utils.safe_set_full_optimizer_state(model.gain, torch.full_like(weight, 3.0), "exp_avg")
    seen["set state"] = utils.safe_get_full_optimizer_state(model.gain, "exp_avg").unique().tolist()
    local = utils.safe_get_local_fp32_param(model.gain)
    whole = utils.safe_get_full_fp32_param(model.gain)
    seen["local"] = local.numel()
    assert all(value in whole.tolist() for value in local.tolist())
    assert utils.safe_get_full_grad(model.shift) is None
    keys = set(engine.optimizer.state[model.gain])
    assert keys == {"exp_avg", "exp_avg_sq", "step"}
    engine.destroy()
    return seen


@pytest.mark.parametrize("store", STORES)
def test_safe_functions(store: str) -> None:
    first, second = run(2, safe_functions, store)
    assert first["gradient"] == second["gradient"] > 0
    for seen in (first, second):
        assert seen["shape"] == (13,)
        assert seen["state"] and seen["set"]
        assert seen["set state"] == [3.0]
    assert first["local"] + second["local"] == 13


class Columns(nn.Module):
    """A weight that lies column by column in memory."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.randn(64, 48).t())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight


def local_parts(store: str) -> dict[str, Any]:
    from zerotorch import comm, utils

    engine = engine_of(Columns(), store, comms_logger={"enabled": True})
    weight = engine.module.weight
    engine.backward(engine(torch.ones(2, 48) + engine.global_rank).square().mean())
    gradient, part = utils.safe_get_full_grad(weight), utils.safe_get_local_grad(weight)
    whole = gradient.t().reshape(-1)  # in the order of memory
    begin = 0 if engine.global_rank == 0 else whole.numel() - part.numel()
    seen: dict[str, Any] = {"numel": part.numel(), "part": torch.equal(part, whole[begin : begin + part.numel()])}
    local = utils.safe_get_local_fp32_param(weight)
    kept = weight.ds_tensor.clone()
    seen["shape"] = weight.ds_tensor.shape == local.shape == part.shape
    seen["values"] = torch.equal(weight.ds_tensor, local) and torch.equal(kept, local) and kept.add_(1).numel() > 0
    part_of = weight.ds_tensor
    assert torch.equal(part_of * 2 == local + local, torch.ones_like(local, dtype=torch.bool)) and len(part_of) == len(local)
    assert np.asarray(part_of).tolist() == part_of.tolist() == local.tolist() and isinstance(part_of, torch.Tensor)
    for write in (
        part_of.zero_,
        lambda: part_of.data.fill_(1),
        lambda: part_of.detach().mul_(0),
        lambda: part_of[:2].copy_(torch.zeros(2)),
        lambda: setattr(part_of, "data", kept),
        lambda: torch.add(kept, 1, out=part_of),
        lambda: torch._foreach_zero_([part_of]),
        part_of.untyped_storage,
    ):
        with pytest.raises(AssertionError, match="safe_set_local_fp32_param"):
            write()
    with torch.inference_mode(), pytest.raises(AssertionError, match="safe_set_local_fp32_param"):
        part_of.copy_(kept)
    engine.step()
    summary = comm.log_summary(show_straggler=True, return_dict=True)
    seen["counted"] = sorted({name.split(" of ")[0] for figures in summary.values() for name in figures})
    # Each rank sets its part.
    utils.safe_set_local_fp32_param(weight, part + 1)
    utils.safe_set_local_optimizer_state(weight, part + 2, "exp_avg")
    seen["set"] = torch.equal(utils.safe_get_full_fp32_param(weight), gradient + 1)
    seen["set state"] = torch.equal(utils.safe_get_full_optimizer_state(weight, "exp_avg"), gradient + 2)
    engine.backward(engine(torch.ones(2, 48)).square().mean())
    utils.safe_set_local_grad(weight, part + 3)
    seen["set gradient"] = torch.equal(utils.safe_get_full_grad(weight), gradient + 3)
    with pytest.raises(AssertionError, match=r"part of parameter 'weight': rank 1: this rank's part has \d+ elements"):
        utils.safe_set_local_grad(weight, part[engine.global_rank :])
    engine.step()
    engine.destroy()
    return seen


@pytest.mark.parametrize("store", STORES)
def test_local_parts_and_counted_communication(store: str) -> None:
    first, second = run(2, local_parts, store)
    assert first["numel"] + second["numel"] == 64 * 48
    for seen in (first, second):
        assert seen["part"] and seen["shape"] and seen["values"] and seen["set"] and seen["set state"] and seen["set gradient"]
    assert first["counted"], "comms_logger.enabled counts"


# ---- writes beside updates ----


def written_in_a_scope(stage: int, update: str) -> None:
    """Below stage 3, where an update may run while the program does."""
    import zerotorch

    module, plain = nn.Linear(3, 2), nn.Linear(3, 2)
    with torch.no_grad():
        for p, q in zip(module.parameters(), plain.parameters(), strict=True):
            q.copy_(p.fill_(0.5))
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 0,
        "optimizer": {"type": "SGD", "params": {"lr": 0.1}},
        "zero_optimization": {"stage": stage},
        "zerotorch": {"update": update},
    }
    engine = zerotorch.initialize(model=module, model_parameters=module.parameters(), config=config)[0]
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for step in range(3):
        for parameters in ([module.bias, module.weight], module.weight):  # whatever their order
            with zerotorch.zero.GatheredParameters(parameters, modifier_rank=0), torch.no_grad():
                if engine.global_rank == 0:
                    module.weight.mul_(0.5)
            with torch.no_grad():
                plain.weight.mul_(0.5)
        x = torch.full((1, 3), step + 1.0)
        engine.backward(engine(x).square().mean())
        engine.step()
        optimizer.zero_grad()
        plain(x).square().mean().backward()
        optimizer.step()
        engine.finish_update()
    torch.testing.assert_close(module.weight.detach().clone(), plain.weight.detach())
    torch.testing.assert_close(module.bias.detach().clone(), plain.bias.detach())
    engine.destroy()


@pytest.mark.parametrize("update", ["delayed", "in_backward"])
@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_scope_takes_writes_that_are_refused_outside(ranks: int, stage: int, update: str) -> None:
    run(ranks, written_in_a_scope, stage, update)


def writes_that_nobody_spreads(checks: bool) -> list[str]:
    import zerotorch
    from zerotorch.zero import GatheredParameters, Init

    section = {**_STRICT, "enable_sanity_checks": checks}
    with Init(config_dict_or_path={"zero_optimization": section}):
        model = nn.Linear(4, 4)
    before = model.weight.detach().clone()
    found = []
    for engine in (None, engine_of(model, zero_optimization=section)):
        rank = zerotorch.comm.get_rank()
        try:
            with GatheredParameters(model.parameters()), torch.no_grad():
                if rank == 1:
                    model.weight.add_(1.0)
            found.append("no error")
        except RuntimeError as error:
            found.append(str(error))
        assert torch.equal(model.weight.detach(), before)
        with GatheredParameters(model.parameters(), modifier_rank=1), torch.no_grad():
            model.weight.add_(0.5)
        assert torch.equal(model.weight.detach(), before + 0.5)
        before += 0.5
        if engine is not None:
            engine.destroy()
    return found


def test_writes_that_nobody_spreads_are_errors_with_sanity_checks() -> None:
    for found in run(2, writes_that_nobody_spreads, True):
        for message in found:
            assert message.startswith("rank 1: Detected in-place modification of a parameter of shape (4, 4)"), message
    assert run(2, writes_that_nobody_spreads, False) == [["no error"] * 2] * 2


def files_of_parameters(stage: int) -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 5))
    engine = engine_of(module, zero_optimization={"stage": stage})
    engine.backward(engine(torch.ones(4, 4)).square().mean())
    engine.step()
    wanted = [parameter.detach().clone() for parameter in module.parameters()]
    file = io.BytesIO()
    torch.save(list(module.parameters()), file)
    assert b"zerotorch" not in file.getvalue()
    file.seek(0)
    loaded = torch.load(file)  # of tensors alone
    assert all(torch.equal(one, other) and not vars(one) for one, other in zip(loaded, wanted, strict=True))
    assert not vars(pickle.loads(pickle.dumps(module))[0].weight)
    engine.backward(engine(torch.ones(4, 4)).square().mean())
    engine.step()
    assert not torch.equal(module[0].weight, wanted[0])
    engine.destroy()
    assert not vars(module[0].weight)


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_files_of_parameters_need_no_zerotorch(stage: int) -> None:
    run(2, files_of_parameters, stage)


def _read_after_steps(stage: int) -> None:
    values: dict[str, list[torch.Tensor]] = {}
    for overlap in ("never", "always"):
        torch.manual_seed(3)
        module = nn.Linear(3, 2)
        engine = engine_of(
            module, "copying", zero_optimization={"stage": stage}, zerotorch={"overlap_all_gather": overlap}
        )

        def step() -> None:
            x = torch.arange(3.0).view(1, 3) + engine.global_steps + engine.global_rank
            engine.backward(engine(x).square().mean())
            engine.step()

        seen = values.setdefault(overlap, [])
        step()
        saved = io.BytesIO()
        torch.save(module.state_dict(), saved)
        saved.seek(0)
        seen.append(torch.load(saved)["weight"])
        step()
        seen.append(torch.from_numpy(module.bias.detach().numpy().copy()))
        step()
        seen.append(copy.deepcopy(module).weight.detach().clone())
        step()
        seen.append(pickle.loads(pickle.dumps(module)).weight.detach().clone())
        step()
        if overlap == "always" and engine.world_size > 1:
            with pytest.raises(RuntimeError, match="weight.*wait_for_parameters"):
                module.weight.data_ptr()
        engine.wait_for_parameters()
        assert module.weight.data_ptr() != 0
        seen.append(module.weight.detach().clone())
        step()
        engine.compile(backend="eager")
        seen.append(engine(torch.ones(1, 3)).detach())
        step()
        engine.destroy()
        assert module.weight.data_ptr() != 0
        seen.append(module.weight.detach().clone())
    for waited, overlapped in zip(values["never"], values["always"]):
        assert torch.equal(waited, overlapped)


@pytest.mark.parametrize("stage", [1, 2])
@pytest.mark.parametrize("ranks", [1, 2])
def test_reads_wait_for_updated_parameters(ranks: int, stage: int) -> None:
    run(ranks, _read_after_steps, stage)

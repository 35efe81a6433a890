"""accelerate on zerotorch, without a Trainer: the curve of plain torch, and what its Accelerator does with an
engine."""

from __future__ import annotations

import json
import os
from typing import Any
from unittest import mock

import hf_trainer as hf
import models
import pytest
import torch
from ranks import run
from support import needs, program, python, script
from torch import nn

needs("accelerate")

EPOCHS = 2
BATCHES = 10  # of 2 samples in an epoch: 5 for each of 2 ranks
PER_UPDATE = 4  # batches, over all ranks; the last update of an epoch has 2
CLIP = 0.3


@pytest.fixture(scope="module", params=[1, 2], ids=["1 rank", "2 ranks"])
def ranks(request: pytest.FixtureRequest) -> int:
    return int(request.param)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.body = nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.LayerNorm(9))
        self.head = nn.Linear(9, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x))  # type: ignore[no-any-return]


def data() -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(2)
    count = 2 * BATCHES
    return torch.utils.data.TensorDataset(
        torch.randn(count, 6, generator=generator), torch.randint(3, (count,), generator=generator)
    )


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """As scripts that decay matrices only."""
    return [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]


def schedule(update: int) -> float:
    return 1 / (1 + update)


def make_accelerator(stage: int, **config: Any) -> Any:
    from accelerate import Accelerator
    from accelerate.utils import DeepSpeedPlugin

    plugin = DeepSpeedPlugin(
        hf_ds_config={
            "train_batch_size": "auto",
            "train_micro_batch_size_per_gpu": "auto",
            "gradient_accumulation_steps": PER_UPDATE // hf.ranks(),
            "gradient_clipping": CLIP,
            "zero_optimization": {"stage": stage, "stage3_gather_16bit_weights_on_model_save": True},
            **config,
        }
    )
    return Accelerator(deepspeed_plugin=plugin)


AUTO_OPTIMIZER = {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}}
AUTO_SCHEDULER = {
    "type": "WarmupDecayLR",
    "params": {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto", "total_num_steps": "auto"},
}


def prepare(stage: int, way: str) -> tuple[Any, ...]:
    """An Accelerator, and what it makes of a model, an optimizer, a loader and a schedule."""
    from accelerate.utils import DummyOptim, DummyScheduler

    model = Model()
    loader = torch.utils.data.DataLoader(data(), batch_size=2)
    if way == "torch's":
        accelerator = make_accelerator(stage)
        optimizer: Any = torch.optim.AdamW(groups(model), lr=1e-2)
        scheduler: Any = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    elif way == "of the configuration":
        accelerator = make_accelerator(stage, optimizer=AUTO_OPTIMIZER, scheduler=AUTO_SCHEDULER)
        optimizer = DummyOptim(groups(model), lr=1e-2, weight_decay=0.1)
        scheduler = DummyScheduler(optimizer, total_num_steps=6 * hf.ranks(), warmup_num_steps=2)
    else:
        accelerator = make_accelerator(stage, optimizer=AUTO_OPTIMIZER)
        optimizer = DummyOptim(groups(model), lr=1e-2, weight_decay=0.1)

        def make(of: Any) -> Any:
            return torch.optim.lr_scheduler.LambdaLR(of, schedule)

        scheduler = DummyScheduler(optimizer, lr_scheduler_callable=make)
    return (accelerator, *accelerator.prepare(model, optimizer, loader, scheduler))


def epoch(accelerator: Any, model: Any, optimizer: Any, loader: Any, scheduler: Any) -> list[list[float]]:
    """Losses of all ranks by micro-batch, and norms and rates by update."""
    losses, norms, rates = [], [], []
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norms.append(float(accelerator.clip_grad_norm_(model.parameters(), CLIP)))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if accelerator.sync_gradients:
                rates.append(optimizer.param_groups[0]["lr"])
        losses.extend(accelerator.gather(loss.detach().reshape(1)).tolist())
    return [losses, norms, rates]


def train_plain(way: str) -> tuple[list[list[float]], dict[str, torch.Tensor]]:
    from zerotorch.runtime.lr_schedules import WarmupDecayLR

    model = Model()
    optimizer = torch.optim.AdamW(groups(model), lr=1e-2)
    if way == "of the configuration":
        scheduler: Any = WarmupDecayLR(optimizer, total_num_steps=6, warmup_max_lr=1e-2, warmup_num_steps=2)
    else:
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    losses, norms, rates = [], [], []
    for _ in range(EPOCHS):
        for i, (x, y) in enumerate(torch.utils.data.DataLoader(data(), batch_size=2)):
            loss = nn.functional.cross_entropy(model(x), y)
            (loss / PER_UPDATE).backward()
            losses.append(loss.item())
            if (i + 1) % PER_UPDATE == 0 or i + 1 == BATCHES:
                norms.append(nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
                optimizer.step()
                optimizer.zero_grad()
                for _ in range(hf.ranks() if way == "torch's" else 1):  # accelerate does so
                    scheduler.step()
                rates.append(optimizer.param_groups[0]["lr"])
    return [losses, norms, rates], dict(model.named_parameters())


def compare(stage: int, way: str) -> dict[str, Any]:
    with hf.libraries():
        accelerator, model, optimizer, loader, scheduler = prepare(stage, way)
        assert accelerator.num_processes == hf.ranks() and len(loader) * hf.ranks() == BATCHES
        assert accelerator.unwrap_model(model) is model.module
        curves = [epoch(accelerator, model, optimizer, loader, scheduler) for _ in range(EPOCHS)]
        state = accelerator.get_state_dict(model)
        assert (state is None) == (stage == 3 and not accelerator.is_main_process)
        plain, weights = train_plain(way)
        if state is not None:
            assert all((state[name] - p).norm() / p.norm() < 1e-4 for name, p in weights.items())
        digest = models.digest({name: model._core.full_weight(name) for name in weights})
        accelerator.free_memory()
        mine = [[value for part in of for value in part] for of in zip(*curves, strict=True)]
        return {"mine": mine, "plain": plain, "digest": digest}


_hashes: dict[str, set[str]] = {}


@pytest.mark.parametrize("way", ["torch's", "of the configuration", "of a function"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_trains_as_plain_torch(ranks: int, stage: int, way: str) -> None:
    for one in run(ranks, compare, stage, way):
        for mine, plain in zip(one["mine"], one["plain"], strict=True):
            assert mine == pytest.approx(plain, rel=2e-5)
        kind = f"{way}, {ranks} ranks" if way == "torch's" else way  # its schedule depends on the ranks
        _hashes.setdefault(kind, set()).add(one["digest"])
        assert len(_hashes[kind]) == 1


def without_a_file(stage: int, yaml: bool) -> tuple[list[float], list[float]]:
    """Losses, and plain torch's, without JSON: of a plugin, or what `accelerate launch` makes of options and YAML."""
    environment = {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": str(stage),
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "2",
        "ACCELERATE_GRADIENT_CLIPPING": str(CLIP),
        "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "none",
        "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "none",
        "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": "true",
    }
    with hf.libraries(), mock.patch.dict(os.environ, environment if yaml else {}):
        from accelerate import Accelerator
        from accelerate.utils import DeepSpeedPlugin

        plugin = DeepSpeedPlugin(zero_stage=stage, gradient_accumulation_steps=2, gradient_clipping=CLIP)
        accelerator = Accelerator(deepspeed_plugin=None if yaml else plugin)
        model = Model()
        optimizer = torch.optim.AdamW(groups(model), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
        loader = torch.utils.data.DataLoader(data(), batch_size=2)
        prepared = accelerator.prepare(model, optimizer, loader, scheduler)
        assert prepared[0].zero_optimization_stage() == stage
        losses = epoch(accelerator, *prepared)[0]
        accelerator.free_memory()
        return losses, train_plain("torch's")[0][0][:BATCHES]


@pytest.mark.parametrize("yaml", [False, True], ids=["plugin", "launch"])
@pytest.mark.parametrize("stage", [2, 3])
def test_trains_without_a_file_of_deepspeeds(stage: int, yaml: bool) -> None:
    for losses, wanted in run(2, without_a_file, stage, yaml):
        assert losses == pytest.approx(wanted, rel=2e-5)


def goes_on(stage: int) -> tuple[list[Any], list[Any], list[bool]]:
    """The second epoch in one go and again after load_state(), and whether the weights have the same bits."""
    with hf.libraries(), hf.shared_folder() as folder:
        accelerator, model, optimizer, loader, scheduler = prepare(stage, "of the configuration")
        curves, weights = [], []
        epoch(accelerator, model, optimizer, loader, scheduler)
        accelerator.save_state(f"{folder}/state")
        for _ in range(2):
            curves.append(epoch(accelerator, model, optimizer, loader, scheduler))
            weights.append([model._core.full_weight(name) for name, _ in model.module.named_parameters()])
            accelerator.load_state(f"{folder}/state")
        accelerator.free_memory()
        return curves[0], curves[1], [torch.equal(a, b) for a, b in zip(*weights, strict=True)]


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_goes_on_from_a_state(ranks: int, stage: int) -> None:
    for first, again, same in run(ranks, goes_on, stage):
        assert first == again and all(same)


def counted_wrongly(early: bool) -> str:
    """What initialize() says when accelerate takes this rank for a job of its own."""
    import zerotorch
    from zerotorch.integrations import hf as integration

    with hf.libraries():
        import accelerate
        import accelerate.state

        counts_ranks = accelerate.state.PartialState._prepare_backend
        accelerate.state.PartialState._prepare_backend = counts_ranks._zerotorch_original
        try:
            if not early:
                zerotorch.init_distributed()
            accelerator = make_accelerator(2, optimizer=AUTO_OPTIMIZER)
            assert accelerator.num_processes == 1
            with pytest.raises(zerotorch.ConfigError) as error:
                zerotorch.initialize(model=Model(), config={"train_batch_size": 2})
            return str(error.value)
        finally:
            integration.count_ranks(accelerate.state)
            assert accelerate.state.PartialState._prepare_backend is not counts_ranks


@pytest.mark.parametrize("early", [False, True])
def test_jobs_of_one_are_refused(early: bool) -> None:
    for text in run(2, counted_wrongly, early):
        assert text.startswith("accelerate counts 1 processes and this job has 2")
        assert "zerotorch.integrations.hf.configure()" in text


def plain_ranks() -> list[int]:
    """accelerate without deepspeed on the same ranks."""
    with hf.libraries():
        from accelerate import Accelerator

        accelerator = Accelerator()
        return [accelerator.num_processes, *accelerator.gather(torch.tensor([accelerator.process_index])).tolist()]


def test_ranks_are_counted_without_deepspeed_too() -> None:
    assert run(2, plain_ranks) == [[2, 0, 1], [2, 0, 1]]


def test_configure() -> None:
    program("""
        import zerotorch.integrations.hf
        zerotorch.integrations.hf.configure()
        zerotorch.integrations.hf.configure()
        import accelerate.state, inspect
        from accelerate.utils import is_deepspeed_available
        assert is_deepspeed_available()
        prepare = accelerate.state.PartialState._prepare_backend
        assert not hasattr(prepare._zerotorch_original, "_zerotorch_original")
        assert "class PartialState" in inspect.getsource(accelerate.state)
        assert type(accelerate.state.__spec__.loader) is type(accelerate.__spec__.loader)
    """)


@pytest.mark.parametrize("stage", [2, 3])
def test_overflow_is_told(stage: int) -> None:
    for skipped, applied in run(2, overflowing, stage):
        assert skipped == [True, False] and applied == [0, 1]


def overflowing(stage: int) -> tuple[list[bool], list[int]]:
    with hf.libraries():
        accelerator = make_accelerator(
            stage,
            optimizer=AUTO_OPTIMIZER,
            fp16={"enabled": True, "initial_scale_power": 4, "hysteresis": 1},
            gradient_accumulation_steps=1,
            train_micro_batch_size_per_gpu=2,
        )
        from accelerate.utils import DummyOptim

        model = Model()
        model, optimizer = accelerator.prepare(model, DummyOptim(model.parameters(), lr=1e-2))
        skipped, applied = [], []
        for scale in (float("inf"), 1.0):
            accelerator.backward(model(torch.ones(2, 6, dtype=torch.half)).float().sum() * scale)
            optimizer.step()
            skipped.append(accelerator.optimizer_step_was_skipped)
            applied.append(model.global_steps - model.skipped_steps)
        accelerator.free_memory()
        return skipped, applied


LAUNCHED = """
    import sys
    sys.path.insert(0, {tests!r})
    import json
    import torch
    import test_hf_accelerate as tests
    from accelerate import Accelerator

    accelerator = Accelerator()
    model = tests.Model()
    optimizer = torch.optim.AdamW(tests.groups(model), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, tests.schedule)
    loader = torch.utils.data.DataLoader(tests.data(), batch_size=2)
    prepared = accelerator.prepare(model, optimizer, loader, scheduler)
    losses = tests.epoch(accelerator, *prepared)[0]
    engine = prepared[0]
    said = [engine.zero_optimization_stage(), str(engine.module.head.weight.dtype), accelerator.num_processes]
    if accelerator.is_main_process:
        print("RESULT", json.dumps([said, losses]))
"""


def yaml_of(stage: int) -> str:
    """As recipes have it, and as accelerate's questionnaire writes it."""
    section = {
        "deepspeed_multinode_launcher": "standard",
        "gradient_accumulation_steps": 2,
        "gradient_clipping": CLIP,
        "offload_optimizer_device": "none",
        "offload_param_device": "none",
        "zero3_init_flag": stage == 3,
        "zero3_save_16bit_model": True,
        "zero_stage": stage,
    }
    lines = ["compute_environment: LOCAL_MACHINE", "debug: false", "distributed_type: DEEPSPEED", "deepspeed_config:"]
    lines += [f"  {key}: {str(value).lower()}" for key, value in section.items()]
    lines += ["downcast_bf16: 'no'", "machine_rank: 0", "main_training_function: main", "num_machines: 1"]
    lines += ["num_processes: 8", "rdzv_backend: static", "same_network: true", "use_cpu: false"]
    return "\n".join([*lines, "mixed_precision: 'no'", ""])


@pytest.mark.parametrize("stage", [2, 3])
def test_the_launcher_reads_files_of_recipes(tmp_path: Any, stage: int) -> None:
    """`accelerate launch --config_file zero3.yaml`, each rank under zerotorch.run."""
    (tmp_path / "zero.yaml").write_text(yaml_of(stage))
    launch = ["-m", "zerotorch.run", "-m", "accelerate.commands.launch", "--config_file", str(tmp_path / "zero.yaml")]
    launch += ["--num_processes", "2", "--main_process_port", "0", "--module", "zerotorch.run"]
    code = script(tmp_path, LAUNCHED.format(tests=os.path.dirname(__file__)))
    done = python(*launch, code, timeout=240, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    said, losses = json.loads(done.stdout.partition("RESULT")[2])
    assert said == [stage, "torch.float32", 2]
    with mock.patch.dict(os.environ, WORLD_SIZE="2"):
        wanted = train_plain("torch's")[0][0][:BATCHES]
    assert losses == pytest.approx(wanted, rel=2e-5)


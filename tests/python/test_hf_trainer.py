"""transformers' Trainer on zerotorch: the curve of a plain Trainer, checkpoints, and models built under ZeRO-3."""

from __future__ import annotations

import json
import os
from typing import Any

import hf_trainer as hf
import models
import pytest
import torch
from ranks import run
from support import needs, python, script

needs("transformers", "accelerate")

BF16 = {"bf16": True, "use_cpu": True}  # Trainer wants to be told
LOGGED = ("loss", "grad_norm", "learning_rate")


@pytest.fixture(scope="module", params=[1, 2], ids=["1 rank", "2 ranks"])
def ranks(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def config(stage: int, **more: Any) -> dict[str, Any]:
    """As users of Trainer write it."""
    return {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "fp16": {"enabled": "auto"},
        "bf16": {"enabled": "auto"},
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": "auto",
            "stage3_prefetch_bucket_size": "auto",
            "stage3_param_persistence_threshold": "auto",
            "stage3_gather_16bit_weights_on_model_save": True,
        },
        **more,
    }


OPTIMIZER = {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}}
RATES = {"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"}
OF_JSON: dict[str, dict[str, Any]] = {
    "Trainer's optimizer and schedule": {},
    "WarmupLR": {"optimizer": OPTIMIZER, "scheduler": {"type": "WarmupLR", "params": RATES}},
    "WarmupDecayLR": {
        "optimizer": OPTIMIZER,
        "scheduler": {"type": "WarmupDecayLR", "params": {**RATES, "total_num_steps": "auto"}},
    },
    "Trainer's schedule": {"optimizer": OPTIMIZER},
    "Trainer's optimizer": {"scheduler": {"type": "WarmupLR", "params": RATES}},
}


def weights(engine: Any) -> dict[str, torch.Tensor]:
    """fp32, of all trained parameters."""
    return {name: engine._core.full_weight(name) for name, p in engine.module.named_parameters() if p.requires_grad}


def train(stage: int, of_json: str, **options: Any) -> tuple[list[dict[str, float]], float, dict[str, torch.Tensor]]:
    with hf.libraries(), hf.shared_folder() as folder:
        from transformers import AutoModelForCausalLM

        pretrained = hf.save_model(folder)
        args = hf.arguments(folder, config(stage, **OF_JSON[of_json]), **options)
        model = AutoModelForCausalLM.from_pretrained(pretrained)
        assert hasattr(model.lm_head.weight, "ds_id") == (stage == 3)
        trainer = hf.make_trainer(model, args)
        trainer.train()
        loss = trainer.evaluate()["eval_loss"]
        steps = args.gradient_accumulation_steps
        assert trainer.model_wrapped.get_batch_info() == (hf.GLOBAL_BATCH, hf.MICRO_BATCH, steps)
        result = hf.logged(trainer, *LOGGED), loss, weights(trainer.model_wrapped)
        trainer.model_wrapped.destroy()
        return result


def train_plain(of_json: str, **options: Any) -> tuple[list[dict[str, float]], float, dict[str, torch.Tensor]]:
    """With one process, and the schedule of the configuration over torch's optimizer."""
    from zerotorch.runtime import lr_schedules

    with hf.alone(), hf.libraries():
        model = hf.causal_model()
        trainer = hf.make_trainer(model, hf.arguments("/nonexistent", **options))
        kind = OF_JSON[of_json].get("scheduler", {}).get("type")
        if kind is not None:
            optimizer = trainer.create_optimizer()
            if "optimizer" in OF_JSON[of_json]:  # all parameters decay
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
            values = {"warmup_max_lr": 1e-2, "warmup_num_steps": 2}
            if kind == "WarmupDecayLR":
                values["total_num_steps"] = 6
            trainer.optimizer, trainer.lr_scheduler = optimizer, getattr(lr_schedules, kind)(optimizer, **values)
        elif "optimizer" in OF_JSON[of_json]:
            trainer.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
        trainer.train()
        return hf.logged(trainer, *LOGGED), trainer.evaluate()["eval_loss"], dict(model.named_parameters())


def difference(stage: int, of_json: str, **options: Any) -> tuple[float, float, str]:
    """The largest relative difference of what was logged and of the weights from a plain run's, and the weights'
    hash."""
    losses, evaluated, mine = train(stage, of_json, **options)
    wanted, evaluated_plain, plain = train_plain(of_json, **options)
    if OF_JSON[of_json]:  # the engine has stepped it when Trainer logs the rate
        for entry, after in zip(wanted, [*wanted[1:], losses[-1]], strict=True):
            entry["learning_rate"] = after["learning_rate"]
    assert len(losses) == len(wanted) == 6
    of_losses = max(abs(a[key] - b[key]) / (b[key] or 1) for a, b in zip(losses, wanted, strict=True) for key in LOGGED)
    of_losses = max(of_losses, abs(evaluated / evaluated_plain - 1))
    of_weights = max(((mine[name] - plain[name]).norm() / plain[name].norm()).item() for name in plain)
    return of_losses, of_weights, models.digest(mine)


_hashes: dict[str, set[str]] = {}


@pytest.mark.parametrize("of_json", list(OF_JSON))
@pytest.mark.parametrize("stage", [0, 2, 3])
def test_trains_as_a_plain_trainer(ranks: int, stage: int, of_json: str) -> None:
    for of_losses, of_weights, digest in run(ranks, difference, stage, of_json):
        assert of_losses < 1e-5 and of_weights < 1e-4
        _hashes.setdefault(of_json, set()).add(digest)
    assert len(_hashes[of_json]) == 1  # of all stages and numbers of ranks


def resumed(stage: int, of_json: str) -> tuple[list[Any], list[Any], str, str]:
    """Logs of 6 updates in one go and of the same with a break after 3, and what the weights are in the end."""
    with hf.libraries(), hf.shared_folder() as folder:
        from transformers import AutoModelForCausalLM

        pretrained = hf.save_model(folder)
        results = []
        for resume in (None, f"{folder}/checkpoint-3"):
            # Saved after 3 and, by the first run only, after 6 updates.
            args = hf.arguments(folder, config(stage, **OF_JSON[of_json]), save_strategy="steps", save_steps=3)
            trainer = hf.make_trainer(AutoModelForCausalLM.from_pretrained(pretrained), args)
            trainer.train(resume_from_checkpoint=resume)
            results.append((hf.logged(trainer, *LOGGED), models.digest(weights(trainer.model_wrapped))))
            trainer.model_wrapped.destroy()
        (whole, digest), (parts, digest_of_parts) = results
        return whole, parts, digest, digest_of_parts


@pytest.mark.parametrize("of_json", ["Trainer's optimizer and schedule", "WarmupDecayLR"])
@pytest.mark.parametrize("stage", [2, 3])
def test_resumes_with_the_same_bits(ranks: int, stage: int, of_json: str) -> None:
    for whole, parts, digest, digest_of_parts in run(ranks, resumed, stage, of_json):
        assert len(whole) == 6 and parts == whole and digest == digest_of_parts


def saved(stage: int, bf16: bool) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What save_model() has written, and what was trained."""
    with hf.libraries(), hf.shared_folder() as folder:
        from transformers import AutoModelForCausalLM

        pretrained = hf.save_model(folder)
        trainer = hf.make_trainer(
            AutoModelForCausalLM.from_pretrained(pretrained),
            hf.arguments(folder, config(stage), max_steps=2, **(BF16 if bf16 else {})),
        )
        trainer.train()
        trainer.save_model(f"{folder}/saved")
        trained = weights(trainer.model_wrapped)
        trainer.model_wrapped.destroy()
        torch.distributed.barrier()
        with hf.fresh():
            loaded = AutoModelForCausalLM.from_pretrained(f"{folder}/saved")
        return {name: p.detach().clone() for name, p in loaded.named_parameters()}, trained


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("stage", [2, 3])
def test_saves_a_model_that_others_load(ranks: int, stage: int, bf16: bool) -> None:
    for loaded, trained in run(ranks, saved, stage, bf16):
        assert loaded.keys() == trained.keys()
        for name, value in loaded.items():
            assert value.dtype == (torch.bfloat16 if bf16 else torch.float32)
            assert torch.equal(value, trained[name].to(value.dtype))


def difference_in_bf16(stage: int) -> tuple[float, float, str]:
    return difference(stage, "WarmupLR", **BF16)


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_trains_in_bf16(ranks: int, stage: int) -> None:
    """A plain Trainer computes by autocast from fp32 weights, which is not the same."""
    for of_losses, of_weights, digest in run(ranks, difference_in_bf16, stage):
        assert of_losses < 3e-2 and of_weights < 3e-2
        # zero.Init rounds the weights that others begin from.
        begin = "bf16" if stage == 3 else "fp32"
        _hashes.setdefault(f"bf16, from {begin}", set()).add(digest)
        assert len(_hashes[f"bf16, from {begin}"]) == 1


TOKENS = 36  # after a resize


def built() -> dict[str, Any]:
    """A model that is built under ZeRO-3 before there is an engine or a process group of torch, resized, and
    trained."""
    import torch.distributed as dist
    from transformers import AutoModelForCausalLM
    from transformers.integrations import HfDeepSpeedConfig

    keep = HfDeepSpeedConfig(config(3))
    torch.manual_seed(int(os.environ["RANK"]))  # rank 0's numbers count
    made = AutoModelForCausalLM.from_config(hf.llama_config(tie_word_embeddings=True))
    assert dist.is_initialized() and made.lm_head.weight is made.model.embed_tokens.weight
    before = {name: p.detach().clone() for name, p in made.named_parameters()}
    with hf.shared_folder() as folder:
        pretrained = hf.save_model(folder, tie_word_embeddings=True)
        model = AutoModelForCausalLM.from_pretrained(pretrained)
        with hf.alone(), hf.fresh():
            plain = AutoModelForCausalLM.from_pretrained(pretrained)
        for one in (model, plain):
            torch.manual_seed(1)
            one.resize_token_embeddings(TOKENS, mean_resizing=False)
        assert model.lm_head.weight is model.model.embed_tokens.weight and model.lm_head.weight.shape[0] == TOKENS
        args = hf.arguments(folder, keep.config, max_steps=3)
        # Rows that are new have other random numbers.
        with torch.no_grad():
            rows = model.lm_head.weight[hf.VOCAB :].clone()
            assert rows.std() == pytest.approx(plain.lm_head.weight[hf.VOCAB :].std().item(), rel=0.3)
            plain.lm_head.weight[hf.VOCAB :] = rows
        same = all(torch.equal(p, q) for p, q in zip(model.parameters(), plain.parameters(), strict=True))
        trainer = hf.make_trainer(model, args)
        trainer.train()
        prompt = torch.tensor([[5, 6, 7], [8, 9, 10]])
        # Ranks end after different numbers of tokens.
        length = 6 + 3 * dist.get_rank()
        made_tokens = trainer.model.generate(prompt, max_new_tokens=length, do_sample=False, synced_gpus=True)
        losses, trained = hf.logged(trainer, "loss"), weights(trainer.model_wrapped)
        trainer.model_wrapped.destroy()
    with hf.alone(), hf.libraries():
        other = hf.make_trainer(plain, hf.arguments("/nonexistent", max_steps=3))
        other.train()
        wanted_tokens = plain.generate(prompt, max_new_tokens=length, do_sample=False)
    return {
        "new": before,
        "same start": same,
        "losses": ([entry["loss"] for entry in losses], [entry["loss"] for entry in hf.logged(other, "loss")]),
        "weights": max((trained[name] - p).norm() / p.norm() for name, p in plain.named_parameters()).item(),
        "tokens": torch.equal(made_tokens, wanted_tokens),
    }


def test_builds_models_under_zero_3() -> None:
    results = run(2, in_libraries, "built")
    for one in results:
        assert one["same start"] and one["tokens"] and one["weights"] < 1e-4
        assert one["losses"][0] == pytest.approx(one["losses"][1], rel=1e-5)
        assert all(torch.equal(value, results[0]["new"][name]) for name, value in one["new"].items())
        assert one["new"]["model.embed_tokens.weight"].std() == pytest.approx(0.02, rel=0.2)


def in_libraries(name: str) -> Any:
    with hf.libraries():
        return globals()[name]()


PROGRAM = """
    import json, sys
    from transformers import Trainer, TrainingArguments
    sys.path.insert(0, {tests!r})
    import hf_trainer as hf

    args = TrainingArguments({folder!r}, deepspeed={config!r}, per_device_train_batch_size=2, max_steps=2, seed=9,
                             learning_rate=1e-2, gradient_accumulation_steps=8 // 2 // {ranks}, save_strategy="no",
                             report_to=[], logging_steps=1, disable_tqdm=True)
    trainer = Trainer(hf.causal_model(seed=3 if {stage} < 3 else 0), args, train_dataset=hf.Sentences())
    trainer.train()
    if args.process_index == 0:
        print("RESULT", args.world_size, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
"""


def launched(folder: Any, ranks: int, stage: int) -> tuple[int, list[float]]:
    """A program that knows nothing of zerotorch, with a JSON file."""
    path = folder / "ds.json"
    path.write_text(json.dumps(config(stage)))
    tests = os.path.dirname(__file__)
    code = PROGRAM.format(tests=tests, folder=str(folder / "out"), config=str(path), ranks=ranks, stage=stage)
    done = python("-m", "zerotorch.run", "-n", str(ranks), script(folder, code), timeout=120, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    line = next(line for line in done.stdout.splitlines() if "RESULT" in line)
    size, losses = line.split("RESULT ")[1].split(" ", 1)
    return int(size), json.loads(losses[: losses.index("]") + 1])


@pytest.mark.parametrize("stage", [2, 3])
def test_a_program_that_is_launched(tmp_path: Any, stage: int) -> None:
    one, two = launched(tmp_path, 1, stage), launched(tmp_path, 2, stage)
    assert (one[0], two[0]) == (1, 2)  # jobs of so many processes, not two jobs of one
    assert len(one[1]) == 2 and one[1] == pytest.approx(two[1], rel=1e-6)


def best(stage: int) -> list[float]:
    """What Trainer evaluates while it trains and, with the best of its checkpoints, after that."""
    with hf.libraries(), hf.shared_folder() as folder:
        from transformers import AutoModelForCausalLM

        pretrained = hf.save_model(folder)
        settings = config(stage)
        settings["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = False
        steps = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
        args = hf.arguments(folder, settings, max_steps=4, load_best_model_at_end=True, learning_rate=0.3, **steps)
        trainer = hf.make_trainer(AutoModelForCausalLM.from_pretrained(pretrained), args)
        trainer.train()
        trainer.evaluate()
        return [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]


@pytest.mark.parametrize("stage", [2, 3])
def test_goes_back_to_the_best_checkpoint(stage: int) -> None:
    for first, second, at_the_end in run(2, best, stage):
        assert first != second and at_the_end == min(first, second)


def losses_of(trainer: Any, evaluates_first: bool) -> list[float]:
    """Of train() twice. The second begins with the weights of the first and a new optimizer."""
    losses = []
    for _ in range(2):
        if evaluates_first:
            losses.append(trainer.evaluate()["eval_loss"])
        trainer.train()
        losses += [entry["loss"] for entry in hf.logged(trainer, "loss")]
    return losses


def again(stage: int, evaluates_first: bool) -> tuple[list[float], list[float]]:
    with hf.libraries(), hf.shared_folder() as folder:
        from transformers import AutoModelForCausalLM

        pretrained = hf.save_model(folder)
        trainer = hf.make_trainer(
            AutoModelForCausalLM.from_pretrained(pretrained), hf.arguments(folder, config(stage), max_steps=2)
        )
        losses = losses_of(trainer, evaluates_first)
    with hf.alone(), hf.libraries():
        plain = hf.make_trainer(hf.causal_model(), hf.arguments("/nonexistent", max_steps=2))
        plain.create_optimizer = _always_new(plain)
        return losses, losses_of(plain, evaluates_first)


def _always_new(trainer: Any) -> Any:
    create = trainer.create_optimizer

    def create_optimizer(*arguments: Any) -> Any:
        trainer.optimizer = None
        return create(*arguments)

    return create_optimizer


@pytest.mark.parametrize(("stage", "evaluates_first"), [(2, False), (3, False), (3, True)])
def test_trains_again(ranks: int, stage: int, evaluates_first: bool) -> None:
    for losses, wanted in run(ranks, again, stage, evaluates_first):
        assert losses == pytest.approx(wanted, rel=1e-5)

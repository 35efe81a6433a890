#!/usr/bin/env python3
"""Runs the real DeepSpeed (the one this Python has) on the CPU and keeps its checkpoint folders with what must be read
from them. The committed ones, tests/python/data/deepspeed/, are by DeepSpeed 0.19.8 and, where a name begins with a
version, by that one.

Each case is a folder <name>/ with
  checkpoint/           what engine.save_checkpoint wrote, without the programs that DeepSpeed copies beside it
  expected.safetensors  <kind>/<name>: weight, exp_avg, exp_avg_sq in fp32, and buffer; as DeepSpeed had them in memory
  expected.json         steps, learning rates, the client state, and each rank's losses of the 3 steps after the save

Needs torch, deepspeed and safetensors: scripts/bootstrap.sh peers, then
  build/peers/bin/python scripts/make_deepspeed_checkpoints.py [--to FOLDER] [--case NAME]... [--all]
An older version runs with the same torch (0.18 only at stage 3, as it gathers into views):
  pip install --no-deps --no-build-isolation --target build/old deepspeed==0.14.5
  PYTHONPATH=build/old build/peers/bin/python scripts/make_deepspeed_checkpoints.py --old
DeepSpeed keeps its shared memory: /dev/shm/deepspeed_allreduce_buffer_* are to be removed afterwards.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPS_BEFORE, STEPS_AFTER = 3, 3
CLIENT_STATE = {"epoch": 3, "note": "odd", "nested": {"list": [1, 2.5, None], "flag": True}}
TAG = "global_step3"
RANK_TIMEOUT_S = 300

# What is committed: name -> stage, ranks, precision, and what else is unusual.
COMMITTED = {
    "stage0_n1_fp32": {},
    "stage0_n2_bf16": {},
    "stage0_n1_fp16": {},
    "stage0_n1_bf16_fused": {"fused": True},
    "stage1_n2_fp32": {},
    "stage1_n2_bf16": {},
    "stage1_n3_bf16_fp32_sums": {"grad_accum_dtype": "fp32"},
    "stage2_n1_fp32": {},
    "stage2_n2_bf16": {},
    "stage2_n3_fp32": {},
    "stage2_n3_fp32_round_robin": {"zero": {"round_robin_gradients": True}},
    "stage2_n2_fp32_elastic": {"zero": {"elastic_checkpoint": True}},
    "stage2_n2_fp16": {},
    "stage2_n3_bf16_aligned": {"zero": {"parameter_alignment": True}, "since": (0, 19)},
    "stage3_n1_fp32": {},
    "stage3_n2_bf16": {},
    "stage3_n3_fp32": {},
    "stage3_n2_fp16": {},
    "stage3_n3_bf16_sub_groups": {"zero": {"sub_group_size": 50}},
    "stage3_n2_bf16_no_frozen": {"exclude_frozen_parameters": True},
}

# By older versions, with the version before the name.
OLD = ("stage2_n2_bf16", "stage3_n2_bf16")


def all_cases():
    cases = dict(COMMITTED)
    for stage in (0, 1, 2, 3):
        for ranks in (1, 2, 3):
            for precision in ("fp32", "bf16", "fp16"):
                cases.setdefault(f"stage{stage}_n{ranks}_{precision}", {})
    return cases


def parse(name, extra):
    stage, ranks, precision = name.split("_")[:3]
    return dict(extra, name=name, stage=int(stage[5:]), ranks=int(ranks[1:]), precision=precision)


def config_of(case):
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "steps_per_print": 1000000,
        "zero_allow_untested_optimizer": True,
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": 0.02,
                "betas": [0.9, 0.95],
                "eps": 1e-8,
                "weight_decay": 0.1,
                "torch_adam": not case.get("fused"),
            },
        },
        "scheduler": {
            "type": "WarmupLR",
            "params": {"warmup_min_lr": 0.001, "warmup_max_lr": 0.02, "warmup_num_steps": 10, "warmup_type": "linear"},
        },
        "zero_optimization": {"stage": case["stage"], "stage3_param_persistence_threshold": 10, **case.get("zero", {})},
    }
    if case["precision"] == "bf16":
        config["bf16"] = {"enabled": True}
    if case["precision"] == "fp16":  # the first update overflows, and is skipped
        config["fp16"] = {"enabled": True, "initial_scale_power": 18, "hysteresis": 1}
    if "grad_accum_dtype" in case:
        config["data_types"] = {"grad_accum_dtype": case["grad_accum_dtype"]}
    return config


# ---- inside a rank


def train(engine, step, odd_model):
    import torch.distributed as dist

    tokens, targets = odd_model.batch(step, dist.get_rank())
    loss = engine(tokens, targets)
    engine.backward(loss)
    engine.step()
    return float(loss.detach())


def plain_states(engine, names):
    """{name: (master, its states)} of stage 0: the parameter itself when it is fp32; of 16-bit ones a tensor each, or
    with a fused optimizer a flat one a group."""
    optimizer = engine.optimizer
    found = {}
    if hasattr(optimizer, "fp32_groups_flat"):
        for group, flat in zip(optimizer.fp16_groups, optimizer.fp32_groups_flat):
            at = 0
            for parameter in group:
                part = slice(at, at + parameter.numel())
                states = {kind: optimizer.optimizer.state[flat][kind][part] for kind in ("exp_avg", "exp_avg_sq")}
                found[names[parameter]] = (flat[part], states)
                at += parameter.numel()
        return found
    if not hasattr(optimizer, "fp32_groups"):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                found[names[parameter]] = (parameter, optimizer.state[parameter])
        return found
    for low, high in zip(optimizer.fp16_groups, optimizer.fp32_groups):
        for parameter, master in zip(low, high):
            found[names[parameter]] = (master, optimizer.optimizer.state[master])
    return found


def relink(optimizer):
    """Stages 1 and 2: DeepSpeed's safe_get_full_* have only the states of the first group when there are several (it
    links all as soon as that is updated), and those of other parameters under round_robin_gradients (it links in the
    order from before the shuffle). Its files are right."""
    if not hasattr(optimizer, "round_robin_bit16_groups"):
        return
    unshuffled, optimizer.bit16_groups = optimizer.bit16_groups, optimizer.round_robin_bit16_groups
    optimizer._link_all_hp_params()
    optimizer._hp_optimizer_states_linked = False
    optimizer._lazy_init_hp_params_optimizer_state()
    optimizer.bit16_groups = unshuffled


def expected_tensors(engine, stage):
    """{kind/name: tensor}, through DeepSpeed's own functions for stages 1 to 3."""
    import deepspeed
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    names = {parameter: name for name, parameter in engine.module.named_parameters()}
    relink(engine.optimizer)
    tensors = {}
    plain = plain_states(engine, names) if stage == 0 else {}
    for parameter, name in names.items():
        if not parameter.requires_grad:
            with deepspeed.zero.GatheredParameters([parameter], enabled=stage == 3):
                tensors[f"weight/{name}"] = parameter.detach().clone()
            continue
        if stage == 0:
            master, states = plain[name]
            tensors[f"weight/{name}"] = master.detach().clone()
            for kind in ("exp_avg", "exp_avg_sq"):
                tensors[f"{kind}/{name}"] = states[kind].detach().clone()
            continue
        tensors[f"weight/{name}"] = safe_get_full_fp32_param(parameter).detach().clone()
        for kind in ("exp_avg", "exp_avg_sq"):
            tensors[f"{kind}/{name}"] = safe_get_full_optimizer_state(parameter, kind).detach().clone()
    for name, buffer in engine.module.named_buffers():
        tensors[f"buffer/{name}"] = buffer.detach().clone()
    shapes = {name: getattr(parameter, "ds_shape", parameter.shape) for parameter, name in names.items()}
    return {
        key: value.reshape(shapes.get(key.split("/", 1)[1], value.shape)).contiguous() for key, value in tensors.items()
    }


def step_counts(engine):
    """The number of updates that Adam has counted, of every group or parameter that it knows, without repetition."""
    inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
    return sorted({int(state["step"]) for state in inner.state.values() if "step" in state})


def start_rank(case, meeting):
    """(engine, the model's module) inside a rank that run_ranks started."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed
    import torch
    import torch.distributed as dist

    sys.path.insert(0, str(ROOT / "tests" / "python"))
    import odd_model

    torch.set_num_threads(1)
    if case["precision"] == "fp16":  # DeepSpeed refuses it on the CPU because it may be slow there
        type(deepspeed.get_accelerator()).is_fp16_supported = lambda self: True
        type(deepspeed.get_accelerator()).supported_dtypes = lambda self: [torch.float, torch.bfloat16, torch.half]
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=int(os.environ["RANK"]), world_size=case["ranks"]
    )
    deepspeed.init_distributed(dist_backend="gloo", dist_init_required=False)
    model = odd_model.OddModel(seed=case.get("seed", 7))
    config = config_of(case)
    params = config["optimizer"]["params"]
    groups = model.groups(params["lr"], params["weight_decay"])
    engine, _, _, _ = deepspeed.initialize(model=model, config=config, model_parameters=groups)
    return engine, odd_model


def losses_of_steps(engine, odd_model, begin, end):
    """By rank, on every rank."""
    import torch.distributed as dist

    gathered = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, [train(engine, step, odd_model) for step in range(begin, end)])
    return gathered


def save_main(spec):
    """A rank that trains, and saves what is kept."""
    case, folder = spec["case"], pathlib.Path(spec["to"])
    engine, odd_model = start_rank(case, spec["meeting"])
    import deepspeed
    import torch
    from safetensors.torch import save_file

    losses_before = losses_of_steps(engine, odd_model, 0, STEPS_BEFORE)
    tensors = expected_tensors(engine, case["stage"])
    expected = {
        "deepspeed": deepspeed.__version__,
        "torch": torch.__version__,
        "stage": case["stage"],
        "ranks": case["ranks"],
        "precision": case["precision"],
        "global_steps": engine.global_steps,
        "skipped_steps": engine.skipped_steps,
        "updates": step_counts(engine),
        "lr": engine.get_lr(),
        "client_state": CLIENT_STATE,
        "loss_scale": float(getattr(engine.optimizer, "loss_scale", None) or 1.0),
        "config": config_of(case),
        "losses_before": losses_before,
    }
    options = {"exclude_frozen_parameters": True} if case.get("exclude_frozen_parameters") else {}
    engine.save_checkpoint(str(folder / "checkpoint"), tag=TAG, client_state=CLIENT_STATE, **options)
    expected["losses_after"] = losses_of_steps(engine, odd_model, STEPS_BEFORE, STEPS_BEFORE + STEPS_AFTER)
    if engine.global_rank == 0:
        save_file(tensors, str(folder / "expected.safetensors"))
        (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def resume_main(spec):
    """A rank that goes on from a folder with a model of other weights."""
    case, folder = dict(spec["case"], seed=99), pathlib.Path(spec["to"])
    engine, odd_model = start_rank(case, spec["meeting"])
    path, client_state = engine.load_checkpoint(spec["resume"])
    result = {"path": path, "client_state": {key: client_state.get(key) for key in CLIENT_STATE}}
    result.update(global_steps=engine.global_steps, skipped_steps=engine.skipped_steps, lr=engine.get_lr())
    result["updates"] = step_counts(engine)
    tensors = expected_tensors(engine, case["stage"])
    result["losses"] = losses_of_steps(engine, odd_model, STEPS_BEFORE, STEPS_BEFORE + STEPS_AFTER)
    if engine.global_rank == 0:
        from safetensors.torch import save_file

        save_file(tensors, str(folder / "loaded.safetensors"))
        (folder / "resumed.json").write_text(json.dumps(result))


# ---- the program


def run_ranks(spec, ranks):
    """None when all ranks ended well, else their last words."""
    with tempfile.TemporaryDirectory() as scratch:
        text = json.dumps({**spec, "meeting": f"{scratch}/meeting"})
        logs = [open(f"{scratch}/log{rank}", "w+b") for rank in range(ranks)]
        processes = []
        for rank, log in enumerate(logs):
            own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_SIZE": ranks, "OMP_NUM_THREADS": 1}
            environment = {**os.environ, **{name: str(value) for name, value in own.items()}, "DS_ACCELERATOR": "cpu"}
            command = [sys.executable, str(pathlib.Path(__file__).resolve()), "--rank", text]
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
        good = True
        for process in processes:
            try:
                good = process.wait(RANK_TIMEOUT_S) == 0 and good
            except subprocess.TimeoutExpired:
                good = False
            if not good:
                for other in processes:
                    other.kill()
        words = []
        for log in logs:
            log.seek(0)
            words.append(log.read().decode(errors="replace")[-3000:])
            log.close()
        return None if good else "\n".join(words)


def run_case(case, to):
    """True when the folder was made; else what the ranks said is printed."""
    target = to / case["name"]
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    failure = run_ranks({"case": case, "to": str(target)}, case["ranks"])
    for program in (target / "checkpoint").glob("*.py"):
        program.unlink()
    if failure is not None:
        print(failure)
        shutil.rmtree(target)
    return failure is None


def resume(name, folder, scratch, **extra):
    """Goes on from a folder as case `name` would; for the tests. Returns what resume_main found out."""
    case = parse(name, {**all_cases().get(name, {}), **extra})
    failure = run_ranks({"case": case, "to": str(scratch), "resume": str(folder)}, case["ranks"])
    if failure is not None:
        raise RuntimeError(failure)
    return json.loads((pathlib.Path(scratch) / "resumed.json").read_text())


def installed_version():
    import importlib.metadata

    return importlib.metadata.version("deepspeed")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--to", type=pathlib.Path, default=ROOT / "tests" / "python" / "data" / "deepspeed")
    parser.add_argument("--case", action="append", help="only this one; may be repeated")
    parser.add_argument("--all", action="store_true", help="also every stage, 1 to 3 ranks and precision there is")
    parser.add_argument("--old", action="store_true", help="the cases of older versions, named by the version")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        spec = json.loads(arguments.rank)
        return resume_main(spec) if "resume" in spec else save_main(spec)
    version = installed_version().split(".")[:2]
    cases = all_cases()
    chosen = arguments.case or (OLD if arguments.old else cases if arguments.all else COMMITTED)
    failed = []
    for name in chosen:
        case = parse(name, cases[name])
        if tuple(int(part) for part in version) < tuple(case.get("since", (0, 0))):
            continue
        if arguments.old:
            case["name"] = f"v{'.'.join(version)}_{name}"
        made = run_case(case, arguments.to)
        print(f"{case['name']}: {'made' if made else 'FAILED'}", flush=True)
        if not made:
            failed.append(name)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

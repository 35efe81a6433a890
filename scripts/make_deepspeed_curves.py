#!/usr/bin/env python3
"""Writes tests/data/deepspeed_curves.json: the losses of DeepSpeed's own engine, step by step, for every
optimizer and schedule that its JSON and ours share, with the JSON texts that made them.

tests/dist/deepspeed_curves_test.cpp trains the same model from the same texts. Needs DeepSpeed (0.19.8 made the committed
file), torch, a C++ compiler and ninja (DeepSpeed compiles its kernels for the CPU), and a CPU.
Usage: make_deepspeed_curves.py [file]
"""
import json
import multiprocessing
import os
import pathlib
import socket
import sys

STEPS = 20
BATCH, MICRO = 12, 3
INPUTS, HIDDEN, OUTPUTS = 7, 13, 5

# What is trained with each: most have a value that is no default.
OPTIMIZERS = [
    {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1, "torch_adam": True}},
    {"type": "AdamW", "params": {"lr": 0.01, "betas": [0.8, 0.95], "eps": 1e-6, "weight_decay": 0.1}},
    {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": 0.1, "amsgrad": True, "torch_adam": True}},
    {"type": "Adam", "params": {"lr": 0.01, "weight_decay": 0.1}},
    {"type": "Adam", "params": {"lr": 0.01, "weight_decay": 0.1, "adam_w_mode": False}},
    {"type": "Adam", "params": {"lr": 0.01, "weight_decay": 0.1, "adam_w_mode": False, "torch_adam": True}},
    # DeepSpeed's kernel has 1 - beta in fp32, which only bias correction makes good: betas that fp32 has exactly.
    {"type": "Adam", "params": {"lr": 0.01, "betas": [0.875, 0.984375], "bias_correction": False}},
    {"type": "Adam", "params": {"lr": 0.01, "maximize": True, "torch_adam": True}},
    {"type": "SGD", "params": {"lr": 0.1}},
    {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}},
    {"type": "SGD", "params": {"lr": 0.05, "momentum": 0.9, "nesterov": True}},
    {"type": "Adagrad", "params": {"lr": 0.05, "weight_decay": 0.01}},
    {"type": "Adagrad", "params": {"lr": 0.05, "lr_decay": 0.1, "initial_accumulator_value": 0.1, "eps": 1e-6}},
    {"type": "RMSprop", "params": {"lr": 0.002}},
    {"type": "RMSprop", "params": {"lr": 0.005, "alpha": 0.9, "momentum": 0.9, "centered": True, "eps": 1e-4,
                                   "weight_decay": 0.01}},
    {"type": "Lion", "params": {"lr": 0.003}},
    {"type": "Lion", "params": {"lr": 0.003, "betas": [0.95, 0.98], "weight_decay": 0.1}},
]

SCHEDULES = [
    {"type": "WarmupLR", "params": {"warmup_min_lr": 1e-4, "warmup_max_lr": 0.02, "warmup_num_steps": 8}},
    {"type": "WarmupLR", "params": {"warmup_max_lr": 0.02, "warmup_num_steps": 8, "warmup_type": "linear"}},
    {"type": "WarmupDecayLR", "params": {"total_num_steps": 16, "warmup_max_lr": 0.02, "warmup_num_steps": 5}},
    {"type": "WarmupDecayLR", "params": {"total_num_steps": 30, "warmup_min_lr": 1e-4, "warmup_max_lr": 0.02,
                                         "warmup_num_steps": 5, "warmup_type": "linear"}},
    {"type": "WarmupCosineLR", "params": {"total_num_steps": 18, "warmup_num_steps": 4, "warmup_min_ratio": 0.1,
                                          "cos_min_ratio": 0.01, "warmup_type": "linear"}},
    {"type": "OneCycle", "params": {"cycle_min_lr": 1e-3, "cycle_max_lr": 0.03, "cycle_first_step_size": 6,
                                    "cycle_second_step_size": 7, "decay_lr_rate": 0.3, "decay_step_size": 2,
                                    "cycle_min_mom": 0.7, "cycle_max_mom": 0.95, "decay_mom_rate": 0.001}},
    {"type": "OneCycle", "params": {"cycle_min_lr": 1e-3, "cycle_max_lr": 0.03, "cycle_first_step_size": 8,
                                    "cycle_first_stair_count": 4, "cycle_momentum": False}},
    {"type": "LRRangeTest", "params": {"lr_range_test_min_lr": 1e-3, "lr_range_test_step_size": 3,
                                       "lr_range_test_step_rate": 2.0}},
    {"type": "LRRangeTest", "params": {"lr_range_test_min_lr": 1e-3, "lr_range_test_step_size": 6,
                                       "lr_range_test_staircase": True}},
]


def config_of(optimizer, stage, schedule=None, **more):
    config = {"train_batch_size": BATCH, "train_micro_batch_size_per_gpu": MICRO, "optimizer": optimizer}
    if schedule:
        config["scheduler"] = schedule
    config["zero_optimization"] = {"stage": stage}
    if stage > 0:  # DeepSpeed asks for it with optimizers of torch.optim
        config["zero_allow_untested_optimizer"] = True
    if stage == 3:
        config["zero_optimization"]["stage3_param_persistence_threshold"] = 0
    if optimizer["type"] == "Lion":  # its kernel for the CPU is that of states on the CPU
        config["zero_optimization"] |= {"stage": max(stage, 1), "offload_optimizer": {"device": "cpu"}}
        config["zero_force_ds_cpu_optimizer"] = True
    config.update(more)
    return config


def cases():
    """(ranks, configuration)"""
    for optimizer in OPTIMIZERS:
        for ranks, stage in ((1, 0), (2, 1), (2, 2), (2, 3)):
            yield ranks, config_of(optimizer, stage)
        yield 1, config_of(optimizer, 2, gradient_clipping=0.05)
    adamw, sgd = OPTIMIZERS[0], OPTIMIZERS[9]
    for schedule in SCHEDULES:
        for ranks, stage in ((1, 0), (2, 2)):
            yield ranks, config_of(adamw, stage, schedule)
        yield 2, config_of(sgd, 1, schedule)
    for optimizer in OPTIMIZERS:
        for ranks, stage in ((1, 1), (2, 2)):
            yield ranks, config_of(optimizer, stage, bf16={"enabled": True})
            yield ranks, config_of(optimizer, stage, fp16={"enabled": True, "initial_scale_power": 8})
        if optimizer["type"] == "Lion":  # gradients of micro-batches added in fp32, as here: the same signs
            yield 1, config_of(optimizer, 1, bf16={"enabled": True}, data_types={"grad_accum_dtype": "fp32"})


def worker(rank, ranks, port, configs, answers):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(port), DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1")
    import deepspeed
    import torch
    import torch.nn as nn
    torch.set_num_threads(1)
    # Asks for fp16 instructions in oneDNN; torch computes in fp16 without them.
    deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True
    deepspeed.init_distributed("gloo", verbose=False)

    def fill(tensor, salt):
        """Whole 128ths: the same bits in every language."""
        index = torch.arange(tensor.numel(), dtype=torch.int64)
        with torch.no_grad():
            tensor.copy_(((index * 37 + salt * 101) % 97 - 48).float().div(128).view_as(tensor))

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Linear(INPUTS, HIDDEN)
            self.norm = nn.LayerNorm(HIDDEN)
            self.second = nn.Linear(HIDDEN, OUTPUTS)
            for salt, name in enumerate(("first.weight", "first.bias", "second.weight", "second.bias")):
                fill(self.get_parameter(name), salt)

        def forward(self, x):
            return self.second(self.norm(torch.tanh(self.first(x))))

    def samples(step, micro):
        """Inputs and targets of MICRO samples; after four steps they come again."""
        first = (step % 4 * BATCH + micro * MICRO) * INPUTS
        index = torch.arange(first, first + MICRO * INPUTS, dtype=torch.int64)
        x = ((index * 29) % 61 - 30).float().div(32).view(MICRO, INPUTS)
        return x, x[:, :OUTPUTS] - 0.5 * x[:, INPUTS - OUTPUTS:]

    for number, config in configs:
        try:
            engine, *_ = deepspeed.initialize(model=Odd(), config=json.loads(json.dumps(config)))
            dtype = next(engine.module.parameters()).dtype
            losses = []
            for step in range(STEPS):
                total = torch.zeros(1, dtype=torch.float64)
                for part in range(BATCH // MICRO // ranks):
                    x, target = samples(step, part * ranks + rank)
                    loss = (engine(x.to(dtype)).float() - target).square().mean()
                    engine.backward(loss)
                    engine.step()
                    total += loss.detach().double()
                torch.distributed.all_reduce(total)
                losses.append(float("%.8g" % (total.item() * MICRO / BATCH)))
            answers.put((rank, number, losses, None))
        except Exception as error:  # what DeepSpeed refuses is said, and left out
            answers.put((rank, number, None, f"{type(error).__name__}: {error}"))


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def main():
    target = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else
                          pathlib.Path(__file__).parent.parent / "tests/data/deepspeed_curves.json")
    everything = list(cases())
    context = multiprocessing.get_context("spawn")
    curves = {}
    for ranks in (1, 2):
        configs = [(i, config) for i, (wanted, config) in enumerate(everything) if wanted == ranks]
        answers, port = context.Queue(), free_port()
        workers = [context.Process(target=worker, args=(r, ranks, port, configs, answers)) for r in range(ranks)]
        for one in workers:
            one.start()
        for _ in range(ranks * len(configs)):
            rank, number, losses, problem = answers.get(timeout=300)
            if rank == 0:
                curves[number] = losses
            if problem:
                print(f"rank {rank} of {ranks}: {problem.splitlines()[0][:300]}\n  {json.dumps(everything[number][1])}",
                      file=sys.stderr)
        for one in workers:
            one.join()
    kept = [{"ranks": ranks, "config": config, "losses": curves[i]}
            for i, (ranks, config) in enumerate(everything) if curves[i]]
    target.write_text("[\n" + ",\n".join(json.dumps(one, separators=(",", ":")) for one in kept) + "\n]\n")
    print(f"{len(kept)} of {len(everything)} curves")


if __name__ == "__main__":
    main()

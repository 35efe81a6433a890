#!/usr/bin/env python3
"""What others take for the model of `benchmarks/step`: plain forward+backward, DDP, FSDP2 and DeepSpeed.

    python benchmarks/peers.py [--ranks 2] [--modes compute,ddp,fsdp2,zero1,zero2,zero3] [--layers 12 ...]

Needs an environment of its own with torch (CPU) and deepspeed: `make peers`. Starts torchrun once per mode and settings
and prints one JSON line for each: median step time, peak PSS summed over ranks. Same architecture, batch, sequence
length, dtype (bf16 with fp32 master weights) and AdamW as the C++ benchmark, one thread per rank.

--settings: "users" is torchrun as it is; "ours" gives the ranks what ours have: each pinned to its core, and glibc told
to keep freed memory. Memory is the kernel's own high-water mark (reset once the trainer is built) less what
other processes share; nothing is sampled while steps run.
"""
import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ADAMW = {"lr": 1e-4, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01}
CLIPPING = 1.0
SETTINGS = {
    "users": {},
    "ours": {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2047 << 20)},
}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--modes", default="compute,ddp,fsdp2,zero1,zero2,zero3")
    parser.add_argument("--settings", default="users,ours", help="users, ours or both with a comma")
    for name, value in dict(layers=12, dim=1024, heads=16, vocab=256, seq=256, batch=2, accumulation=1, steps=6,
                            warmup=2).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--timeout", type=int, default=400, help="seconds per mode")
    parser.add_argument("--memory-limit-gb", type=float, default=0,
                        help="ends a mode whose ranks together hold more; 0: no limit")
    parser.add_argument("--out", help="the JSON lines go into this file, and a line for people to standard output")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


def build_model(options):
    import torch
    from torch import nn
    from torch.nn import functional as F

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            dim = options.dim
            self.ln1, self.ln2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
            self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
            self.fc, self.out = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

        def forward(self, x):
            batch, length, dim = x.shape
            heads = [t.view(batch, length, options.heads, -1).transpose(1, 2)
                     for t in self.qkv(self.ln1(x)).chunk(3, dim=-1)]
            y = F.scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).reshape(batch, length, dim)
            x = x + self.proj(y)
            return x + self.out(F.gelu(self.fc(self.ln2(x)), approximate="tanh"))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte = nn.Embedding(options.vocab, options.dim)
            self.wpe = nn.Embedding(options.seq, options.dim)
            self.h = nn.ModuleList(Block() for _ in range(options.layers))
            self.lnf, self.head = nn.LayerNorm(options.dim), nn.Linear(options.dim, options.vocab, bias=False)

        def forward(self, tokens):
            x = self.wte(tokens[:, :-1]) + self.wpe.weight
            for block in self.h:
                x = block(x)
            logits = self.head(self.lnf(x)).float()
            return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    torch.manual_seed(0)
    return GPT()


def adamw(parameters):
    import torch
    return torch.optim.AdamW(parameters, **ADAMW, fused=True)


class Trainer:
    """One optimizer step of a list of micro-batches; step() returns the micro-batches' losses."""


class Plain(Trainer):
    """Forward and backward, gradients dropped: what cannot be avoided."""

    def __init__(self, model, options):
        import torch
        self.model = model.to(torch.bfloat16)

    def step(self, batches):
        losses = []
        for tokens in batches:
            losses.append(self.model(tokens))
            losses[-1].backward()
            self.model.zero_grad(set_to_none=True)
        return losses


class Ddp(Trainer):
    """DDP in bf16 with fp32 masters kept by hand, as its users do."""

    def __init__(self, model, options):
        import torch
        self.torch = torch
        self.low = list(model.to(torch.bfloat16).parameters())
        self.model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        self.masters = [p.detach().float().requires_grad_() for p in self.low]
        self.optimizer = adamw(self.masters)

    def step(self, batches):
        losses = []
        for i, tokens in enumerate(batches):
            with contextlib.nullcontext() if i + 1 == len(batches) else self.model.no_sync():
                losses.append(self.model(tokens))
                (losses[-1] / len(batches)).backward()
        for master, low in zip(self.masters, self.low):
            master.grad = low.grad.float()
        self.torch.nn.utils.clip_grad_norm_(self.masters, CLIPPING)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        with self.torch.no_grad():
            for master, low in zip(self.masters, self.low):
                low.copy_(master)
                low.grad = None
        return losses


class Fsdp2(Trainer):
    def __init__(self, model, options):
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
        mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
        for block in model.h:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        self.torch, self.model = torch, fully_shard(model, mesh=mesh, mp_policy=policy)
        self.optimizer = adamw(model.parameters())

    def step(self, batches):
        losses = []
        for i, tokens in enumerate(batches):
            self.model.set_requires_gradient_sync(i + 1 == len(batches))
            losses.append(self.model(tokens))
            (losses[-1] / len(batches)).backward()
        self.torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIPPING)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return losses


class DeepSpeed(Trainer):
    def __init__(self, model, options, stage):
        with contextlib.redirect_stdout(sys.stderr):
            import deepspeed
            config = {
                "train_micro_batch_size_per_gpu": options.batch, "gradient_accumulation_steps": options.accumulation,
                "gradient_clipping": CLIPPING, "bf16": {"enabled": True},
                "optimizer": {"type": "AdamW", "params": ADAMW},
                "zero_optimization": {"stage": stage, "overlap_comm": True, "contiguous_gradients": True,
                                      "reduce_bucket_size": 50_000_000}}
            self.engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)

    def step(self, batches):
        losses = []
        for tokens in batches:
            losses.append(self.engine(tokens))
            self.engine.backward(losses[-1])
            self.engine.step()
        return losses


def proc_kb(path, name):
    with open(path) as lines:
        for line in lines:
            if line.startswith(name):
                return int(line.split()[1])
    return 0


def reset_peak():
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def peak_pss_mb():
    """The high-water mark of resident memory, less what others share of it now."""
    rollup = "/proc/self/smaps_rollup"
    pss = proc_kb(rollup, "Pss:")
    return max(pss, proc_kb("/proc/self/status", "VmHWM:") - (proc_kb(rollup, "Rss:") - pss)) * 1024 / 1e6


def batches_of(options, rank):
    """step -> this rank's micro-batches [batch, seq + 1] of it."""
    import torch
    generator = torch.Generator().manual_seed(rank)
    some = [torch.randint(0, options.vocab, (options.batch, options.seq + 1), generator=generator) for _ in range(8)]
    return lambda step: [some[(step * options.accumulation + j) % len(some)] for j in range(options.accumulation)]


def worker(options):
    import torch
    import torch.distributed as dist
    mode, settings = options.worker.split(":")
    rank = int(os.environ["LOCAL_RANK"])
    if settings == "ours":
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank % len(os.sched_getaffinity(0))]})
    torch.set_num_threads(1)
    if not mode.startswith("zero"):
        dist.init_process_group("gloo")
    model = build_model(options)
    count = sum(p.numel() for p in model.parameters())
    if mode.startswith("zero"):
        trainer = DeepSpeed(model, options, int(mode[4:]))
    else:
        trainer = {"compute": Plain, "ddp": Ddp, "fsdp2": Fsdp2}[mode](model, options)
    world = dist.get_world_size()
    batches = batches_of(options, rank)
    reset_peak()
    seconds, losses = [], []
    for i in range(options.warmup + options.steps):
        micro = batches(i)
        dist.barrier()
        begin = time.perf_counter()
        mine = trainer.step(micro)
        dist.barrier()
        seconds.append(time.perf_counter() - begin)
        loss = torch.stack([one.detach().double() for one in mine]).mean()
        dist.all_reduce(loss)
        losses.append(float(loss) / world)
    peak = torch.tensor([peak_pss_mb()])
    dist.all_reduce(peak)
    if dist.get_rank() == 0:
        print("PEER " + json.dumps({
            "mode": mode, "settings": settings, "parameters": count, "ranks": world,
            "step_s": round(statistics.median(seconds[options.warmup:]), 4),
            "pss_mb_all_ranks": round(float(peak)), "losses": [round(one, 6) for one in losses],
            "seconds": [round(one, 4) for one in seconds], "torch": torch.__version__}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def descendants(pid):
    """Process ids below `pid`."""
    children = {}
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, IndexError):
            if name.isdigit():
                with open(f"/proc/{name}/stat") as file:
                    children.setdefault(int(file.read().rpartition(")")[2].split()[1]), []).append(int(name))
    found, todo = [], [pid]
    while todo:
        now = todo.pop()
        found.append(now)
        todo += children.get(now, [])
    return found[1:]


def private_gb(pids):
    """Resident memory that each has for itself, and the largest part that they share."""
    private, shared = 0, 0
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/statm") as file:
            _, resident, common = (int(one) for one in file.read().split()[:3])
            private, shared = private + resident - common, max(shared, common)
    return (private + shared) * os.sysconf("SC_PAGESIZE") / 1e9


class MemoryLimit(threading.Thread):
    """Kills the process group of `process` when it holds more than `limit` GB. Costs the ranks nothing."""

    def __init__(self, process, limit):
        super().__init__(daemon=True)
        self.process, self.limit, self.most, self.reached = process, limit, 0.0, False

    def run(self):
        while self.process.poll() is None:
            self.most = max(self.most, private_gb(descendants(self.process.pid)))
            if self.limit and self.most > self.limit:
                self.reached = True
                return kill(self.process)
            time.sleep(0.1)


def kill(process):
    """Ends torchrun and its ranks, which are sessions of their own."""
    for pid in [*descendants(process.pid), process.pid] if process.poll() is None else []:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def last_words(text):
    """The line of an error output that says why."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    telling = [line for line in lines if "Error" in line or "SIGKILL" in line or "can't allocate" in line]
    return (telling or lines or ["no output"])[0 if telling else -1][-300:]


def run_mode(options, mode, settings):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={options.ranks}",
               __file__, *sys.argv[1:], "--worker", f"{mode}:{settings}"]
    environment = {**{k: v for k, v in os.environ.items() if not k.startswith(("ZERO_", "OMP_", "GOMP_"))},
                   "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", **SETTINGS[settings]}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=err, start_new_session=True)
        limit = MemoryLimit(process, options.memory_limit_gb)
        limit.start()
        try:
            process.wait(options.timeout)
            ended = None
        except subprocess.TimeoutExpired:
            ended = f"no result in {options.timeout} s"
        finally:
            kill(process)
        limit.join()
        out.seek(0), err.seek(0)
        lines = [line[5:] for line in out.read().splitlines() if line.startswith("PEER ")]
        words = err.read()
    if lines and not ended:
        return json.loads(lines[0])
    if limit.reached:
        ended = f"ended at {limit.most:.1f} GB: the limit for all ranks is {options.memory_limit_gb:g} GB"
    return {"mode": mode, "settings": settings, "error": ended or last_words(words), "most_gb": round(limit.most, 1)}


def report(options, result):
    if not options.out:
        return print(json.dumps(result), flush=True)
    with open(options.out, "a") as file:
        print(json.dumps(result), file=file)
    what = result.get("error") or f"{1e3 * result['step_s']:.1f} ms a step, {result['pss_mb_all_ranks']:,} MB in all"
    print(f"  {result['mode'] + ' (' + result['settings'] + ')':<24}{what}", flush=True)


def main():
    options = arguments()
    if options.worker:
        return worker(options)
    compute = {}
    for mode in options.modes.split(","):
        for settings in options.settings.split(","):
            result = run_mode(options, mode, settings)
            if mode == "compute" and "step_s" in result:
                compute[settings] = result["step_s"]
            if settings in compute and "step_s" in result:
                result["ratio"] = round(result["step_s"] / compute[settings], 3)
            report(options, result)


if __name__ == "__main__":
    main()

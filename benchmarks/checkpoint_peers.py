#!/usr/bin/env python3
"""What others take to save and load the model of `benchmarks/checkpoint`: torch.distributed.checkpoint and DeepSpeed.

    python benchmarks/checkpoint_peers.py [--ranks 2] [--folder .] [--modes dcp,zero3] [--layers 12 ...]

Needs an environment of its own with torch (CPU) and deepspeed. Starts torchrun once per mode and prints one JSON line
for each: median seconds to save, until the call returns (what was written may be in memory only) and until all of it is
on the disk; to load, after the files were dropped from the page cache; and how long an asynchronous save keeps the
training loop, where there is one. The same GPT after one step, one thread per rank, each pinned to its core.
"""
import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import time

import peers


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--modes", default="dcp,zero3")
    parser.add_argument("--folder", default=".")
    for name, value in dict(layers=12, dim=1024, heads=16, vocab=256, seq=256, batch=1, rounds=3).items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--timeout", type=int, default=600, help="seconds per mode")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser.parse_args()


class Dcp:
    """FSDP2 with torch.distributed.checkpoint."""

    def __init__(self, model, options):
        self.trainer = peers.Fsdp2(model)
        self.model, self.optimizer = self.trainer.model, self.trainer.optimizer

    def state(self):
        from torch.distributed.checkpoint.state_dict import get_state_dict
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def local(self):
        return [p.to_local() for p in self.model.parameters()]

    def save(self, path):
        import torch.distributed.checkpoint as dcp
        dcp.save(self.state(), checkpoint_id=str(path))

    def load(self, path):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import set_state_dict
        state = self.state()
        dcp.load(state, checkpoint_id=str(path))
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"],
                       optim_state_dict=state["optimizer"])

    def save_async(self, path):
        import torch.distributed.checkpoint as dcp
        return dcp.async_save(self.state(), checkpoint_id=str(path)).result


class DeepSpeed:
    save_async = None

    def __init__(self, model, options):
        self.trainer = peers.DeepSpeed(model, 3, options)
        self.engine = self.trainer.engine

    def local(self):
        return list(self.engine.optimizer.fp32_partitioned_groups_flat)

    def save(self, path):
        self.engine.save_checkpoint(str(path), tag="t")

    def load(self, path):
        assert self.engine.load_checkpoint(str(path), tag="t")[0]


def files_of(path):
    return [file for file in pathlib.Path(path).rglob("*") if file.is_file()]


def drop_from_page_cache(path):
    os.sync()
    for file in files_of(path):
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def worker(options):
    import torch
    import torch.distributed as dist
    mode, rank = options.worker, int(os.environ["LOCAL_RANK"])
    os.sched_setaffinity(0, {rank % os.cpu_count()})
    torch.set_num_threads(1)
    if not mode.startswith("zero"):
        dist.init_process_group("cpu:gloo")
    model = peers.build_model(options)
    count = sum(p.numel() for p in model.parameters())
    case = {"dcp": Dcp, "zero3": DeepSpeed}[mode](model, options)
    generator = torch.Generator().manual_seed(rank)
    tokens = torch.randint(0, options.vocab, (options.batch, options.seq + 1), generator=generator)
    case.trainer.step(tokens)
    folder = pathlib.Path(options.folder) / f"checkpoint_peers_{mode}"
    seconds = {"save": [], "save_synced": [], "load": [], "stall": []}

    def timed(name, work, begin=None):
        dist.barrier()
        begin = begin or time.perf_counter()
        result = work()
        dist.barrier()
        seconds[name].append(time.perf_counter() - begin)
        return result

    def alone(work):
        dist.barrier()
        if rank == 0:
            work()
        dist.barrier()

    for index in range(options.rounds + 1):  # the first one warms up
        path = folder / str(index)
        saved = [tensor.clone() for tensor in case.local()]
        begin = time.perf_counter()
        timed("save", lambda: case.save(path))
        timed("save_synced", lambda: rank or os.sync(), begin)
        nbytes = sum(file.stat().st_size for file in files_of(path))
        with torch.no_grad():
            for tensor in case.local():
                tensor.zero_()
        alone(lambda: drop_from_page_cache(path))
        timed("load", lambda: case.load(path))
        assert all(torch.equal(a, b) for a, b in zip(saved, case.local())), "a load brings back what was saved"
        alone(lambda: shutil.rmtree(path))
        if case.save_async:
            wait = timed("stall", lambda: case.save_async(path))
            wait()
            alone(lambda: shutil.rmtree(path))
    median = {name: round(statistics.median(values[1:]), 4) for name, values in seconds.items() if values}
    if rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
        print("PEER " + json.dumps({"mode": mode, "parameters": count, "ranks": dist.get_world_size(),
                                    "gb": round(nbytes / 1e9, 4),
                                    **{f"{name}_s": value for name, value in median.items()},
                                    "save_gb_per_s": round(nbytes / 1e9 / median["save_synced"], 3),
                                    "load_gb_per_s": round(nbytes / 1e9 / median["load"], 3)}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def main():
    options = arguments()
    if options.worker:
        return worker(options)
    for mode in options.modes.split(","):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={options.ranks}",
                   __file__, *sys.argv[1:], "--worker", mode]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"}
        run = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               start_new_session=True)
        try:
            output, errors = run.communicate(timeout=options.timeout)
            lines = [line[5:] for line in output.splitlines() if line.startswith("PEER ")]
            error = (errors.strip().splitlines() or ["no output"])[-1]
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            run.communicate()
            lines, error = [], f"no result in {options.timeout} s"
        shutil.rmtree(pathlib.Path(options.folder) / f"checkpoint_peers_{mode}", ignore_errors=True)
        print(lines[0] if lines else json.dumps({"mode": mode, "error": error}), flush=True)


if __name__ == "__main__":
    main()

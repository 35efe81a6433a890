#!/usr/bin/env python3
"""Our collectives beside gloo and OpenMPI: one table.

    build/peers/bin/python benchmarks/collectives_peers.py [--rounds 3] [--ranks 2] [--max-nbytes 268435456]

Runs `build/release/benchmarks/collectives` (under mpirun where there is one, with MPI's own calls in the same
process) and the same cases with gloo through torch.distributed, in turns, `--rounds` times; the table has
medians over rounds and ratios. gloo runs once with each rank on its own CPU and once free, and the faster
of the two is compared. `--json` prints every line of every program as well. gloo needs a Python with torch
(CPU); without it the table has no gloo. Everything stays on this machine.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import time

COLLECTIVES = ("barrier", "all_gather", "reduce_scatter", "all_reduce", "broadcast")
EXPONENT = -100
FEWEST, MOST, SAMPLE_SECONDS = 5, 400, 200e-6


def arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--min-nbytes", type=int, default=8)
    parser.add_argument("--max-nbytes", type=int, default=256 << 20)
    parser.add_argument("--seconds", type=float, default=0.1, help="per case, implementation and round")
    parser.add_argument("--collectives", default=",".join(COLLECTIVES))
    parser.add_argument("--dtypes", default="fp32,bf16", help="of reductions")
    parser.add_argument("--ours", default="build/release/benchmarks/collectives")
    parser.add_argument("--timeout", type=int, default=600, help="seconds for each program")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--pinned", type=int, default=1, help=argparse.SUPPRESS)
    return parser.parse_args()


def sizes(options):
    result, nbytes = [options.min_nbytes], 128
    while nbytes <= options.max_nbytes:
        if nbytes > options.min_nbytes:
            result.append(nbytes)
        nbytes *= 8
    return result


class Worker:
    """One rank of gloo; cases, values and checks are those of collectives.cpp."""

    def __init__(self, options):
        import torch
        import torch.distributed as dist
        self.options, self.torch, self.dist = options, torch, dist
        self.rank, self.ranks = options.worker, options.ranks
        torch.set_num_threads(1)
        if options.pinned:
            os.sched_setaffinity(0, {self.rank % os.cpu_count()})  # before gloo starts its threads
        dist.init_process_group("gloo", rank=self.rank, world_size=self.ranks)

    def values(self, rank, begin, numel, dtype):
        torch = self.torch
        out = torch.empty(numel, dtype=dtype)
        for at in range(0, numel, 1 << 22):
            i = torch.arange(begin + at, begin + min(numel, at + (1 << 22)), dtype=torch.int64)
            hashed = ((i * 2654435761) & 0xFFFFFFFF) >> 13
            part = ((hashed % 7) + 1 + rank % 4).to(torch.float64) * 2.0 ** EXPONENT
            out[at:at + len(part)] = part.to(dtype)
        return out

    def sums(self, begin, numel, dtype):
        parts = (self.values(rank, begin, numel, self.torch.float32) for rank in range(self.ranks))
        return sum(parts).to(dtype)

    def most_calls(self, collective):
        """How many in a row keep the values exact."""
        if collective != "all_reduce":
            return 1000 if collective == "barrier" else 64
        bits = self.ranks.bit_length() - 1
        return min(64, 100 // max(1, bits)) if self.ranks == 1 << bits else 1

    def run(self, collective, dtype_name, nbytes):
        torch, dist = self.torch, self.dist
        dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype_name]
        element = torch.empty(0, dtype=dtype).element_size()
        share = max(1, nbytes // element // self.ranks)
        numel = share * self.ranks
        in_numel = share if collective == "all_gather" else numel
        out_numel = {"all_gather": numel, "reduce_scatter": share}.get(collective, 0)
        source = self.values(self.rank, 0, in_numel if collective != "barrier" else 0, dtype)
        mine, out = source.clone(), torch.empty(out_numel, dtype=dtype)
        call = {"all_gather": lambda: dist.all_gather_into_tensor(out, mine),
                "reduce_scatter": lambda: dist.reduce_scatter_tensor(out, mine),
                "all_reduce": lambda: dist.all_reduce(mine),
                "broadcast": lambda: dist.broadcast(mine, 0),
                "barrier": dist.barrier}[collective]

        def sample(calls, verify=False):
            mine.copy_(source)
            if verify:
                out.fill_(float("nan"))
                if collective == "broadcast" and self.rank:
                    mine.fill_(float("nan"))
            dist.barrier()
            begin = time.perf_counter()
            for _ in range(calls):
                call()
            seconds = torch.tensor((time.perf_counter() - begin) / calls, dtype=torch.float64)
            dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
            return seconds.item()

        once = min(sample(1) for _ in range(3))
        calls = min(max(int(SAMPLE_SECONDS / once), 1), self.most_calls(collective))
        times, spent = [], 0.0
        while len(times) < FEWEST or (len(times) < MOST and spent < self.options.seconds):
            times.append(sample(calls))
            spent += times[-1] * calls
        sample(calls, verify=True)
        wanted = None
        if collective == "all_gather":
            parts = [self.values(rank, 0, share, dtype) for rank in range(self.ranks)]
            got, wanted = out, torch.cat(parts)
        elif collective == "reduce_scatter":
            got, wanted = out, self.sums(self.rank * share, share, dtype)
        elif collective == "all_reduce":
            got, wanted = mine, self.sums(0, numel, dtype) * float(self.ranks) ** (calls - 1)
        elif collective == "broadcast":
            got, wanted = mine, self.values(0, 0, numel, dtype)
        if wanted is not None and not torch.equal(got, wanted):
            raise SystemExit(f"gloo: wrong result of {collective}, {nbytes} bytes of {dtype_name}")
        if self.rank == 0:
            total = numel * element if collective != "barrier" else 0
            middle = statistics.median(times)
            print(json.dumps({"impl": "gloo", "memory": "private", "collective": collective,
                              "dtype": dtype_name if collective != "barrier" else "byte", "nbytes": total,
                              "ranks": self.ranks, "pinned": bool(self.options.pinned),
                              "us": round(middle * 1e6, 3), "us_min": round(min(times) * 1e6, 3),
                              "GB_per_s": round(total / middle / 1e9, 2), "samples": len(times),
                              "calls": calls, "verified": wanted is not None}), flush=True)

    def run_all(self):
        wanted = self.options.collectives.split(",")
        if "barrier" in wanted:
            self.run("barrier", "fp32", 0)
        for collective in COLLECTIVES[1:]:
            if collective not in wanted:
                continue
            reduces = collective in ("all_reduce", "reduce_scatter")
            for dtype in ("fp32", "bf16"):
                if dtype in self.options.dtypes.split(",") and (reduces or dtype == "fp32"):
                    for nbytes in sizes(self.options):
                        self.run(collective, dtype, nbytes)
        self.dist.barrier()
        self.dist.destroy_process_group()


def shared_options(options):
    return [f"--{name.replace('_', '-')}={getattr(options, name)}"
            for name in ("ranks", "min_nbytes", "max_nbytes", "seconds", "collectives", "dtypes")]


def lines_of(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def run_ours(options):
    command = [options.ours, *shared_options(options)]
    environment = dict(os.environ)
    if shutil.which("mpirun"):
        command = ["mpirun", "--bind-to", "none", "-n", str(options.ranks), *command]
        if os.geteuid() == 0:
            environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=options.timeout,
                          env=environment)
    if done.returncode:
        raise SystemExit(f"{options.ours} failed")
    return lines_of(done.stdout)


def run_gloo(options, pinned):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                                "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1",
                                "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, __file__, *shared_options(options), "--pinned", str(int(pinned)), "--worker"]
    workers = [subprocess.Popen([*command, str(rank)], stdout=subprocess.PIPE, text=True, env=environment)
               for rank in range(options.ranks)]
    try:
        outputs = [worker.communicate(timeout=options.timeout)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    if any(worker.returncode for worker in workers):
        raise SystemExit("gloo failed")
    return lines_of(outputs[0])


def table(results):
    """results: {(collective, dtype, nbytes): {who: [us per round]}}"""
    print("| collective | dtype | bytes | shm, in place | shm, staged | gloo | OpenMPI | gloo / in place "
          "| gloo / staged | OpenMPI / staged |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")

    def middle(case, *names):
        values = [statistics.median(case[name]) for name in names if name in case]
        return min(values) if values else None

    def cell(value, form):
        return "" if value is None else form.format(value)

    for (collective, dtype, nbytes), case in results.items():
        place = middle(case, "shm allocated pinned", "shm allocated unpinned")
        staged = middle(case, "shm private pinned", "shm private unpinned")
        gloo = middle(case, "gloo private pinned", "gloo private unpinned")
        mpi = middle(case, "openmpi private pinned", "openmpi private unpinned")
        cells = [cell(v, "{:,.2f}" if v and v < 100 else "{:,.0f}") for v in (place, staged, gloo, mpi)]
        cells += [cell(a / b if a and b else None, "{:.1f}")
                  for a, b in ((gloo, place), (gloo, staged), (mpi, staged))]
        print(f"| {collective} | {dtype} | {nbytes:,} | " + " | ".join(cells) + " |")
    for who, values in results.get(("barrier", "byte", 0), {}).items():
        print(f"barrier, {who.replace(' private', '')}: {statistics.median(values):.2f} us", file=sys.stderr)


def main():
    options = arguments()
    if options.worker is not None:
        return Worker(options).run_all()
    if not pathlib.Path(options.ours).exists():
        raise SystemExit(f"{options.ours} is not there: make bench-collectives builds it")
    programs = [("ours", lambda: run_ours(options))]
    if importlib.util.find_spec("torch"):
        programs += [("gloo, pinned", lambda: run_gloo(options, True)),
                     ("gloo, free", lambda: run_gloo(options, False))]
    else:
        print(f"{sys.executable} has no torch: without gloo", file=sys.stderr)
    results = {}
    for number in range(options.rounds):
        for name, run in programs:
            print(f"round {number + 1} of {options.rounds}: {name}", file=sys.stderr, flush=True)
            for line in run():
                if options.json:
                    print(json.dumps(line), flush=True)
                who = f"{line['impl']} {line['memory']} {'pinned' if line['pinned'] else 'unpinned'}"
                case = (line["collective"], line["dtype"], line["nbytes"])
                results.setdefault(case, {}).setdefault(who, []).append(line["us"])
    table(results)


if __name__ == "__main__":
    main()

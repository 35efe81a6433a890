#!/usr/bin/env python3
"""Breaks the library on purpose and looks whether the tests notice.

Each entry of tests/mutants/mutants.json (name, file, old, new, why) replaces one piece of one source file, which must
occur there once (of a file that is included, for the one source that `compiled_in` names). That file is compiled
alone, linked with the objects of a finished build into a library of its own, and the test programs of the build run
with it until one fails: the entry's `test`, if it has one, then broad and fast ones first. A test that fails without
any mutant, too, is left out; one that takes four times as long as without, and 20 s more, counts as failed. The build
is only read. Exit status: 0, 1 when more than two mutants survive, 2 when one cannot be built.
"""
from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import itertools
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parent.parent
MOST_SURVIVORS = 2
MARK = "ZERO_MUTANTS_RUN"  # in the environment of every process that a test starts

# What runs the rooms that are broken. The slow ones come last.
TRAINING = """kernels_test simulated_device_test intercept_test work_guard_test sharding_room_test step_in_backward_test buffers_test engine_test plain_loops_test
    moving_guide_test routed_experts_test checkpoint_load_test checkpoint_save_test full_weights_test
    checkpoint_elastic_test example_gan_3 example_actor_critic_3 example_carried_state_lm_3 engine_crash_test
    resume_test accumulation_test recompute_engine_test parity_test training_fuzz_test plan_agrees_test
    accelerator_test""".split()
COMM = """comm_unit_test transfer_guard_test group_conformance_self group_conformance_shm_2 group_conformance_shm_3
    group_conformance_threads group_conformance_progress_thread group_conformance_threads_progress_thread
    group_conformance_mpi_hosts group_conformance_mpi_2 group_conformance_mpi_3
    group_conformance_mpi_progress_thread group_conformance_shm_4 group_conformance_mpi_4 comm_failure_test
    launcher_test""".split()
RUNS = ["training_run_test", "example_training_run"]
SLOW = """train_command_test compare_command_test plan_command_test config_command_test ckpt_command_test train_resume_test
    failure_test mpi_failure_test accelerator_long_test""".split()


@dataclass
class Test:
    name: str
    command: list[str]
    environment: dict[str, str]
    skipped: int  # exit status that means so
    lock: threading.Lock
    limit: float | None = None  # seconds, once it was seen to pass without a mutant; 0: it does not pass


@dataclass
class Outcome:
    name: str
    caught_by: str  # empty: by none
    seconds: float  # of the test that caught it
    problem: str = ""  # why there was nothing to run


class Build:
    """A finished build: its commands, and its tests."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder.resolve()
        cache = dict(line.split("=", 1) for line in (folder / "CMakeCache.txt").read_text().splitlines()
                     if "=" in line and not line.startswith(("#", "//")))
        self.configured_as = cache["CMAKE_CACHEFILE_DIR:INTERNAL"]  # another folder where the build was moved
        self.source = cache["CMAKE_HOME_DIRECTORY:INTERNAL"]
        self.library = (self.folder / "src/open/libzerotorch.so").resolve()
        # Some files are compiled once more, into tests of their own.
        self.compile = {entry["file"]: entry["command"]
                        for entry in json.loads((folder / "compile_commands.json").read_text())
                        if " -o src/" in entry["command"]}
        # What is compiled in a batch (ZERO_BATCH) is compiled there as a mutant, too.
        self.batch: dict[str, str] = {}
        for batch in [file for file in self.compile if "/batches/" in file]:
            for member in re.findall(r'#include "(.*)"', pathlib.Path(self.here(batch)).read_text()):
                self.batch[member], self.compile[member] = batch, self.compile[batch]
        links = subprocess.run([cache["CMAKE_MAKE_PROGRAM:FILEPATH"], "-t", "commands", f"src/open/{self.library.name}"],
                               cwd=self.folder, capture_output=True, text=True, check=True).stdout.splitlines()
        self.link = links[-1].removeprefix(": && ").removesuffix(" && :")
        listing = subprocess.run(["ctest", "--show-only=json-v1"], cwd=self.folder, capture_output=True, text=True,
                                 check=True).stdout
        self.tests = {test["name"]: self.read(test) for test in json.loads(listing)["tests"] if "command" in test}

    def here(self, text: str) -> str:
        return text.replace(self.configured_as, str(self.folder))

    def read(self, test: dict) -> Test:
        properties = {item["name"]: item["value"] for item in test.get("properties", [])}
        variables = dict(item.split("=", 1) for item in properties.get("ENVIRONMENT", []))
        return Test(test["name"], [self.here(word) for word in test["command"]], variables,
                    int(properties.get("SKIP_RETURN_CODE", -1)), threading.Lock())

    def compile_mutant(self, mutant: dict[str, str], folder: pathlib.Path) -> str:
        """A library in `folder`. Returns what went wrong, if anything."""
        path = ROOT / mutant["file"]
        text = path.read_text()
        if text.count(mutant["old"]) != 1:
            return f"`old` occurs {text.count(mutant['old'])} times in {mutant['file']}"
        # What is included is broken for the one source that `compiled_in` names.
        broken = folder / (pathlib.Path(mutant["file"]).relative_to("src") if "compiled_in" in mutant else path.name)
        broken.parent.mkdir(parents=True, exist_ok=True)
        broken.write_text(text.replace(mutant["old"], mutant["new"]))
        original = f"{self.source}/{mutant.get('compiled_in', mutant['file'])}"
        compiled = original if "compiled_in" in mutant else str(broken)
        command = self.compile[original]
        if batch := self.batch.get(original):
            (folder / "batch.cpp").write_text(pathlib.Path(self.here(batch)).read_text().replace(original, compiled))
            original, compiled = batch, str(folder / "batch.cpp")
        # A breakage that also makes a warning is one for the tests all the same.
        words = shlex.split(self.here(command.replace(original, compiled))) + ["-Wno-error"]
        words = [word.replace(f"-I{self.source}/", f"-I{ROOT}/") for word in words]
        words.insert(1, f"-I{folder}")
        place = words.index("-o") + 1
        linked, words[place] = words[place], str(folder / (path.name + ".o"))
        link = [words[place] if word == linked else word for word in shlex.split(self.here(self.link))]
        if words[place] not in link:
            return f"{linked} is not part of the library"
        link[link.index("-o") + 1] = str(folder / self.library.name)
        for command in (words, link):
            done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True)
            if done.returncode != 0:
                return f"{command[0]} failed:\n{done.stderr[-3000:]}"
        for other in self.library.parent.glob("*.so*"):
            if not (folder / other.name).exists():
                (folder / other.name).symlink_to(other)
        return ""


def end_processes(mark: str) -> None:
    found = True
    while found:
        found = False
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):  # it has ended, or is not ours
                if mark.encode() in path.read_bytes():
                    found = True
                    os.kill(int(path.parent.name), signal.SIGKILL)
        time.sleep(0.02 if found else 0)


def remove_shared_memory(since: float) -> None:
    """What killed ranks have left in /dev/shm: made since then, not just now, and mapped by nobody."""
    maps = ""
    for path in pathlib.Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            maps += path.read_text(errors="replace")
    for path in itertools.chain(*(pathlib.Path("/dev/shm").glob(kind) for kind in ("zerotorch-*", "vader_segment.*"))):
        with contextlib.suppress(OSError):
            if since <= path.stat().st_mtime < time.time() - 2 and str(path) not in maps:
                path.unlink()


class Runner:
    def __init__(self, build: Build, scratch: pathlib.Path, logs: pathlib.Path | None) -> None:
        self.build, self.scratch, self.logs = build, scratch, logs
        self.mark = f"{os.getpid()}-{time.time_ns()}-"
        self.numbers = itertools.count()
        self.compiling = threading.Lock()
        self.began = time.time()
        self.stopped = False

    def run(self, test: Test, libraries: pathlib.Path, limit: float, log_name: str) -> tuple[bool, float]:
        """Whether it passed, and in how many seconds."""
        mark = f"{self.mark}{next(self.numbers)}-"
        folder = self.scratch / f"t{mark}"
        folder.mkdir()
        variables = os.environ | test.environment | {
            MARK: mark, "TMPDIR": str(folder), "LD_LIBRARY_PATH": str(libraries), "OMP_NUM_THREADS": "1"}
        begin = time.monotonic()
        with open(folder / "log", "wb") as log:
            # Signals that this script ignores (under nohup, say) must reach the ranks.
            process = subprocess.Popen(["env", "--default-signal", *test.command], cwd=folder, env=variables,
                                       stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                       start_new_session=True)
            try:
                status: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                status = None
            seconds = time.monotonic() - begin
            end_processes(mark)
            process.wait()
        passed = status in (0, test.skipped)
        if not passed and self.logs:
            with open(folder / "log", "ab") as log:
                log.write(f"\n{test.name}: exit status {status} after {seconds:.1f} s\n".encode())
            self.logs.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / "log", self.logs / f"{log_name}.log")
        for left in (folder, *pathlib.Path("/tmp").glob(f"zero*_{process.pid}*")):  # not all ask for TMPDIR
            shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink(missing_ok=True)
        return passed, seconds

    def is_usable(self, test: Test) -> bool:
        """Runs it once without a mutant: it must pass, and shows how long it takes."""
        with test.lock:
            if test.limit is None and not self.stopped:
                passed, seconds = self.run(test, self.build.library.parent, 600, f"unbroken-{test.name}")
                test.limit = 4 * seconds + 20 if passed else 0
                if not passed and not self.stopped:
                    print(f"{test.name} fails without any mutant: left out", flush=True)
            return bool(test.limit)

    def try_mutant(self, mutant: dict[str, str]) -> Outcome:
        name = mutant["name"]
        folder = self.scratch / name
        folder.mkdir()
        try:
            with self.compiling:
                problem = self.build.compile_mutant(mutant, folder)
            room = mutant["file"].split("/")[1]
            likely = [mutant["test"]] if "test" in mutant else []
            names = likely + {"comm": COMM, "train": RUNS}.get(room, []) + TRAINING + SLOW
            for test in (self.build.tests[n] for n in names if n in self.build.tests and not problem):
                if self.is_usable(test):
                    passed, seconds = self.run(test, folder, test.limit or 0, name)
                    if not passed:
                        return Outcome(name, test.name, seconds)
                problem = "not run to the end" if self.stopped else ""
            return Outcome(name, "", 0, problem)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            remove_shared_memory(self.began)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release", help="a finished build")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these mutants")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time; compiled is one at a time")
    parser.add_argument("--logs", type=pathlib.Path, help="keeps what the tests said that failed")
    options = parser.parse_args()
    mutants = json.loads((ROOT / "tests/mutants/mutants.json").read_text())
    if unknown := set(options.only or []) - {mutant["name"] for mutant in mutants}:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    mutants = [mutant for mutant in mutants if not options.only or mutant["name"] in options.only]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="zero-mutants-") as scratch:
        runner = Runner(Build(options.build), pathlib.Path(scratch), options.logs)
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            futures = [pool.submit(runner.try_mutant, mutant) for mutant in mutants]
            try:
                for future in concurrent.futures.as_completed(futures):
                    outcome = future.result()
                    outcomes.append(outcome)
                    what = (f"caught by {outcome.caught_by} in {outcome.seconds:.1f} s" if outcome.caught_by
                            else f"NOT TRIED: {outcome.problem}" if outcome.problem else "SURVIVED")
                    print(f"{outcome.name:34} {what}", flush=True)
            finally:
                runner.stopped = True
                pool.shutdown(wait=False, cancel_futures=True)
                end_processes(runner.mark)
        time.sleep(2.1)
        remove_shared_memory(runner.began)
    untried = [outcome.name for outcome in outcomes if outcome.problem]
    survivors = [outcome.name for outcome in outcomes if not outcome.caught_by and outcome.name not in untried]
    caught = len(outcomes) - len(survivors) - len(untried)
    print(f"{len(outcomes)} mutants: {caught} caught, {len(survivors)} survived, {len(untried)} not tried",
          *survivors, *untried, sep="\n  ")
    return 2 if untried else 1 if len(survivors) > MOST_SURVIVORS else 0


if __name__ == "__main__":
    sys.exit(main())

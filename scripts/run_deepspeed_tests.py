#!/usr/bin/env python3
"""Runs DeepSpeed's own unit tests against zerotorch, and counts for each file what passes.

  scripts/run_deepspeed_tests.py CHECKOUT [options] file ...     files or folders, relative to CHECKOUT/tests/unit

CHECKOUT is a checkout of DeepSpeed (github.com/deepspeedai/DeepSpeed); only its tests/ is used, and nothing is fetched.
The Python (--python) has zerotorch, its zerotorch.pth and pytest before 8.4, whose private parts the tests use; it serves
zerotorch under the name `deepspeed`. With --real the tests run against the DeepSpeed of that Python instead, for
comparison. All runs are on the CPU.

--only REPORT runs the tests alone that failed, were refused or lost in a former report (--out), and --add keeps what the
report of this run has of other files: a run that was ended goes on with the files that it has not reached.

Columns: passed; failed; refused (NotBuiltError or ConfigError: not part of zerotorch by design); skipped by the test
itself; errors at import (a name of DeepSpeed's that zerotorch lacks is refused where it is used, not at import); lost (not run within the limit of the file). The details are in the JSON file (--out), with the
last line of each failure. Exit status: 0 when all files were run, 1 when one ran into its limit.
"""
from __future__ import annotations

import argparse
import ast
import collections
import concurrent.futures
import contextlib
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import types

ROOT = pathlib.Path(__file__).resolve().parent.parent
COLUMNS = ("passed", "failed", "refused", "skipped", "import", "lost")
REFUSALS = ("NotBuiltError", "ConfigError")
MAX_RANKS = 4  # the most that the tests ask for
RESULTS = "ZEROTORCH_DEEPSPEED_TESTS"  # in the environment of pytest: the file that the plugin below writes
ONLY = "ZEROTORCH_DEEPSPEED_ONLY"  # and one with the names of the tests that it runs; none: all
FILE = "ZEROTORCH_DEEPSPEED_FILE"  # the file of tests
CONSTANTS = {"MIN_SWAPPABLE_BYTES": 1 << 10}  # by which a test chooses the size of its model; DeepSpeed has 1 << 20
AT_FAULT = ("failed", "refused", "import", "lost")
MAX_TEXT = 6000
INFERENCE = ("inference", "seq_inference", "inference_ops", "inference_v2", "inference_v2_ops")
NO_INFERENCE = f"not ({' or '.join((*INFERENCE, 'stable_diffusion', 'evaluation'))})"  # needs a GPU and models


# ---- the plugin: this file, loaded by pytest ----


def pytest_configure(config):
    import multiprocessing

    import pytest

    # Ranks are forked from a process that has these already; importing torch takes longer than most tests.
    multiprocessing.set_forkserver_preload(["torch", "deepspeed", "unit.simple_model", "run_deepspeed_tests"])
    # A test that hangs would end the whole file.
    pytest.exit = lambda *args, **kwargs: pytest.fail("the test hung", pytrace=False)


def pytest_collection_modifyitems(items):
    if ONLY in os.environ:
        names = set(pathlib.Path(os.environ[ONLY]).read_text().splitlines())
        items[:] = [item for item in items if item.nodeid in names]


def pytest_collection_finish(session):
    common = sys.modules.get("unit.common")
    if common is not None:
        common.DistributedExec._close_pool = _close_pool
        sys.modules["unit.util"].bf16_required_version_check = lambda *args, **kwargs: True
    for item in session.items:
        _record(item.nodeid, "lost", "")


def _raise_exceptions_only(common):
    """A rank that ends by pytest.fail(), a BaseException, would take its process along, and the test would hang."""
    plain = common.DistributedExec._dist_run

    def dist_run(self, *args):
        try:
            return plain(self, *args)
        except Exception:
            raise
        except BaseException as error:
            raise AssertionError(f"{type(error).__name__}: {error}") from None

    common.DistributedExec._dist_run = dist_run


def _compare_on_the_cpu():
    """What the tests compare with takes a GPU for granted: DistributedDataParallel with device_ids, NCCL for bf16, and
    tensors on a device by its number, which DeepSpeed has as a string, a gather of numbers, which gloo does not take."""
    import torch

    plain = torch.nn.parallel.DistributedDataParallel.__init__

    def init(self, module, device_ids=None, output_device=None, **kwargs):
        plain(self, module, **kwargs)

    torch.nn.parallel.DistributedDataParallel.__init__ = init
    sys.modules["unit.util"].bf16_required_version_check = lambda *args, **kwargs: True
    accelerator = sys.modules["deepspeed.accelerator"].get_accelerator()
    if FILE not in os.environ:  # the real one
        accelerator.current_device = accelerator.current_device_name
        sys.modules["unit.common"].reduce_boolean_flags = _agree


def _agree(flag, op=all):
    import torch

    flags = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(flags, bool(flag))
    return op(flags)


def _refuse_what_is_missing(file):
    """One name that is not there must not hide all tests of a file: those that use it are refused."""
    for node in ast.walk(ast.parse(pathlib.Path(file).read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] == "deepspeed":
            module = _module(node.module)
            for name in (alias.name for alias in node.names):
                if not _has(module, name):
                    setattr(module, name, CONSTANTS.get(name) or _refused(f"{node.module}.{name}"))


def _module(name):
    try:
        return importlib.import_module(name)
    except ImportError:
        outer, _, inner = name.rpartition(".")
        module = sys.modules[name] = types.ModuleType(name)
        setattr(_module(outer), inner, module)
        return module


def _has(module, name):
    if hasattr(module, name):
        return True
    with contextlib.suppress(ImportError):
        importlib.import_module(f"{module.__name__}.{name}")
        return True
    return False


def _refused(name):
    def refuse(*args, **kwargs):
        raise importlib.import_module("zerotorch.errors").NotBuiltError(f"{name} is not in zerotorch")

    return type(name.rpartition(".")[2], (), {"__new__": refuse})


if FILE in os.environ:
    _refuse_what_is_missing(os.environ[FILE])
if "unit.common" in sys.modules and RESULTS in os.environ:  # in the process that ranks are forked from
    _raise_exceptions_only(sys.modules["unit.common"])
    _compare_on_the_cpu()


def _close_pool(self, pool, num_procs, force=False):
    """The harness' own waits for ever where a rank hangs."""
    if self.reuse_dist_env and not force:
        return
    with contextlib.suppress(Exception):
        pool.starmap_async(self._dist_destroy, [() for _ in range(num_procs)]).get(20)
    pool.terminate()
    pool.join()


def pytest_collectreport(report):
    if report.failed:
        text = str(report.longrepr)
        _record(report.nodeid, "import", _last_line(text), text)


def pytest_runtest_makereport(item, call):
    if call.excinfo is None:
        if call.when == "call":
            _record(item.nodeid, "passed", "")
        return
    name, text = call.excinfo.type.__name__, str(call.excinfo.value)
    if name in ("Skipped", "XFailed"):
        kind = "skipped"
    else:
        kind = "refused" if name in REFUSALS else "failed"
    details = str(call.excinfo.getrepr(style="short"))
    # Of a rank: its traceback is the cause of what the pool raises.
    cause = str(call.excinfo.value.__cause__ or "")
    _record(item.nodeid, kind, f"{name}: {text}"[:MAX_TEXT], (cause or details)[-MAX_TEXT:])


def _record(name, kind, reason, details=""):
    with open(os.environ[RESULTS], "a") as file:
        json.dump({"test": name, "kind": kind, "reason": reason, "details": details}, file)
        file.write("\n")


def _last_line(text):
    lines = [line for line in text.splitlines() if line.startswith("E ")]
    return lines[-1][1:].strip() if lines else text[-200:]


# ---- the runner ----


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=pathlib.Path)
    parser.add_argument("files", nargs="+")
    parser.add_argument("--python", type=pathlib.Path, default=ROOT / ".venv/bin/python")
    parser.add_argument("--real", action="store_true", help="against the DeepSpeed of --python")
    parser.add_argument("--jobs", type=int, choices=(1, 2), default=2, help="files at a time")
    parser.add_argument("--limit", type=float, default=1200, help="seconds for a file")
    parser.add_argument("--test-limit", type=int, default=90, help="seconds for a test of several ranks")
    parser.add_argument("-k", default="", help="as pytest's")
    parser.add_argument("--only", type=pathlib.Path, metavar="REPORT", help="tests that did not pass in this report")
    parser.add_argument("--add", action="store_true", help="keep what --out has, and run the files that it lacks")
    parser.add_argument("--background", action="store_true", help="at the lowest priority")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/deepspeed_tests.json")
    return parser.parse_args()


def files_of(checkout, names):
    """Test files, relative to tests/unit, each once."""
    unit = checkout / "tests/unit"
    found = {}
    for name in names:
        path = unit / name
        if not path.exists():
            sys.exit(f"run_deepspeed_tests: {path} does not exist: give a checkout of DeepSpeed and files of its tests/unit")
        for file in [path] if path.is_file() else sorted(path.rglob("test_*.py")):
            found[str(file.relative_to(unit))] = None
    return list(found)


def names_at_fault(report, file):
    """Of the tests of a file in a report; None: all of them, as it could not be imported."""
    tests = report.get(file, {"tests": {}})["tests"]
    if any(one["kind"] == "import" for one in tests.values()):
        return None
    return [name for name, one in tests.items() if one["kind"] in AT_FAULT]


def give_way(pid):
    """A session of its own is scheduled as a group, whose weight nice() of a process in it does not change."""
    with contextlib.suppress(OSError):
        pathlib.Path(f"/proc/{pid}/autogroup").write_text("19")


def environment(options, file, job, results):
    tests = str((options.checkout / "tests").resolve())
    paths = [tests, str(pathlib.Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")]
    ours = {
        "PATH": os.pathsep.join((str(options.python.parent.absolute()), os.environ.get("PATH", ""))),  # has `deepspeed`
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "DS_ACCELERATOR": "cpu",
        "LOCAL_SIZE": str(MAX_RANKS),  # the number of devices; the harness skips tests that need more
        "DS_UNITTEST_TIMEOUT": str(options.test_limit),
        "DS_DISABLE_REUSE_DIST_ENV": "1",
        "DS_BUILD_OPS": "0",
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTEST_XDIST_WORKER": f"gw{job}",  # by which the harness chooses ports
        RESULTS: str(results),
    }
    if not options.real:
        ours["ZEROTORCH_AS_DEEPSPEED"] = "1"
        ours[FILE] = str((options.checkout / "tests/unit" / file).resolve())
    return {**os.environ, **ours}


def run(options, file, job, names=None):
    """One file in a pytest of its own; the tests' results and whether it ended in time. `names`: these tests alone."""
    with tempfile.TemporaryDirectory(prefix="deepspeed_tests_") as folder:
        results = pathlib.Path(folder) / "results"
        results.touch()
        command = [str(options.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "run_deepspeed_tests"]
        command += ["-m", NO_INFERENCE, *(["-k", options.k] if options.k else [])]
        command += ["--basetemp", f"{folder}/tmp", f"unit/{file}"]
        variables = {**environment(options, file, job, results), "TMPDIR": folder}
        if names is not None:
            variables[ONLY] = f"{folder}/names"
            pathlib.Path(variables[ONLY]).write_text("\n".join(names))
        with open(f"{folder}/log", "w") as log:
            process = subprocess.Popen(
                command,
                cwd=options.checkout / "tests",
                env=variables,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            if options.background:
                give_way(process.pid)
            try:
                process.wait(options.limit)
                in_time = True
            except subprocess.TimeoutExpired:
                in_time = False
            with contextlib.suppress(ProcessLookupError):  # ranks that a test has left behind
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        tests = by_test(results.read_text())
        if not tests and process.returncode not in (0, 5):
            log_text = pathlib.Path(f"{folder}/log").read_text()
            tests[file] = {"kind": "import", "reason": log_text[-MAX_TEXT:], "details": ""}
    return tests, in_time


def by_test(text):
    """The last that was recorded of each; a failure stays one, whatever its teardown does."""
    found = {}
    for line in text.splitlines():
        one = json.loads(line)
        name = one.pop("test")
        if name not in found or found[name]["kind"] in ("lost", "passed"):
            found[name] = one
    return found


def main():
    options = parse_arguments()
    files = files_of(options.checkout, options.files)
    report = json.loads(options.out.read_text()) if options.add and options.out.exists() else {}
    files = [file for file in files if file not in report]
    only = json.loads(options.only.read_text()) if options.only else None
    names = {file: None if only is None else names_at_fault(only, file) for file in files}
    files = [file for file in files if names[file] != []]
    free = collections.deque(range(options.jobs))

    def task(file):
        job = free.popleft()
        try:
            return run(options, file, job, names[file])
        finally:
            free.append(job)

    print(" ".join(f"{column:>8}" for column in COLUMNS), "  file", flush=True)
    total, all_in_time = collections.Counter(), True
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        tasks = {pool.submit(task, file): file for file in files}
        for done in concurrent.futures.as_completed(tasks):
            file, (tests, in_time) = tasks[done], done.result()
            counts = collections.Counter(one["kind"] for one in tests.values())
            total += counts
            all_in_time &= in_time
            show(counts, file + ("" if in_time else f"  (ended after {options.limit:g} s)"))
            report[file] = {"counts": counts, "in_time": in_time, "tests": tests}
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(dict(sorted(report.items())), indent=1) + "\n")
    show(total, f"all; details in {options.out}")
    return 0 if all_in_time else 1


def show(counts, name):
    print(" ".join(f"{counts[column] or '.':>8}" for column in COLUMNS), f"  {name}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""`python -m zerotorch.run`: environment of ranks, exit codes, signals, and that nothing survives."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from support import TIMEOUT_S, python, script


def test_runs_a_script_in_this_process(tmp_path: pathlib.Path) -> None:
    (tmp_path / "beside.py").write_text("value = 7\n")
    path = script(
        tmp_path,
        """
        import sys, beside, deepspeed
        assert "RANK" not in __import__("os").environ
        print(__name__, sys.argv[1:], sys.path[0] == __file__.rpartition("/")[0], beside.value, deepspeed.version)
    """,
    )
    done = python("-m", "zerotorch.run", path, "-n", "3", "--lr=1")
    assert done.stdout.strip() == "__main__ ['-n', '3', '--lr=1'] True 7 0.19.8+zerotorch", done.stderr


def test_runs_a_module_with_its_options(tmp_path: pathlib.Path) -> None:
    (tmp_path / "mine.py").write_text("import sys; print(__name__, sys.argv[1:])")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    done = python("-m", "zerotorch.run", "-m", "mine", "-m", "x", PYTHONPATH=path)
    assert done.stdout.strip() == "__main__ ['-m', 'x']", done.stderr


def test_ranks_get_torchruns_environment_and_meet(tmp_path: pathlib.Path) -> None:
    path = script(
        tmp_path,
        """
        import os, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        total = torch.tensor([dist.get_rank() + 1])
        dist.all_reduce(total)
        assert os.environ["LOCAL_RANK"] == os.environ["RANK"] and os.environ["LOCAL_WORLD_SIZE"] == "2"
        assert int(os.environ["OMP_NUM_THREADS"]) == max(1, len(os.sched_getaffinity(0)) // 2)
        os.write(1, f"rank {dist.get_rank()} of {dist.get_world_size()} total {total.item()}\\n".encode())
        dist.destroy_process_group()
    """,
    )
    for option in (["-n", "2"], ["--num_gpus=2"], ["--nproc-per-node", "2"]):
        done = python("-m", "zerotorch.run", *option, path)
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == ["rank 0 of 2 total 3", "rank 1 of 2 total 3"]


def test_threads_that_were_asked_for_stay(tmp_path: pathlib.Path) -> None:
    path = script(tmp_path, "import os; os.write(1, os.environ['OMP_NUM_THREADS'].encode())")
    assert python("-m", "zerotorch.run", "-n", "2", path, OMP_NUM_THREADS="5").stdout == "55"


def test_first_failure_ends_the_others_and_is_the_exit_code(tmp_path: pathlib.Path) -> None:
    path = script(
        tmp_path,
        """
        import os, time
        if os.environ["RANK"] == "1":
            raise SystemExit(7)
        time.sleep(300)
    """,
    )
    start = time.monotonic()
    done = python("-m", "zerotorch.run", "-n", "2", "--grace", "0.2", path)
    assert done.returncode == 7 and time.monotonic() - start < 30
    assert done.stderr.strip() == "zerotorch: rank 1 of 2 failed first, with exit code 7"


def test_each_traceback_is_seen_once(tmp_path: pathlib.Path) -> None:
    # One after the other: what two processes write at once is in one stream.
    code = "import os, time; rank = os.environ['RANK']; time.sleep(2 * int(rank)); raise ValueError('of rank ' + rank)"
    path = script(tmp_path, code)
    done = python("-m", "zerotorch.run", "-n", "2", path)
    assert done.returncode == 1
    assert [done.stderr.count(f"ValueError: of rank {rank}") for rank in range(2)] == [1, 1], done.stderr


def test_an_exception_ends_the_others_while_a_thread_goes_on(tmp_path: pathlib.Path) -> None:
    path = script(
        tmp_path,
        """
        import threading, time
        import zerotorch
        from zerotorch.distributed import world_group

        zerotorch.init_distributed()
        world = world_group()
        if world.rank == 1:
            threading.Thread(target=time.sleep, args=(300,)).start()
            raise ValueError("mine")
        world.barrier()
        world.barrier()
    """,
    )
    start = time.monotonic()
    done = python("-m", "zerotorch.run", "-n", "2", "--grace", "0.5", path)
    assert done.returncode != 0 and time.monotonic() - start < 60
    assert "ValueError: mine" in done.stderr
    assert "rank 1 raised ValueError: mine" in done.stderr  # as the other one has heard


def test_a_killed_rank_counts_as_128_and_its_signal(tmp_path: pathlib.Path) -> None:
    path = script(tmp_path, "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert python("-m", "zerotorch.run", "-n", "1", path).returncode == 128 + signal.SIGKILL


def test_a_rank_that_ignores_sigterm_is_killed(tmp_path: pathlib.Path) -> None:
    path = script(
        tmp_path,
        """
        import os, pathlib, signal, time
        ready = pathlib.Path(__file__).with_name("ready")
        if os.environ["RANK"] == "1":
            while not ready.exists():
                time.sleep(0.02)
            raise SystemExit(3)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ready.touch()
        time.sleep(300)
    """,
    )
    impatient = (
        "import sys; from zerotorch import run; from zerotorch.launcher import local_ranks; "
        "local_ranks.KILL_AFTER_S = 0.1; sys.exit(run.main())"
    )
    assert python("-c", impatient, "-n", "2", "--grace", "0.1", path).returncode == 3


class Job:
    """A job of two ranks that write their process ids into files and then sleep."""

    SLEEPS = """
        import os, pathlib, signal, sys, time
        if "ends well" in sys.argv:
            signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        new = pathlib.Path(__file__).with_name(os.environ["RANK"] + ".new")
        new.write_text(str(os.getpid()))
        new.rename(new.with_suffix(".pid"))
        time.sleep(300)
    """

    def __init__(self, folder: pathlib.Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "zerotorch.run", "-n", "2", script(folder, self.SLEEPS), *arguments]
        self.launcher = subprocess.Popen(command, stderr=subprocess.PIPE)
        files = [folder / "0.pid", folder / "1.pid"]
        deadline = time.monotonic() + TIMEOUT_S
        while not all(file.exists() for file in files):
            assert time.monotonic() < deadline and self.launcher.poll() is None
            time.sleep(0.02)
        self.ranks = [int(file.read_text()) for file in files]

    def expect_no_rank(self) -> None:
        deadline = time.monotonic() + 10
        while any(is_running(pid) for pid in self.ranks):
            assert time.monotonic() < deadline, "a rank survived"
            time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("arguments, code", [((), 128 + signal.SIGTERM), (("ends well",), 0)])
def test_signals_are_forwarded(tmp_path: pathlib.Path, arguments: tuple[str, ...], code: int) -> None:
    job = Job(tmp_path, *arguments)
    job.launcher.send_signal(signal.SIGTERM)
    assert job.launcher.wait(TIMEOUT_S) == code
    job.expect_no_rank()


def test_nothing_survives_the_launcher(tmp_path: pathlib.Path) -> None:
    job = Job(tmp_path)
    job.launcher.kill()
    job.launcher.wait(TIMEOUT_S)
    job.expect_no_rank()


def test_a_program_that_is_not_there_is_one_sentence(tmp_path: pathlib.Path) -> None:
    for ranks in ([], ["-n", "2"]):
        done = python("-m", "zerotorch.run", *ranks, str(tmp_path / "gone.py"))
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert "gone.py'" in done.stderr


def test_ranks_of_one_of_several_hosts(tmp_path: pathlib.Path) -> None:
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"]
    path = script(tmp_path, f"import os; os.write(1, (' '.join(os.environ[n] for n in {names}) + '\\n').encode())")
    place = ["--nnodes", "3", "--node-rank", "1", "--master-addr", "10.0.0.1", "--nproc-per-node", "2"]
    done = python("-m", "zerotorch.run", *place, path)
    assert sorted(done.stdout.splitlines()) == ["2 0 6 2 1 10.0.0.1 29500", "3 1 6 2 1 10.0.0.1 29500"], done.stderr


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["-n", "0", __file__], "at least 1"),
        ([], "required"),
        (["--nnodes", "2", __file__], "--node-rank"),
        (["--nnodes", "2", "--node-rank", "2", __file__], "0 to 1"),
        (["--nnodes", "2", "--node-rank", "1", __file__], "--master-addr"),
        (["--nnodes", "1:2", "--node-rank", "0", __file__], "the number of hosts"),
        (["--hostfile", "/none", __file__], "No such file"),
        (["--hostfile", "/dev/null", "--node-rank", "1", __file__], "--hostfile starts them all"),
        (["--max-restarts", "2", "-n", "2", __file__], "belongs to --hostfile"),
    ],
)
def test_bad_command_lines(arguments: list[str], reason: str) -> None:
    done = python("-m", "zerotorch.run", *arguments)
    assert done.returncode == 2 and reason in done.stderr, done.stderr

"""The `deepspeed` command line."""

import pathlib

import pytest
from support import python, script
from zerotorch.launcher import runner

SHOWS = """
    import os, sys
    os.write(1, f"{os.environ['RANK']}/{os.environ['WORLD_SIZE']} {sys.argv[1:]}\\n".encode())
"""


def run(*arguments: str) -> list[str]:
    done = python("-m", "zerotorch.launcher.runner", *arguments)
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


def test_starts_ranks_with_their_local_rank(tmp_path: pathlib.Path) -> None:
    path = script(tmp_path, SHOWS)
    assert run("--num_gpus", "2", path, "--x", "--num_gpus") == [
        "0/2 ['--local_rank=0', '--x', '--num_gpus']",
        "1/2 ['--local_rank=1', '--x', '--num_gpus']",
    ]
    assert run("--num_gpus=1", "--no_local_rank", path, "-i") == ["0/1 ['-i']"]


def test_programs_of_their_own(tmp_path: pathlib.Path) -> None:
    program = ["/bin/sh", "-c", "echo $RANK $ZEROTORCH_AS_DEEPSPEED"]
    assert run("--num_gpus", "1", "--no_python", "--no_local_rank", *program) == ["0 1"]


@pytest.mark.parametrize(
    "arguments, ranks",
    [
        (["--include", "localhost:0,2,3"], 3),
        (["--include", "localhost"], 4),
        (["--exclude", "localhost:1"], 3),
        ([], 4),
        (["--num_gpus", "2"], 2),
    ],
)
def test_numbers_of_ranks(tmp_path: pathlib.Path, arguments: list[str], ranks: int) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("# one\nlocalhost slots=4\n")
    options = runner._parser().parse_args([*arguments, "--hostfile", str(hosts), "x.py"])
    assert runner._number_of_ranks(options) == ranks


@pytest.mark.parametrize(
    "arguments, reason",
    [
        (["--num_nodes", "2"], "there is no hostfile"),
        (["--force_multi"], "there is no hostfile"),
        (["--include", "a:0@b:1"], "lists none or one"),
        (["--include", "a:0", "--exclude", "a:1"], "exclude each other"),
        (["--hostfile", "{hosts}", "--num_nodes", "3"], "lists 2 hosts"),
        (["--hostfile", "{hosts}", "--num_gpus", "3"], "a has 2 slots"),
        (["--hostfile", "{hosts}", "--include", "c"], "'c' not found"),
        (["--hostfile", "{hosts}", "--launcher", "slurm"], "started by openmpi"),
        (["--hostfile", "{hosts}", "--launcher_args=-x"], "OMPI_MCA_"),
        (["--hostfile", "{hosts}", "--no_ssh"], "--node_rank"),
        (["--hostfile", "{hosts}.none"], "No such file"),
        (["--exclude", "a:0,1,2,3,4,5,6,7,8,9"], "leaves none"),
    ],
)
def test_what_is_refused(
    tmp_path: pathlib.Path,
    arguments: list[str],
    reason: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    hosts = tmp_path / "hosts"
    hosts.write_text("a slots=2\nb slots=2\n")
    with pytest.raises(SystemExit) as ended:
        runner.main([*(one.format(hosts=hosts) for one in arguments), "x.py"])
    assert ended.value.code == 2 and reason in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, hosts",
    [
        ([], {"a": 2, "b": 3}),
        (["--include", "b:0,2"], {"b": 2}),
        (["--exclude", "a:1@b"], {"a": 1}),
        (["--num_nodes", "1"], {"a": 2}),
        (["--num_gpus", "1"], {"a": 1, "b": 1}),
    ],
)
def test_ranks_of_several_hosts(tmp_path: pathlib.Path, arguments: list[str], hosts: dict[str, int]) -> None:
    path = tmp_path / "hosts"
    path.write_text("a slots=2\nb slots=3\n")
    assert runner._hosts(runner._parser().parse_args(["-H", str(path), *arguments, "x.py"])) == hosts


def test_the_same_command_on_every_host(tmp_path: pathlib.Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("a slots=1\nb slots=2\n")
    path = script(tmp_path, SHOWS)
    assert run("-H", str(hosts), "--no_ssh", "--node_rank", "1", "--master_addr", "10.0.0.1", path) == [
        "1/3 ['--local_rank=0']",
        "2/3 ['--local_rank=1']",
    ]


def test_the_name_that_libraries_read() -> None:
    assert runner.DEEPSPEED_ENVIRONMENT_NAME == ".deepspeed_env"


@pytest.mark.parametrize("number", ["--num_gpus", "--num_nodes"])
@pytest.mark.parametrize("names", ["-i", "-e"])
def test_a_number_and_names_exclude_each_other(number: str, names: str) -> None:
    with pytest.raises(ValueError, match="--num_gpus and --num_nodes exclude --include and --exclude"):
        runner.main([number, "1", names, "localhost:0", "script.py"])

"""`comm`: one rank without a process group, ranks that have none yet, and two ranks."""

import logging
import pathlib
import textwrap

import pytest
import torch
from support import program, python, script
from zerotorch import comm
from zerotorch.errors import UsageError
from zerotorch.utils import groups


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_one_rank_is_rank_0_of_1() -> None:
    assert not comm.is_initialized() and comm.is_available()
    assert (comm.get_rank(), comm.get_world_size(), comm.get_local_rank()) == (0, 1, 0)
    assert comm.get_world_group() is None and comm.new_group([0]) is None
    assert comm.get_all_ranks_from_group() == [0] and comm.get_global_rank() == 0
    comm.destroy_process_group()
    comm.barrier()


def test_collectives_of_one_rank_are_copies() -> None:
    tensor, out = torch.arange(4.0), torch.empty(4)
    comm.all_reduce(tensor)
    comm.broadcast(tensor, 0)
    assert tensor.tolist() == [0, 1, 2, 3]
    for collective in (comm.all_gather_into_tensor, comm.reduce_scatter_tensor, comm.all_to_all_single):
        assert collective(out.zero_(), tensor) is None and torch.equal(out, tensor)
    comm.all_gather([out.zero_()], tensor)
    assert torch.equal(out, tensor)
    for of_lists in (comm.all_to_all, comm.all_gather_coalesced):
        assert of_lists([out.zero_()], [tensor]) is None and torch.equal(out, tensor)
    for of_one in (comm.gather, comm.reduce_scatter):
        first, second = (tensor, [out.zero_()]) if of_one is comm.gather else (out.zero_(), [tensor])
        assert of_one(first, second) is None and torch.equal(out, tensor)
    comm.scatter(out.zero_(), [tensor])
    comm.reduce(out, 0)
    assert torch.equal(comm.inference_all_reduce(out) or out, tensor)
    work = comm.all_reduce_coalesced([out, tensor], async_op=True)
    assert work.wait() and work.is_completed()
    with pytest.raises(UsageError, match="no other to talk to"):
        comm.send(tensor, 0)
    objects = [None]
    comm.all_gather_object(objects, "own")
    comm.broadcast_object_list(objects, 0)
    assert objects == ["own"]
    work = comm.all_reduce(tensor, async_op=True)
    assert work.wait() and work.is_completed()


def test_ranks_that_cannot_talk_yet_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert (comm.get_rank(), comm.get_world_size(), comm.get_local_rank()) == (1, 2, 1)
    for call in (comm.barrier, comm.get_world_group, lambda: comm.all_reduce(torch.zeros(1))):
        with pytest.raises(UsageError, match="2 ranks, which cannot talk yet: call init_distributed first"):
            call()


def test_two_ranks(tmp_path: pathlib.Path) -> None:
    path = script(
        tmp_path,
        """
        import torch, torch.distributed
        from zerotorch import comm
        from zerotorch.utils import groups
        torch.distributed.init_process_group("gloo")
        rank = comm.get_rank()
        assert comm.get_world_size() == 2 and comm.is_initialized()
        whole = torch.tensor([rank + 1.0, 10.0 * (rank + 1)])
        comm.all_reduce(whole)
        assert whole.tolist() == [3, 30]
        comm.all_reduce(whole, op=comm.ReduceOp.MAX, async_op=True).wait()
        gathered = torch.empty(2)
        comm.all_gather_into_tensor(gathered, torch.tensor([float(rank)]))
        assert gathered.tolist() == [0, 1]
        part = torch.empty(1)
        comm.reduce_scatter_tensor(part, torch.tensor([1.0, 2.0]))
        assert part.item() == 2.0 * (rank + 1)
        sent = torch.empty(2)
        comm.all_to_all_single(sent, torch.tensor([10.0 * rank, 10.0 * rank + 1]))
        assert sent.tolist() == [rank, 10 + rank]
        own = torch.tensor([rank])
        comm.broadcast(own, 1)
        assert own.item() == 1
        each = [torch.empty(1) for _ in range(2)]
        comm.all_gather(each, torch.tensor([float(rank)]))
        objects = [None, None]
        comm.all_gather_object(objects, {"rank": rank})
        assert objects == [{"rank": 0}, {"rank": 1}]
        group = comm.new_group([1])
        assert comm.get_all_ranks_from_group(comm.get_world_group()) == [0, 1]
        if rank == 1:
            assert comm.get_world_size(group) == 1 and comm.get_global_rank(group, 0) == 1
        assert groups.get_data_parallel_group() is torch.distributed.group.WORLD
        assert groups._get_data_parallel_rank() == rank
        sum_of_all = torch.tensor([rank + 1.0])
        comm.reduce(sum_of_all, 1)
        assert rank == 0 or sum_of_all.item() == 3
        comm.gather(torch.tensor([float(rank)]), each if rank == 0 else None, 0)
        assert rank == 1 or [one.item() for one in each] == [0, 1]
        comm.scatter(part, [torch.tensor([5.0]), torch.tensor([6.0])] if rank == 1 else None, 1)
        assert part.item() == 5 + rank
        comm.all_to_all(each, [torch.tensor([10.0 * rank]), torch.tensor([10.0 * rank + 1])])
        assert [one.item() for one in each] == [rank, 10 + rank]
        comm.reduce_scatter(part, [torch.tensor([1.0]), torch.tensor([2.0])])
        assert part.item() == 2.0 * (rank + 1)
        several = [torch.tensor([1.0 + rank]), torch.tensor([10.0, 20.0])]
        comm.all_reduce_coalesced(several, async_op=True).wait()
        assert [one.tolist() for one in several] == [[3], [20, 40]] and comm.has_all_reduce_coalesced()
        comm.all_gather_coalesced([gathered], [torch.tensor([7.0 + rank])])
        assert gathered.tolist() == [7, 8]
        if rank == 0:
            comm.send(torch.tensor([4.0]), 1)
            comm.isend(torch.tensor([3.0]), 1, tag=9).wait()
        else:
            assert comm.recv(part, 0) == 0 and part.item() == 4
            comm.irecv(part, 0, tag=9).wait()
            assert part.item() == 3
        comm.monitored_barrier()
        comm.barrier()
        comm.destroy_process_group()
        assert not comm.is_initialized()
    """,
    )
    done = python("-m", "zerotorch.run", "-n", "2", path)
    assert done.returncode == 0, done.stderr


class Engine:
    def _comms_summary(self, show_straggler: bool) -> dict[str, dict[str, object]]:
        return {"all_gather": {"calls": 3, "slowest": show_straggler}}


def test_log_summary_asks_the_engines_that_live(capsys: pytest.CaptureFixture[str]) -> None:
    engine = Engine()
    comm.comm.register_engine(engine)
    figures = {"all_gather": {"calls": 3, "slowest": True}}
    assert comm.log_summary(show_straggler=True, return_dict=True) == {"0": figures}
    assert "engine 0, all_gather: calls 3, slowest True" in capsys.readouterr().err
    del engine
    assert comm.log_summary() is None
    assert "set comms_logger.enabled" in capsys.readouterr().err
    assert logging.getLogger("DeepSpeed").level == logging.WARNING


def test_groups_without_other_parallelism() -> None:
    groups.initialize()
    assert groups._get_data_parallel_world_size() == 1 and groups._get_data_parallel_group_ranks() == [0]
    assert groups._get_sequence_parallel_world_size() == groups.get_model_parallel_world_size() == 1
    assert groups._get_expert_parallel_group_dict() == {} and not groups._zero_param_parallel_is_initialized()
    for get, kind in (
        (groups._get_sequence_parallel_group, "sequence"),
        (groups.get_model_parallel_group, "model"),
        (lambda: groups._get_expert_parallel_group("ep_size_2"), "expert"),
    ):
        with pytest.raises(NotImplementedError, match=f"{kind} parallelism is not built"):
            get()
    with pytest.raises(NotImplementedError, match="expert"):
        groups.initialize(ep_size=2)


def test_importing_the_names_costs_little() -> None:
    """What a program imports of this package, on top of torch."""
    seconds = float(
        program("""
        import time, torch, torch.distributed, torch.optim, torch.utils.checkpoint
        start = time.perf_counter()
        import zerotorch.comm, zerotorch.accelerator, zerotorch.utils.groups, zerotorch.runtime.lr_schedules
        import zerotorch.ops.adam, zerotorch.checkpointing
        print(time.perf_counter() - start)
    """)
    )
    assert seconds < 1  # some 20 ms on a machine that is not loaded


def test_groups_end_before_the_interpreter() -> None:
    """Their threads let go of tensors late. One that does so when the interpreter ends would abort the process."""
    code = """
        import time, torch, torch.distributed as dist, zerotorch

        class Slow(torch.Tensor):
            def __del__(self):
                for _ in range(200):
                    time.sleep(0.002)

        zerotorch.init_distributed()
        for _ in range(2):
            tensor = torch.ones(4).as_subclass(Slow)
            work = dist.all_reduce(tensor, async_op=True)
            del tensor
            work.wait()
            del work
        garbage = [[[]] for _ in range(1_000_000)]  # its collection is where the interpreter ends slowly
        print("trained")
    """
    for _ in range(4):  # without it, two of five are aborted
        assert program(code) == "trained"


def test_a_group_that_the_program_keeps_is_idle_when_the_interpreter_ends() -> None:
    """Its threads outlive destroy_process_group, which only ends groups that nothing refers to."""
    code = """
        import time, torch, torch.distributed as dist, zerotorch

        class Slow(torch.Tensor):
            def __del__(self):
                end = time.monotonic() + 0.5
                while time.monotonic() < end:
                    pass

        zerotorch.init_distributed()
        kept = [dist.group.WORLD, dist.group.WORLD._get_backend(torch.device("cpu"))]
        tensor = torch.ones(4).as_subclass(Slow)
        work = dist.all_reduce(tensor, async_op=True)
        del tensor, work
        time.sleep(0.1)
        print("trained")
    """
    assert program(code) == "trained"


@pytest.mark.parametrize("fails", [False, True])
def test_a_failed_rank_leaves_its_groups_as_they_are(fails: bool) -> None:
    """What it has begun with others may never end."""
    code = f"""
        import atexit

        atexit.register(lambda: print("groups", dist.is_initialized()))  # the last of all

        import torch.distributed as dist, zerotorch

        zerotorch.init_distributed()
        if {fails}:
            raise RuntimeError("of the program")
    """
    done = python("-c", textwrap.dedent(code), timeout=30)
    assert ("of the program" in done.stderr, "groups True" in done.stdout) == (fails, fails), done

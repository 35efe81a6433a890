"""A rank that waits where zerotorch does not see it, while others wait for it in zerotorch, is named with its place."""

from __future__ import annotations

import pathlib

import pytest
import support

PROGRAM = """
    import time, torch, zerotorch
    import torch.distributed as dist

    model = torch.nn.Linear(3, 2)
    config = {{"train_micro_batch_size_per_gpu": 1, "optimizer": {{"type": "SGD", "params": {{"lr": 0.1}}}}}}
    engine, *_ = zerotorch.initialize(model=model, model_parameters=model.parameters(), config=config)

    def train():
        engine.backward(engine(torch.ones(1, 3)).sum())
        engine.step()

    def elsewhere():
        {elsewhere}

    train()
    if engine.global_rank == 0:
        elsewhere()
        train()
    else:
        train()
        {afterwards}
    print("rank", engine.global_rank, "is through", flush=True)
"""


@pytest.mark.parametrize(
    ("elsewhere", "afterwards"),
    [
        ("time.sleep(4)", "pass"),
        ("dist.barrier()", "dist.barrier()"),
    ],
)
def test_it_is_named_with_its_stack(elsewhere: str, afterwards: str, tmp_path: pathlib.Path) -> None:
    """One that is slow goes on; ranks that wait for each other end by the time-out."""
    path = support.script(tmp_path, PROGRAM.format(elsewhere=elsewhere, afterwards=afterwards))
    done = support.python(
        *("-m", "zerotorch.run", "-n", "2", path),
        timeout=60,
        ZERO_WAIT_NOTICE_S="1",
        ZERO_TIMEOUT_S="8",
        ZERO_LOG_LEVEL="warning",
    )
    said = done.stdout + done.stderr
    assert said.count("rank 1 has waited 1 s in") == 1, said
    assert "rank 0 (pid" in said, said
    assert "It last called" in said, said
    assert "in elsewhere" in said, said
    if afterwards == "pass":
        assert done.returncode == 0, said
        assert said.count("is through") == 2, said
    else:
        assert done.returncode != 0, said
        assert "timeout: rank 1 waited 8" in said, said

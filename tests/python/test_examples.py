"""The programs of every DeepSpeed tutorial, with the configurations that go with them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support import python

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "python"

FP16 = {"fp16": {"enabled": True}, "train_batch_size": 32}
CONFIGS: dict[str, dict[str, Any]] = {
    "stage 1": {**FP16, "zero_optimization": {"stage": 1}, "gradient_accumulation_steps": 1},
    "stage 2": {**FP16, "zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 1},
    "stage 3": {**FP16, "zero_optimization": {"stage": 3}, "gradient_accumulation_steps": 1},
    "cpu_offload": {**FP16, "zero_optimization": {"stage": 3, "cpu_offload": True}},
    "overlap": json.loads((EXAMPLES / "ds_config.json").read_text()),
}


def losses(program: str, name: str, ranks: int, folder: Path) -> list[float]:
    path = folder / "ds_config.json"
    path.write_text(json.dumps(CONFIGS[name]))
    done = python(
        *("-m", "zerotorch.run", "-n", str(ranks), str(EXAMPLES / program)),
        *("--deepspeed_config", str(path), "--steps", "2"),
        timeout=240,
        OMP_NUM_THREADS="1",
    )
    assert done.returncode == 0, done.stderr
    return [float(loss) for loss in re.findall(r"loss (\S+)", done.stdout)]


RUNS = [
    *(("training_loop.py", name) for name in CONFIGS),
    ("with_optimizer.py", "stage 2"),
    ("with_optimizer.py", "overlap"),
]


@pytest.mark.parametrize(("program", "name"), RUNS)
def test_trains_with_each_configuration(tmp_path: Path, program: str, name: str) -> None:
    seen = losses(program, name, 2, tmp_path)
    assert len(seen) == 2 and seen[1] < seen[0] - 0.2


def test_any_number_of_ranks_trains(tmp_path: Path) -> None:
    for ranks in (1, 4):
        seen = losses("training_loop.py", "overlap", ranks, tmp_path)
        assert len(seen) == 2 and seen[1] < seen[0] - 0.2

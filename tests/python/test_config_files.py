"""Files of configurations that are not plain JSON."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from zerotorch.config import DeepSpeedConfig
from zerotorch.errors import ConfigError

HJSON = """{
  # as DeepSpeed's own examples have it
  train_micro_batch_size_per_gpu: 2
  optimizer: {
    type: AdamW
    params: {lr: 0.25}
  }
  zero_optimization: {stage: 2}
}
"""


def written(folder: Path, text: str) -> str:
    path = folder / "config.json"
    path.write_text(text)
    return str(path)


def test_hjson_is_read(tmp_path: Path) -> None:
    pytest.importorskip("hjson")
    config = DeepSpeedConfig(written(tmp_path, HJSON))
    assert (config.stage, config.optimizer_name, config.optimizer_params) == (2, "adamw", {"lr": 0.25})
    with pytest.raises(ConfigError, match="has the key 'lr' twice"):
        DeepSpeedConfig(written(tmp_path, HJSON.replace("lr: 0.25", "lr: 0.25, lr: 0.5")))
    with pytest.raises(ConfigError, match=r"config.json:2: not valid JSON: .*; nor is it Hjson: "):
        DeepSpeedConfig(written(tmp_path, '{"train_batch_size": 1,\n a: ['))


def test_without_the_library_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hjson", None)
    with pytest.raises(ConfigError, match=r"config.json:3: not valid JSON: .*pip install hjson"):
        DeepSpeedConfig(written(tmp_path, HJSON))


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    text = '\ufeff{"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": 2}}'
    assert DeepSpeedConfig(written(tmp_path, text)).stage == 2


def test_a_stage_by_true_or_false_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match='zero_optimization: .*"stage": 1'):
        DeepSpeedConfig({"train_micro_batch_size_per_gpu": 2, "zero_optimization": True})

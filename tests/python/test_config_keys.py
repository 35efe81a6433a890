"""Every key that DeepSpeed reads from a configuration is known: honoured, accepted without effect, or refused with a
reason."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
from zerotorch.config import DeepSpeedConfig
from zerotorch.errors import ConfigError

ROOT = pathlib.Path(__file__).resolve().parents[2]
COMMITTED = json.loads((ROOT / "tests/python/data/deepspeed_config_keys.json").read_text())
#: Keys whose null the schema refuses yet.
WITHOUT_NULL = ("zero_optimization.cpu_offload_use_pin_memory",)
NULLS = [key for key, facts in COMMITTED["keys"].items() if facts["null"] and facts["default"] is None]


def installed_peer() -> str | None:
    """A Python with DeepSpeed: this one, or that of `make peers`."""
    if importlib.util.find_spec("deepspeed") is not None:
        return sys.executable
    peer = ROOT / "build/peers/bin/python"
    return str(peer) if peer.exists() else None


def config_with(key: str, value: Any) -> dict[str, Any]:
    config: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1}
    section = config
    *parents, name = key.split(".")
    for parent in parents:
        section = section.setdefault(parent, {})
    section[name] = value
    return config


def problem(key: str, value: Any) -> str:
    """What is said of a key; "" where it is taken."""
    try:
        DeepSpeedConfig(config_with(key, value))
    except ConfigError as error:
        return str(error)
    return ""


def a_value(facts: dict[str, Any]) -> Any:
    return {} if facts["default"] is None else facts["default"]


@pytest.mark.parametrize("key", COMMITTED["keys"])
def test_the_key_is_known(key: str) -> None:
    assert "unknown key" not in problem(key, a_value(COMMITTED["keys"][key]))


@pytest.mark.parametrize("key", NULLS)
def test_null_is_not_given_where_it_is_deepspeeds_default(key: str) -> None:
    if key in WITHOUT_NULL:
        pytest.xfail("the schema refuses null yet")
    said = problem(key, None)
    assert "null" not in said, said


def test_the_newest_installed_deepspeed_has_no_other_keys(tmp_path: pathlib.Path) -> None:
    peer = installed_peer()
    if peer is None:
        pytest.skip("no DeepSpeed is installed here, and `make peers` was not run")
    written = tmp_path / "keys.json"
    script = ROOT / "scripts/make_deepspeed_config_keys.py"
    done = subprocess.run(
        [peer, str(script), str(written)],
        env={**os.environ, "DS_ACCELERATOR": "cpu", "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(written.read_text())["keys"]
    unknown = [key for key, facts in found.items() if "unknown key" in problem(key, a_value(facts))]
    assert not unknown

"""plan(): what training takes, before it begins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from zerotorch import _C
from zerotorch.core.config import Config

_MB = 1e6


@dataclass(frozen=True)
class Plan:
    """Bytes, as the engine will hold them; activations are the model's and not in it. Prints as a table."""

    stage: int
    ranks: int
    hosts: int
    node_shared: bool
    param_dtype: str
    parameters: int
    rank: dict[str, int]  #: of the rank that holds most, by kind, at its peak in training
    rank_start_nbytes: int  #: where it computes, so of its GPU if it has one: its peak inside initialize()
    rank_training_nbytes: int
    rank_host_nbytes: int  #: its peak in host memory
    gpus: bool
    host_nbytes: int  #: of all ranks of the host that needs most, at any time
    host_training_nbytes: int
    received_nbytes_per_step: float  #: mean over ranks, without accumulation

    def __str__(self) -> str:
        store = "parameters once per host" if self.node_shared else "parameters on each rank"
        lines = [
            f"ZeRO stage {self.stage}, {self.ranks} ranks on {self.hosts} hosts, {self.parameters / 1e6:.1f} M parameters "
            f"({self.param_dtype}), {store}; without activations",
            *(f"  {kind:<16}{nbytes / _MB:>12,.1f} MB" for kind, nbytes in self.rank.items() if nbytes),
            f"  {'a GPU' if self.gpus else 'a rank':<16}{self.rank_training_nbytes / _MB:>12,.1f} MB in training, "
            f"{self.rank_start_nbytes / _MB:,.1f} MB in initialize()",
            f"  {'a host':<16}{self.host_training_nbytes / _MB:>12,.1f} MB in training, {self.host_nbytes / _MB:,.1f} MB "
            "at most",
            f"  {'traffic':<16}{self.received_nbytes_per_step / _MB:>12,.1f} MB received by a rank in a step",
        ]
        return "\n".join(lines)


def plan(
    model: torch.nn.Module | int, config: Any, ranks: int = 1, ranks_per_host: int = 0, gpus: bool = False
) -> Plan:
    """What each rank and host will hold, and what travels. Local; allocates nothing of what it counts.

    Args:
        model: a module, also on the device "meta", or a number of parameters.
        config: as initialize() takes it.
        ranks_per_host: 0: all on one host.
        gpus: each rank has one, and the model is there.

    Raises:
        ConfigError: as initialize() would.
    """
    text = Config(config).without()
    counted = (
        _C.plan_of_numel(model, text, ranks, ranks_per_host, gpus)
        if isinstance(model, int)
        else _C.plan_of_module(model, text, ranks, ranks_per_host, gpus)
    )
    return Plan(**counted)

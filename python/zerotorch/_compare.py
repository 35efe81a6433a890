"""compare(): the same training under ZeRO 0 to 3, side by side."""

from __future__ import annotations

import copy
import html
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from zerotorch.core.distributed import init_distributed, world_group
from zerotorch.runtime.config import DeepSpeedConfig
from zerotorch.runtime.engine import initialize

_MB = 1e6


@dataclass(frozen=True)
class Row:
    """One stage, as this rank saw it."""

    stage: int
    losses: tuple[float, ...]  #: of this rank's micro-batches
    seconds_per_step: float  #: the fastest
    memory: dict[str, int]  #: peak bytes of this rank by kind


@dataclass(frozen=True)
class Comparison:
    """Prints as a table, in notebooks too."""

    rows: tuple[Row, ...]

    @property
    def same_losses(self) -> bool:
        """Whether every stage has the same losses, to the bit."""
        return len({row.losses for row in self.rows}) == 1

    def _table(self) -> list[list[str]]:
        kinds = [kind for kind in self.rows[0].memory if any(row.memory[kind] for row in self.rows)]
        head = ["stage", "last loss", "s/step", *(f"{kind} MB" for kind in kinds), "total MB"]
        body = [
            [
                str(row.stage),
                f"{row.losses[-1]:.6f}",
                f"{row.seconds_per_step:.3f}",
                *(f"{row.memory[kind] / _MB:,.1f}" for kind in kinds),
                f"{sum(row.memory.values()) / _MB:,.1f}",
            ]
            for row in self.rows
        ]
        return [head, *body]

    def __str__(self) -> str:
        table = self._table()
        widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in table]
        return "\n".join(
            [*lines, f"losses are {'the same bits' if self.same_losses else 'NOT the same'} at every stage"]
        )

    def _repr_html_(self) -> str:
        rows = ("".join(f"<td>{html.escape(cell)}</td>" for cell in line) for line in self._table())
        return "<table>" + "".join(f"<tr>{row}</tr>" for row in rows) + "</table>"


def compare(
    model: torch.nn.Module,
    loss_of: Callable[[Any, Any], torch.Tensor],
    batches: Iterable[Any],
    config: Any,
    stages: Sequence[int] = (0, 1, 2, 3),
) -> Comparison:
    """Trains copies of `model` on the same micro-batches at each stage. *Collective*, on the ranks of this job.

    Args:
        model: stays as it is.
        loss_of: the loss of (engine, batch).
        batches: this rank's micro-batches.
        config: as initialize() takes it; its stage is replaced.
    """
    init_distributed()
    seen = list(batches)
    settings = DeepSpeedConfig(config)
    rows = []
    for stage in stages:
        section = {**(settings.raw.get("zero_optimization") or {}), "stage": stage}
        torch.manual_seed(0)
        trained = copy.deepcopy(model)
        engine = initialize(
            model=trained, model_parameters=trained.parameters(), config={**settings.raw, "zero_optimization": section}
        )[0]
        losses, seconds, before = [], [], time.perf_counter()
        for batch in seen:
            loss = loss_of(engine, batch)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
            if engine.was_step_applied():
                now = time.perf_counter()
                seconds.append(now - before)
                before = now
        memory = {kind: use["peak"] for kind, use in engine.memory_report().items()}
        rows.append(Row(stage, tuple(losses), min(seconds, default=0.0), memory))
        engine.destroy()
        world_group().barrier()
    return Comparison(tuple(rows))

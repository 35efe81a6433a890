"""Where DeepSpeed's flat partitions have each parameter. Stages 1 and 2 cut every flattened group into one part a rank;
stage 3 cuts every parameter, and lines up the parts of a rank."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from zerotorch.errors import CheckpointError


@dataclass(frozen=True)
class Span:
    """`numel` elements at `start` of flat group `group` of a rank."""

    rank: int
    group: int
    start: int
    numel: int


@dataclass(frozen=True)
class Placement:
    """A parameter: what follows one upon the other is its elements row by row, and at stage 3 padding at the end."""

    shape: tuple[int, ...]
    group: int
    spans: tuple[Span, ...]

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


def place_stage_2(
    shapes: Sequence[dict[str, tuple[int, ...]]],
    partition_numel: Sequence[int],
    paddings: Sequence[Sequence[int]] | None,
) -> dict[str, Placement]:
    """Stages 1 and 2: `shapes` by group, elements of one rank's part by group, and what follows each parameter as
    padding, by group."""
    placed = {}
    for group, group_shapes in enumerate(shapes):
        size = partition_numel[group]
        begin = 0
        for index, (name, shape) in enumerate(group_shapes.items()):
            end = begin + math.prod(shape)
            spans = []
            at = begin
            while at < end:
                rank, start = divmod(at, size)
                count = min(end - at, size - start)
                spans.append(Span(rank, group, start, count))
                at += count
            placed[name] = Placement(shape, group, tuple(spans))
            begin = end + (paddings[group][index] if paddings is not None else 0)
    return placed


def place_stage_3(
    shapes: Sequence[dict[str, tuple[int, ...]]], flat_numel: Sequence[int], ranks: int
) -> dict[str, Placement]:
    """Stage 3: `shapes` by sub-group, and elements of a rank's flat sub-groups, which are the same on all."""
    placed = {}
    group, start = 0, 0
    for group_shapes in shapes:
        for name, shape in group_shapes.items():
            pieces: list[tuple[int, int, int]] = []
            left = -(-math.prod(shape) // ranks)
            while left > 0:
                while group < len(flat_numel) and start == flat_numel[group]:
                    group, start = group + 1, 0
                if group == len(flat_numel):
                    raise CheckpointError(
                        f"the flat groups end before parameter '{name}': the states are not all in the "
                        "file, as when they are offloaded to NVMe"
                    )
                count = min(left, flat_numel[group] - start)
                pieces.append((group, start, count))
                start += count
                left -= count
            spans = tuple(Span(rank, *piece) for rank in range(ranks) for piece in pieces)
            placed[name] = Placement(shape, pieces[0][0] if pieces else 0, spans)
    return placed

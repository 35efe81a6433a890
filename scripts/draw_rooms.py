#!/usr/bin/env python3
"""Draws docs/images/rooms.svg: the rooms of src/ and which includes which.

An arrow that follows from others is left out, so the picture shows the longest ways only. tests/policy/house_rules.py
has the rooms, and compares the file with what this script writes.

    python3 scripts/draw_rooms.py            writes the file
    python3 scripts/draw_rooms.py --check    fails where the file is not what would be written
"""

from __future__ import annotations

import ast
import pathlib
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
RULES = ROOT / "tests" / "policy" / "house_rules.py"
TARGET = ROOT / "docs" / "images" / "rooms.svg"
BOX_WIDTH, BOX_HEIGHT, GAP_X, GAP_Y, MARGIN = 104, 34, 18, 46, 20


def value_of(name: str) -> Any:
    """Of a literal that house_rules.py assigns, which checks everything when it is imported."""
    for statement in ast.parse(RULES.read_text()).body:
        if isinstance(statement, ast.Assign) and [ast.unparse(target) for target in statement.targets] == [name]:
            return eval(ast.unparse(statement.value), {"set": set})  # noqa: S307
    raise SystemExit(f"{RULES} has no {name}")


def levels(rooms: dict[str, set[str]]) -> dict[str, int]:
    """How many rooms the longest way down from each goes through."""
    found: dict[str, int] = {}
    for room, uses in rooms.items():  # each stands after those that it uses
        found[room] = max((found[used] + 1 for used in uses), default=0)
    return found


def reached(rooms: dict[str, set[str]]) -> dict[str, set[str]]:
    """All that a room uses, by itself or through others."""
    found: dict[str, set[str]] = {}
    for room, uses in rooms.items():
        found[room] = uses.union(*(found[used] for used in uses))
    return found


def arrows(rooms: dict[str, set[str]]) -> list[tuple[str, str]]:
    through = reached(rooms)
    return [
        (room, used)
        for room, uses in rooms.items()
        for used in sorted(uses)
        if not any(used in through[other] for other in uses if other != used)
    ]


def draw(rooms: dict[str, set[str]], without_torch: set[str]) -> str:
    level = levels(rooms)
    rows = [[room for room in rooms if level[room] == n] for n in range(max(level.values()) + 1)]
    width = max(len(row) for row in rows) * (BOX_WIDTH + GAP_X) - GAP_X + 2 * MARGIN
    height = len(rows) * (BOX_HEIGHT + GAP_Y) - GAP_Y + 2 * MARGIN
    at = {}
    for n, row in enumerate(rows):
        left = (width - len(row) * (BOX_WIDTH + GAP_X) + GAP_X) / 2
        top = height - MARGIN - BOX_HEIGHT - n * (BOX_HEIGHT + GAP_Y)
        for i, room in enumerate(row):
            at[room] = (left + i * (BOX_WIDTH + GAP_X), top)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"',
        '     font-family="sans-serif" font-size="13" role="img">',
        "<title>The rooms of src: a room includes those that its arrows lead to</title>",
        '<defs><marker id="head" markerWidth="7" markerHeight="7" refX="6" refY="3" orient="auto">'
        '<path d="M0,0 L6,3 L0,6 z" fill="#777"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for room, used in arrows(rooms):
        (x1, y1), (x2, y2) = at[room], at[used]
        lines.append(
            f'<path d="M{x1 + BOX_WIDTH / 2:g},{y1 + BOX_HEIGHT:g} L{x2 + BOX_WIDTH / 2:g},{y2:g}" stroke="#777" '
            'fill="none" marker-end="url(#head)"/>'
        )
    for room, (x, y) in at.items():
        fill = "#e8f0e4" if room in without_torch else "#e2eaf5"
        lines.append(
            f'<rect x="{x:g}" y="{y:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="4" fill="{fill}" stroke="#444"/>'
        )
        lines.append(
            f'<text x="{x + BOX_WIDTH / 2:g}" y="{y + BOX_HEIGHT / 2 + 5:g}" text-anchor="middle">{room}</text>'
        )
    return "\n".join([*lines, "</svg>", ""])


def main() -> int:
    rooms = {room: uses for room, uses in value_of("ROOMS").items() if room != "base"}
    text = draw(rooms, value_of("NO_TORCH"))
    if sys.argv[1:] != ["--check"]:
        TARGET.write_text(text)
        return 0
    if TARGET.exists() and TARGET.read_text() == text:
        return 0
    print("docs/images/rooms.svg is not the picture of today's rooms: run scripts/draw_rooms.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())

"""Colours of what the page knows by name, in the order in which it shows it."""

from __future__ import annotations

from collections.abc import Iterable

COLOURS = ["#1f6fb4", "#d9631e", "#2e8f5b", "#9a4fb0", "#b8860b", "#c0395b", "#3c8f99", "#666666"]  # of runs
DASHES = ["solid", "dash", "dot", "dashdot"]  # where there are more runs than colours
PHASES = {"data": "#b4bac2", "forward": "#4c8dc9", "backward": "#e09a4f", "step": "#6fae75"}
PARTS = {
    "gradient_copy": "#8c6bb1",
    "reduce": "#d6604d",
    "gather": "#41a6a6",
    "wait": "#b4bac2",
    "norm": "#c9a227",
    "update": "#3f8f5a",
    "publish": "#d987b5",
}
KINDS = {
    "parameters": "#4c8dc9",
    "gather buffers": "#a3cbe8",
    "master weights": "#6fae75",
    "optimizer": "#e09a4f",
    "optimizer states": "#e09a4f",
    "gradients": "#d6604d",
    "buckets": "#f0b09a",
    "staging": "#d3c06a",
    "offload buffers": "#b4bac2",
    "activations": "#9a86c4",
}
# summary.json has keys without blanks.
KIND_OF_KEY = {kind.split()[0]: kind for kind in ("gather buffers", "master weights", "offload buffers")}
CALLS = {
    "all_gather": "#41a6a6",
    "reduce_scatter": "#d6604d",
    "all_reduce": "#c9a227",
    "broadcast": "#8c6bb1",
    "barrier": "#b4bac2",
    "read": "#4c8dc9",
    "write": "#e09a4f",
}


def in_order(names: Iterable[str], order: Iterable[str]) -> list[str]:
    """Known ones first, in their order."""
    places = {name: place for place, name in enumerate(order)}
    return sorted(names, key=lambda name: (places.get(name, len(places)), name))

"""Mixtures of experts over ranks, which are not built; a model may have its own."""

from .._not_built import not_built_class

_FEATURE = "expert parallelism"

MoE = not_built_class("MoE", _FEATURE)

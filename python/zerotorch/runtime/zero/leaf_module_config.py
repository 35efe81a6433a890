"""The section `zero_optimization.leaf_module`. Modules need no marks here: uses of parameters are seen one by one."""

from __future__ import annotations

from typing import Any

from ..config_utils import DeepSpeedConfigModel

DEFAULT_LEAF_MODULE_CLASSES = [
    f"transformers.models.{name}_moe.modeling_{name}_moe.{title}MoeSparseMoeBlock"
    for name, title in (("qwen2", "Qwen2"), ("qwen3", "Qwen3"))
]
DEFAULT_LEAF_MODULE_CLASSES.insert(0, "transformers.models.mixtral.modeling_mixtral.MixtralSparseMoeBlock")
DEFAULT_LEAF_MODULE_NAMES: list[str] = []
DEFAULT_LEAF_MODULE_NAME_SUFFIXES: list[str] = []


class DeepSpeedZeroLeafModuleConfig(DeepSpeedConfigModel):
    """Classes, names and suffixes of names."""

    classes: list[str] = DEFAULT_LEAF_MODULE_CLASSES
    names: list[str] = DEFAULT_LEAF_MODULE_NAMES
    name_suffixes: list[str] = DEFAULT_LEAF_MODULE_NAME_SUFFIXES

    def __init__(self, strict: bool = False, **data: Any) -> None:
        super().__init__(strict, **{key: [one] if isinstance(one, str) else one for key, one in data.items()})
        for key in ("classes", "names", "name_suffixes"):  # lists of its own, each name once
            setattr(self, key, list(dict.fromkeys(map(str, getattr(self, key)))))

"""Parts of DeepSpeed that are not built can be imported and say what they are when they are used."""

import importlib

import pytest
import torch
import zerotorch
from zerotorch import _modules
from zerotorch.errors import NotBuiltError
from zerotorch.moe import utils as moe

PARTS = [
    ("zerotorch.pipe", "PipelineModule", "pipeline parallelism"),
    ("zerotorch.runtime.pipe", "LayerSpec", "pipeline parallelism"),
    ("zerotorch.runtime.pipe.topology", "PipelineParallelGrid", "pipeline parallelism"),
    ("zerotorch.runtime.pipe.engine", "PipelineEngine", "pipeline parallelism"),
    ("zerotorch.moe.layer", "MoE", "expert parallelism"),
    ("zerotorch.runtime.sequence_parallel.ulysses_sp", "UlyssesSPAttentionHF", "sequence parallelism"),
    ("zerotorch.inference", "init_inference", "an inference engine"),
    ("zerotorch.module_inject", "tp_model_init", "tensor parallelism"),
    ("zerotorch.compression.compress", "init_compression", "compression"),
    ("zerotorch.ops.transformer", "DeepSpeedTransformerLayer", "a fused transformer layer"),
]


@pytest.mark.parametrize("module, name, feature", PARTS)
def test_raises_when_it_is_used(module: str, name: str, feature: str) -> None:
    part = getattr(importlib.import_module(module), name)
    with pytest.raises(NotBuiltError, match=f"{name}: {feature}.* is not built"):
        part(1, two=2)


def test_classes_can_be_named_and_derived_from() -> None:
    from zerotorch.pipe import PipelineModule

    class Mine(PipelineModule, torch.nn.Module):  # type: ignore[misc,valid-type]
        pass

    assert not isinstance(torch.nn.Linear(1, 1), PipelineModule)
    with pytest.raises(NotBuiltError, match="PipelineModule: pipeline parallelism is not built"):
        Mine()


def test_class_methods_raise_too() -> None:
    from zerotorch.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

    with pytest.raises(NotBuiltError, match="sequence parallelism is not built"):
        UlyssesSPAttentionHF.register_with_transformers(model_name_or_path="x")
    assert not hasattr(UlyssesSPAttentionHF, "__len__")


def test_nothing_is_an_expert() -> None:
    groups = {"params": [torch.zeros(1)]}
    assert moe.split_params_into_different_moe_groups_for_optimizer(groups) == [groups]
    assert moe.has_moe_layers(torch.nn.Linear(1, 1)) == (False, 0) and not moe.is_moe_param(torch.zeros(1))
    assert not moe.is_moe_param_group(groups)


@pytest.mark.parametrize("name", [*_modules.members["zerotorch"]])
def test_top_level_members_are_there(name: str) -> None:
    assert getattr(zerotorch, name) is not None and name in dir(zerotorch)


def test_unknown_members_are_attribute_errors() -> None:
    for module in ("zerotorch", "zerotorch.runtime", "zerotorch.utils", "zerotorch.ops"):
        with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'no_such'"):
            importlib.import_module(module).no_such

"""The names of DeepSpeed that programs use: each imports under both names of the package, and is there or says why."""

from __future__ import annotations

import importlib
import pathlib
import pickle
import pkgutil

import pytest
import zerotorch
from support import program, python
from zerotorch import _modules
from zerotorch.errors import NotBuiltError

NAMES = pathlib.Path(__file__).parent / "data" / "deepspeed_names.txt"


def names() -> dict[str, list[str]]:
    lines = [line for line in NAMES.read_text().splitlines() if line and not line.startswith("#")]
    return {line.partition(":")[0]: line.partition(":")[2].split() for line in lines}


def own(module: str) -> str:
    return module.replace("deepspeed", "zerotorch", 1)


@pytest.mark.parametrize("module", names())
def test_names_are_there(module: str) -> None:
    there = importlib.import_module(own(module))
    for name in names()[module]:
        getattr(there, name)


def test_they_are_the_same_objects_under_the_name_of_deepspeed() -> None:
    program(f"""
        import importlib
        import zerotorch.as_deepspeed
        for module, names in {names()!r}.items():
            there = importlib.import_module(module)
            if module != "deepspeed":
                assert there is importlib.import_module(module.replace("deepspeed", "zerotorch", 1)), module
            for name in names:
                assert getattr(there, name, there) is not there, (module, name)
    """)


@pytest.mark.parametrize("module", _modules.not_built)
def test_what_is_not_built_says_so_in_one_sentence(module: str) -> None:
    there = importlib.import_module(module)
    for name, (feature, remedy) in _modules.not_built[module].items():
        part = getattr(there, name)
        with pytest.raises(NotBuiltError) as raised:
            part(1, two=2)
        assert str(raised.value) == f"{name}: {feature} is not built" + (f"; {remedy}" if remedy else "")
        assert name in dir(there)


def test_submodules_are_found_from_their_package_without_an_import() -> None:
    """As `deepspeed.moe.layer.MoE` after `import deepspeed`."""
    program("""
        import zerotorch.as_deepspeed
        import deepspeed
        from zerotorch.errors import NotBuiltError
        try:
            deepspeed.moe.layer.MoE(8)
        except NotBuiltError as error:
            assert "expert parallelism is not built" in str(error), error
        else:
            raise SystemExit("built")
        assert deepspeed.runtime.zero.stage3 and deepspeed.utils.timer and deepspeed.zero.partition_parameters
        assert deepspeed.zero.estimate_zero3_model_states_mem_needs(1000, 10)[0] > 0
    """)


def test_a_module_that_is_not_built_says_so_as_a_command() -> None:
    ended = python("-m", "zerotorch.autotuning.autotuner")
    assert ended.returncode == 1 and "autotuning is not built; `zero plan`" in ended.stderr


def test_what_deepspeed_does_not_have_is_an_error_of_python() -> None:
    for module in ("zerotorch", *map("zerotorch.{}".format, ("moe.layer", "inference", "zero", "runtime.utils"))):
        with pytest.raises(AttributeError, match=f"module '{module}' has no attribute 'no_such'"):
            importlib.import_module(module).no_such
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("zerotorch.moe.no_such")


def test_a_stale_folder_of_bytecode_is_not_the_module(tmp_path: pathlib.Path) -> None:
    """Python takes a folder without sources for a package; an update of the sources leaves such folders."""
    stale = pathlib.Path(zerotorch.__file__).parent / "sequence"
    assert not stale.exists()
    assert importlib.import_module("zerotorch.sequence").__spec__.origin == "not built"  # type: ignore[union-attr]


def test_one_class_under_all_its_names() -> None:
    assert zerotorch.pipe.PipelineModule is zerotorch.runtime.pipe.module.PipelineModule


def test_a_star_takes_the_functions_that_are_imported_late() -> None:
    there: dict[str, object] = {}
    exec("from zerotorch.utils import *", there)  # noqa: S102
    assert {"safe_get_full_grad", "logger", "set_z3_leaf_modules"} <= there.keys()


def test_modules_without_a_file_are_listed_and_found() -> None:
    listed = [module.name for module in pkgutil.walk_packages(zerotorch.__path__, "zerotorch.")]
    assert len(listed) == len(set(listed))
    assert {*_modules.aliases, *_modules.members, *_modules.not_built} - {"zerotorch"} <= {*listed}
    assert {"zerotorch.runtime.fp16", "zerotorch.runtime.fp16.loss_scaler", "zerotorch.core.engine"} <= {*listed}
    program("""
        import importlib.util, sys, zerotorch
        assert importlib.util.find_spec("zerotorch.ops.lamb").origin == "table"
        assert importlib.util.find_spec("zerotorch.ops").submodule_search_locations
        assert importlib.util.find_spec("zerotorch.ops.none") is None and "zerotorch.ops.lamb" not in sys.modules
        from zerotorch.runtime.fp16 import fused_optimizer, loss_scaler
        import zerotorch.ops.adagrad
        assert fused_optimizer.FP16_Optimizer and zerotorch.ops.adagrad.DeepSpeedCPUAdagrad.__module__ == "zerotorch.ops.optimizers"
    """)


@pytest.mark.parametrize("module", _modules.members)
def test_members_of_other_modules_are_there(module: str) -> None:
    there = importlib.import_module(module)
    for name, origin in _modules.members[module].items():
        if name != "z3_leaf_module":  # a module as well
            assert getattr(there, name) is getattr(importlib.import_module(origin), name)
        assert name in dir(there)


def test_a_module_under_a_second_name_is_the_module() -> None:
    for name, target in _modules.aliases.items():
        there = importlib.import_module(name)
        assert there is importlib.import_module(target) and there.__spec__.name == there.__name__ == target  # type: ignore[union-attr]


def test_pickles_find_classes_under_all_their_names() -> None:
    from zerotorch.core.local_rank import LocalRank
    from zerotorch.ops.optimizers import FusedAdam

    assert pickle.loads(pickle.dumps(FusedAdam)) is FusedAdam
    for name in (b"zerotorch.ops.adam", b"zerotorch.ops.adam.adam"):
        assert pickle.loads(b"c" + name + b"\nFusedAdam\n.") is FusedAdam
    assert pickle.loads(b"czerotorch.local_rank\nLocalRank\n.") is LocalRank


def test_a_second_name_runs_as_a_command() -> None:
    ended = python("-m", "zerotorch.git_version_info")
    assert ended.returncode == 0 and "stands in for deepspeed" in ended.stdout, ended.stderr

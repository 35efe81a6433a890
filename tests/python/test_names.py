"""The names of DeepSpeed that programs use: each imports under both names of the package, and is there or says why."""

from __future__ import annotations

import importlib
import pathlib

import pytest
import zerotorch
from support import program
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
    from support import python

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

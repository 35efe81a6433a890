"""Who asks for deepspeed gets zerotorch: modules, metadata, and the libraries that look for both."""

import importlib.util
import os
import pathlib
import shutil
import subprocess
import venv

import pytest
from support import TIMEOUT_S, program, python

# What DeepSpeed's users import.
MODULES = """
    deepspeed deepspeed.comm deepspeed.utils deepspeed.utils.logging deepspeed.utils.groups
    deepspeed.utils.zero_to_fp32 deepspeed.accelerator deepspeed.checkpointing deepspeed.checkpoint.utils
    deepspeed.runtime.config deepspeed.runtime.engine deepspeed.runtime.base_optimizer deepspeed.runtime.lr_schedules
    deepspeed.runtime.utils deepspeed.runtime.zero deepspeed.runtime.zero.partition_parameters
    deepspeed.runtime.zero.stage3 deepspeed.runtime.zero.stage_1_and_2
    deepspeed.runtime.activation_checkpointing.checkpointing deepspeed.ops deepspeed.ops.adam deepspeed.ops.adagrad
    deepspeed.ops.lion deepspeed.ops.lamb deepspeed.ops.op_builder deepspeed.ops.aio deepspeed.launcher.runner
    deepspeed.monitor deepspeed.pipe deepspeed.moe.layer deepspeed.runtime.pipe
    deepspeed.runtime.sequence_parallel.ulysses_sp deepspeed.inference deepspeed.module_inject deepspeed.compression
    deepspeed.profiling
""".split()

FAKE = "import sys; sys.path.insert(0, {folder!r})\n"


@pytest.fixture
def real_deepspeed(tmp_path: pathlib.Path) -> str:
    """A folder with a package and metadata of deepspeed."""
    (tmp_path / "deepspeed").mkdir()
    (tmp_path / "deepspeed/__init__.py").write_text("__version__ = 'real'\n")
    metadata = tmp_path / "deepspeed-0.1.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.1\n")
    return str(tmp_path)


def test_modules_are_the_same_objects() -> None:
    program(f"""
        import importlib, sys
        import zerotorch.as_deepspeed
        for name in {MODULES!r}[1:]:
            module = importlib.import_module(name)
            own = sys.modules[name.replace("deepspeed", "zerotorch", 1)]
            assert module is own, name
            assert own.__spec__.name == own.__name__ == name.replace("deepspeed", "zerotorch", 1), name
    """)


def test_spec_and_metadata_come_without_an_import() -> None:
    program("""
        import sys, zerotorch.as_deepspeed
        import importlib.metadata, importlib.util
        assert importlib.util.find_spec("deepspeed").name == "deepspeed"
        assert importlib.metadata.version("deepspeed") == "0.19.8+zerotorch"
        assert importlib.metadata.metadata("DeepSpeed")["Name"] == "deepspeed"
        assert importlib.metadata.packages_distributions()["deepspeed"] == ["deepspeed"]
        assert "deepspeed" not in sys.modules
        assert importlib.util.find_spec("deepspeed.comm") and importlib.util.find_spec("deepspeed.no_such") is None
        try:
            import deepspeed.no_such
        except ModuleNotFoundError as error:
            assert error.name == "deepspeed.no_such"
        else:
            raise SystemExit("imported")
        importlib.metadata.version("pytest")
    """)


def test_versions() -> None:
    assert (
        program("""
        import zerotorch.as_deepspeed, zerotorch, deepspeed
        print(deepspeed.__version__, deepspeed.version, deepspeed.__version_minor__, zerotorch.__version__)
    """)
        == "0.19.8+zerotorch 0.19.8+zerotorch 19 0.1.0"
    )


def test_assignments_are_seen_under_both_names() -> None:
    program("""
        import zerotorch.as_deepspeed, zerotorch, deepspeed
        from unittest import mock
        deepspeed.something = 1
        assert zerotorch.something == 1
        with mock.patch("deepspeed.something", 2):
            assert zerotorch.something == 2
        assert zerotorch.something == 1
        del deepspeed.something
        assert not hasattr(zerotorch, "something") and not hasattr(deepspeed, "something")
        deepspeed.__version__ = "1"
        assert deepspeed.__version__ == "1" != zerotorch.__version__
        from deepspeed.runtime.zero import partition_parameters as pp
        import zerotorch.runtime.zero.partition_parameters as own
        pp.zero_wrapper_for_fp_tensor_constructor = None
        assert own.zero_wrapper_for_fp_tensor_constructor is None
        assert "comm" in dir(deepspeed) and deepspeed.comm is zerotorch.comm
    """)


def test_goes_before_a_real_one(real_deepspeed: str) -> None:
    program(
        FAKE.format(folder=real_deepspeed)
        + """
import zerotorch.as_deepspeed, importlib.metadata
import deepspeed
assert deepspeed.__version__ == "0.19.8+zerotorch" == importlib.metadata.version("deepspeed")
"""
    )


def test_refuses_after_a_real_one(real_deepspeed: str) -> None:
    program(
        FAKE.format(folder=real_deepspeed)
        + """
import deepspeed
from zerotorch.errors import UsageError
try:
    import zerotorch.as_deepspeed
except UsageError as error:
    assert "deepspeed itself is imported already" in str(error), error
else:
    raise SystemExit("not refused")
assert deepspeed.__version__ == "real"
"""
    )


def test_a_second_import_does_nothing() -> None:
    program("""
        import sys, importlib, zerotorch.as_deepspeed, deepspeed
        before = list(sys.meta_path)
        importlib.reload(zerotorch.as_deepspeed)
        assert sys.meta_path == before
    """)


def test_accelerate_finds_it() -> None:
    pytest.importorskip("accelerate")
    program("""
        import zerotorch.as_deepspeed
        import accelerate
        from accelerate.utils import compare_versions, is_deepspeed_available
        assert is_deepspeed_available()
        assert all(compare_versions("deepspeed", ">=", v) for v in ("0.9.3", "0.14.4", "0.16.4", "0.18.2"))
    """)


def test_transformers_finds_it() -> None:
    """It chooses the base class of its configuration when it is imported, and assigns into partition_parameters."""
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    program("""
        import zerotorch.as_deepspeed
        import transformers
        from transformers.integrations import HfDeepSpeedConfig, is_deepspeed_available, is_deepspeed_zero3_enabled
        from transformers.integrations.deepspeed import prevent_arange_dtype_change
        from zerotorch.runtime.zero import partition_parameters as own
        assert is_deepspeed_available()
        config = HfDeepSpeedConfig({"zero_optimization": {"stage": 3}})
        assert config.is_zero3() and is_deepspeed_zero3_enabled()
        before = own.zero_wrapper_for_fp_tensor_constructor
        with prevent_arange_dtype_change():
            assert own.zero_wrapper_for_fp_tensor_constructor is not before
        assert own.zero_wrapper_for_fp_tensor_constructor is before
    """)


@pytest.mark.parametrize("module", ["transformers.integrations.deepspeed", "accelerate"])
def test_refuses_when_the_question_has_been_asked(module: str) -> None:
    library = module.partition(".")[0]
    pytest.importorskip(library)
    program(f"""
        import {module}
        from zerotorch.errors import UsageError
        try:
            import zerotorch.as_deepspeed
        except UsageError as error:
            assert str(error) == "{library} has looked for deepspeed already; " \\
                "import zerotorch.as_deepspeed before {library}", error
        else:
            raise SystemExit("not refused")
    """)


def test_pth_line_installs_it_where_the_variable_says_so(tmp_path: pathlib.Path) -> None:
    """In a bare environment, whose start-up must import neither the package nor torch."""
    venv.create(tmp_path, symlinks=True, with_pip=False)
    interpreter = str(tmp_path / "bin/python")
    site = subprocess.run(
        [interpreter, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    ).stdout.strip()
    package = pathlib.Path(importlib.util.find_spec("zerotorch").origin).parents[1]  # type: ignore[union-attr,arg-type]
    for name in ("_zerotorch_as_deepspeed.py", "zerotorch.pth"):
        shutil.copy(package / name, site)
    asks = (
        "import sys, importlib.util; "
        "print(importlib.util.find_spec('deepspeed') is not None, '_zerotorch_as_deepspeed' in sys.modules, "
        "'zerotorch' in sys.modules, 'importlib.metadata' in sys.modules)"
    )
    clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "ZEROTORCH_AS_DEEPSPEED")}
    not_there = "False False False False"
    for value, wanted in ((None, not_there), ("0", not_there), ("1", "True True False False")):
        environment = clean if value is None else {**clean, "ZEROTORCH_AS_DEEPSPEED": value}
        done = subprocess.run(
            [interpreter, "-c", asks], env=environment, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        assert done.stdout.strip() == wanted and not done.stderr


def test_finder_alone_imports_little() -> None:
    loaded = program("""
        import sys
        before = set(sys.modules)
        import _zerotorch_as_deepspeed
        _zerotorch_as_deepspeed.install()
        print(*sorted(set(sys.modules) - before))
    """)
    assert not {"torch", "zerotorch", "importlib.metadata"} & set(loaded.split())


def test_modules_run_under_deepspeeds_names() -> None:
    done = python(
        "-c",
        "import zerotorch.as_deepspeed, runpy, sys; sys.argv = ['runner', '--help'];"
        "runpy.run_module('deepspeed.launcher.runner', run_name='__main__')",
    )
    assert done.returncode == 0 and "--num_gpus" in done.stdout, done.stderr

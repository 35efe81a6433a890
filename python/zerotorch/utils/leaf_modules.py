"""Marks of modules that DeepSpeed gathers as a whole at stage 3.

zerotorch gathers by use and needs no such marks: they are kept for programs that set and read them, and change
nothing. DeepSpeed's name of the module, `utils.z3_leaf_module`, is that of a function of `utils`, too: importing it puts
the module in the place of the function, which it then is as well. Everything is local.
"""

import sys
import types
from collections.abc import Callable, Iterable, Sequence

import torch

from zerotorch.errors import UsageError

MARK = "_z3_leaf"


def z3_leaf_module(model: torch.nn.Module) -> bool:
    """Whether the module is marked."""
    return bool(getattr(model, MARK, False))


def z3_leaf_parameter(model: torch.nn.Parameter) -> bool:
    """Whether the parameter has DeepSpeed's mark, `ds_z3_leaf_module`, which nothing here sets."""
    return hasattr(model, "ds_z3_leaf_module")


def get_z3_leaf_modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The marked modules of a model, itself included."""
    return [module for module in model.modules() if z3_leaf_module(module)]


def set_z3_leaf_module(model: torch.nn.Module, flag: bool) -> None:
    """Marks one module, or takes its mark away."""
    setattr(model, MARK, flag)


def set_z3_leaf_modules(
    model: torch.nn.Module, leaf_module_classes: Sequence[type | str], raise_if_not_found: bool = True
) -> list[torch.nn.Module]:
    """Marks the modules of these classes, or of classes with these names (short, or with their module's).

    Returns them. Raises ValueError where there are none, unless told not to, and UsageError for what is neither class
    nor name.
    """
    return _mark_classes(model, leaf_module_classes, True, raise_if_not_found)


def unset_z3_leaf_modules(
    model: torch.nn.Module, leaf_module_classes: Sequence[type | str], raise_if_not_found: bool = True
) -> list[torch.nn.Module]:
    """Takes marks away; otherwise `set_z3_leaf_modules`."""
    return _mark_classes(model, leaf_module_classes, False, raise_if_not_found)


def set_z3_leaf_modules_by_name(
    model: torch.nn.Module, module_names: Sequence[str], flag: bool = True, raise_if_not_found: bool = True
) -> tuple[list[torch.nn.Module], list[str]]:
    """Marks modules by their names in `model.named_modules()`.

    Returns them, and the names that were not found, which raise ValueError unless told not to.
    """
    return _mark_names(model, module_names, flag, raise_if_not_found, str.__eq__)


def set_z3_leaf_modules_by_suffix(
    model: torch.nn.Module, module_name_suffixes: Sequence[str], flag: bool = True, raise_if_not_found: bool = True
) -> tuple[list[torch.nn.Module], list[str]]:
    """Marks modules by what their names end in; otherwise `set_z3_leaf_modules_by_name`."""
    return _mark_names(model, module_name_suffixes, flag, raise_if_not_found, str.endswith)


def _mark_classes(
    model: torch.nn.Module, classes: Sequence[type | str], flag: bool, raise_if_not_found: bool
) -> list[torch.nn.Module]:
    if not all(isinstance(wanted, (type, str)) for wanted in classes):
        raise UsageError(f"leaf modules are given by classes or their names, not by {classes}")

    def is_meant(module: torch.nn.Module) -> bool:
        own = type(module)
        names = (own.__name__, f"{own.__module__}.{own.__qualname__}")
        return any(isinstance(module, wanted) if isinstance(wanted, type) else wanted in names for wanted in classes)

    found = _mark((module for module in model.modules() if is_meant(module)), flag)
    if not found and raise_if_not_found:
        raise ValueError(f"no module of {type(model).__name__} is one of {list(classes)}")
    return found


def _mark_names(
    model: torch.nn.Module,
    wanted: Sequence[str],
    flag: bool,
    raise_if_not_found: bool,
    matches: Callable[[str, str], bool],
) -> tuple[list[torch.nn.Module], list[str]]:
    modules = dict(model.named_modules())
    missing = [one for one in wanted if not any(matches(name, one) for name in modules)]
    if missing and raise_if_not_found:
        raise ValueError(f"no module of {type(model).__name__} has the names {missing}")
    meant = {id(module): module for one in wanted for name, module in modules.items() if matches(name, one)}
    return _mark(meant.values(), flag), missing


def _mark(modules: Iterable[torch.nn.Module], flag: bool) -> list[torch.nn.Module]:
    marked = list(modules)
    for module in marked:
        set_z3_leaf_module(module, flag)
    return marked


class _Callable(types.ModuleType):
    __call__ = staticmethod(z3_leaf_module)


sys.modules[__name__].__class__ = _Callable

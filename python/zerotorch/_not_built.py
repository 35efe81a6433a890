"""Stand-ins for parts of DeepSpeed that are not built: they can be imported, named in isinstance and derived from."""

from collections.abc import Callable
from typing import Any, NoReturn

from .errors import NotBuiltError


def not_built_class(name: str, feature: str) -> type[Any]:
    """A class that raises NotBuiltError, naming `feature`, when it, or a class derived from it, is instantiated."""

    def refuse(cls: type[Any], *args: Any, **kwargs: Any) -> NoReturn:
        raise NotBuiltError(f"{name}: {feature} is not built")

    return type(name, (), {"__new__": refuse, "__doc__": f"Not built: {feature}."})


def not_built_function(name: str, feature: str) -> Callable[..., NoReturn]:
    """A function that raises NotBuiltError, naming `feature`."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotBuiltError(f"{name}: {feature} is not built")

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"Not built: {feature}."
    return refuse

"""Stand-ins for parts of DeepSpeed that are not built: they can be imported, named in isinstance and derived from."""

from collections.abc import Callable
from typing import Any, NoReturn

from .errors import NotBuiltError


class _NotBuilt(type):
    """Class methods and constants of a class that is not built."""

    _message: str

    def __getattr__(cls, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise NotBuiltError(cls._message)


def not_built_class(name: str, feature: str) -> type[Any]:
    """A class that raises NotBuiltError, naming `feature`.

    It does when it, or a class derived from it, is instantiated, and where something of the class is used.
    """

    def refuse(cls: type[Any], *args: Any, **kwargs: Any) -> NoReturn:
        raise NotBuiltError(message)

    message = f"{name}: {feature} is not built"
    return _NotBuilt(name, (), {"__new__": refuse, "__doc__": message, "_message": message})


def not_built_function(name: str, feature: str) -> Callable[..., NoReturn]:
    """A function that raises NotBuiltError, naming `feature`."""

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotBuiltError(refuse.__doc__)

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"{name}: {feature} is not built"
    return refuse

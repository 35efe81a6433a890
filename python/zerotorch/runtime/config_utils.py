"""Sections of a configuration as objects, for programs that make or read these themselves.

The engine reads JSON by its own schema (`zerotorch.config`); nothing here decides what it does.
"""

from __future__ import annotations

import enum
import functools
import pathlib
import types
import typing
from typing import Any, ClassVar

from zerotorch.errors import ConfigError


class DeepSpeedConfigModel:
    """A section: annotated members with defaults, set by keyword, under their own names or those in `_aliases`.

    "auto" means not given, unless `strict`. Members of a program's own class may be pydantic's Field(): its default, its
    alias and DeepSpeed's marks of deprecated names in `json_schema_extra` are kept; other limits are not. Raises ConfigError, which is a ValueError, for a key that the section does
    not have and for a value of another type. Local.
    """

    _aliases: ClassVar[dict[str, str]] = {}

    def __init__(self, strict: bool = False, **data: Any) -> None:
        kinds, aliases = self._kinds(), self._all_aliases()
        values = {name: self._default(name) for name in kinds}
        given = {aliases.get(key, key): value for key, value in data.items() if strict or value != "auto"}
        for name, value in given.items():
            if name not in kinds:
                raise ConfigError(f"{type(self).__name__} has no key '{name}': it has {', '.join(kinds)}")
            values[name] = _converted(value, kinds[name], f"{type(self).__name__}.{name}")
        for name in kinds:
            if name not in given and _is_field(values[name]):
                raise ConfigError(f"{type(self).__name__} needs a value of '{name}'")
        self.__dict__.update(values)
        self._rename(given)

    def _rename(self, given: dict[str, Any]) -> None:
        """What was given under a deprecated name becomes the value of the member that has taken its place."""
        for name in given:
            extra = getattr(getattr(type(self), name, None), "json_schema_extra", None) or {}
            new = extra.get("new_param", "")
            if not extra.get("deprecated") or not new or not extra.get("set_new_param", True):
                continue
            if new in given:
                raise ConfigError(f"{type(self).__name__}: '{name}' is an older name of '{new}': give one of them")
            *path, last = new.split(".")
            setattr(functools.reduce(getattr, path, self), last, extra.get("new_param_fn", _same)(getattr(self, name)))
            setattr(self, name, self._default(name))

    @classmethod
    def _default(cls, name: str) -> Any:
        """What a member is where it is not given; one of pydantic's Field() itself where it must be."""
        value: Any = getattr(cls, name, None)
        return value if not _is_field(value) or value.is_required() else value.get_default(call_default_factory=True)

    @classmethod
    def _all_aliases(cls) -> dict[str, str]:
        fields: dict[str, Any] = {name: getattr(cls, name, None) for name in cls._kinds()}
        return {**cls._aliases, **{one.alias: name for name, one in fields.items() if _is_field(one) and one.alias}}

    @classmethod
    def _kinds(cls) -> dict[str, Any]:
        hints = typing.get_type_hints(cls)
        return {name: kind for name, kind in hints.items() if typing.get_origin(kind) is not ClassVar}

    @classmethod
    def known_keys(cls) -> set[str]:
        """Names of members, and their other names."""
        return {*cls._kinds(), *cls._all_aliases()}

    def model_dump(self) -> dict[str, Any]:
        """The values by name, sections inside as dictionaries."""
        return {
            name: value.model_dump() if isinstance(value, DeepSpeedConfigModel) else value
            for name, value in vars(self).items()
        }

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


def get_scalar_param(param_dict: dict[str, Any], param_name: str, param_default_value: Any) -> Any:
    """What a dictionary has under a name, else the default."""
    return param_dict.get(param_name, param_default_value)


def _is_field(value: Any) -> bool:
    """pydantic's, which need not be installed."""
    return type(value).__name__ == "FieldInfo" and type(value).__module__.startswith("pydantic.")


def _same(value: Any) -> Any:
    return value


def _converted(value: Any, kind: Any, what: str) -> Any:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        if value is None:
            return None
        kind = next(one for one in typing.get_args(kind) if one is not type(None))
    kind = typing.get_origin(kind) or kind
    if kind is Any or isinstance(value, kind) and not (isinstance(value, bool) and kind is int):
        return value
    try:
        if issubclass(kind, DeepSpeedConfigModel):
            return kind(**value)
        if issubclass(kind, (enum.Enum, pathlib.Path)):
            return kind(value)
        if kind is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if kind is int and isinstance(value, float) and value.is_integer():
            return int(value)
    except (TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
    raise ConfigError(f"{what} must be {kind.__name__}, got {value!r}")

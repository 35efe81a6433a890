"""Files that hold a JSON object, and what is in such objects: nobody promises that it has the right type."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any


class Refused(Exception):
    """What the user can mend."""


def of_path(path: str | Path) -> str:
    """File names may be no Unicode."""
    return os.fsencode(path).decode(errors="replace")


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except OSError as error:
        raise Refused(f"{of_path(path)}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise Refused(f"{of_path(path)}: is no JSON: {one_line(error)}") from None
    if not isinstance(found, dict):
        raise Refused(f"{of_path(path)}: is not a JSON object")
    return found


def read_json_if_there(path: Path) -> dict[str, Any] | None:
    return read_json(path) if path.exists() else None


def value_at(found: Any, *keys: str) -> Any:
    """In objects within objects."""
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def number_at(found: Any, *keys: str) -> float | None:
    """A finite one."""
    value = value_at(found, *keys)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        return None


def text_at(found: Any, *keys: str) -> str:
    value = value_at(found, *keys)
    return value if isinstance(value, str) else ""


def flat(found: Any, prefix: str = "") -> dict[str, Any]:
    """Keys with dots; empty objects and lists are values."""
    if isinstance(found, dict) and found:
        return {key: value for name in found for key, value in flat(found[name], f"{prefix}{name}.").items()}
    return {prefix[:-1]: found}

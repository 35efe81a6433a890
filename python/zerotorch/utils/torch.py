"""`deepspeed.utils.torch`."""

import re
from collections.abc import Callable
from typing import Any

import torch

from ..errors import UsageError


def required_torch_version(min_version: Any = None, max_version: Any = None) -> bool:
    """Whether torch's version is at least `min_version` and at most `max_version`. Raises UsageError without any.

    Local builds ("+cpu") are later than the version itself, as packaging.version orders them. Local.
    """
    if not min_version and not max_version:
        raise UsageError("required_torch_version() needs min_version or max_version")
    installed = _parts(torch.__version__)
    return not (
        (min_version and _parts(str(min_version)) > installed) or (max_version and _parts(str(max_version)) < installed)
    )


def register_grad_hook(param: torch.Tensor, hook: Callable[[torch.Tensor], None]) -> Any:
    """Calls `hook` after a gradient was accumulated in `param`. Local."""
    return param.register_post_accumulate_grad_hook(hook)  # type: ignore[no-untyped-call]


def jit_script_compat(fn: Callable[..., Any]) -> Any:
    """torch.compile of a function. Local."""
    return torch.compile(fn)


def _parts(version: str) -> tuple[list[int], bool]:
    public, plus, _ = version.partition("+")
    found = re.match(r"\d+(\.\d+)*", public)
    numbers = [int(one) for one in found[0].split(".")] if found else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers, bool(plus)

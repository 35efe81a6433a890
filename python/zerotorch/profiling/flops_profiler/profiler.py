"""DeepSpeed's profiler of modules: operations, parameters and time of one forward, by module. Everything is local."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from zerotorch.errors import UsageError

from ...accelerator import get_accelerator
from .formulas import FUNCTIONS, RECURRENT, recurrent


@dataclasses.dataclass
class _Figures:
    """Of a module, without its children but for the time."""

    flops: int = 0
    macs: int = 0
    seconds: float = 0.0
    started: float = 0.0


class _Counter:
    """Adds each function's cost to the module whose forward has called it.

    Functions are replaced while it counts, since torch's modes do not see what Python's functions call.
    """

    def __init__(self) -> None:
        self.running: list[_Figures] = []
        self._inside = False

    def replace_functions(self, undo: contextlib.ExitStack) -> None:
        for owner, name, cost in FUNCTIONS:
            function = getattr(owner, name)
            undo.callback(setattr, owner, name, function)
            setattr(owner, name, self._counted(function, cost))

    def _counted(self, function: Callable[..., Any], cost: Callable[..., tuple[int, int]]) -> Callable[..., Any]:
        @functools.wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            if self._inside or not self.running:
                return function(*args, **kwargs)
            flops, macs = cost(*args, **kwargs)
            self.running[-1].flops += flops
            self.running[-1].macs += macs
            self._inside = True
            try:
                return function(*args, **kwargs)
            finally:
                self._inside = False

        return counted


class FlopsProfiler:
    """Counts between start_profile() and stop_profile() what forwards of `model` cost.

    Figures stay until end_profile() or the next start_profile(). `recompute_fwd_factor` adds forwards that activation
    checkpointing repeats to the totals that are printed.
    """

    def __init__(self, model: torch.nn.Module, ds_engine: Any = None, recompute_fwd_factor: float = 0.0) -> None:
        self.model = model
        self.ds_engine = ds_engine
        self.recompute_fwd_factor = recompute_fwd_factor
        self.started = False
        self._figures: dict[torch.nn.Module, _Figures] = {}
        self._counter = _Counter()
        self._undo = contextlib.ExitStack()

    def start_profile(self, ignore_list: Sequence[type] | None = None) -> None:
        """Begins to count, but not in modules of the classes in `ignore_list`."""
        self.stop_profile()
        self.reset_profile()
        self.started = True
        for module in self.model.modules():
            if type(module) not in (ignore_list or ()):
                self._watch(module)
        self._counter.replace_functions(self._undo)

    def stop_profile(self) -> None:
        """Ends counting; the figures stay."""
        self._undo.close()
        self._counter.running.clear()

    def end_profile(self) -> None:
        """Ends counting and forgets the figures."""
        self.stop_profile()
        self._figures.clear()
        self.started = False

    def reset_profile(self) -> None:
        """All figures are zero."""
        self._figures = {module: _Figures() for module in self.model.modules()}

    def _watch(self, module: torch.nn.Module) -> None:
        figures, running = self._figures[module], self._counter.running

        def begin(module: torch.nn.Module, args: Any) -> None:
            get_accelerator().synchronize()
            figures.started = time.perf_counter()
            running.append(figures)

        def end(module: torch.nn.Module, args: Any, output: Any) -> None:
            if running and running[-1] is figures:
                running.pop()
            if isinstance(module, RECURRENT):
                shape = args[0].shape
                figures.flops += recurrent(module, shape[0], 1 if type(module).__name__.endswith("Cell") else shape[1])
            get_accelerator().synchronize()
            figures.seconds += time.perf_counter() - figures.started

        self._undo.callback(module.register_forward_pre_hook(begin).remove)
        self._undo.callback(module.register_forward_hook(end).remove)

    # ---- figures ----

    def get_total_flops(self, as_string: bool = False) -> Any:
        """Floating-point operations of the forwards."""
        total = self._flops(self.model)
        return number_to_string(total) if as_string else total

    def get_total_macs(self, as_string: bool = False) -> Any:
        """Multiply-accumulates of the forwards."""
        total = self._sum(self.model, lambda figures: figures.macs)
        return macs_to_string(total) if as_string else total

    def get_total_duration(self, as_string: bool = False) -> Any:
        """Seconds of the forwards."""
        total = self._seconds(self.model)
        return duration_to_string(total) if as_string else total

    def get_total_params(self, as_string: bool = False) -> Any:
        """Parameters of the model, shared ones once."""
        total = sum(_size(parameter) for parameter in self.model.parameters())
        return params_to_string(total) if as_string else total

    def _flops(self, module: torch.nn.Module) -> int:
        return self._sum(module, lambda figures: figures.flops)

    def _sum(self, module: torch.nn.Module, figure: Callable[[_Figures], int]) -> int:
        return sum(figure(self._figures[one]) for one in module.modules() if one in self._figures)

    def _seconds(self, module: torch.nn.Module) -> float:
        """A module without a forward of its own, as ModuleList, has its children's."""
        own = self._figures.get(module, _Figures()).seconds
        return own or sum(map(self._seconds, module.children()))

    # ---- reports ----

    def print_model_profile(
        self,
        profile_step: int = 1,
        module_depth: int = -1,
        top_modules: int = 1,
        detailed: bool = True,
        output_file: str | None = None,
    ) -> None:
        """Prints the totals, the largest modules by depth and, with `detailed`, every module, or writes it to a file."""
        if not self.started:
            return
        with _output(output_file):
            flops, seconds = self.get_total_flops(), self.get_total_duration()
            print(f"FLOPs of one forward at step {profile_step}")
            print(f"  parameters: {self.get_total_params(as_string=True)}, MACs: {self.get_total_macs(as_string=True)}")
            print(f"  operations: {flops_to_string(flops)[:-1]} in {duration_to_string(seconds)}")
            if seconds:
                print(f"  rate: {flops_to_string(flops * (1 + self.recompute_fwd_factor) / seconds)}")
            self.print_model_aggregated_profile(module_depth, top_modules)
            if detailed:
                for name, module in self.model.named_modules():
                    print(f"  {name or type(self.model).__name__} ({type(module).__name__}): {self._line(module)}")

    def print_model_aggregated_profile(self, module_depth: int = -1, top_modules: int = 1) -> None:
        """Prints, by depth, the classes of modules that cost most."""
        levels: dict[int, dict[str, list[torch.nn.Module]]] = {}
        for name, module in self.model.named_modules():
            depth = name.count(".") + 1 if name else 0
            levels.setdefault(depth, {}).setdefault(type(module).__name__, []).append(module)
        for depth, classes in levels.items():
            if module_depth < 0 or depth <= module_depth:
                costs = {kind: sum(map(self._flops, found)) for kind, found in classes.items()}
                largest = sorted(costs.items(), key=lambda item: -item[1])[:top_modules]
                texts = [f"{kind} {flops_to_string(cost)[:-1]}" for kind, cost in largest]
                print(f"  depth {depth}: " + ", ".join(texts))

    def _line(self, module: torch.nn.Module) -> str:
        parameters = params_to_string(sum(_size(one) for one in module.parameters()))
        flops = flops_to_string(self._flops(module))[:-1]
        macs = macs_to_string(self._sum(module, lambda figures: figures.macs))
        return f"{parameters} parameters, {macs}, {flops}, {duration_to_string(self._seconds(module))}"


def get_model_profile(
    model: torch.nn.Module,
    input_shape: tuple[int, ...] | None = None,
    args: Sequence[Any] = (),
    kwargs: dict[str, Any] | None = None,
    print_profile: bool = True,
    detailed: bool = True,
    module_depth: int = -1,
    top_modules: int = 1,
    warm_up: int = 1,
    as_string: bool = True,
    output_file: str | None = None,
    ignore_modules: Sequence[type] | None = None,
    mode: str = "forward",
) -> tuple[Any, Any, Any]:
    """Operations, multiply-accumulates and parameters of one forward, or `generate()`, of a model in evaluation mode.

    The inputs are `args` and `kwargs`, or one tensor of `input_shape` in the dtype of the parameters. Raises UsageError
    without any.
    """
    if not isinstance(model, torch.nn.Module):
        raise UsageError("model must be a PyTorch module")
    if mode not in ("forward", "generate"):
        raise UsageError(f"mode is forward or generate, not {mode}")
    if input_shape is not None:
        if not isinstance(input_shape, tuple) or not input_shape:
            raise UsageError("input_shape must be a tuple with at least one element")
        first = next(model.parameters(), torch.empty(0))
        args = [torch.zeros(input_shape, dtype=first.dtype, device=first.device)]
    if not args and not kwargs:
        raise UsageError("args and/or kwargs must be specified if input_shape is None")
    model.eval()
    run = model if mode == "forward" else model.generate
    for _ in range(warm_up):
        run(*args, **(kwargs or {}))  # type: ignore[operator]
    profiler = FlopsProfiler(model)
    profiler.start_profile(ignore_modules)
    try:
        run(*args, **(kwargs or {}))  # type: ignore[operator]
        if print_profile:
            profiler.print_model_profile(warm_up, module_depth, top_modules, detailed, output_file)
        found = (
            profiler.get_total_flops(as_string),
            profiler.get_total_macs(as_string),
            profiler.get_total_params(as_string),
        )
    finally:
        profiler.end_profile()
    return found


def _size(parameter: torch.nn.Parameter) -> int:
    return int(getattr(parameter, "ds_numel", 0) or parameter.numel())


@contextlib.contextmanager
def _output(path: str | None) -> Iterator[None]:
    if path is None:
        yield
        sys.stdout.flush()
        return
    with open(path, "w") as file, contextlib.redirect_stdout(file):
        yield


# ---- numbers as people read them ----

DEFAULT_PRECISION = 2

_LARGE = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K"), (1.0, ""))
_SMALL = ((1e-3, "m"), (1e-6, "u"))


def number_to_string(num: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """ "1.5 K"; `units` is one of T, G, M, K, m and u, and anything else means none."""
    if units is None:
        sizes = (*_LARGE, *_SMALL)
        size, units = next(((size, name) for size, name in sizes if num >= size), (1.0, "") if num == 0 else _SMALL[-1])
    else:
        size = {name: size for size, name in (*_LARGE, *_SMALL)}.get(units, 1.0)
    return f"{round(num / size, precision):g} {units}"


def flops_to_string(flops: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    return f"{number_to_string(flops, units, precision)}FLOPS"


def macs_to_string(macs: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    return f"{number_to_string(macs, units, precision)}MACs"


def bytes_to_string(b: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    return f"{number_to_string(b, units, precision)}B"


def duration_to_string(duration: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    return f"{number_to_string(duration, units, precision)}s"


def params_to_string(params_num: float, units: str | None = None, precision: int = DEFAULT_PRECISION) -> str:
    """With B for 10^9."""
    units = units.replace("B", "G") if units else units
    return number_to_string(params_num, units, precision).replace("G", "B").strip()

"""The engine: a module under training."""

from __future__ import annotations

import atexit
import contextlib
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from zerotorch import _C
from zerotorch.core.checkpoints import engine_checkpoints
from zerotorch.core.checkpoints.load_deepspeed import LoadOptions
from zerotorch.core.config import Config
from zerotorch.core.distributed import first_problem, world_group
from zerotorch.core.life_cycle import Flags, ModuleChanges, are_released, forget_shards, leave_shards
from zerotorch.core.local_rank import LocalRank
from zerotorch.core.log import log_dist
from zerotorch.core.optimizer import ZeroOptimizer
from zerotorch.core.parameters import marks
from zerotorch.core.parameters.gathered import GatheredParameters
from zerotorch.core.precision import Autocast
from zerotorch.core.trained import Life, Trained
from zerotorch.core.unmanaged_accumulation import UnmanagedAccumulation
from zerotorch.errors import ConfigError, ModelError, UsageError

_STAGES_OF_SHARDED_GRADIENTS = 2

_cores: weakref.WeakSet[_C.Engine] = weakref.WeakSet()


@atexit.register
def _destroy_all() -> None:
    """While the interpreter is whole: what an engine waits for at its end leaves the GIL, and threads that took it later
    would end in the middle of C++ code, and the process with them."""
    for core in list(_cores):
        core.destroy()


def _to_half(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.half() if tensor.is_floating_point() else tensor


class Engine(Trained, torch.nn.Module):
    """A module under training. Call it as the module; names it does not have are the module's.

    All ranks make the same calls in the same order, but where a method is said to be local. One thread at a time uses
    an engine. Methods raise UsageError (an AssertionError and a RuntimeError) for calls that cannot be kept right.

    Attributes:
        module: the module that was given.
        config: the dictionary that was given.
        optimizer: a torch.optim.Optimizer whose param_groups are read at every update; None for evaluation.
        lr_scheduler: stepped after every update; None: rates stay as param_groups say.
        training_dataloader: of training_data; None where there is none.
        client_state: what the last checkpoint that was loaded had of the program's.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        core: _C.Engine,
        config: Config,
        optimizer: ZeroOptimizer | None,
        lr_scheduler: Any,
        names: dict[torch.nn.Parameter, str],
        flags: Flags,
        trained_by: Trained | None = None,
    ) -> None:
        """`flags`: which parameters required a gradient before. `trained_by`: the engine that has the parameters and
        `core`, beside which this one evaluates."""
        super().__init__()
        self.module = module
        self._core = core
        _cores.add(core)
        self._config = config
        self._names = names
        self.config = config.raw
        self.optimizer = optimizer
        if optimizer is not None:
            optimizer._engine = weakref.ref(self)
        self.basic_optimizer = None if optimizer is None else optimizer.optimizer
        self.lr_scheduler = lr_scheduler
        self.client_lr_scheduler: Any = None
        self.training_dataloader: Any = None
        self.client_state: dict[str, Any] = {}
        self._in_no_sync = False
        self._boundary: bool | None = None
        self._said_scaling = False
        self._is_compiled = False
        own = None if config.manages_accumulation else UnmanagedAccumulation(config.gradient_accumulation_steps)
        self._unmanaged: UnmanagedAccumulation | None = own
        self.__dict__["_trained_by"] = trained_by  # no child of ours
        self._autocast: Autocast | None = None
        if config.autocast_dtype is not None:
            self._autocast = Autocast(config.autocast_dtype, self.device, config.resolved["zerotorch"]["cpu_products"])
        self._life = Life()
        self._changes: ModuleChanges | None = None
        if trained_by is not None:
            return
        self._holds_shards_only = are_released(names)
        # The values are nowhere else, and there is nothing besides that the end of an engine would give up.
        self._leaves_shards = optimizer is None and self._holds_shards_only
        if self._leaves_shards:
            leave_shards(module, core, names)
        trained = optimizer is not None
        handles = marks.attach(module, names, config.stage, self, core.world_size, trained=trained)
        if optimizer is not None:
            handles += optimizer.join(self._life, config.updates_in_backward)
        release = None if optimizer is None else optimizer.release()
        self._changes = ModuleChanges(flags.keep_frozen(), names, handles, release)
        self._changes.restore_with(core)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            modules = self.__dict__.get("_modules", {})
            if "module" in modules and hasattr(modules["module"], name):
                return getattr(modules["module"], name)
            raise

    # ---- what a surface over the core makes of it ----

    @staticmethod
    def optimizer_class(kind: str | None, offloaded: bool) -> type[ZeroOptimizer]:
        """Of its optimizer; `kind`: `optimizer.type` of the configuration, None where the program gives an optimizer."""
        return ZeroOptimizer

    @staticmethod
    def place(model: torch.nn.Module, local_rank: int) -> str | None:
        """Before it is made: moves a module to the device where it is to be, or returns the device that the engine has
        to take it to."""
        return None

    # ---- one step ----

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's forward, also when the engine has ended. With fp16.auto_cast floating-point inputs are cast to
        fp16."""
        if not self.has_ended:
            self._core.begin_forward()
            if self._is_compiled:  # kernels that read memory without an operator
                self._core.wait_for_parameters()
        if self._config.auto_casts:
            args, kwargs = tree_map_only(torch.Tensor, _to_half, (args, kwargs))
        if self._autocast is not None:
            with self._autocast.scope():
                return self.module(*args, **kwargs)
        return self.module(*args, **kwargs)

    @property
    def has_ended(self) -> bool:
        """It was destroyed, or replaced by another engine. Local."""
        return self._core.is_destroyed

    def _require_training(self, call: str) -> None:
        if self.optimizer is None:
            raise UsageError(f"{call} of an engine that was made without an optimizer: it only evaluates")
        self._life.require_trainable()

    def backward(self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True) -> torch.Tensor:
        """Runs backward from a scalar loss; gradients leave the module for the ranks that own them.

        Args:
            loss: one element.
            retain_graph: keep the graph for another backward.
            scale_wrt_gas: True: the average over gradient_accumulation_steps() is the engine's; False: the program has
                divided the loss itself.

        Returns:
            The loss, divided by gradient_accumulation_steps() where the engine divides.
        """
        self._require_training("backward()")
        if not isinstance(loss, torch.Tensor):
            raise UsageError(f"backward() needs a tensor, got {type(loss).__name__}")
        assert self.optimizer is not None
        self.optimizer.before_backward()
        steps = self.gradient_accumulation_steps()
        divided = self._core.gradient_accumulation_steps  # what the update divides by
        self._core.backward(loss, retain_graph, divided / steps if scale_wrt_gas else float(divided))
        if self._unmanaged is not None:
            self._unmanaged.count_backward()
        if steps > 1 and not self._said_scaling:
            self._said_scaling = True
            log_dist(
                f"{steps} micro-batches make an update, each loss divided by {steps} by "
                + ("the engine" if scale_wrt_gas else "the program (scale_wrt_gas=False)"),
                ranks=[0],
            )
        return loss / steps if scale_wrt_gas else loss

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss times loss_scale(), for a ``loss.backward()`` of the program's own. Local."""
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shape = tuple(loss.shape) if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise UsageError(f"scale() needs a scalar tensor, the loss, got {shape}: reduce it first, for example with mean()")
        return self._core.scale(loss)

    def step(self, lr_kwargs: dict[str, Any] | None = None) -> None:
        """Ends a micro-batch; at an accumulation boundary also clips, updates and steps the scheduler."""
        if self._in_no_sync:
            raise UsageError("It is illegal to call Engine.step() inside no_sync context manager")
        self._require_training("step()")
        assert self.optimizer is not None
        before = self.global_steps
        self.optimizer.step()
        if self._unmanaged is not None:
            self._unmanaged.end_window()
        if self.global_steps > before and self.was_step_applied() and self.lr_scheduler is not None:
            self.lr_scheduler.step(**(lr_kwargs or {}))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """After a backward that failed: drops what it left. Micro-batches that step() has ended stay in their window, but
        where gradients of that backward had been added to their sums: then they are dropped, too, with a warning.

        Of a backward that did not fail it drops the gradients before the window's first step(), and is a ModelError
        later in it: they cannot be dropped alone. Without an optimizer, or when the engine has ended, the module's
        gradients are plain ones, and are dropped as such.
        """
        if self.optimizer is None or self.has_ended:
            self.module.zero_grad(set_to_none)
        else:
            self._core.zero_grad()
            if self._unmanaged is not None:
                self._unmanaged.drop_window()

    def finish_update(self) -> None:
        """With zerotorch.update "delayed": the last step's update becomes part of the parameters. On every rank."""
        self._life.require_alive()
        self._core.finish_update()

    def wait_for_parameters(self) -> None:
        """Between hosts step() returns before all updated parameters have come (zerotorch.overlap_all_gather). An
        operator that uses one waits for it, and so do numpy() and state_dict(); call this before their memory is read
        in another way. Local."""
        self._life.require_alive()
        self._core.wait_for_parameters()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Micro-batches inside do not end a window. Stages 0 and 1 only, as in DeepSpeed."""
        if self._config.stage >= _STAGES_OF_SHARDED_GRADIENTS:
            raise UsageError(
                "no_sync context manager is incompatible with gradient partitioning logic of ZeRO stage "
                f"{self._config.stage}"
            )
        if self._in_no_sync:
            raise UsageError("no_sync context manager reentry is unsupported")
        self._in_no_sync = True
        self._say_boundary(False)
        try:
            yield
        finally:
            self._in_no_sync = False
            self._say_boundary(None)

    def set_gradient_accumulation_boundary(self, is_boundary: bool | None) -> None:
        """Says whether the micro-batches from here on end their window; None: they are counted. Local."""
        if self._unmanaged is not None:
            raise UsageError(
                "set_gradient_accumulation_boundary() is not supported with managed_gradient_accumulation=False: every "
                "step() ends the window"
            )
        self._say_boundary(is_boundary)

    def _say_boundary(self, is_boundary: bool | None) -> None:
        if self._unmanaged is None:  # else only step() ends a window
            self._core.set_gradient_accumulation_boundary(is_boundary)
            self._boundary = is_boundary

    def is_gradient_accumulation_boundary(self) -> bool:
        """True when the next step() updates; with managed_gradient_accumulation=False never outside of step(). Local."""
        return self._unmanaged is None and self._core.is_gradient_accumulation_boundary()

    def was_step_applied(self) -> bool:
        """True when the last step() has changed the parameters. Local."""
        return self._core.was_step_applied

    # ---- numbers ----

    @property
    def global_steps(self) -> int:
        return self._core.global_steps

    @property
    def micro_steps(self) -> int:
        return self._core.micro_steps

    @property
    def skipped_steps(self) -> int:
        return self._core.skipped_steps

    @property
    def global_samples(self) -> int:
        more = 0 if self._unmanaged is None else self._unmanaged.more
        return (self._core.micro_steps + more) * self.train_micro_batch_size_per_gpu() * self.world_size

    @property
    def global_rank(self) -> int:
        return self._core.rank

    @property
    def world_size(self) -> int:
        return self._core.world_size

    dp_world_size = world_size

    @property
    def local_rank(self) -> Any:
        """Of this process on its host; ``tensor.to(engine.local_rank)`` takes it for the module's device."""
        return LocalRank(self._core.local_rank, str(self.device))

    @property
    def device(self) -> torch.device:
        """Of the module's parameters."""
        return torch.device(self._core.device)

    def train_batch_size(self) -> int:
        if self._unmanaged is None:
            return self._core.train_batch_size
        return self._core.train_batch_size * self._unmanaged.steps

    def train_micro_batch_size_per_gpu(self) -> int:
        return self._core.train_micro_batch_size_per_gpu

    def gradient_accumulation_steps(self) -> int:
        return self._core.gradient_accumulation_steps if self._unmanaged is None else self._unmanaged.steps

    def set_train_batch_size(self, train_batch_size: int) -> None:
        """Samples of an update on all ranks, from the next window on; micro-batches keep their size."""
        if self._unmanaged is None:
            self._core.set_train_batch_size(train_batch_size)
            return
        steps, left = divmod(train_batch_size, self._core.train_batch_size)
        if left:
            raise ConfigError(
                f"set_train_batch_size({train_batch_size}): a multiple of {self._core.train_batch_size} is needed, "
                "train_micro_batch_size_per_gpu times the data-parallel ranks"
            )
        self.set_gradient_accumulation_steps(steps)

    def set_gradient_accumulation_steps(self, steps: int) -> None:
        if self._unmanaged is None:
            self._core.set_gradient_accumulation_steps(steps)
        elif steps < 1:
            raise ConfigError(f"set_gradient_accumulation_steps({steps}): give at least 1")
        else:
            self._unmanaged.steps = steps

    def get_lr(self) -> list[float]:
        """Learning rates by parameter group, for the next update."""
        return [] if self.optimizer is None else [group["lr"] for group in self.optimizer.param_groups]

    def set_lr(self, lr: float) -> None:
        """Of all parameter groups, from the next update on; a scheduler goes on from its own. Local."""
        for group in [] if self.optimizer is None else self.optimizer.param_groups:
            group["lr"] = lr

    def get_global_grad_norm(self) -> float | None:
        """2-norm of the averaged gradient of the last update, before clipping; None before the first, and infinite, as
        DeepSpeed's, where it was skipped because a gradient was not finite."""
        if self.global_steps == 0:
            return None
        return math.inf if self.optimizer is not None and self.optimizer.overflow else self._core.grad_norm

    def loss_scale(self) -> float:
        return self._core.loss_scale

    def memory_summary(self) -> str:
        """All ranks' memory by kind, before initialize() and now. *Collective.*"""
        return self._core.memory_summary()

    def memory_report(self) -> dict[str, dict[str, int]]:
        """Bytes of this rank by kind: "held", "in_use" and "peak". Local."""
        return self._core.memory_report()

    def communication_report(self) -> str:
        """What this rank has received since initialize(). Local."""
        return self._core.communication_report()

    # ---- the module ----

    def train(self, mode: bool = True) -> "Engine":
        super().train(mode)
        return self

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> "Engine":
        probe = torch.empty(0, dtype=self.module_dtype, device=self.device)
        there = fn(probe)
        if there.dtype != probe.dtype or there.device != probe.device:
            raise ModelError(
                f"the engine's module is {probe.dtype} on {probe.device} and cannot become {there.dtype} on "
                f"{there.device}: convert and move it before initialize(), or say the precision in the configuration"
            )
        return self

    @property
    def module_dtype(self) -> torch.dtype:
        for parameter in self._names:
            return parameter.dtype
        return torch.get_default_dtype()

    def compile(
        self, backend: str = "inductor", compile_kwargs: dict[str, Any] | None = None, schedule: Any = None
    ) -> None:
        """torch.compile of the module. Where stage 3 copies parameters to each rank (zerotorch.store), a kernel that
        reads a parameter which is not there raises an error that names it."""
        if schedule is not None:
            raise UsageError("compile(schedule=): passes of DeepCompile are not built; leave it out")
        self.module.compile(backend=backend, **(compile_kwargs or {}))
        self._is_compiled = True

    def destroy(self) -> None:
        """Gives up memory and the group's part. The module is an ordinary one afterwards, with requires_grad as it was
        before initialize(), but that parameters which were sharded and not gathered throw on use."""
        self._life.destroy()
        if self._changes is None:  # another engine has the parameters
            self.__dict__["_trained_by"] = None
            return
        if not self._leaves_shards:
            self._end()

    def _end_as_replaced(self) -> None:
        self._life.replace()
        self._end()

    def _end(self) -> None:
        assert self._changes is not None
        forget_shards(self.module)
        self._changes.restore()
        if self._autocast is not None:
            self._autocast.end()
        self._core.destroy()

    # ---- whole tensors: used by zerotorch.utils.safe_* ----

    def _name_of(self, parameter: torch.nn.Parameter) -> str:
        if parameter not in self._names:
            raise UsageError("a tensor is not a parameter of this engine's module")
        return self._names[parameter]

    def _full_weight(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        return self._core.full_weight(self._name_of(parameter))

    def _set_full_weight(self, parameter: torch.nn.Parameter, value: torch.Tensor) -> None:
        self._core.set_full_weight(self._name_of(parameter), value)

    def _full_gradient(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        if not parameter.requires_grad or self.optimizer is None:
            return None
        return self._core.full_gradient(self._name_of(parameter))

    def _set_full_gradient(self, parameter: torch.nn.Parameter, value: torch.Tensor) -> None:
        self._core.set_full_gradient(self._name_of(parameter), value)

    def _full_optimizer_state(self, parameter: torch.nn.Parameter, key: str) -> torch.Tensor | None:
        if not parameter.requires_grad or self.optimizer is None:
            return None
        return self._core.full_optimizer_state(self._name_of(parameter), key)

    def _set_full_optimizer_state(self, parameter: torch.nn.Parameter, key: str, value: torch.Tensor) -> None:
        self._core.set_full_optimizer_state(self._name_of(parameter), key, value)

    def _local_fp32(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        return self._core.local_weight(self._name_of(parameter))[1] if parameter.requires_grad else None

    def _local_gradient(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        full = self._full_gradient(parameter)
        if full is None:
            return None
        begin, end = self._core.local_range(self._name_of(parameter))
        in_memory_order = torch.empty_like(parameter, dtype=torch.float32, requires_grad=False).copy_(full)
        flat = in_memory_order.as_strided((full.numel(),), (1,))
        return flat[begin:end].clone()

    def _local_optimizer_state(self, parameter: torch.nn.Parameter, key: str) -> torch.Tensor | None:
        if not parameter.requires_grad or self.optimizer is None:
            return None
        return self._core.local_optimizer_state(self._name_of(parameter), key)[1]

    def _set_local_fp32(self, parameter: torch.nn.Parameter, value: torch.Tensor) -> None:
        self._set_full_weight(parameter, self._with_all_parts(parameter, value))

    def _set_local_gradient(self, parameter: torch.nn.Parameter, value: torch.Tensor) -> None:
        self._set_full_gradient(parameter, self._with_all_parts(parameter, value))

    def _set_local_optimizer_state(self, parameter: torch.nn.Parameter, key: str, value: torch.Tensor) -> None:
        self._set_full_optimizer_state(parameter, key, self._with_all_parts(parameter, value))

    def _with_all_parts(self, parameter: torch.nn.Parameter, part: torch.Tensor) -> torch.Tensor:
        """A tensor of the parameter's shape, of the parts that the ranks give. *Collective.*"""
        begin, end = self._core.local_range(self._name_of(parameter))
        wrong = f"this rank's part has {end - begin} elements, and the value has {part.numel()}"
        problem = first_problem(None if end - begin == part.numel() else wrong)
        if problem is not None:
            raise UsageError(f"part of parameter '{self._name_of(parameter)}': {problem}")
        whole = torch.empty_like(parameter, dtype=torch.float32, device="cpu", requires_grad=False)
        flat = whole.as_strided((whole.numel(),), (1,))  # in the order of its memory
        group = world_group()
        for rank in range(group.size):
            place = torch.tensor([begin, end])
            group.broadcast(place, rank)
            piece = flat[int(place[0]) : int(place[1])]
            if rank == group.rank:
                piece.copy_(part.detach().flatten())
            if piece.numel() > 0:
                group.broadcast(piece, rank)
        return whole

    def _comms_summary(self, show_straggler: bool) -> dict[str, dict[str, float]]:
        """For zerotorch.comm.log_summary(): this rank's collectives by kind and size. *Collective.*"""
        records, stragglers = self._core.comms_summary()
        figures = {f"{one['operation']} of {one['nbytes']} bytes, {one['label']}".rstrip(", "): one for one in records}
        if show_straggler:
            figures.update({f"ranks that wait in {one['operation']} of {one['nbytes']} bytes": one for one in stragglers})
        return {
            name: {key: value for key, value in one.items() if isinstance(value, (int, float)) and key != "nbytes"}
            for name, one in figures.items()
        }

    # ---- files ----

    def save_checkpoint(
        self,
        save_dir: Any,
        tag: Any = None,
        client_state: dict[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Saves everything training needs to go on to `save_dir`/`tag`, complete or not at all.

        Args:
            tag: "global_step<N>" where it is not given.
            client_state: what the program wants back from load_checkpoint(); rank 0's is kept.
            exclude_frozen_parameters: frozen parameters are saved all the same, so that a checkpoint is complete.
        """
        folder = engine_checkpoints.path_of(save_dir, "save_checkpoint(save_dir=)")
        engine_checkpoints.save(self, folder, "" if tag is None else str(tag), client_state or {}, save_latest)
        return True

    def load_checkpoint(
        self,
        load_dir: Any,
        tag: Any = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        custom_load_fn: Any = None,
        *,
        trust: bool = False,
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Continues from a checkpoint of any number of ranks, stage and precision; also from one of DeepSpeed's.

        Args:
            trust: of DeepSpeed's folders: unpickle classes of any kind, which may run code of who wrote them.

        Returns:
            The checkpoint's path and the program's client_state; (None, None) where the folder has no checkpoint.
        """
        if custom_load_fn is not None:
            raise UsageError("load_checkpoint(custom_load_fn=): load the weights and use load_state_dict() instead")
        options = LoadOptions(
            module_only=load_module_only or self.optimizer is None,
            load_optimizer_states=load_optimizer_states,
            load_lr_scheduler_states=load_lr_scheduler_states,
            strict=load_module_strict,
            trust=trust,
        )
        folder = engine_checkpoints.path_of(load_dir, "load_checkpoint(load_dir=)")
        return engine_checkpoints.load(self, folder, "" if tag is None else str(tag), options)

    def module_state_dict(
        self,
        destination: Any = None,
        prefix: str = "",
        keep_vars: bool = False,
        exclude_frozen_parameters: bool = False,
    ) -> dict[str, Any]:
        """The module's state_dict() with whole parameters. Local where the host has them."""
        state = self.module.state_dict(destination=destination, prefix=prefix, keep_vars=keep_vars)
        return self._without_frozen(state, prefix) if exclude_frozen_parameters else state

    def _without_frozen(self, state: dict[str, Any], prefix: str = "") -> dict[str, Any]:
        frozen = {
            prefix + name for name, p in self.module.named_parameters(remove_duplicate=False) if not p.requires_grad
        }
        return {name: value for name, value in state.items() if name not in frozen}

    def _zero3_consolidated_16bit_state_dict(self, exclude_frozen_parameters: bool = False) -> dict[str, Any] | None:
        """Whole weights in the module's dtype on rank 0, None on the others. *Collective.*"""
        state: dict[str, Any] | None = {} if self.global_rank == 0 else None
        for name, parameter in self.module.named_parameters(remove_duplicate=False):
            if exclude_frozen_parameters and not parameter.requires_grad:
                continue
            # Quantised weights are the module's own.
            sharded = [parameter] if _C.belongs_to_engine(parameter) else []
            scope = _C.Gathered(self._core, sharded, None)
            if state is not None:
                state[name] = parameter.detach().clone()
            scope.close()
        if state is not None:
            state.update(_persistent_buffers(self.module))
        return state

    _consolidated_16bit_state_dict = _zero3_consolidated_16bit_state_dict

    def save_16bit_model(
        self, save_dir: Any, save_filename: str = "pytorch_model.bin", exclude_frozen_parameters: bool = False
    ) -> bool:
        """Writes whole weights in the module's dtype to one file, by torch.save or safetensors, at every stage.
        *Collective.*"""
        folder = engine_checkpoints.path_of(save_dir, "save_16bit_model(save_dir=)")
        name = engine_checkpoints.path_of(save_filename, "save_16bit_model(save_filename=)")
        state = self._zero3_consolidated_16bit_state_dict(exclude_frozen_parameters)
        if state is not None:
            engine_checkpoints.write_weights(state, folder, name)
        return True

    save_fp16_model = save_16bit_model

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """As torch's, of a state_dict() of the engine, whose names begin with "module."."""
        if strict and not any(name.startswith("module.") for name in state_dict):
            raise UsageError(
                f"load_state_dict() of the engine: none of the {len(state_dict)} names begins with 'module.'. "
                "engine.module.load_state_dict() takes a state_dict() of the module, and engine.load_checkpoint() a "
                "folder that save_checkpoint() has written"
            )
        return super().load_state_dict(state_dict, strict, assign)

    def load_module_state_dict(
        self,
        checkpoint: Mapping[str, Any],
        strict: bool = True,
        custom_load_fn: Callable[..., Any] | None = None,
        fetch_z3_params: bool = False,
        **_: Any,
    ) -> None:
        """Loads ``checkpoint["module"]``, a state_dict() of the module, by ``custom_load_fn(src=, dst=)`` where it is given.
        Parameters need no fetching. *Collective.*"""
        values = checkpoint["module"]
        if custom_load_fn is None:
            self.module.load_state_dict(values, strict=strict)
            return
        with GatheredParameters(list(self._names), modifier_rank=0):
            custom_load_fn(src=values, dst=self.module)

    def load_full_weights(self, path: Any, strict: bool = True) -> dict[str, Any]:
        """Replaces weights and buffers by those of a whole model: safetensors (file, index or folder) or a file of
        torch.save(). One rank reads, one tensor at a time. *Collective.*"""
        return self._core.load_full_weights(engine_checkpoints.path_of(path, "load_full_weights(path=)"), strict)

    def save_full_weights(self, folder: Any, dtype: str = "module") -> dict[str, Any]:
        """Writes safetensors that Hugging Face's loaders read. *Collective.*"""
        return self._core.save_full_weights(engine_checkpoints.path_of(folder, "save_full_weights(folder=)"), dtype)


def _persistent_buffers(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Buffers that state_dict() has, by name. Local."""
    found = {}
    for prefix, child in module.named_modules(remove_duplicate=False):
        for name, buffer in child._buffers.items():
            if buffer is not None and name not in child._non_persistent_buffers_set:
                found[f"{prefix}.{name}" if prefix else name] = buffer.detach().clone()
    return found


def backward(loss: torch.Tensor, engines: Sequence[Engine], retain_graph: bool = False) -> None:
    """Runs backward from a scalar loss that several engines share, as a generator and a discriminator, or an actor and a
    critic with one loss. Each engine takes the gradients of its own parameters; step() each of them afterwards.
    *Collective.*

    Raises:
        UsageError: no scalar, an engine that does not train, loss scales that differ, or an engine within no_sync().
    """
    if not engines:
        raise UsageError("backward(loss, engines): no engine was given")
    for engine in engines:
        engine._require_training("backward()")
        if engine._boundary is False:
            raise UsageError(
                "backward(loss, engines) where micro-batches do not end their window (no_sync(), "
                "set_gradient_accumulation_boundary(False)): accumulate by gradient_accumulation_steps, or call "
                "loss.backward() and step() of each engine"
            )
    scales = [engine.loss_scale() for engine in engines]
    if len(set(scales)) > 1:
        raise UsageError(
            f"backward(loss, engines): the engines have the loss scales {scales}: give them the same fp16 section with a "
            "fixed loss_scale, or train in bf16"
        )
    scaled: Any = engines[0].scale(loss)
    for engine in engines:
        assert engine.optimizer is not None
        engine.optimizer.before_backward()
    scaled.backward(retain_graph=retain_graph)

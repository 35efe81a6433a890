"""The engine's optimizer as a torch.optim.Optimizer: its groups are read at every update."""

from __future__ import annotations

import operator
import weakref
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import torch
from torch.optim import optimizer as torch_optimizer

from zerotorch import _C
from zerotorch.core.distributed import first_problem, world_group
from zerotorch.core.log import logger
from zerotorch.core.over_shards import OverShards
from zerotorch.core.trained import Life, Trained
from zerotorch.errors import ConfigError, UsageError

#: Hyper-parameters of a group that the engine takes at any time.
LIVE = (
    "betas",
    *(name for name in _C.hyper_parameters_of_groups() if name not in ("beta1", "beta2", "initial_accumulator_value")),
)
#: One that it takes when it is made.
_FIXED = "decoupled_weight_decay"
_GOT_A_GROUP = (
    "the optimizer has got a parameter group since initialize(), which the engine would not train: give it all parameters "
    "before (frozen ones may be unfrozen later), or make a new engine"
)
_ONE_BY_ONE = (
    "It looks at whole parameters, of which each rank gives it a part: take an optimizer that treats elements one by one"
)


class ZeroOptimizer(torch.optim.Optimizer):
    """Steps the engine. Schedulers of torch work on it: what `param_groups` say is used at the next update.

    Attributes:
        optimizer: the optimizer the program gave; this one where the configuration names it.
        state: by parameter, a dictionary of this rank's flat fp32 parts of the states.
        overflow: whether the last step() was skipped because a gradient was not finite.
    """

    _engine: weakref.ref[Trained] | None = None

    def __init__(
        self,
        groups: list[dict[str, Any]],
        defaults: dict[str, Any],
        client: torch.optim.Optimizer | None,
        kind: str,
    ) -> None:
        torch.optim.Optimizer.__init__(self, [dict(group) for group in groups], defaults)
        self.kind = kind
        self.client = client
        if client is not None:
            self.param_groups = client.param_groups
        self._life = Life()
        self._updates_in_backward = False
        self._is_ready = False  # the update that comes has its hyper-parameters
        self._core: _C.Engine | None = None
        self._names: dict[torch.nn.Parameter, str] = {}
        self._pushed: list[dict[str, Any]] = []
        self._said_replaced = False
        self._indices: list[int | None] | None = None
        self._over_shards: OverShards | None = None
        self._is_checked = False
        self._numbers: list[int | None] = []
        self._members: list[list[torch.nn.Parameter]] = []
        self._outside: list[torch.nn.Parameter] = []  # in no group
        self.overflow = False

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        return self if self.client is None else self.client

    def attach(
        self,
        core: _C.Engine,
        names: dict[torch.nn.Parameter, str],
        numbers: list[int | None],
        over_shards: OverShards | None = None,
    ) -> None:
        """Goes with an engine from here on. `numbers`: the engine's number of each group, None for an empty one.
        `over_shards`: what updates in place of the engine; hyper-parameters are its to apply."""
        self._core = core
        self._names = names
        self._numbers = numbers
        self._indices = numbers if over_shards is None else None
        self._over_shards = over_shards
        self._switch_over_shards()
        self._take_members()
        self._pushed = [_live_values(group) for group in self.param_groups]
        states = _State(self)
        self.state = states  # type: ignore[assignment]
        if self.client is not None:  # what it would do alone the engine would not know of
            self.client.state = states  # type: ignore[assignment]
            self.client.state_dict = _refuse_to_save  # type: ignore[method-assign]
            self.client.load_state_dict = _refuse_to_load  # type: ignore[method-assign]

    def _switch_over_shards(self) -> None:
        """Schedule-free optimizers exchange weights in their train() and eval(): over the shards, where their states
        are."""
        for name in ("train", "eval"):
            if self._over_shards is None or not callable(getattr(type(self.client), name, None)):
                continue
            switch = _switching(weakref.ref(self), name)
            setattr(self, name, switch)
            setattr(self.client, name, switch)

    def _exchange_weights(self, method: str) -> None:
        """*Collective.*"""
        assert self._over_shards is not None
        self._life.require_trainable()
        core = self._required()
        core.finish_update()
        self._over_shards.call(method)
        for parameter, name in self._names.items():
            if parameter.requires_grad:
                core.set_full_weight(name, core.full_weight(name))

    def join(self, life: Life, updates_in_backward: bool) -> list[Any]:
        """Follows its engine's life. Returns handles of the hooks that this needs on parameters, to be removed with the
        engine."""
        self._life = life
        self._updates_in_backward = updates_in_backward
        if not updates_in_backward:
            return []
        hook = _before_gradients(weakref.ref(self))
        trained: list[Any] = [parameter for parameter in self._names if parameter.requires_grad]
        return [parameter.register_hook(hook) for parameter in trained]

    def release(self) -> Callable[[], None]:
        """What makes the client's optimizer an ordinary one again once the engine is gone. It keeps neither."""
        return _letting_go(None if self.client is None else weakref.ref(self.client), weakref.ref(self.state))

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "state" and isinstance(self.__dict__.get("state"), _State):
            _refuse_new_states()
        super().__setattr__(name, value)

    def push(self) -> None:
        """Gives the engine what has changed in `param_groups`. Local."""
        if self._core is None:
            return
        self.check_members()
        if self._indices is None:
            return
        for index, group in enumerate(self.param_groups):
            now = _live_values(group)
            changed = {key: value for key, value in now.items() if value != self._pushed[index].get(key)}
            if _FIXED in changed:
                raise UsageError(
                    f"parameter group {index} has got another {_FIXED} since initialize(), which the engine takes once: "
                    "give it before"
                )
            number = self._indices[index]
            if changed and number is not None:
                self._core.set_parameter_group(number, changed)
                self._pushed[index] = now

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """For the constructor. Raises UsageError once an engine has the optimizer. Local."""
        if getattr(self, "_core", None) is not None:
            raise UsageError(f"add_param_group(): {_GOT_A_GROUP}")
        torch.optim.Optimizer.add_param_group(self, param_group)  # of no other base that a surface gives the class

    def check_members(self) -> None:
        """Follows parameters that have joined the group in which the engine has them. Raises UsageError for other changes
        of groups, and for parameters that would be trained though no group has them. Local."""
        if len(self.param_groups) != len(self._members):
            raise UsageError(_GOT_A_GROUP)
        for index, group in enumerate(self.param_groups):
            now, before = group["params"], self._members[index]
            if len(now) == len(before) and all(map(operator.is_, now, before)):
                continue
            self._check_changed_group(index, now, before)
            self._take_members()
        for parameter in self._outside:
            if parameter.requires_grad:
                raise UsageError(
                    f"parameter '{self._names[parameter]}' requires a gradient and is in no parameter group of the "
                    "optimizer, which in plain torch would not train it: freeze it (requires_grad_(False)), or give the "
                    "optimizer all parameters before initialize() (frozen ones may be unfrozen later)"
                )

    def _take_members(self) -> None:
        self._members = [list(group["params"]) for group in self.param_groups]
        held = {parameter for members in self._members for parameter in members}
        self._outside = [parameter for parameter in self._names if parameter not in held]

    def _check_changed_group(
        self, index: int, now: list[torch.nn.Parameter], before: list[torch.nn.Parameter]
    ) -> None:
        stayed, was = {id(parameter) for parameter in now}, {id(parameter) for parameter in before}
        for parameter in before:
            if id(parameter) not in stayed and parameter.requires_grad:
                raise UsageError(
                    f"parameter '{self._names[parameter]}' was taken out of group {index} of the optimizer since "
                    "initialize(), and the engine would go on training it there: freeze it (requires_grad_(False)), set "
                    "the group's rate, or make a new engine"
                )
        for parameter in now:
            if id(parameter) in was:
                continue
            name = self._names.get(parameter)
            if name is None or self._engines_group_of(name) != self._numbers[index]:
                what = "a tensor that is no parameter of the engine's module" if name is None else f"parameter '{name}'"
                raise UsageError(
                    f"group {index} of the optimizer has got {what} since initialize(), which the engine would not train "
                    "there: give it before (frozen ones may be unfrozen later), or make a new engine"
                )

    def _engines_group_of(self, name: str) -> int:
        """Also of a frozen parameter, which the engine has in none yet: the only one there is."""
        assert self._core is not None
        number = self._core.parameter_group_of(name)
        return 0 if number < 0 and self._core.parameter_groups == 1 else number

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Ends a micro-batch, as the engine's step() does; schedulers are stepped by that one only. *Collective.*"""
        if closure is not None:
            raise UsageError("step(closure): the engine's backward() runs before step(), and once")
        if self._core is None:
            raise UsageError("step() of an optimizer that belongs to no engine")
        self._life.require_trainable()
        skipped, steps = self._core.skipped_steps, self._core.global_steps
        self._look_for_another_step()
        self._make_ready()
        before = self._values_of_groups()
        try:
            self._core.step()
        finally:
            self._is_ready = False
        self.overflow = self._core.skipped_steps > skipped
        if self._core.global_steps > steps:
            self._check_update(before)
            self._call_hooks("_optimizer_step_post_hooks", torch_optimizer._global_optimizer_post_hooks)
        if self.client is not None:
            self.client._opt_called = True  # type: ignore[attr-defined]  # torch's schedulers ask whether it was stepped

    def before_backward(self) -> None:
        """Where backward updates, the update's hooks and hyper-parameters come before it. Local."""
        if self._updates_in_backward:
            self._make_ready()
        else:  # before the engine counts gradients of parameters that were unfrozen
            self.check_members()

    def _make_ready(self) -> None:
        """Once for a step(): what the update goes by is what the groups say now."""
        if self._is_ready or self._core is None:
            return
        if self._core.is_gradient_accumulation_boundary():
            self._call_hooks("_optimizer_step_pre_hooks", torch_optimizer._global_optimizer_pre_hooks)
        self.push()
        self._is_ready = True

    step.hooked = True  # type: ignore[attr-defined]  # torch would call hooks at every micro-batch

    def _call_hooks(self, name: str, everyones: Mapping[int, Any]) -> None:
        """Of an update: a client's that the engine updates in place of, everybody's, and ours."""
        if self._indices is not None:  # else the client's own step() calls the first two
            for hook in [*everyones.values(), *([] if self.client is None else getattr(self.client, name).values())]:
                hook(self.optimizer, (), {})
        for hook in list(getattr(self, name).values()):
            hook(self, (), {})

    def _look_for_another_step(self) -> None:
        """Says once that a step() which the program has put in the place of its optimizer's is not called."""
        other = None if self.client is None else self.client.__dict__.get("step")
        if other is None or self._said_replaced or getattr(other, "_wrapped_by_lr_sched", False):
            return
        self._said_replaced = True
        logger.warning(
            "step() of the program's %s was replaced by another, which is not called, as the engine updates: use "
            "register_step_pre_hook() and register_step_post_hook(), or a class with a step() of its own",
            type(self.client).__name__,
        )

    def _values_of_groups(self) -> dict[str, float]:
        """Of a client's optimizer that steps itself: numbers of its groups, by name."""
        if self.client is None or self._indices is not None:
            return {}
        return {
            f"group {index}: {key}": value
            for index, group in enumerate(self.param_groups)
            for key, value in _numbers(group).items()
        }

    def _check_update(self, before: dict[str, float]) -> None:
        """Of a client's optimizer that steps itself. The first update is checked for all ranks together, and also for
        what checkpoints cannot hold, so that no training runs for hours towards one that cannot be saved. *Collective.*"""
        if self._over_shards is None:
            return
        problem = self._difference(before)
        if not self._is_checked and not self.overflow:
            self._is_checked = True
            problem = first_problem(problem or self._problem_of_states())
        if problem is not None:
            raise UsageError(f"step() of {type(self.client).__name__}: {problem}")

    def _difference(self, before: dict[str, float]) -> str | None:
        """What the client's step() has changed otherwise than rank 0's. *Collective:* a rank does not know whether others
        have changed something."""
        core = self._required()
        if core.world_size == 1:
            return None
        changed = {name: value for name, value in self._values_of_groups().items() if before.get(name) != value}
        mine = torch.tensor([len(changed), zlib.crc32("\n".join(changed).encode())])
        firsts = mine.clone()
        world_group().broadcast(firsts, 0)
        values = torch.zeros(int(firsts[0]), dtype=torch.float64)
        if core.rank == 0:
            values = torch.tensor(list(changed.values()), dtype=torch.float64)
        if values.numel() > 0:  # of rank 0, which all know
            world_group().broadcast(values, 0)
        if not torch.equal(mine, firsts):
            return f"it has changed {', '.join(changed) or 'nothing'}, and other numbers on rank 0. {_ONE_BY_ONE}"
        for (name, value), first in zip(changed.items(), values.tolist(), strict=True):
            if value != first and not (value != value and first != first):
                return f"it has made {value} of its {name}, and {first} on rank 0. {_ONE_BY_ONE}"
        return None

    def _problem_of_states(self) -> str | None:
        assert self._over_shards is not None
        problem = self._over_shards.problem_of_states()
        if problem is None:
            return None
        return (
            f"{problem}, which a checkpoint cannot hold. Checkpoints hold numbers, and fp32, fp16 and bf16 tensors with an "
            "element for each of the parameter's: change the state, or take another optimizer"
        )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the engine's zero_grad(). *Collective.*"""
        if self._core is not None:
            self._core.zero_grad()

    @property
    def cur_scale(self) -> float:
        return self._required().loss_scale

    loss_scale = cur_scale

    def _required(self) -> _C.Engine:
        if self._core is None:
            raise UsageError("this optimizer belongs to no engine")
        return self._core

    def state_dict(self) -> dict[str, Any]:
        _refuse_to_save()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        _refuse_to_load()

    def __getstate__(self) -> dict[str, Any]:
        raise UsageError("the engine's optimizer cannot be copied or pickled: its states are sharded over the ranks")

    def groups_to_save(self) -> list[dict[str, Any]]:
        return [{key: value for key, value in group.items() if key != "params"} for group in self.param_groups]

    def check_groups(self, saved: list[dict[str, Any]]) -> None:
        """Raises ConfigError unless there are as many groups as were saved."""
        if len(saved) != len(self.param_groups):
            raise ConfigError(
                f"the checkpoint has {len(saved)} parameter groups and the optimizer {len(self.param_groups)}: load it "
                "with load_optimizer_states=False, or make the same groups"
            )

    def load_groups(self, saved: list[dict[str, Any]]) -> None:
        """Hyper-parameters as they were saved, where there are as many groups; but for those that this optimizer does not
        have, as another kind of source wrote them, and what is chosen once."""
        self.check_groups(saved)
        known = set(_C.hyper_parameters_of_groups())
        for group, values in zip(self.param_groups, saved, strict=True):
            group.update(
                {key: value for key, value in values.items() if key != _FIXED and (key in group or key not in known)}
            )


def _switching(reference: weakref.ref[ZeroOptimizer], method: str) -> Callable[[], None]:
    def switch() -> None:
        optimizer = reference()
        if optimizer is None:
            raise UsageError(f"{method}() of an optimizer whose engine is gone")
        optimizer._exchange_weights(method)

    return switch


def _before_gradients(reference: weakref.ref[ZeroOptimizer]) -> Callable[[torch.Tensor], None]:
    """A hook of parameters that comes before the engine takes their gradients, in any backward of the program's. It
    refers to the optimizer weakly: parameters must not keep their engine."""

    def hook(_: torch.Tensor) -> None:
        optimizer = reference()
        if optimizer is not None:
            optimizer.before_backward()

    return hook


def let_go(client: torch.optim.Optimizer) -> None:
    """Takes from a program's optimizer what an engine has given it: it has no states then."""
    if isinstance(client.state, _State):
        client.state = defaultdict(dict)
        for name in ("state_dict", "load_state_dict", "train", "eval"):
            client.__dict__.pop(name, None)


def _letting_go(client: weakref.ref[torch.optim.Optimizer] | None, states: weakref.ref[Any]) -> Callable[[], None]:
    def release() -> None:
        optimizer = None if client is None else client()
        # Not those that another engine has given it since.
        if optimizer is not None and optimizer.state is states():
            let_go(optimizer)

    return release


def _refuse_to_save(*_: Any, **__: Any) -> NoReturn:
    raise UsageError(
        "state_dict() of the engine's optimizer: its states are sharded over the ranks; save them with the engine's "
        "save_checkpoint()"
    )


def _refuse_to_load(*_: Any, **__: Any) -> NoReturn:
    raise UsageError(
        "load_state_dict() of the engine's optimizer: its states are sharded over the ranks; load them with the "
        "engine's load_checkpoint()"
    )


def _refuse_new_states(*_: Any, **__: Any) -> NoReturn:
    raise UsageError(
        "states of an optimizer that an engine has cannot be replaced or cleared here: they are sharded over the ranks. "
        "zerotorch.utils.safe_set_full_optimizer_state() sets one of a parameter; load_checkpoint(..., "
        "load_optimizer_states=False) or a new engine begins with fresh ones"
    )


class _State(Mapping[torch.nn.Parameter, dict[str, Any]]):
    """States by parameter, read from the engine when they are asked for."""

    def __init__(self, optimizer: ZeroOptimizer) -> None:
        self._reference = weakref.ref(optimizer)  # which has us

    @property
    def _optimizer(self) -> ZeroOptimizer:
        optimizer = self._reference()
        if optimizer is None:
            raise UsageError("the optimizer of these states is gone")
        return optimizer

    def __getitem__(self, parameter: torch.nn.Parameter) -> dict[str, Any]:
        name = self._optimizer._names[parameter]
        core = self._optimizer._required()
        states = {state: core.local_optimizer_state(name, state)[1] for state in core.optimizer_states(name)}
        steps = core.global_steps - core.skipped_steps
        return {"step": torch.tensor(float(steps)), **states} if states else {}

    def __iter__(self) -> Iterator[torch.nn.Parameter]:
        return (p for group in self._optimizer.param_groups for p in group["params"] if p.requires_grad)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    clear = pop = popitem = update = setdefault = __setitem__ = __delitem__ = _refuse_new_states


def _live_values(group: Mapping[str, Any]) -> dict[str, Any]:
    values = {key: _number(group[key]) for key in (*LIVE, _FIXED) if key in group}
    if "betas" in values:
        values["betas"] = tuple(_number(beta) for beta in values["betas"])
    return values


def _numbers(group: Mapping[str, Any]) -> dict[str, float]:
    values = {key: _number(value) for key, value in group.items() if key != "params" and _is_number(value)}
    for key, value in group.items():
        if key != "params" and isinstance(value, (tuple, list)) and all(_is_number(one) for one in value):
            values.update({f"{key}[{index}]": _number(one) for index, one in enumerate(value)})
    return {key: float(value) for key, value in values.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, torch.Tensor) and value.numel() == 1)


def _number(value: Any) -> Any:
    return value.item() if isinstance(value, torch.Tensor) else value


def configuration_of(optimizer: torch.optim.Optimizer) -> tuple[str, list[dict[str, Any]]] | None:
    """What a client's optimizer is in a configuration: a type, and optimizer.params of each group; None for classes
    that the engine has no fused update of. Classes with `zerotorch_type` and `zerotorch_params(group)` say so themselves.
    Raises ConfigError for options that it does not have."""
    own: Any = optimizer
    if hasattr(own, "zerotorch_type"):
        return own.zerotorch_type, [own.zerotorch_params(group) for group in optimizer.param_groups]
    if type(optimizer) is torch.optim.Adafactor:
        return "Adafactor", [_of_adafactor(group) for group in optimizer.param_groups]
    kind = _KINDS.get(type(optimizer))
    if kind is None:
        _refuse_whole_tensors(optimizer)
        return None
    name, keys = kind
    params = [{key: _number_or_pair(group[key]) for key in keys} for group in optimizer.param_groups]
    if name == "Adagrad":  # torch gives all groups the one of its constructor
        for values in params:
            values["initial_accumulator_value"] = _number(optimizer.defaults["initial_accumulator_value"])
    decoupled = {bool(group.get("decoupled_weight_decay", name == "AdamW")) for group in optimizer.param_groups}
    if len(decoupled) > 1:
        raise ConfigError(
            "decoupled_weight_decay is true in some parameter groups of the optimizer and false in others: the engine has "
            "one of them for all"
        )
    if name == "Adam" or (name == "AdamW" and decoupled == {False}):
        name = "Adam"
        for values in params:
            values["adam_w_mode"] = decoupled == {True}
    return name, params


def _of_adafactor(group: Mapping[str, Any]) -> dict[str, Any]:
    if tuple(group["eps"]) != (None, 1e-3):
        raise ConfigError(
            f"torch.optim.Adafactor with eps {group['eps']}: the engine's has (None, 0.001), torch's default; leave it out"
        )
    return {key: _number(group[key]) for key in ("lr", "beta2_decay", "d", "weight_decay", "maximize")}


def _refuse_whole_tensors(optimizer: torch.optim.Optimizer) -> None:
    """By name, as libraries have classes of their own. Raises ConfigError."""
    name = type(optimizer).__name__
    if "lbfgs" in name.lower():
        raise ConfigError(
            f"{name} needs the loss several times a step, and products over all parameters: an engine has one backward a "
            "step, and each rank a part of the parameters. Take another optimizer"
        )
    if any(known in name.lower() for known in _OF_WHOLE_TENSORS):
        raise ConfigError(
            f"{name} needs whole parameters, of which each rank would give it a part: name Adafactor, Lamb or Muon in the "
            "configuration ('optimizer.type'), or take an optimizer that treats elements one by one"
        )


def _number_or_pair(value: Any) -> Any:
    return [_number(one) for one in value] if isinstance(value, (tuple, list)) else _number(value)


_OF_WHOLE_TENSORS = ("adafactor", "muon", "lamb", "lars", "shampoo", "soap", "galore", "kfac")
_ADAM = ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize")
_KINDS: dict[type, tuple[str, tuple[str, ...]]] = {
    torch.optim.AdamW: ("AdamW", _ADAM),
    torch.optim.Adam: ("Adam", _ADAM),
    torch.optim.SGD: ("SGD", ("lr", "momentum", "dampening", "weight_decay", "nesterov", "maximize")),
    torch.optim.Adagrad: (
        "Adagrad",
        ("lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps", "maximize"),
    ),
    torch.optim.RMSprop: ("RMSprop", ("lr", "alpha", "eps", "weight_decay", "momentum", "centered", "maximize")),
}

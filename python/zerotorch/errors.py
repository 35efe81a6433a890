"""What zerotorch raises. Every class is a `ZeroError`; most are also what DeepSpeed raises in the same place."""

#: What the engine's messages call the things that Python has under other names. The compiled part reads it when it is
#: imported, so that also errors which reach a program through torch, as from inside an operator, speak of these.
IN_PYTHON = {
    "zero::backward(loss, {&a, &b})": "zerotorch.backward(loss, [a, b])",
    "zero::backward(loss, {...})": "zerotorch.backward(loss, [a, b])",
    "zero::initialize": "initialize()",
    "zero::": "zerotorch.",
    "LoadOptions::strict": "load_module_strict",
    "FullWeightsOptions::strict": "strict",
    "LoadOptions::fall_back": "the tag of another checkpoint",
    "Engine::load_checkpoint": "engine.load_checkpoint()",
    "Engine::save_checkpoint": "engine.save_checkpoint()",
    "Engine::load_full_weights": "engine.load_full_weights()",
    "Engine::save_full_weights": "engine.save_full_weights()",
    "Engine::full_weight": "zerotorch.utils.safe_get_full_fp32_param()",
    "Engine::set_full_weight": "zerotorch.utils.safe_set_full_fp32_param()",
    "Engine::full_gradient, set_full_gradient, for_each_gradient or clip_grad_value": (
        "zerotorch.utils.safe_get_full_grad() and safe_set_full_grad()"
    ),
    " (or Engine::clip_grad_norm)": "",
    "Engine::full_gradient": "zerotorch.utils.safe_get_full_grad()",
    "Engine::set_full_gradient": "zerotorch.utils.safe_set_full_grad()",
    ", which optimizer_factory made,": "",
    ", which optimizer_factory made:": ":",
    "InitializeOptions::optimizer_factory": "initialize(optimizer=)",
    "set_data()": "an assignment to .data",
    "Engine::": "engine.",
}


class ZeroError(RuntimeError):
    """Base of all errors of this package and of the engine below it."""


class UsageError(ZeroError, AssertionError):
    """A call that the program should not have made. DeepSpeed asserts there, and so tests expect AssertionError."""


class ArgumentError(UsageError, ValueError):
    """An argument with a value that the call cannot take. DeepSpeed raises ValueError there."""


class ModelError(UsageError):
    """A module that cannot be trained or sharded as asked: an unknown parameter, a shape that changed, and so on."""


class ConfigError(ZeroError, ValueError, AssertionError):
    """A configuration with one or more problems; the message has all of them, a line each."""


class CommError(ZeroError):
    """A collective that failed or timed out, or a rank that is gone."""


class CheckpointError(ZeroError):
    """A checkpoint that is damaged, incomplete, or of another model or optimizer."""


class ZeroIOError(ZeroError, OSError):
    """A file or folder that could not be read or written."""


class InternalError(ZeroError):
    """A mistake in zerotorch itself."""


class NotBuiltError(ZeroError, NotImplementedError):
    """A part of DeepSpeed that zerotorch does not have; the message names it."""


DeepSpeedConfigError = ConfigError

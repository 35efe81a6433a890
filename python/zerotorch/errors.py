"""What zerotorch raises. Every class is a `ZeroError`; most are also what DeepSpeed raises in the same place."""


class ZeroError(RuntimeError):
    """Base of all errors of this package and of the engine below it."""


class UsageError(ZeroError, AssertionError):
    """A call that the program should not have made. DeepSpeed asserts there, and so tests expect AssertionError."""


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

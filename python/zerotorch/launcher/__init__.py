"""Starting the ranks of a job on this host."""

from .._lazy import attach

__getattr__, __dir__ = attach(__name__)

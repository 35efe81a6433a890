"""Compression of models, which is not built."""

from .._not_built import not_built_function

_FEATURE = "compression"

init_compression = not_built_function("init_compression", _FEATURE)
redundancy_clean = not_built_function("redundancy_clean", _FEATURE)
student_initialization = not_built_function("student_initialization", _FEATURE)

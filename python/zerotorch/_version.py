"""zerotorch's own version. What it reports as DeepSpeed's is `_zerotorch_as_deepspeed.DEEPSPEED_VERSION`.

The module is not called `version`, since `deepspeed.version` is a string.
"""

__version__ = "0.1.0"

"""zerotorch under the name of deepspeed: the module of this name is the one that zerotorch.as_deepspeed gives."""

import importlib
import sys

from _zerotorch_as_deepspeed import install

install()
del sys.modules[__name__]  # found again, by what was just installed
importlib.import_module(__name__)

"""`import zerotorch.as_deepspeed` makes `import deepspeed` find zerotorch, for programs and libraries that ask for it.

It must come before transformers, accelerate and lightning are imported, since these look for deepspeed only once.
`deepspeed.x` and `zerotorch.x` are then the same module objects, `importlib.metadata.version("deepspeed")` and
`deepspeed.__version__` are `_zerotorch_as_deepspeed.DEEPSPEED_VERSION`, and a real deepspeed that is installed as well
is not seen. Raises UsageError where it comes too late. Local.

Programs that cannot be edited are run with `python -m zerotorch.run`, or with ZEROTORCH_AS_DEEPSPEED=1 in the
environment, which the installed zerotorch.pth looks at.
"""

from _zerotorch_as_deepspeed import install, refusal

from zerotorch.errors import UsageError

if _why_not := refusal():
    raise UsageError(_why_not)
install()

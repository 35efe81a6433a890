"""Lets `import deepspeed` find zerotorch, in this process only.

A module of its own beside the package, so that the line of zerotorch.pth imports neither the package nor torch.
Programs import `zerotorch.as_deepspeed`.
"""

import importlib
import importlib.machinery
import importlib.util
import sys
import types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.metadata import Distribution, DistributionFinder

DEEPSPEED = "deepspeed"
DEEPSPEED_VERSION = "0.19.8+zerotorch"  # whose interface this is
ZEROTORCH = "zerotorch"

# These look for deepspeed while they are imported and keep the answer.
ASKED_EARLY = (
    "transformers.integrations.deepspeed",
    "accelerate.utils",
    "lightning.fabric.strategies.deepspeed",
    "lightning_fabric.strategies.deepspeed",
)

# Modules of libraries, and where in zerotorch is the function that gets them as soon as they are imported.
ADAPTED = {
    "accelerate.state": ("zerotorch.integrations.hf", "count_ranks"),
    "transformers.trainer": ("zerotorch.integrations.hf", "make_engines_anew"),
    "transformers.training_args": ("zerotorch.integrations.hf", "take_bf16_without_gpu"),
}


class Facade(types.ModuleType):
    """The module `deepspeed`: everything is zerotorch's own, read and assigned there, but for name and version."""

    def __init__(self) -> None:
        super().__init__(DEEPSPEED, "zerotorch under the name of deepspeed.")
        numbers = DEEPSPEED_VERSION.partition("+")[0].split(".")
        # Around __setattr__, which would assign into zerotorch.
        vars(self).update(
            __path__=[],
            __version__=DEEPSPEED_VERSION,
            version=DEEPSPEED_VERSION,
            __version_major__=int(numbers[0]),
            __version_minor__=int(numbers[1]),
            __version_patch__=int(numbers[2]),
        )

    def __getattr__(self, name: str) -> object:
        return getattr(importlib.import_module(ZEROTORCH), name)

    def __setattr__(self, name: str, value: object) -> None:
        if name in vars(self):
            vars(self)[name] = value
        else:
            setattr(importlib.import_module(ZEROTORCH), name, value)

    def __delattr__(self, name: str) -> None:
        if name in vars(self):
            del vars(self)[name]
        else:
            delattr(importlib.import_module(ZEROTORCH), name)

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *dir(importlib.import_module(ZEROTORCH))})


class Alias:
    """A loader that answers for a module with another one itself: an assignment into one is seen in both."""

    def __init__(self, target: str) -> None:
        self.target = target

    def spec_of(self, name: str) -> importlib.machinery.ModuleSpec | None:
        """None where there is no such other module."""
        found = importlib.util.find_spec(self.target)
        is_package = found is not None and found.submodule_search_locations is not None
        return self._spec(name, found.origin, is_package) if found is not None else None

    def package_of(self, name: str) -> importlib.machinery.ModuleSpec:
        """Without a look for the other one."""
        return self._spec(name, self.target, is_package=True)

    def _spec(self, name: str, origin: str | None, is_package: bool) -> importlib.machinery.ModuleSpec:
        return importlib.machinery.ModuleSpec(name, self, origin=origin, is_package=is_package)  # type: ignore[arg-type]

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        if spec.name == DEEPSPEED:
            return Facade()
        module = importlib.import_module(self.target)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        if isinstance(module, Facade):
            importlib.import_module(ZEROTORCH)
        elif module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state  # importlib has put the spec of the alias here

    def get_code(self, name: str) -> types.CodeType | None:
        """For `python -m`."""
        spec = importlib.util.find_spec(self.target)
        code: types.CodeType | None = spec.loader.get_code(spec.name) if spec else None  # type: ignore[union-attr]
        return code


class AdaptingLoader:
    """Runs a module by its own loader, and hands it to zerotorch then."""

    def __init__(self, loader: importlib.machinery.SourceFileLoader) -> None:
        self.loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        where, function = ADAPTED[module.__name__]
        getattr(importlib.import_module(where), function)(module)


class Finder:
    """What stands on sys.meta_path: modules and metadata of deepspeed."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name in ADAPTED:
            return self.adapted(name, path, target)
        if name == DEEPSPEED:
            return Alias(ZEROTORCH).package_of(name)
        if name.startswith(f"{DEEPSPEED}."):
            return Alias(ZEROTORCH + name[len(DEEPSPEED) :]).spec_of(name)
        return None

    def adapted(
        self, name: str, path: "Sequence[str] | None", target: types.ModuleType | None
    ) -> importlib.machinery.ModuleSpec | None:
        """What the other finders say, with our loader around theirs."""
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = AdaptingLoader(spec.loader)  # type: ignore[assignment,arg-type]
                return spec
        return None

    def find_distributions(self, context: "DistributionFinder.Context | None" = None) -> "Iterator[Distribution]":
        name = getattr(context, "name", None)
        if name is None or name.lower() == DEEPSPEED:
            yield distribution()


def distribution() -> "Distribution":
    """The metadata of deepspeed as importlib.metadata reads it."""
    from importlib.metadata import Distribution, PackagePath

    class Metadata(Distribution):
        def read_text(self, filename: str) -> str | None:
            if filename in ("METADATA", "PKG-INFO"):
                return (
                    f"Metadata-Version: 2.1\nName: {DEEPSPEED}\nVersion: {DEEPSPEED_VERSION}\n"
                    "Summary: zerotorch under the name of deepspeed\n"
                )
            return f"{DEEPSPEED}\n" if filename == "top_level.txt" else None

        def locate_file(self, path: object) -> PackagePath:
            return PackagePath(str(path))

    return Metadata()


def is_installed() -> bool:
    return any(isinstance(finder, Finder) for finder in sys.meta_path)


def refusal() -> str | None:
    """Why it is too late to stand in for deepspeed, in one sentence; None where it is not. Local."""
    if is_installed():
        return None
    if DEEPSPEED in sys.modules:
        return "deepspeed itself is imported already; import zerotorch.as_deepspeed before it, or uninstall it"
    for module in ASKED_EARLY:
        if module in sys.modules:
            package = module.partition(".")[0]
            return f"{package} has looked for deepspeed already; import zerotorch.as_deepspeed before {package}"
    return None


def install() -> None:
    """From now on `deepspeed` is zerotorch, also where a real one is installed. Local; a second call does nothing."""
    if not is_installed():
        sys.meta_path.insert(0, Finder())

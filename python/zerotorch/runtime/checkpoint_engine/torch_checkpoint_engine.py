"""torch.save and torch.load as DeepSpeed's engine calls them. zerotorch's does not: it has a format of its own."""

from typing import Any

import torch

from ...utils.logging import logger


class TorchCheckpointEngine:
    """For programs that write files with it, or that replace its methods, which has no effect on an engine."""

    def __init__(self, config_params: Any = None) -> None:
        self.name = type(self).__name__

    def create(self, info: Any) -> None:
        """Nothing."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        import os

        os.makedirs(path, exist_ok=exist_ok)

    def save(self, state_dict: Any, path: str) -> None:
        logger.info(f"saving {path}")
        torch.save(state_dict, path)

    def load(self, path: str, map_location: Any = None) -> Any:
        """What is in a file that this process trusts: unpickling may run code of who wrote it."""
        logger.info(f"loading {path}")
        return torch.load(path, map_location=map_location, weights_only=False)

    def commit(self, info: Any) -> bool:
        """True: what was saved is there."""
        return True

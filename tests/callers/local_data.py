"""Runs a program that loads its data from the hub with local texts, and another line replaced: HelloDeepSpeed names its
data set and its ZeRO stage in its source.

  python local_data.py texts.jsonl [--replace OLD NEW] program.py args...
"""

from __future__ import annotations

import os
import sys
from typing import Any


def main() -> None:
    local_rank = [argument for argument in sys.argv[1:] if argument.startswith("--local_rank=")]  # the launcher's
    texts, *rest = [argument for argument in sys.argv[1:] if argument not in local_rank]
    replaced = []
    while rest[0] == "--replace":
        replaced.append(rest[1:3])
        rest = rest[3:]
    program, *arguments = rest
    source = open(program).read()
    for old, new in replaced:
        if source.count(old) != 1:
            sys.exit(f"local_data.py: {program} has {source.count(old)} times {old!r}, not once")
        source = source.replace(old, new)

    import datasets

    plain = datasets.load_dataset

    def load_dataset(*args: Any, split: str | None = None, **kwargs: Any) -> Any:
        return plain("json", data_files={"train": texts}, split=split)

    datasets.load_dataset = load_dataset
    sys.argv = [program, *local_rank, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(program)))
    exec(compile(source, program, "exec"), {"__name__": "__main__", "__file__": program})


if __name__ == "__main__":
    main()

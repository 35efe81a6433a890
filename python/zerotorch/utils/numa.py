"""Cores and NUMA nodes of this host. Everything is local."""

import pathlib


def parse_range(rng: str) -> range:
    """ "3" is 3, "2-4" is 2 to 4. Raises ValueError for anything else, and where the end comes before the start."""
    start, dash, end = rng.partition("-")
    if not start.isdigit() or (dash and not end.isdigit()):
        raise ValueError(f"Bad range: '{rng}', a range is a number or two with a dash between them")
    found = range(int(start), int(end or start) + 1)
    if not found:
        raise ValueError(f"Bad range: '{rng}', its end comes before its start")
    return found


def parse_range_list(range_str: str) -> list[int]:
    """ "0,2-4,6" is [0, 2, 3, 4, 6]. Raises ValueError for ranges that overlap or do not ascend."""
    numbers: list[int] = []
    for part in range_str.split(","):
        found = parse_range(part)
        if numbers and found[0] <= numbers[-1]:
            raise ValueError(f"Bad range: '{range_str}', its parts must ascend and not overlap")
        numbers.extend(found)
    return numbers


def get_numa_cores() -> list[list[int]]:
    """The cores of each NUMA node, as Linux tells them; an empty list where it does not."""
    nodes = sorted(pathlib.Path("/sys/devices/system/node").glob("node[0-9]*"), key=lambda path: int(path.name[4:]))
    texts = [(node / "cpulist").read_text().strip() for node in nodes]
    return [parse_range_list(text) if text else [] for text in texts]

#!/usr/bin/env python3
"""A CUDA library with its code for one compute capability: the rest is zeros, and compresses to nothing.

    scripts/one_architecture.py LIBRARY 90 OUT

The layout stays, so that the library loads as before. PTX goes, too, and code for a later link.
"""

from __future__ import annotations

import pathlib
import struct
import subprocess
import sys

MAGIC = struct.pack("<I", 0xBA55ED50)  # of a container of code for several devices
MACHINE_CODE = 2


def sections(library: str) -> dict[str, tuple[int, int]]:
    """Offset and size in the file, by name."""
    found = {}
    for line in subprocess.run(["readelf", "-SW", library], check=True, capture_output=True, text=True).stdout.split("\n"):
        words = line.partition("]")[2].split()
        if len(words) > 5 and words[0].startswith((".", "__")):
            found[words[0]] = (int(words[3], 16), int(words[4], 16))
    return found


def main() -> None:
    library, capability, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    places = sections(library)
    code = bytearray(pathlib.Path(library).read_bytes())
    kept = 0
    for name in (".nv_fatbin", "__nv_relfatbin"):
        at, size = places.get(name, (0, 0))
        last = at + size
        while 0 <= (at := code.find(MAGIC, at, last)):
            _, _, header_size, total = struct.unpack_from("<IHHQ", code, at)
            entry, end = at + header_size, at + header_size + total
            while entry < end:
                kind, _, entry_header, entry_size = struct.unpack_from("<HHIQ", code, entry)
                (of,) = struct.unpack_from("<I", code, entry + 28)
                if name == ".nv_fatbin" and kind == MACHINE_CODE and of == capability:
                    kept += entry_size
                else:
                    code[entry + entry_header : entry + entry_header + entry_size] = bytes(entry_size)
                entry += entry_header + entry_size
            at = end
    if kept == 0:
        sys.exit(f"{library}: no code for compute capability {capability}")
    pathlib.Path(out).write_bytes(code)


if __name__ == "__main__":
    main()

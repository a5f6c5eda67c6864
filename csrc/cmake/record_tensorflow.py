# SPDX-License-Identifier: Apache-2.0
"""Records which build of TensorFlow a plugin fits: `record_tensorflow.py NM PLUGIN FOLDER VERSION`.

Two builds of one version may lay out the same classes differently, and no symbol would be missing. So the
sizes of what TensorFlow's libraries export for the plugin's classes are noted beside the plugin, in
PLUGIN.layout: tables of virtual functions, type descriptions, default messages (which tell how large a
message is), variables. csrc/tensorflow/shim/layout.c compares them before it loads the plugin.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

LIBRARIES = ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")
OBJECTS = "BDRVu"  # what nm calls data of each kind; code is W or T


def symbols(nm: str, *options: str | Path) -> Iterator[list[str]]:
    """The columns of nm, the name last and without its version."""
    command = [nm, "-D", *map(str, options)]
    for line in subprocess.run(
        command, capture_output=True, text=True, check=True
    ).stdout.splitlines():
        yield line.split("@")[0].split()


def objects_of(name: str) -> Iterator[str]:
    """The symbols that tell how the classes are laid out that a mangled name mentions, if there are any."""
    for nested in re.finditer(r"N[rVK]*(?=\d)", name):
        around, at = "", nested.end()
        while length := re.match(r"\d+", name[at:]):
            begin = at + length.end()
            at = begin + int(length.group())
            yield f"_ZTVN{around}{name[nested.end() + len(around) : at]}E"
            # A message's default object is as large as any other: tensorflow::_ConfigProto_default_instance_.
            default = f"_{name[begin:at]}_default_instance_"
            yield f"_ZN{around}{len(default)}{default}E"
            around = name[nested.end() : at]


def main() -> None:
    nm, plugin, folder, version = sys.argv[1:]
    exported: dict[str, int] = {}
    for library in LIBRARIES:
        for columns in symbols(nm, "--defined-only", "--print-size", Path(folder, library)):
            if len(columns) == 4 and columns[2] in OBJECTS:
                exported.setdefault(columns[3], int(columns[1], 16))
    used = list(symbols(nm, plugin))
    wanted = {name for columns in used for name in objects_of(columns[-1])}
    wanted |= {columns[-1] for columns in used if columns[-2] == "U"}
    sizes = {name: exported[name] for name in wanted if name in exported}
    if "_ZTVN3tsl9AllocatorE" not in sizes:
        raise SystemExit(f"{folder}: its libraries do not export what the plugin is built on")
    lines = [f"TensorFlow {version}", *(f"{sizes[name]} {name}" for name in sorted(sizes))]
    Path(plugin).with_suffix(".layout").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()

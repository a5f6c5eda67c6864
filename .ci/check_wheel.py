# SPDX-License-Identifier: Apache-2.0
"""Checks what auditwheel does not know: `check_wheel.py dist/rdmatensor-*.whl`.

That the wheel serves all Pythons, holds what it was built to hold, and no library of anybody else.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

NAME = re.compile(r"rdmatensor-[0-9.]+(\.dev\d+|rc\d+)?-cp310-abi3-manylinux_\d+_\d+_\w+\.whl")
FOLDERS = re.compile(r"rdmatensor|graph_analyzer|tensorflow-plugins|rdmatensor-[^/]+\.dist-info")
PLUGIN = "rdmatensor/librdmatensor_tensorflow_{}.{}"
OPERATIONS = "rdmatensor/librdmatensor_ops_{}.so"


def wanted(info: dict[str, str]) -> Iterator[str]:
    """Files that make the wheel work; `info` is what its build noted."""
    yield from ("rdmatensor/librdmatensor.so.0", "rdmatensor/_ffi.abi3.so", "rdmatensor/_ffi.pyi")
    yield "rdmatensor/librdmatensor_mpi.so"
    yield from ("rdmatensor/py.typed", "graph_analyzer/py.typed", "graph_analyzer/read/ops.def")
    yield from ("rdmatensor/softroce/guest/init", "graph_analyzer/report/page.html.j2")
    yield from ("graph_analyzer/parallel/page.html.j2",)
    versions = [text for text in info["tensorflow"].split(", ") if text]
    for minor in ("_".join(text.split(".")[:2]) for text in versions):
        yield from (PLUGIN.format(minor, kind) for kind in ("so", "layout"))
        yield OPERATIONS.format(minor)
    if versions:
        yield "tensorflow-plugins/librdmatensor_shim.so"


def faults(path: Path) -> Iterator[str]:
    """What is wrong with the wheel."""
    if not NAME.fullmatch(path.name):
        yield "its name is not that of a manylinux wheel for all Pythons (cp310-abi3)"
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        if "rdmatensor/_build_info.json" not in names:
            yield "it was not built by rdmatensor's own build"
            return
        info = json.loads(wheel.read("rdmatensor/_build_info.json"))
    needed = set(wanted(info))
    yield from (f"it lacks {name}" for name in sorted(needed - names))
    libraries = {name for name in names if ".so" in Path(name).suffixes}
    yield from (f"it has a library of others: {name}" for name in sorted(libraries - needed))
    strays = {name.split("/")[0] for name in names if not FOLDERS.fullmatch(name.split("/")[0])}
    yield from (f"it has a folder of others: {name}" for name in sorted(strays))
    if info["no_verbs_because"]:
        yield f"it has no verbs: {info['no_verbs_because']}"
    if info["sanitize"] != "none":
        yield f"it is built with the sanitizer {info['sanitize']}"


def main() -> None:
    """Exit status 1, and each fault on a line, if there are any."""
    for path in map(Path, sys.argv[1:]):
        found = list(faults(path))
        if found:
            raise SystemExit("\n".join(f"{path.name}: {fault}" for fault in found))
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: Apache-2.0
"""Python packages in a guest's own memory.

A guest reads this machine's files one request at a time, and an import looks at tens of thousands:
TensorFlow's took 200 s, and takes 50 s when its Python files lie in the guest's memory.
"""

from __future__ import annotations

import os
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path

SUFFIXES = (".py", ".pyc", ".json", ".txt")
LARGE = 1 << 20  # libraries from here on are linked to: they are read in large pieces anyway
# Ours is used from where it is installed, which stays in the path; of the rest, what nobody imports.
LEFT_OUT = {
    "rdmatensor",
    "tensorflow-plugins",
    "include",
    "pip",
    "mypy",
    "matplotlib",
    "sklearn",
    "scipy",
}


def files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        for name in names:
            path = Path(place, name)
            if (
                path.suffix in SUFFIXES
                or ".so" in path.suffixes
                or path.parent.suffix == ".dist-info"
            ):
                yield path


def pack(archive: Path) -> None:
    """Writes this interpreter's packages into an archive, for `tar -x` in a guest.

    TensorFlow looks for plugins only if the folder that it lies in is called site-packages.
    """
    packages = Path(sysconfig.get_paths()["purelib"])
    with tarfile.open(archive, "w") as tar:
        for path in files(packages):
            name = str(path.relative_to(packages))
            if ".so" in path.suffixes and path.stat().st_size >= LARGE:
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, str(path)
                tar.addfile(link)
            else:
                tar.add(path, name, recursive=False)

# SPDX-License-Identifier: Apache-2.0
"""Python packages in a guest's own memory.

A guest reads this machine's files one request at a time, and an import looks at tens of thousands:
TensorFlow's took 200 s, and takes 50 s when its Python files lie in the guest's memory.
"""

from __future__ import annotations

import io
import os
import sysconfig
import tarfile
from collections.abc import Iterator
from pathlib import Path

SUFFIXES = (".py", ".pyc", ".json", ".txt")
LARGE = 1 << 20  # libraries from here on are linked to: they are read in large pieces anyway
# What TensorFlow, Keras and ours import. Others, and ours, are found where they are installed, which stays in
# the path.
PACKAGES = {
    "absl", "astunparse", "certifi", "charset_normalizer", "flatbuffers", "gast", "google", "h5py", "idna",
    "keras", "markdown_it", "mdurl", "ml_dtypes", "namex", "numpy", "opt_einsum", "optree", "packaging",
    "pygments", "requests", "rich", "scipy", "six.py", "tensorflow", "termcolor", "typing_extensions.py",
    "urllib3", "wrapt",
}  # fmt: skip
LEFT_OUT = {"include", "tests"}
# Keras imports them where they are, for what is not used there.
OPTIONAL = ("PIL", "matplotlib", "sklearn")
MISSING = b"raise ImportError\n"


def files(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        if Path(place) == folder:
            folders[:] = [name for name in folders if name.removesuffix(".libs") in PACKAGES]
            names = [name for name in names if name in PACKAGES]
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        for name in names:
            path = Path(place, name)
            if path.suffix in SUFFIXES or ".so" in path.suffixes:
                yield path


def pack(archive: Path) -> None:
    """Writes this interpreter's packages into an archive, for `tar -x` in a guest.

    TensorFlow looks for plugins only if the folder that it lies in is called site-packages.
    """
    packages = Path(sysconfig.get_paths()["purelib"])
    with tarfile.open(archive, "w") as tar:
        for name in OPTIONAL:
            module = tarfile.TarInfo(f"{name}.py")
            module.size = len(MISSING)
            tar.addfile(module, io.BytesIO(MISSING))
        for path in files(packages):
            name = str(path.relative_to(packages))
            if ".so" in path.suffixes and path.stat().st_size >= LARGE:
                link = tarfile.TarInfo(name)
                link.type, link.linkname = tarfile.SYMTYPE, str(path)
                tar.addfile(link)
            else:
                tar.add(path, name, recursive=False)

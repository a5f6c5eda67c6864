# SPDX-License-Identifier: Apache-2.0
"""Finds an installed TensorFlow without importing it (importing takes seconds and loads plugins).

Prints one line: "<version>;<package folder>", or nothing when there is none. Called by
CMakeLists.txt with the interpreter that the package is built for.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import sysconfig
from pathlib import Path

DISTRIBUTIONS = re.compile(r"(tensorflow|tensorflow_cpu)-(\d[^-]*)\.dist-info", re.IGNORECASE)


def candidates() -> list[Path]:
    """Folders that may be the `tensorflow` package, the most explicit first."""
    chosen = os.environ.get("RDMATENSOR_TENSORFLOW")
    if chosen:
        return [Path(chosen)]
    found = []
    spec = importlib.util.find_spec("tensorflow")
    if spec is not None and spec.origin:
        found.append(Path(spec.origin).parent)
    # pip's build isolation hides site-packages from sys.path, but not where it is: a plugin built
    # against the TensorFlow of the environment that it is being installed into is what is wanted.
    found += [Path(sysconfig.get_path(key)) / "tensorflow" for key in ("purelib", "platlib")]
    return found


def version_of(package: Path) -> str | None:
    """The version in the metadata beside `package`; its headers do not tell."""
    for entry in sorted(package.parent.glob("*.dist-info")):
        match = DISTRIBUTIONS.fullmatch(entry.name)
        if match:
            return match.group(2)
    return None


def main() -> None:
    for package in candidates():
        version = version_of(package) if (package / "include").is_dir() else None
        if version is not None:
            sys.stdout.write(f"{version};{package.resolve()}")
            return


if __name__ == "__main__":
    main()

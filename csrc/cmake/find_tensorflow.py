# SPDX-License-Identifier: Apache-2.0
"""Finds an installed TensorFlow without importing it (importing takes seconds and loads plugins).

Prints one line: "<version>;<package folder>", or nothing when there is none. RDMATENSOR_TENSORFLOW names the
folder, or several (with ":" between them) for a plugin for each: the line has a pair for each then, the
oldest first. Called by CMakeLists.txt with the interpreter that the package is built for.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import sysconfig
from pathlib import Path

DISTRIBUTIONS = re.compile(r"(tensorflow|tensorflow_cpu)-(\d[^-]*)\.dist-info", re.IGNORECASE)


def named() -> list[Path]:
    """The folders of RDMATENSOR_TENSORFLOW."""
    text = os.environ.get("RDMATENSOR_TENSORFLOW", "")
    return [Path(name) for name in text.split(os.pathsep) if name]


def candidates() -> list[Path]:
    """Folders that may be the `tensorflow` package of this environment, the most likely first."""
    found = []
    spec = importlib.util.find_spec("tensorflow")
    if spec is not None and spec.origin:
        found.append(Path(spec.origin).parent)
    # pip's build isolation hides site-packages from sys.path, but not where it is: a plugin built
    # against the TensorFlow of the environment that it is being installed into is what is wanted.
    found += [Path(sysconfig.get_path(key)) / "tensorflow" for key in ("purelib", "platlib")]
    return found


def version_of(package: Path) -> str | None:
    """The version in the metadata beside `package`, if its headers are there; they do not tell."""
    if not (package / "include").is_dir():
        return None
    for entry in sorted(package.parent.glob("*.dist-info")):
        match = DISTRIBUTIONS.fullmatch(entry.name)
        if match:
            return match.group(2)
    return None


def minor(found: tuple[str, Path]) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", found[0])[:2]]


def main() -> None:
    chosen = named()
    found = [(version, path) for path in chosen or candidates() if (version := version_of(path))]
    if len(chosen) > len(found) > 0:
        missing = sorted({str(path) for path in chosen} - {str(path) for _, path in found})
        raise SystemExit(f"RDMATENSOR_TENSORFLOW: no TensorFlow in {', '.join(missing)}")
    pairs = sorted(found, key=minor) if chosen else found[:1]
    sys.stdout.write(";".join(f"{version};{path.resolve()}" for version, path in pairs))


if __name__ == "__main__":
    main()

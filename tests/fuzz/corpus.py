# SPDX-License-Identifier: Apache-2.0
"""Corpora: one archive for each harness, so that a few hundred inputs are not as many files of the sources.

An input is named after its contents, as libFuzzer does. The same inputs make the same archive.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "corpus"


def archive(harness: str) -> Path:
    """Where the corpus of a harness lies."""
    return FOLDER / f"{harness}.tar.xz"


def read(harness: str) -> set[bytes]:
    """The inputs of a harness; none if it has no corpus yet."""
    if not archive(harness).exists():
        return set()
    with tarfile.open(archive(harness)) as tar:
        return {file.read() for file in map(tar.extractfile, tar) if file}


def write(harness: str, inputs: Iterable[bytes]) -> None:
    """Makes these inputs the corpus of a harness."""
    FOLDER.mkdir(exist_ok=True)
    named = {hashlib.sha1(each, usedforsecurity=False).hexdigest(): each for each in inputs}
    with tarfile.open(archive(harness), "w:xz", format=tarfile.USTAR_FORMAT) as tar:
        for name in sorted(named):
            entry = tarfile.TarInfo(name)  # without an owner and a date
            entry.size = len(named[name])
            tar.addfile(entry, io.BytesIO(named[name]))


def unpack(harness: str, folder: Path) -> Path:
    """Writes the inputs of a harness into a folder, as the only files there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for each in read(harness):
        (folder / hashlib.sha1(each, usedforsecurity=False).hexdigest()).write_bytes(each)
    return folder

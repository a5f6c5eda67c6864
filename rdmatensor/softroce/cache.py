# SPDX-License-Identifier: Apache-2.0
"""The folder of what was downloaded and built, shared by all labs of a user."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .errors import Unavailable


def folder() -> Path:
    """$XDG_CACHE_HOME/rdmatensor/softroce, by default below ~/.cache. Made when it is missing.

    Unavailable when it cannot be written.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(base) / "rdmatensor" / "softroce"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(
            f"cannot make the cache folder {path}: {error.strerror}; "
            "set XDG_CACHE_HOME to a folder that you may write"
        ) from error
    return path


@contextmanager
def locked() -> Iterator[Path]:
    """The folder, for this process and thread alone: one downloads, the others wait and find it."""
    path = folder()
    with (path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield path


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to fill; it becomes `target` when the block ends, and vanishes when it raises.

    So what stands under its name is complete. To be used under locked().
    """
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=target.parent))
    try:
        yield draft
        draft.chmod(0o755)
        if target.exists():
            shutil.rmtree(target)
        draft.rename(target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)

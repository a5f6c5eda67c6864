# SPDX-License-Identifier: Apache-2.0
"""The cache folder holds downloaded kernels and emulators. All labs of a user share it."""

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
    """Return $XDG_CACHE_HOME/rdmatensor/softroce (~/.cache by default) and create it if missing.

    Raises Unavailable if it cannot be created.
    """
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    path = Path(base) / "rdmatensor" / "softroce"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(
            f"cannot create the cache folder {path}: {error.strerror}; "
            "set XDG_CACHE_HOME to a writable folder"
        ) from error
    return path


@contextmanager
def locked() -> Iterator[Path]:
    """Hold an exclusive lock of the folder within the block: one process downloads while the others wait."""
    path = folder()
    with (path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield path


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Provide a draft folder that becomes `target` when the block ends, or is removed if it raises.

    A folder named `target` is therefore always complete. Use this under locked().
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

# SPDX-License-Identifier: Apache-2.0
"""Files that are whole or not there at all, also after the host has gone down."""

from __future__ import annotations

import errno
import os
from pathlib import Path

# Some file systems cannot do it with folders.
_REFUSED = {errno.EINVAL, errno.ENOTSUP, errno.ENOSYS}


def sync(path: Path) -> None:
    """Waits until the disk has the content of a file, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not (path.is_dir() and error.errno in _REFUSED):
            raise
    finally:
        os.close(descriptor)


def put(written: Path, file: Path) -> None:
    """Gives `file` the content of `written`, at once. The disk has it then, and all names in the folder."""
    sync(written)
    sync(file.parent)  # the names of what the new file speaks of
    written.replace(file)
    sync(file.parent)

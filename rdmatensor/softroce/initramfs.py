# SPDX-License-Identifier: Apache-2.0
"""The guest's first file system: busybox, modules, the init script and the agent, as a cpio archive."""

from __future__ import annotations

import hashlib
import os
import time
from importlib import resources
from pathlib import Path

from . import cache
from .kernel import Kernel

_FOLDER = 0o040755
_PROGRAM = 0o100755
_FILE = 0o100644

OLD_SECONDS = 86400.0


def archive(files: dict[str, tuple[int, bytes]]) -> bytes:
    """A cpio archive in the "newc" format: {path: (mode, contents)}, folders before what is in them.

    Uncompressed: an emulated processor takes longer to unpack than to read it.
    """
    out = bytearray()
    entries = [*files.items(), ("TRAILER!!!", (0, b""))]
    for inode, (path, (mode, data)) in enumerate(entries, start=1):
        name = path.encode() + b"\0"
        # inode, mode, uid, gid, links, mtime, size, device and rdev numbers, length of the name, check
        fields = [inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0]
        out += b"070701" + b"".join(b"%08x" % field for field in fields) + name
        out += bytes(-len(out) % 4) + data
        out += bytes(-len(out) % 4)
    return bytes(out)


def ensure(kernel: Kernel) -> Path:
    """The archive for a kernel, made when the cache has none of the same contents."""
    guest = resources.files(__package__) / "guest"
    files = dict.fromkeys(("bin", "modules"), (_FOLDER, b""))
    files["bin/busybox"] = (_PROGRAM, kernel.busybox.read_bytes())
    files["init"] = (_PROGRAM, (guest / "init").read_bytes())
    for name in ("agent.py", "protocol.py"):
        files[name] = (_FILE, (guest / name).read_bytes())
    for module in kernel.modules:
        files[f"modules/{module.name}"] = (_FILE, module.read_bytes())
    data = archive(files)
    name = f"initramfs-{kernel.release}-{hashlib.sha256(data).hexdigest()[:16]}"
    path = cache.folder() / name
    if not path.exists():
        with cache.locked() as folder:
            draft = folder / f"{name}.{os.getpid()}"
            draft.write_bytes(data)
            _remove_old(folder)
            draft.rename(path)
    return path


def _remove_old(folder: Path) -> None:
    """Archives that no lab uses any more: QEMU reads them at once when it starts."""
    for path in folder.glob("initramfs-*"):
        if path.stat().st_mtime < time.time() - OLD_SECONDS:
            path.unlink()

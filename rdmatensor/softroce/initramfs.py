# SPDX-License-Identifier: Apache-2.0
"""Build a guest's first file system: a cpio archive of busybox, modules, the init script and the agent."""

from __future__ import annotations

from importlib import resources

from .kernel import Kernel

_FOLDER = 0o040755
_PROGRAM = 0o100755
_FILE = 0o100644


def archive(files: dict[str, tuple[int, bytes]]) -> bytes:
    """Pack {path: (mode, contents)} as a "newc" cpio archive. Folders must precede their contents.

    The archive is not compressed: an emulated processor unpacks more slowly than it reads.
    """
    out = bytearray()
    entries = [*files.items(), ("TRAILER!!!", (0, b""))]
    for inode, (path, (mode, data)) in enumerate(entries, start=1):
        name = path.encode() + b"\0"
        # inode, mode, uid, gid, links, mtime, size, four device numbers, length of the name, checksum
        fields = [inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0]
        out += b"070701" + b"".join(b"%08x" % field for field in fields) + name
        out += bytes(-len(out) % 4) + data
        out += bytes(-len(out) % 4)
    return bytes(out)


def build(kernel: Kernel) -> bytes:
    """Return the archive for a kernel."""
    guest = resources.files(__package__) / "guest"
    files = dict.fromkeys(("bin", "modules"), (_FOLDER, b""))
    files["bin/busybox"] = (_PROGRAM, kernel.busybox.read_bytes())
    files["init"] = (_PROGRAM, (guest / "init").read_bytes())
    for name in ("agent.py", "protocol.py"):
        files[name] = (_FILE, (guest / name).read_bytes())
    for module in kernel.modules:
        files[f"modules/{module.name}"] = (_FILE, module.read_bytes())
    return archive(files)

# SPDX-License-Identifier: Apache-2.0
"""Decompress kernel images and modules, because an emulated processor needs seconds to do so."""

from __future__ import annotations

import lzma
import re
import shutil
import subprocess
import zlib

from .errors import Unavailable

# Offsets in the real-mode header of Linux's x86 boot protocol.
_SETUP_SECTORS = 0x1F1
_MAGIC = 0x202
_PAYLOAD_OFFSET = 0x248
_PAYLOAD_LENGTH = 0x24C
_SECTOR = 512
# QEMU starts an uncompressed kernel at the address in this ELF note (owner "Xen", type PHYS32_ENTRY).
_PVH_NOTE = re.compile(rb"\x04\0\0\0[\x04\x08]\0\0\0\x12\0\0\0Xen\0")
_ZSTD = b"\x28\xb5\x2f\xfd"
_ZSTD_SECONDS = 60


def unpack(image: bytes) -> bytes | None:
    """Return the ELF kernel inside a bzImage, or None if QEMU must boot the image as it is."""
    if image[_MAGIC : _MAGIC + 4] != b"HdrS":
        return None
    start = (image[_SETUP_SECTORS] + 1) * _SECTOR + _number(image, _PAYLOAD_OFFSET)
    payload = image[start : start + _number(image, _PAYLOAD_LENGTH)]
    if payload.startswith(_ZSTD):
        payload = payload[:-4]  # the kernel's build appends the uncompressed length
    try:
        kernel = decompress(payload)
    except (OSError, lzma.LZMAError, zlib.error, subprocess.SubprocessError, Unavailable):
        return None
    return kernel if kernel.startswith(b"\x7fELF") and _PVH_NOTE.search(kernel) else None


def _number(image: bytes, offset: int) -> int:
    return int.from_bytes(image[offset : offset + 4], "little")


def decompress(data: bytes) -> bytes:
    """Decompress xz, gzip and zstd; return other data unchanged.

    Ignores bytes that follow xz and gzip data. Raises Unavailable if the program `zstd` is needed but
    missing.
    """
    if data.startswith(b"\xfd7zXZ"):
        return lzma.LZMADecompressor().decompress(data)
    if data.startswith(b"\x1f\x8b"):
        return zlib.decompressobj(wbits=16 + zlib.MAX_WBITS).decompress(data)
    if data.startswith(_ZSTD):
        if shutil.which("zstd") is None:
            raise Unavailable("this kernel is compressed with zstd: apt-get install zstd")
        command = ["zstd", "-dcq"]
        return subprocess.run(
            command, input=data, capture_output=True, timeout=_ZSTD_SECONDS, check=True
        ).stdout
    return data

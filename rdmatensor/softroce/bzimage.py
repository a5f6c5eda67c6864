# SPDX-License-Identifier: Apache-2.0
"""The kernel inside a compressed kernel image. An emulated processor takes a second to unpack it."""

from __future__ import annotations

import gzip
import lzma
import re
import shutil
import subprocess

# Offsets in the real-mode header, of Linux's x86 boot protocol.
_SETUP_SECTORS = 0x1F1
_MAGIC = 0x202
_PAYLOAD_OFFSET = 0x248
_PAYLOAD_LENGTH = 0x24C
_SECTOR = 512
# An ELF note of owner "Xen" and type 18 (PHYS32_ENTRY): where QEMU starts an unpacked kernel.
_PVH_NOTE = re.compile(rb"\x04\0\0\0[\x04\x08]\0\0\0\x12\0\0\0Xen\0")


def unpack(image: bytes) -> bytes | None:
    """The ELF kernel of a bzImage, if QEMU can boot it; None: boot the image as it is."""
    if image[_MAGIC : _MAGIC + 4] != b"HdrS":
        return None
    start = (image[_SETUP_SECTORS] + 1) * _SECTOR + _number(image, _PAYLOAD_OFFSET)
    payload = image[start : start + _number(image, _PAYLOAD_LENGTH)]
    kernel = _decompressed(payload)
    if kernel is None or not kernel.startswith(b"\x7fELF") or not _PVH_NOTE.search(kernel):
        return None
    return kernel


def _number(image: bytes, offset: int) -> int:
    return int.from_bytes(image[offset : offset + 4], "little")


def _decompressed(payload: bytes) -> bytes | None:
    # Behind the compressed data stands its length, which is no part of it.
    try:
        if payload.startswith(b"\x28\xb5\x2f\xfd") and shutil.which("zstd"):
            return subprocess.run(
                ["zstd", "-dcq"], input=payload[:-4], capture_output=True, check=True
            ).stdout
        if payload.startswith(b"\xfd7zXZ"):
            return lzma.LZMADecompressor().decompress(payload)
        if payload.startswith(b"\x1f\x8b"):
            return gzip.decompress(payload[:-4])
    except (OSError, EOFError, lzma.LZMAError, subprocess.CalledProcessError):
        pass
    return None

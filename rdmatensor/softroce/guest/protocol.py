# SPDX-License-Identifier: Apache-2.0
"""Frames between the lab and the agent of a guest, over one virtio-serial port.

A frame is a header of 9 bytes (length of the payload, kind, number of the process it is about), all
little-endian, and the payload. The agent imports this file too, under an emulated processor: keep its
imports at none.
"""

from __future__ import annotations

HEADER_BYTES = 9
# Both sides send less than this at once; more is a broken stream.
MAX_PAYLOAD = 1 << 20

# From the lab.
START = 1  # payload: see pack_start
STDIN = 2  # bytes for the process; none: end of file
SIGNAL = 3  # decimal signal number, for the process alone
SIGNAL_GROUP = 4  # the same, for the process and its children
RESIZE = 5  # "rows columns" of the terminal
QUIT = 6  # write everything back, then answer BYE

# From the agent.
READY = 65  # kernel release
STARTED = 66  # decimal pid in the guest
STDOUT = 67
STDERR = 68
EXIT = 69  # decimal exit status, negative: the signal that ended it
BYE = 70


class BrokenStream(Exception):
    """What came is no frame."""


def pack(kind: int, number: int = 0, payload: bytes = b"") -> bytes:
    """One frame. The payload is at most MAX_PAYLOAD bytes."""
    header = len(payload).to_bytes(4, "little") + bytes([kind]) + number.to_bytes(4, "little")
    return header + payload


class Parser:
    """Frames out of a byte stream. Not thread-safe."""

    def __init__(self) -> None:
        self._pending = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, int, bytes]]:
        """The frames (kind, number, payload) that are complete with `data`.

        BrokenStream when a length cannot be one.
        """
        pending = self._pending
        pending += data
        frames = []
        at = 0
        while len(pending) - at >= HEADER_BYTES:
            length = int.from_bytes(pending[at : at + 4], "little")
            if length > MAX_PAYLOAD:
                raise BrokenStream(f"a frame of {length} bytes")
            end = at + HEADER_BYTES + length
            if len(pending) < end:
                break
            number = int.from_bytes(pending[at + 5 : at + 9], "little")
            frames.append((pending[at + 4], number, bytes(pending[at + HEADER_BYTES : end])))
            at = end
        del pending[:at]
        return frames


def pack_start(argv: list[str], env: dict[str, str], cwd: str, terminal: str) -> bytes:
    """The payload of START; `terminal` is "rows columns", or "" for pipes.

    The strings cannot contain NUL, which no argument, path or environment can.
    """
    fields = [cwd, terminal, str(len(argv)), *argv, *(f"{k}={v}" for k, v in env.items())]
    return "\0".join(fields).encode("utf-8", "surrogateescape")


def unpack_start(payload: bytes) -> tuple[list[str], dict[str, str], str, str]:
    """The inverse of pack_start."""
    cwd, terminal, count, *rest = payload.decode("utf-8", "surrogateescape").split("\0")
    argv, variables = rest[: int(count)], rest[int(count) :]
    env = dict(variable.split("=", 1) for variable in variables)
    return argv, env, cwd, terminal
